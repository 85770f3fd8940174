"""Read a pickle of arrays and plain values without unpickling it.

A pickle is a program for a small stack machine, and an unpickler that refuses foreign names still runs the rest of it: a
key of tuples within shared tuples takes 2**60 steps to hash, a memo index of 2**31 takes 32 GiB. So nothing is run here.
Python's own ``pickletools`` takes the file apart, and of its opcodes only those are followed that a dictionary of numbers,
texts, lists and arrays needs; they build values of ours. A name is kept as text, a call of it as a note, and the one
call that has a meaning, numpy's way of making an array, is recognised by its form.

Protocols 0 to 5. Texts of Python 2 come as bytes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.tasks.errors import TaskError

__all__ = ["read_array_pickle"]

_RECONSTRUCT = {f"{module}.multiarray _reconstruct" for module in ("numpy.core", "numpy._core")}
_CODEC, _BYTES, _DTYPE = "_codecs encode", {"__builtin__ bytes", "builtins bytes"}, "numpy dtype"
_FROM_BUFFER = {f"{module}.numeric _frombuffer" for module in ("numpy.core", "numpy._core")}
_UNSIGNED_BYTE = {"u1", b"u1", "|u1", b"|u1", "B", b"B"}
_DEEPEST = 16  # tuples within tuples; an array needs three


@dataclass(frozen=True, eq=False)
class _Name:
    """What a pickle asks to import."""

    text: str


@dataclass(eq=False)
class _Call:
    """What a pickle asks to call, and the state it gives the result."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


_MARK = object()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE"}
_VALUES |= {"BINBYTES", "SHORT_BINBYTES", "BINUNICODE8", "BINBYTES8", "BYTEARRAY8"}
_OLD_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_array_pickle(content: bytes) -> Any:
    """Return the value that a pickle holds.

    Args:
        content: A whole pickle.

    Returns:
        Dictionaries, lists, tuples, numbers, texts, bytes; arrays of unsigned bytes as numpy arrays that share the memory
        of ``content`` or of a part of it.

    Raises:
        TaskError: When it is damaged, or holds or asks for anything else.
    """
    machine = _Machine()
    try:
        for code, argument, _ in pickletools.genops(content):
            if code.name == "STOP":
                return machine.result()
            machine.follow(code.name, argument)
    except TaskError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError, AttributeError) as error:
        raise TaskError(f"it is damaged ({str(error) or type(error).__name__})") from error
    raise TaskError("it ends too early")


class _Machine:
    """The stack and the memo of a pickle, and what its opcodes do to them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._depth: dict[int, int] = {}  # of tuples, by identity; the tuples are on the stack or in the memo

    def result(self) -> Any:
        """Return what is left in the end."""
        (value,) = self._stack
        return _made(value)

    def follow(self, name: str, argument: Any) -> None:
        """Do what one opcode says.

        Args:
            name: Its name in ``pickletools``.
            argument: What stands behind it.
        """
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _OLD_TEXTS:
            self._stack.append(argument.encode("latin-1"))
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _TUPLES:
            self._tuple([self._stack.pop() for _ in range(_TUPLES[name])][::-1])
        elif (action := _ACTIONS.get(name)) is not None:
            action(self, argument)
        else:
            raise TaskError(f"it holds more than arrays and plain values ({name})")

    def _tuple(self, parts: list[Any]) -> None:
        made = tuple(parts)
        depth = 1 + max((self._depth[id(part)] for part in parts if type(part) is tuple and part), default=0)
        if depth > _DEEPEST:
            raise TaskError(f"it holds tuples within tuples, more than {_DEEPEST} deep")
        if made:
            self._depth[id(made)] = depth
            self._memo[-1 - len(self._depth)] = made  # kept, so that no other tuple gets its identity
        self._stack.append(made)

    def _after_mark(self) -> list[Any]:
        parts: list[Any] = []
        while (part := self._stack.pop()) is not _MARK:
            parts.append(part)
        return parts[::-1]

    def _memoize(self, _: Any) -> None:
        self._memo[sum(1 for index in self._memo if index >= 0)] = self._stack[-1]

    def _append(self, parts: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TaskError("it is damaged (items for what is no list)")
        target.extend(parts)

    def _set(self, parts: list[Any]) -> None:
        target = self._stack[-1]
        keys = [_made(key) for key in parts[::2]]
        if type(target) is not dict or len(parts) % 2 or not all(type(key) in (bytes, str, int) for key in keys):
            raise TaskError("it holds a dictionary whose keys are no names")
        target.update(zip(keys, parts[1::2], strict=True))

    def _import(self, argument: str) -> None:
        self._stack.append(_Name(_known(argument)))

    def _import_from_stack(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_Name(_known(f"{module} {name}")))

    def _call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(function) is not _Name or type(arguments) is not tuple:
            raise TaskError("it is damaged (a call of what is no name)")
        self._stack.append(_Call(function.text, arguments))

    def _build(self, _: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if type(target) is not _Call:
            raise TaskError("it is damaged (a state for what has none)")
        target.state = state


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, argument: None,
    "FRAME": lambda machine, argument: None,
    "MARK": lambda machine, argument: machine._stack.append(_MARK),
    "EMPTY_LIST": lambda machine, argument: machine._stack.append([]),
    "EMPTY_DICT": lambda machine, argument: machine._stack.append({}),
    "LIST": lambda machine, argument: machine._stack.append(machine._after_mark()),
    "TUPLE": lambda machine, argument: machine._tuple(machine._after_mark()),
    "APPEND": lambda machine, argument: machine._append([machine._stack.pop()]),
    "APPENDS": lambda machine, argument: machine._append(machine._after_mark()),
    "SETITEM": lambda machine, argument: machine._set([machine._stack.pop(-2), machine._stack.pop()]),
    "SETITEMS": lambda machine, argument: machine._set(machine._after_mark()),
    "MEMOIZE": _Machine._memoize,
    "GLOBAL": _Machine._import,
    "STACK_GLOBAL": _Machine._import_from_stack,
    "REDUCE": _Machine._call,
    "BUILD": _Machine._build,
}
