"""Files that were valid once: bits flipped, cut off, spliced, and values that nobody expects."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["json_texts", "mutated", "odd_values"]

_DEEP = 20_000

odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**40, 10**400),
        *(0.5, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf),
        *("", "auto", "../../etc/passwd", "/dev/zero", "\x00", "\ud800", "\x1b[31m", "é" * 40, "x" * 5000, "9" * 30),
        *("now", "2262-12-31"),
        *([], [[]], [None], [math.nan, 1], ["a", 1], {}, {"": None}, {"a": {"a": {"a": {}}}}, [0] * 300),
    ]
)

_PIECES = [
    *(b"", b"\x00", b"\x00" * 64, b"\xff" * 8, b"\n", b"\r", b"\t", b'"', b"\\u0000", b"\\ud800"),
    *(b"[" * _DEEP, b'{"a":' * _DEEP, b"(" * _DEEP),
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"18446744073709551616", b"-1", b"null", b"true"),
    *(codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b"\xf0\x28\x8c\x28", b"'''", b'"""', b"1979-99-99T99:99:99Z"),
    *(b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff\xff\xff\x7f"),
]

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_NUMBERS = [
    *(b"-1", b"0", b"1e999", b"NaN", b"9223372036854775808", b"9" * 400, b"9" * 5000, b"0x10", b"1_0", b"null", b'"1"')
]


@st.composite
def mutated(draw: st.DrawFn, valid: bytes | Sequence[bytes], most: int = 4) -> bytes:
    """Draw a valid file after one to ``most`` mutations.

    Args:
        valid: A file's content, or several to choose from.
        most: Most mutations.
    """
    content = valid if isinstance(valid, bytes) else draw(st.sampled_from(list(valid)))
    for _ in range(draw(st.integers(1, most))):
        content = draw(st.sampled_from(_KINDS))(draw, content)
    return content


def _place(draw: st.DrawFn, content: bytes) -> int:
    return draw(st.integers(0, len(content)))


def _flip(draw: st.DrawFn, content: bytes) -> bytes:
    if not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    return content[:at] + bytes([content[at] ^ (1 << draw(st.integers(0, 7)))]) + content[at + 1 :]


def _replace(draw: st.DrawFn, content: bytes) -> bytes:
    if not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]


def _cut(draw: st.DrawFn, content: bytes) -> bytes:
    return content[: _place(draw, content)]


def _drop(draw: st.DrawFn, content: bytes) -> bytes:
    start = _place(draw, content)
    return content[:start] + content[start + draw(st.integers(1, 40)) :]


def _splice(draw: st.DrawFn, content: bytes) -> bytes:
    start = _place(draw, content)
    piece = content[start : start + draw(st.integers(1, 200))]
    at = _place(draw, content)
    return content[:at] + piece + content[at + (len(piece) if draw(st.booleans()) else 0) :]


def _insert(draw: st.DrawFn, content: bytes) -> bytes:
    at = _place(draw, content)
    piece = draw(st.sampled_from(_PIECES) | st.binary(max_size=12))
    return content[:at] + piece + content[at + (len(piece) if draw(st.booleans()) else 0) :]


def _renumber(draw: st.DrawFn, content: bytes) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = draw(st.sampled_from(found[:400]))
    return content[: match.start()] + draw(st.sampled_from(_NUMBERS)) + content[match.end() :]


def _recode(draw: st.DrawFn, content: bytes) -> bytes:
    if draw(st.booleans()):
        return codecs.BOM_UTF8 + content
    text = content.decode("latin-1")
    return text.encode(draw(st.sampled_from(["utf-16", "utf-8", "utf-32"])))


def _repeat(draw: st.DrawFn, content: bytes) -> bytes:
    return content[:100_000] * draw(st.integers(2, 3))


# Some kinds more often than others.
_KINDS: list[Callable[[st.DrawFn, bytes], bytes]] = [
    *(_flip, _flip, _replace, _cut, _drop, _splice, _insert, _insert, _renumber, _renumber, _recode, _repeat)
]


@st.composite
def json_texts(draw: st.DrawFn, valid: Any, most: int = 3) -> str:
    """Draw the JSON text of a value in which members were replaced, removed, doubled or renamed."""
    value = valid
    for _ in range(draw(st.integers(1, most))):
        value = _changed(draw, value)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    if isinstance(value, dict) and value and draw(st.integers(0, 9)) == 0:  # a key twice
        key = draw(st.sampled_from(sorted(value)))
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(draw(odd_values))}" + "}"
    return text


def _changed(draw: st.DrawFn, value: Any) -> Any:
    inner = isinstance(value, (dict, list)) and value and draw(st.integers(0, 11))
    if not inner:
        return draw(odd_values)
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], *_members(draw, value[at]), *value[at + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    rest = {name: part for name, part in value.items() if name != key}
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return rest
    if kind == 1:
        return {**rest, draw(st.sampled_from(["", "é", key.upper(), key + "x", "a.b", "__class__"])): value[key]}
    return {name: _changed(draw, part) if name == key else part for name, part in value.items()}


def _members(draw: st.DrawFn, value: Any) -> list[Any]:
    return draw(st.sampled_from([[], [value, value], [_changed(draw, value)], [_changed(draw, value)]]))
