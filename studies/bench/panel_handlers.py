"""How long does a click or an edit keep the kernel?

While a handler runs, the kernel executes no cell and answers no other click. All tabs of a workbench are open, so that
an edit of the shared configuration reaches every panel; every widget encodes its messages as in a kernel. The page's
own time is not in it. Each round makes a new workbench; the second half repeats it while a run trains in the
background and competes for the interpreter.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from workbench.bench import Benchmark, Estimate, Finding, Request, interleaved, median_of
from workbench.config import BoostConfig
from workbench.panels import Panel, Workbench

from .kernel_messages import everything_in, speak_as_in_a_kernel, user_sets
from .recorded import record_run, steps_and_events

_GOAL_SECONDS = 0.1
_LONGEST_SECONDS = 120.0
_TABS = ("Configure", "Train", "Loss scale", "Tune", "Compare", "Export")
_OPENING = "Tabs, opened for the first time"  # which makes their panels
_ENDLESS = 1_000_000

Action = tuple[str, str, Callable[[], None]]
"""Tab, what a person does there, and a function that does it."""


def measure(request: Request, *, task: str = "digits-lenet", steps: int = 10_000) -> list[Finding]:
    """Measure the handlers of all panels, and say for each panel which takes longest.

    The recorded run on show, and the trace in the Train panel, have so many steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = record_run(Path(folder) / "runs", steps)
        sessions = [_session(task, run, steps, training=training) for training in (False, True)]
        rows = interleaved(sessions, request.rounds)
        taken = [dict(zip(("idle", "training"), row, strict=True)) for row in rows]
    findings = []
    for condition in ("idle", "training"):
        for tab in (*_TABS, _OPENING):
            of_tab = {
                what: [times[condition][where, what] for times in taken]
                for where, what in taken[0][condition]
                if where == tab
            }
            findings.append(_longest(tab, condition, of_tab))
    return findings


def _longest(tab: str, condition: str, times: dict[str, list[float]]) -> Finding:
    """Return the handler of a tab with the largest median; the slowest single call of any is told beside it."""
    medians: dict[str, Estimate] = {what: median_of(values) for what, values in times.items()}
    what = max(medians, key=lambda name: medians[name].value)
    slowest = 1e3 * max(max(values) for values in times.values())
    when = "kernel idle" if condition == "idle" else "while training"
    note = f"{what}; slowest of all {len(times)} handlers in any round {slowest:.0f} ms"
    return Finding(f"{tab}, {when}", "s", medians[what], _GOAL_SECONDS, note)


def _session(task: str, run: Path, steps: int, *, training: bool) -> Callable[[], dict[tuple[str, str], float]]:
    """Return a function that makes a workbench, does every handler once and returns seconds by tab and action."""

    def session() -> dict[tuple[str, str], float]:
        # Held as an iterator because some actions exist only once others were done.
        with (
            tempfile.TemporaryDirectory() as folder,
            Workbench(task, level="O0", out=run.parent, studies=folder, device="cpu") as bench,
        ):
            taken = {}
            for tab, what, act in _actions(bench, steps, Path(folder), training=training):
                speak_as_in_a_kernel(bench.widget)
                began = time.perf_counter()
                act()
                taken[tab, what] = time.perf_counter() - began
            return taken

    return session


def _actions(bench: Workbench, steps: int, folder: Path, *, training: bool) -> Iterator[Action]:
    train = bench.panel("Train")
    train.where.out.value, train.measure.value = "", False
    if training:
        train.steps.set(_ENDLESS)
        train.start()
        _until(train, "a run is under way", lambda: len(train.trace.steps) > 0)
    for number, tab in enumerate(_TABS):
        if tab not in ("Configure", "Train"):  # the first is there from the start, the other one was needed above
            yield _OPENING, f"open {tab}", lambda number=number: _opens(bench, number)
    yield from _configure(bench.panel("Configure"))
    if training:
        yield "Train", "Pause", train.pause_button.click
        yield "Train", "Resume", train.pause_button.click
        yield "Train", "look at another figure", lambda: user_sets(train.choice, 1, "index")
    else:
        for block, events in steps_and_events(steps):
            train.trace.add(block, events)
        for index in (*range(1, len(train.choice.options)), 0):
            yield "Train", f"look at figure {index + 1}", lambda index=index: user_sets(train.choice, index, "index")
    yield from _loss_scale(bench.panel("Loss scale"))
    yield from _tune(bench.panel("Tune"))
    yield from _compare_and_export(bench, folder)
    if training:
        yield "Train", "Stop", train.stop_button.click
    else:
        train.steps.set(1)
        yield "Train", "Start", train.start_button.click
    if not train.wait(_LONGEST_SECONDS):
        raise RuntimeError("the run of the Train panel did not end")


def _configure(panel: Any) -> Iterator[Action]:
    tab = "Configure"
    titles = panel.sections.titles
    for index, title in enumerate(titles):
        yield tab, f"open the section {title}", lambda index=index: user_sets(panel.sections, index, "selected_index")
    yield tab, "preset O2", lambda: user_sets(panel.preset.buttons, 2, "index")
    yield tab, "turn a switch", lambda: user_sets(panel.switches["grad_freeze"], False)
    slider = _first(panel.control("grad_freeze.freeze_p").widget, widgets.FloatSlider)
    yield tab, "move a slider", lambda: user_sets(slider, 0.3)
    box = _first(panel.control("loss_scale.init").widget, widgets.Text)
    yield tab, "type a number", lambda: user_sets(box, "2^14")
    text = json.dumps(BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": True}}).to_dict())
    yield tab, "edit the JSON", lambda: user_sets(panel.json, text)


def _loss_scale(panel: Any) -> Iterator[Action]:
    tab = "Loss scale"
    _until(panel, "the runs are listed", lambda: len(panel.runs.options) > 0)
    yield tab, "choose a run", lambda: user_sets(panel.runs, 0, "index")
    _until(panel, "the run is open", lambda: not panel.state.busy and bool(panel.policies))
    panel.wait_for_answer(_LONGEST_SECONDS)
    slider = _first(panel.control("loss_scale.init").widget, widgets.FloatLogSlider)
    yield tab, "move a slider", lambda: user_sets(slider, 2.0**13)
    panel.wait_for_answer(_LONGEST_SECONDS)
    yield tab, "pick a judged policy", lambda: user_sets(panel.choice, 3, "index")
    panel.wait_for_answer(_LONGEST_SECONDS)
    yield tab, "Use this policy", panel.use_button.click
    yield tab, "Compare", panel.judge_button.click
    _until(panel, "policies are judged", lambda: not panel.state.busy)
    panel.wait_for_answer(_LONGEST_SECONDS)


def _tune(panel: Any) -> Iterator[Action]:
    tab = "Tune"
    box = _first(panel.entries["study.n_trials"].widget, widgets.Text)
    yield tab, "type the number of trials", lambda: user_sets(box, "40")
    entry = _first(panel.space.widget, widgets.Text)
    yield tab, "edit what is searched", lambda: user_sets(entry, "3")
    for index in (1, 2, 0):
        yield tab, f"look at view {index + 1}", lambda index=index: user_sets(panel.view, index, "index")


def _compare_and_export(bench: Workbench, folder: Path) -> Iterator[Action]:
    compare, export = bench.panel("Compare"), bench.panel("Export")
    side = compare.sides[1].source
    yield "Compare", "choose what is compared", lambda: user_sets(side, list(side.options).index("O2"), "index")
    yield "Export", "type a folder", lambda: user_sets(export.folder, str(folder))
    yield "Export", "choose what is exported", lambda: user_sets(export.choice, 0, "index")
    yield "Export", "Save", export.save_button.click


def _opens(bench: Workbench, number: int) -> None:
    user_sets(bench.tabs, number, "selected_index")


def _first(root: widgets.Widget, kind: type[widgets.Widget]) -> widgets.Widget:
    """Return the first widget of a kind inside another."""
    found = [each for each in everything_in(root) if isinstance(each, kind)]
    if not found:
        raise LookupError(f"no {kind.__name__} stands in {root!r}; the benchmark has to follow the panel")
    return found[0]


def _until(panel: Panel, what: str, condition: Callable[[], bool]) -> None:
    """Wait for what a panel does in the background."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        if panel.error is not None or time.monotonic() > deadline:
            why = panel.error or f"{panel.state} after {_LONGEST_SECONDS:g} s"
            raise RuntimeError(f"{panel.title}: waited in vain until {what} ({why})") from panel.error
        time.sleep(0.005)


BENCHMARK = Benchmark(
    "panel_handlers",
    "How long does a click or an edit keep the kernel?",
    measure,
    rounds=10,
    place=20,
    group="panels",
    quick=True,
    shown=("Train, while training", "Tabs, opened for the first time, while training"),
)
