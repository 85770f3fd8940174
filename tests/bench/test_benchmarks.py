"""Every benchmark, at sizes too small to mean anything: it runs, and its numbers are what its words say."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import ipywidgets as widgets
import pytest
import torch

from workbench.bench import Finding, Request
from workbench.bench.questions import (
    commands,
    kernel_messages,
    live_panel,
    open_run,
    panel_handlers,
    recorded,
    reduction,
    study,
    trace,
)
from workbench.bench.rounds import interleaved
from workbench.runs import read_run
from workbench.runs.replay import replay
from workbench.runs.replayed_run import recorded_policy


def check(findings: Sequence[Finding], units: str, rounds: int) -> None:
    assert "".join(finding.unit for finding in findings) == units
    for finding in findings:
        assert finding.estimate is not None, finding
        assert finding.estimate.rounds == rounds, finding
        assert math.isfinite(finding.estimate.high), finding
        assert 0 < finding.estimate.low <= finding.estimate.value <= finding.estimate.high, finding


def request(rounds: int) -> Request:
    return Request(rounds, device=torch.device("cpu"))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("workbench ")]


@pytest.mark.long
def test_live_panel_trains_with_the_display_at_work_and_at_rest() -> None:
    # Of 300 steps, since the display looks five times a second and a step may take a millisecond only.
    turns, display, beside = live_panel.measure(request(1), task="digits-lenet", turn=300, pairs=2)
    check([turns], "x", 2)  # two pairs of turns in the run after the warm-up
    check([display], "x", 1)
    assert beside.estimate.low <= beside.estimate.value <= beside.estimate.high  # either side of 1 in so short a run
    assert our_threads() == []


def test_trace_times_three_copies() -> None:
    check(trace.measure(request(2), task="digits-lenet", steps=2), "xxsx", 2)


def test_open_run_reads_draws_and_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory_here(path: Path, short: Path) -> float:  # not in a process of its own, which would take seconds
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            open_run.print_memory(str(path), str(short))
        return float(printed.getvalue())

    monkeypatch.setattr(open_run, "_memory_of_drawing", memory_here)
    whole, drawn, memory, *others = open_run.measure(request(1), steps=300)
    check([whole, drawn, *others], "sssss", 1)
    assert memory.unit == "x"
    assert memory.estimate.low >= 0  # so short a run fits into what drawing one of 1,000 steps took
    assert our_threads() == []


@pytest.mark.long
def test_panel_handlers_go_through_every_tab_idle_and_while_training() -> None:
    findings = panel_handlers.measure(request(1), steps=200)
    check(findings, 14 * "s", 1)
    tabs = [finding.what.partition(",")[0] for finding in findings[:6]]
    assert tabs == ["Configure", "Train", "Loss scale", "Tune", "Compare", "Export"]
    assert our_threads() == []


@pytest.mark.long
def test_commands_are_timed_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "interleaved", functools.partial(interleaved, warm_up=0))
    found = commands.measure(Request(1), trials=4)
    assert len(found) == 9
    assert all(one.estimate is not None and one.estimate.value > 0.0 for one in found)


@pytest.mark.long
def test_reduction_joins_two_ranks() -> None:
    check(reduction.measure(request(2), task="digits-lenet", steps=2), "xxx", 2)


@pytest.mark.long
def test_a_rank_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 failed: .*no-such-task"):
        reduction.measure(request(1), task="no-such-task")


def test_the_generated_run_is_one_that_can_be_replayed(tmp_path: Path) -> None:
    run = read_run(recorded.record_run(tmp_path, 1500))
    policy = recorded_policy(run)
    assert len(run.steps) == 1500
    assert run.finished
    assert 0 < len(run.overflow_steps) < 100
    assert (run.steps["grad_exponents"].map(len) > 0).sum() == 150
    judged = replay(run, [policy])
    assert judged.table["overflows"].item() == len(run.overflow_steps)


def test_widgets_encode_what_they_send() -> None:
    box = widgets.VBox([widgets.Text("before"), widgets.IntSlider()])
    kernel_messages.speak_as_in_a_kernel(box)
    text = box.children[0]
    seen: list[str] = []
    text.observe(lambda change: seen.append(change["new"]), "value")
    text.observe(lambda change: setattr(text, "placeholder", "answered"), "value")
    before = text.comm.bytes_encoded
    kernel_messages.user_sets(text, "after")
    assert seen == ["after"]
    assert text.value == "after"
    assert text.comm.bytes_encoded > before + len("answered")
    encoders = [each.comm for each in kernel_messages.everything_in(box)]
    kernel_messages.speak_as_in_a_kernel(box)
    assert [each.comm for each in kernel_messages.everything_in(box)] == encoders  # those that there are stay
    box.close()


def test_study_overhead_tells_trials_of_a_study_and_of_plain_optuna() -> None:
    findings = study.measure(request(1), spaces=[3], trials=[2], evaluations=2)
    lines = [finding.what.rpartition(": ")[2] for finding in findings]
    assert lines == ["whole trial", "processor time", "plain Optuna", "ours / plain Optuna"]
    assert all(finding.estimate and 0 < finding.estimate.value < math.inf for finding in findings)
