"""The public names: exactly what exists is exported, and all of it is documented."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import workbench
import workbench.boost
import workbench.nn
import workbench.rec

NAMES_OF: dict[Any, str] = {
    workbench.boost: """
        AdaSum AutoBoost BoostTrainOneStepCell BoostTrainOneStepWithLossScaleCell DimReduce FreezeOpt
        GradientAccumulation GradientFreeze GroupLossScaleManager LessBN OptimizerProcess ParameterProcess freeze_cell
    """,
    workbench.nn: """
        AdamOffload ConvertModelUtils DynamicLossScaleManager DynamicLossScaleUpdateCell FixedLossScaleManager
        FixedLossScaleUpdateCell Model TrainOneStepCell TrainOneStepWithLossScaleCell WithLossCell thor
    """,
    workbench.rec: "RecModel",
    workbench: "BoostConfig Task Workbench apply compare export replay train tune",
}
EXPORTED = {module: set(names.split()) for module, names in NAMES_OF.items()}

MODULES = [pytest.param(module, id=module.__name__) for module in EXPORTED]
NAMES = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module, names in EXPORTED.items()
    for name in sorted(names)
]


def own_methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods that a class of ours, or one of its bases among ours, writes itself."""
    for base in kind.__mro__:
        if not base.__module__.startswith("workbench"):
            continue
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if inspect.isfunction(function) and not name.startswith("_") and hasattr(function, "__code__"):
                yield f"{base.__name__}.{name}", function


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the named parameters besides self and cls."""
    found = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if p.name not in {"self", "cls"} and p.kind not in variadic]


def raises(function: Callable[..., Any]) -> bool:
    """Whether a function's own body raises an error of its own making."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree))


def undocumented(name: str, text: str | None, function: Callable[..., Any] | None, least: int) -> list[str]:
    """Return what a docstring lacks: itself, Args for ``least`` parameters and more, Raises where there is a raise."""
    if not text:
        return [f"{name}: no docstring"]
    lacks = []
    if not text.strip().splitlines()[0].endswith((".", ":", ";", ",")) and "\n\n" not in text:
        lacks.append(f"{name}: the first line is no sentence")
    if function is None:
        return lacks
    if len(parameters(function)) >= least and "Args:" not in text and "Attributes:" not in text:
        lacks.append(f"{name}: no Args for {parameters(function)}")
    if raises(function) and "Raises:" not in text:
        lacks.append(f"{name}: raises, but says nothing of it")
    return lacks


@pytest.mark.parametrize("module", MODULES)
def test_exactly_what_exists_is_exported_and_defined_outside_the_modules_of_names(module: Any) -> None:
    assert set(module.__all__) == EXPORTED[module]
    for name in EXPORTED[module]:
        exported = getattr(module, name)
        assert callable(exported), name
        assert exported.__module__.startswith("workbench."), name
        assert exported.__module__ not in {"workbench.boost", "workbench.nn"}, "they define nothing"


def test_an_unknown_top_level_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tun'"):
        workbench.tun  # noqa: B018


@pytest.mark.parametrize("exported", NAMES)
def test_it_is_documented(exported: Any) -> None:
    if inspect.isclass(exported):
        written = vars(exported).get("__init__") or vars(exported).get("__post_init__")
        has_source = inspect.isfunction(written) and written.__module__.startswith("workbench")
        constructor = written if has_source and written.__code__.co_filename.endswith(".py") else None
        lacks = undocumented(exported.__name__, exported.__doc__, constructor, least=1)
        for name, method in own_methods(exported):
            lacks += undocumented(name, method.__doc__, method, least=2)
    else:
        lacks = undocumented(exported.__name__, exported.__doc__, exported, least=1)
    assert lacks == []


def test_a_gap_in_the_documentation_is_seen() -> None:
    def bad(a: int, b: int) -> None:
        """Do something."""
        raise ValueError("no")

    assert undocumented("bad", bad.__doc__, bad, least=2) == [
        "bad: no Args for ['a', 'b']",
        "bad: raises, but says nothing of it",
    ]
