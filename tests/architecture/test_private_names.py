"""Names that other people's libraries keep private: where this package uses them, and why. Each is one to lose."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence

from tests.architecture.import_graph import ROOT, nodes_below

# File -> why no public name does. The names of torch are in one file, with a reason each.
KNOWN = {
    "config/section.py": "pydantic: the metaclass of a model, of which a section's class is one more",
    "core/torch_internals.py": "torch: kernels, hooks, base classes and marks, all of torch that has no public name",
    "integrations/lightning/batches.py": "Lightning: which loader and which batches an epoch has left",
    "integrations/lightning/precision.py": "Lightning: what its precision plugin does after a closure",
    "integrations/transformers/trainer.py": "transformers: inputs on the device, as Trainer's own subclasses do it",
    "methods/less_bn/batch_norm_folding.py": "torch: whether a subclass computes a convolution in its own way",
    "methods/loss_scale_group/method.py": "torch: what half() does to a module's buffers",
    "methods/runtime/compilation.py": "torch: errors of the compiler, and the options that a mode stands for",
    "optim/thor/collection.py": "torch: amounts of padding in the order of F.pad, those of padding='same' included",
    "panels/kit.py": "ipywidgets: the classes that a widget has",
    "study/sample/whole_space.py": "optuna: whether a distribution contains a value",
    "study/store/trial_ids.py": "optuna: the id of a trial and the storage of a study, which samplers need",
}
OURS_AND_THEIRS = {"_apply", "_esm", "_opt_called", "_storage", "_study_id", "_trial_id", "_version"}
# Public in spite of their names: documented by Python, IPython and torch ("Foreach Operations", "Sparse tensors").
DOCUMENTED = re.compile(r"_(foreach_\w+|indices|values|fields|asdict|replace|exit|getframe|repr_mimebundle_)")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not DOCUMENTED.fullmatch(name)


def defined(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that a file gives to things of its own."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def used(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the private names that a file imports from other libraries, or asks of objects that may be theirs."""
    for node in nodes:
        match node:
            case ast.Import():
                paths = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                paths = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in OURS_AND_THEIRS:
                continue
            case ast.Attribute(attr=name):
                paths = [name]
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                paths = [name]
            case ast.Call(func=ast.Name(id="attrgetter"), args=[ast.Constant(value=str(name))]):
                paths = [name]
            case _:
                continue
        for parts in (path.split(".") for path in paths):
            if parts[0] != ROOT.name and parts[0] not in sys.stdlib_module_names:
                yield from filter(is_private, parts)


def test_private_names_of_other_libraries_are_few_and_known() -> None:
    ours, private = set[str](), dict[str, set[str]]()
    for path, nodes in nodes_below().items():
        ours.update(defined(nodes))
        private[path.relative_to(ROOT).as_posix()] = set(used(nodes))
    ours -= OURS_AND_THEIRS
    found = {file: names - ours for file, names in private.items() if names - ours}
    assert found.keys() == KNOWN.keys(), found
    # Of the libraries that the package rests on, and none of an Optuna storage.
    assert sum(reason.startswith(("torch", "optuna", "plotly", "ipywidgets")) for reason in KNOWN.values()) <= 11
    assert found["study/store/trial_ids.py"] == {"_trial_id", "_storage"}
    assert found["study/sample/whole_space.py"] == {"_contains"}


def test_a_private_name_is_seen_wherever_it_is_written() -> None:
    source = """
import torch._dynamo.config
from optuna.storages._rdb.models import TrialModel
from plotly.basedatatypes import _Base
from workbench.core._own import _own
from os import _exit
trial._trial_id, self._storage, torch._foreach_add_(a, b), point._asdict()
getattr(widget, "_dom_classes", ()), hasattr(widget, "__class__"), attrgetter("_cdata")
"""
    nodes = list(ast.walk(ast.parse(source)))
    assert list(used(nodes)) == ["_dynamo", "_rdb", "_Base", "_trial_id", "_dom_classes", "_cdata"]
