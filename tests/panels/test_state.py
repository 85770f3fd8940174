from __future__ import annotations

import itertools
import threading

import pytest

from workbench.panels.panel import MOVES, PanelState, StateMachine

S = PanelState
LEGAL = {(source, target) for source, targets in MOVES.items() for target in targets}
WAYS = {
    S.IDLE: [],
    S.RUNNING: [S.RUNNING],
    S.PAUSED: [S.RUNNING, S.PAUSED],
    S.STOPPING: [S.RUNNING, S.STOPPING],
    S.DONE: [S.RUNNING, S.DONE],
    S.FAILED: [S.RUNNING, S.FAILED],
}


def machine_in(state: PanelState) -> tuple[StateMachine, list[PanelState]]:
    seen: list[PanelState] = []
    machine = StateMachine(seen.append)
    for move in WAYS[state]:
        machine.to(move)
    seen.clear()
    return machine, seen


@pytest.mark.parametrize(("source", "target"), sorted(LEGAL))
def test_a_legal_move_is_made_and_told_once(source: PanelState, target: PanelState) -> None:
    machine, seen = machine_in(source)
    machine.to(target)
    assert machine.state is target
    assert seen == [target]


@pytest.mark.parametrize(("source", "target"), sorted(set(itertools.product(S, S)) - LEGAL))
def test_an_illegal_move_is_an_error_and_changes_nothing(source: PanelState, target: PanelState) -> None:
    machine, seen = machine_in(source)
    with pytest.raises(RuntimeError, match=f"a panel that is {source} cannot become {target}"):
        machine.to(target)
    assert machine.state is source
    assert seen == []
    assert not machine.try_to(target)


def test_a_stop_can_follow_whatever_is_under_way_and_nothing_else() -> None:
    assert {source for source, target in LEGAL if target is S.STOPPING} == {S.RUNNING, S.PAUSED}


def test_busy_means_that_work_is_under_way() -> None:
    assert {state for state in S if state.busy} == {S.RUNNING, S.PAUSED, S.STOPPING}


def test_of_many_clicks_at_once_one_wins() -> None:
    machine, seen = machine_in(S.IDLE)
    together = threading.Barrier(8)
    won: list[bool] = []

    def click() -> None:
        together.wait()
        won.append(machine.try_to(S.RUNNING))

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(won) == [False] * 7 + [True]
    assert seen == [S.RUNNING]


def test_waiting_ends_with_the_state_or_with_the_time() -> None:
    machine, _ = machine_in(S.RUNNING)
    assert not machine.wait_for(S.DONE, timeout=0.01)
    threading.Timer(0.01, machine.to, [S.DONE]).start()
    assert machine.wait_for(S.DONE, S.FAILED, timeout=10)
