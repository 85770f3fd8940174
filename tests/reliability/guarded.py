"""Watch a reader of foreign data: what it loads, how much it takes, and how it refuses."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from workbench.cli.failures import WRONG_INPUT, exit_code_of, sentence_of

__all__ = ["FUZZ", "bounded_memory", "no_foreign_code", "result_or_sentence"]

_SPARE_BYTES = 1 << 30  # what a reader of a file of kilobytes may take; torch's and Arrow's pools are well below

FUZZ = settings(
    max_examples=int(os.environ.get("WORKBENCH_FUZZ_EXAMPLES", "5")),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a smaller damaged file says no more, and takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""How many examples a fuzzed reader gets; a campaign raises it: ``WORKBENCH_FUZZ_EXAMPLES=20000``."""

_FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "shutil.rmtree")
_watching = threading.local()
_hooked: list[bool] = []


@contextmanager
def no_foreign_code() -> Iterator[list[str]]:
    """Note everything in this thread that builds what a pickle names, or starts a program; fail when there was some."""
    if not _hooked:  # a hook cannot be taken away again, so there is one for all tests, asleep most of the time
        _hooked.append(True)
        sys.addaudithook(_listen)
    _watching.heard = heard = []
    try:
        yield heard
    finally:
        _watching.heard = None
    assert not heard, heard


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _FORBIDDEN and (heard := getattr(_watching, "heard", None)) is not None:
        heard.append(f"{event}{arguments}")


@contextmanager
def bounded_memory(spare_bytes: int = _SPARE_BYTES) -> Iterator[None]:
    """Refuse this process more address space than so much beyond what it has: a declared size must not be believed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def result_or_sentence(read: Callable[[], Any], *errors: type[BaseException]) -> Any:
    """Read; return the result, or the sentence of an error that is one of ``errors`` and the user's to mend.

    Args:
        read: What reads.
        errors: The documented errors.
    """
    caught: BaseException
    try:
        with bounded_memory(), no_foreign_code():
            return read()
    except errors as error:
        caught = error
    sentence = sentence_of(caught)
    assert exit_code_of(caught) == WRONG_INPUT, sentence
    assert sentence, "an error without words"
    assert "bug of the workbench" not in sentence
    assert len(sentence) < 2000, sentence
    return sentence
