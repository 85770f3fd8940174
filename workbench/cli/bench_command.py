"""``workbench bench``: measure here what this package claims about time."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from workbench.cli.output import DeviceOption, JsonOption, only_result_on_stdout, plain, print_json, print_table, say

if TYPE_CHECKING:
    from workbench.bench import Answer, Benchmark, Finding


def bench(
    names: list[str] = typer.Argument(
        None, metavar="[NAME...]", help="Benchmarks, or `all`. Default: the quick ones.", show_default=False
    ),
    rounds: int = typer.Option(None, metavar="N", min=1, help="Rounds of each. Default: its own.", show_default=False),
    out: Path = typer.Option(
        None, metavar="DIR", help="Folder, made when missing, for NAME.json and results.md over all."
    ),
    peers: bool = typer.Option(False, "--peers", help="Measure other packages that do the same, too, where installed."),
    device: str = DeviceOption,
    listed: bool = typer.Option(False, "--list", help="Name the benchmarks and their questions, and measure nothing."),
    json: bool = JsonOption,
) -> None:
    """Measure what the workbench costs and saves on this machine, with intervals.

    Sides of a ratio take turns in one process, so a busy machine slows both; an idle one gives narrower intervals.
    """
    with only_result_on_stdout(json):
        from workbench.bench import chosen
        from workbench.bench.result_page import shown_findings

        wanted = chosen(names or [])
        answers = [] if listed else _measured(wanted, rounds, peers=peers, device=device, out=out)
    if listed:
        _print_names(json=json)
    elif json:
        print_json({"answers": [answer.to_dict() for answer in answers]})
    else:
        _say(answers, {} if names else {one.name: shown_findings(one.name, one.findings) for one in answers})


def _print_names(*, json: bool) -> None:
    from workbench.bench import benchmarks

    entries = list(benchmarks().values())
    if json:
        print_json({"benchmarks": [{"name": b.name, "question": b.question, "quick": b.quick} for b in entries]})
    else:
        rows = [(b.name, "yes" if b.quick else "no", b.question) for b in entries]
        print_table(("name", "run by default", "question"), rows)


def _measured(
    wanted: Sequence[Benchmark], rounds: int | None, *, peers: bool, device: str, out: Path | None
) -> list[Answer]:
    """Run benchmarks one after the other, and keep what is known after each."""
    from workbench.bench import run_benchmark
    from workbench.bench.result_page import page, read_answers
    from workbench.cli.progress import progress_bar
    from workbench.core.devices import select_device
    from workbench.core.files import write_text_atomically
    from workbench.core.other_work import other_work_now

    place = None if device == "auto" else select_device(device)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # now: an hour later would be too late to say that it cannot be
    if warning := other_work_now().sentence():
        say(f"{warning}.")  # now, while one can still wait for a quieter time
    answers = []
    with progress_bar(len(wanted), wanted[0].name) as bar:
        for number, benchmark in enumerate(wanted):
            bar.update(number, text=benchmark.name)
            answers.append(run_benchmark(benchmark, rounds, peers=peers, device=place))
            if out is not None:
                text = json_text.dumps(plain(answers[-1].to_dict()), indent=2, allow_nan=False)
                write_text_atomically(out / f"{benchmark.name}.json", text + "\n")
                write_text_atomically(out / "results.md", page(read_answers(out)))
        bar.update(len(wanted))
    return answers


def _say(answers: list[Answer], shown: Mapping[str, list[Finding]]) -> None:
    """Print what was found; for benchmarks with findings to show, only those."""
    for answer in answers:
        say(f"{answer.name}: {answer.question}")
        rows = [_row(finding) for finding in shown.get(answer.name) or answer.findings]
        print_table(("measured", "value", "95 % interval", "goal", "verdict", "note"), rows)
        say("")
    for answer in answers:
        if answer.warning:
            say(answer.warning)
    machine = answers[-1].environment
    versions = machine["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("boost-workbench", "torch", "plotly") if name in versions)
    threads = machine["device"]["torch_threads"]
    say(f"{machine['cpu']}, {machine['cores']} cores, {threads} threads of torch; Python {machine['python']}, {named}")


def _row(finding: Finding) -> tuple[str, ...]:
    from workbench.bench.result_page import scale_and_unit

    estimate = finding.estimate
    if estimate is None:
        return (finding.what, "-", "-", "-", finding.verdict, finding.note)
    scale, unit = scale_and_unit(finding.unit, estimate.value)
    digits = 3 if scale == 1.0 else 1

    def text(value: float) -> str:
        return f"{value * scale:.{digits}f}"

    goal = "-" if finding.goal is None else text(finding.goal) + unit
    interval = f"{text(estimate.low)} to {text(estimate.high)}"
    return (finding.what, text(estimate.value) + unit, interval, goal, finding.verdict or "-", finding.note)
