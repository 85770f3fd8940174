"""The command ``workbench``.

Every command imports what it needs when it runs, so that ``workbench --help`` needs neither torch nor plotly.

Exit codes: 0 done, 1 the work failed, 2 the input is wrong (one sentence on stderr), 130 interrupted (state saved).
"""

from __future__ import annotations

import sys

import typer

from workbench.cli import config_commands, project_commands, run_commands, study_commands
from workbench.cli.failures import exit_code_of, sentence_of

__all__ = ["app", "main"]

app = typer.Typer(
    name="workbench",
    help="Find the fastest training configuration that keeps the accuracy you ask for.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
study_commands.register(app)
run_commands.register(app)
config_commands.register(app)
project_commands.register(app)


def main() -> None:
    """Run the command line and turn every failure into one sentence and an exit code."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; what was finished is saved", err=True)
        sys.exit(130)
    except Exception as error:
        code = exit_code_of(error)
        if code is None:  # a bug of ours or of the task's: the traceback is the message
            raise
        typer.echo(f"workbench: {sentence_of(error)}", err=True)
        sys.exit(code)
