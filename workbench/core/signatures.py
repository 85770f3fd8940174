"""What a function's signature says about how it can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def arguments_needed(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments without which a function cannot be called; empty where that is unknown."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in _parameters(function) if one.default is one.empty and one.kind not in several]


def arguments_taken(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, by name, that a function takes; all of them where that is unknown, or where it takes none.

    Example:
        >>> arguments_taken(lambda image, size=3: image, {"image": 1, "mask": 2})
        {'image': 1}
    """
    parameters = _parameters(function)
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    taken = named.keys() & {one.name for one in parameters}
    return {name: named[name] for name in named if takes_any or not taken or name in taken}


def why_not_called(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return what a function's signature has against a call; empty where it has nothing, or there is no signature."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin
        return []
