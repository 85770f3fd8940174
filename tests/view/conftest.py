"""A folder with a run, and a server of it that is closed again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import pytest

from workbench.core.records import Event, EventKind, StepRecord
from workbench.runs import RunRecorder
from workbench.view import Pages, ViewServer


def record_run(root: Path, name: str, *, level: str = "O0", finish: bool = True, n: int = 40) -> RunRecorder:
    """Write a run whose loss falls and whose accuracy rises; without ``finish`` it goes on."""
    recorder = RunRecorder.create(root, {}, {"task": "wine", "level": level, "seed": 0}, name)
    recorder.write([StepRecord(step, step * 0.01, 10.0, 1.0 / (1 + step)) for step in range(n)])
    recorder.emit(Event(n - 1, EventKind.EVALUATION, "accuracy", 0.9, "accuracy 0.9"))
    recorder.write([])
    if finish:
        recorder.finish({"metric": 0.9, "metric_name": "accuracy", "higher_is_better": True})
    return recorder


@dataclass
class Visitor:
    """Asks a server of pages as a browser does."""

    server: ViewServer
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, *, token: bool = True, host: str | None = None) -> tuple[int, str]:
        """Return status and text of an address below the token, or of one without it."""
        connection = HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        place = f"/{self.server.token}/{path}" if token else path
        connection.putrequest("GET", place, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.server.server_port}")
        connection.endheaders()
        with connection.getresponse() as answer:
            self.headers = dict(answer.getheaders())
            text = answer.read().decode()
        connection.close()
        return answer.status, text


def served() -> Iterator[Callable[[Path], Visitor]]:
    """Yield a function that serves a folder until the next step."""
    with ExitStack() as stack:

        def serve(root: Path) -> Visitor:
            server = ViewServer(Pages(root))
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return Visitor(server)

        yield serve


@pytest.fixture
def visit() -> Iterator[Callable[[Path], Visitor]]:
    """Return a function that serves a folder for the length of a test."""
    yield from served()
