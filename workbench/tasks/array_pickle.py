"""Read a pickle of arrays and plain values without unpickling it.

An unpickler that refuses foreign names still runs the rest: a key of tuples within shared tuples takes 2**60 steps to
hash, a memo index of 2**31 takes 32 GiB. So ``pickletools`` takes the file apart, and only the opcodes are followed
that a dictionary of numbers, texts, lists and arrays needs. A name stays text, a call a note of it; numpy's arrays of
bytes, and bytes that Python 3 wrote for Python 2, are recognised by their form. Texts of Python 2 come as bytes.
"""

from __future__ import annotations

import math
import pickletools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.tasks.errors import TaskError

_MAKES_ARRAY = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_ARRAY_OF_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}  # protocol 5
_DTYPE, _ARRAY, _CODEC = "numpy dtype", "numpy ndarray", "_codecs encode"
_NO_BYTES = {"__builtin__ bytes", "builtins bytes"}  # Python 3 writes b"" for Python 2 as bytes()
_KNOWN = _MAKES_ARRAY | _ARRAY_OF_BUFFER | _NO_BYTES | {_DTYPE, _ARRAY, _CODEC}
_BYTE = {"u1", "|u1", "B", b"u1", b"|u1", b"B"}

_MARK = object()
_CONSTANTS = {"MARK": _MARK, "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_VALUES = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"}
_VALUES |= {"BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}


class _Name(str):
    """What a pickle asks to import: module and name, a space between them."""


@dataclass(eq=False)
class _Call:
    """What a pickle asks to call, and the state it gives the result."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_array_pickle(content: bytes) -> dict[Any, Any]:
    """Return the dictionary that a pickle holds: arrays of unsigned bytes (read-only), numbers, texts, bytes, lists.

    What lies deeper comes as an object of no use, unread. A TaskError says that it is damaged, or what else it asks
    for.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of an escape in a text
            for code, argument, _ in pickletools.genops(content):
                if code.name == "STOP":
                    (value,) = stack
                    if type(value) is not dict:
                        raise TaskError("it holds no dictionary")
                    return {key: _value_of(part) for key, part in value.items()}
                _follow(code.name, argument, stack, memo)
    except TaskError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:  # as damaged files will
        raise TaskError(f"it is damaged ({type(error).__name__}: {error})") from error
    raise TaskError("it ends too early")


def _follow(opcode: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    match opcode:
        case "PROTO" | "FRAME":
            pass
        case "PUT" | "BINPUT" | "LONG_BINPUT":
            memo[argument] = stack[-1]
        case "MEMOIZE":
            memo[len(memo)] = stack[-1]
        case "GET" | "BINGET" | "LONG_BINGET":
            stack.append(memo[argument])
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple([stack.pop() for _ in range(int(opcode[-1]))][::-1]))
        case "TUPLE":
            stack.append(tuple(_after_mark(stack)))
        case "LIST":
            stack.append(_after_mark(stack))
        case "APPEND" | "APPENDS":
            items = [stack.pop()] if opcode == "APPEND" else _after_mark(stack)
            if type(stack[-1]) is not list:
                raise TaskError("it is damaged (items for what is no list)")
            stack[-1].extend(items)
        case "DICT":
            parts = _after_mark(stack)
            stack.append({})
            _set(stack, parts)
        case "SETITEM" | "SETITEMS":
            _set(stack, [stack.pop(-2), stack.pop()] if opcode == "SETITEM" else _after_mark(stack))
        case "GLOBAL" | "STACK_GLOBAL":
            if opcode == "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                argument = f"{module} {name}" if type(module) is type(name) is str else "something without a name"
            if argument not in _KNOWN:
                raise TaskError(f"it asks for {argument.replace(' ', '.', 1)[:80]!r}")
            stack.append(_Name(argument))
        case "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if type(function) is not _Name or type(arguments) is not tuple:
                raise TaskError("it is damaged (a call of what has no name)")
            stack.append(_Call(function, arguments))
        case "BUILD":
            state = stack.pop()
            if type(stack[-1]) is not _Call:
                raise TaskError("it is damaged (a state for what was not called)")
            stack[-1].state = state
        case "EMPTY_LIST" | "EMPTY_DICT":
            stack.append([] if opcode == "EMPTY_LIST" else {})
        case _ if opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        case _ if opcode in _VALUES:
            stack.append(argument)
        case _ if opcode in _OLD_TEXTS:
            stack.append(argument.encode("latin-1"))
        case _:
            raise TaskError(f"it holds more than arrays and plain values ({opcode})")


def _after_mark(stack: list[Any]) -> list[Any]:
    parts: list[Any] = []
    while (part := stack.pop()) is not _MARK:
        parts.append(part)
    return parts[::-1]


def _set(stack: list[Any], parts: list[Any]) -> None:
    keys = [_value_of(key) for key in parts[::2]]
    # Only these: the hash of a tuple takes as long as its author likes.
    if type(stack[-1]) is not dict or not all(type(key) in {bytes, str, int} for key in keys):
        raise TaskError("it is damaged (a dictionary whose keys are no names)")
    stack[-1].update(zip(keys, parts[1::2], strict=True))


def _value_of(part: Any) -> Any:
    """Return what the note of a call stands for, and anything else as it is."""
    if type(part) is not _Call:
        return part
    if part.name in _NO_BYTES and part.arguments == ():
        return b""
    if part.name == _CODEC:
        text, encoding = part.arguments
        if type(text) is not str or encoding not in {"latin1", "latin-1"}:
            raise TaskError("it holds bytes in an encoding other than Latin-1")
        return text.encode("latin-1")
    if part.name in _ARRAY_OF_BUFFER:
        buffer, dtype, shape, order = part.arguments
        return _array(buffer, dtype, shape, order == "F")
    if part.name in _MAKES_ARRAY and type(part.state) is tuple:
        _version, shape, dtype, fortran, buffer = part.state
        return _array(_value_of(buffer), dtype, shape, bool(fortran))
    raise TaskError(f"it holds what is no array of bytes ({part.name})")


def _array(buffer: Any, dtype: Any, shape: Any, fortran: bool) -> np.ndarray[Any, Any]:
    asked = dtype.arguments[0] if type(dtype) is _Call and dtype.name == _DTYPE and dtype.arguments else None
    if type(asked) is _Call:
        asked = _value_of(asked)
    if type(asked) not in {str, bytes} or asked not in _BYTE or type(buffer) not in {bytes, bytearray}:
        raise TaskError("it holds an array of anything but unsigned bytes")
    whole = type(shape) is tuple and all(type(length) is int and length >= 0 for length in shape)
    if not whole or math.prod(shape) != len(buffer):
        raise TaskError("it holds an array whose shape does not fit its content")
    return np.frombuffer(bytes(buffer), np.uint8).reshape(shape, order="F" if fortran else "C")
