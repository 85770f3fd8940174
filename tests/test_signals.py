from __future__ import annotations

import signal
import threading

import pytest

from workbench.core.signals import handling_signals


def test_signals_are_handled_inside_the_block_and_given_back_whatever_happens() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    taken: list[int] = []

    def block() -> None:
        with handling_signals({signal.SIGTERM: lambda number, _: taken.append(number), signal.SIGINT: signal.SIG_IGN}):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        block()
    assert taken == [signal.SIGTERM]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_another_thread_takes_nothing() -> None:
    seen: list[object] = []

    def look() -> None:
        with handling_signals({signal.SIGTERM: signal.SIG_IGN}):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
