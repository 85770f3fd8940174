from __future__ import annotations

import threading

import pytest

from workbench.panels.panel import MOVES, PanelState, StateMachine

S = PanelState
WAYS = {
    S.IDLE: [],
    S.RUNNING: [S.RUNNING],
    S.PAUSED: [S.RUNNING, S.PAUSED],
    S.STOPPING: [S.RUNNING, S.STOPPING],
    S.STOPPED: [S.RUNNING, S.STOPPING, S.STOPPED],
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


@pytest.mark.parametrize("source", S)
def test_legal_moves_are_made_and_told_once_and_others_change_nothing(source: PanelState) -> None:
    for target in S:
        machine, seen = machine_in(source)
        if target in MOVES[source]:
            machine.to(target)
            assert (machine.state, seen) == (target, [target])
        else:
            with pytest.raises(RuntimeError, match=f"a panel that is {source} cannot become {target}"):
                machine.to(target)
            assert not machine.try_to(target)
            assert (machine.state, seen) == (source, [])


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
