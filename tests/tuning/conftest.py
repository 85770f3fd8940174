"""The command line, as the tests of the command line have it."""

from tests.cli.conftest import here, workbench

__all__ = ["here", "workbench"]
