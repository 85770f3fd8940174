"""The methods as plain data: what panels, documentation and the shared tests read.

The only file that sees every method. It names builders instead of importing them, so that reading the list loads no
torch, and importing it registers nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

__all__ = ["METHODS", "Method", "method"]


@dataclass(frozen=True)
class Method:
    """One training method.

    Attributes:
        name: Name of its switch, its card and, in ``algorithms``, its module and test; also of its config section,
            where it has one of its own.
        title: What people call it.
        summary: One sentence: what it does.
        section: Config section that holds its parameters.
        switch: Config path of the boolean that switches it on.
        enabled_by: Config values (path -> value) under which this method alone is in effect.
        builder: ``"module:attribute"`` of the class or function that applies it.
        paper: Authors, title, venue, year and identifier of its source.
        n_ranks: Fewest ranks on which it can be in effect.
    """

    name: str
    title: str
    summary: str
    section: str
    switch: str
    enabled_by: Mapping[str, Any]
    builder: str
    paper: str
    n_ranks: int = 1

    def card(self) -> str:
        """Return the method's card: Markdown with what it does, when it helps, usual values, limits and source."""
        return resources.files(__package__).joinpath(self.name, "card.md").read_text(encoding="utf-8")

    def load_builder(self) -> Any:
        """Import and return the class or function that applies the method."""
        module, _, attribute = self.builder.partition(":")
        return getattr(importlib.import_module(module), attribute)


def method(name: str) -> Method:
    """Return the method of that name.

    Args:
        name: For example ``"grad_freeze"``.

    Raises:
        KeyError: When there is no such method; the message lists those there are.

    Example:
        >>> method("grad_freeze").switch
        'boost.grad_freeze'
    """
    for entry in METHODS:
        if entry.name == name:
            return entry
    raise KeyError(f"no method is called {name!r}; there are {', '.join(entry.name for entry in METHODS)}")


def _only(**values: Any) -> Mapping[str, Any]:
    """Return config values with the mode in which only what is switched on acts; ``__`` stands for the dot."""
    off = {"boost.mode": "manual", "boost.less_bn": False, "boost.grad_freeze": False, "boost.adasum": False}
    return MappingProxyType(off | {key.replace("__", "."): value for key, value in values.items()})


#: In the order in which they act on a network and its optimizer.
METHODS: tuple[Method, ...] = (
    Method(
        name="less_bn",
        title="LessBN",
        summary="Removes the BatchNorms that a residual network can do without, and may normalize its head.",
        section="less_bn",
        switch="boost.less_bn",
        enabled_by=_only(boost__less_bn=True, less_bn__fn_flag=True, less_bn__gc_flag=False),
        builder="workbench.methods.less_bn.method:LessBN",
        paper="Brock, De, Smith, "
        '"Characterizing Signal Propagation to Close the Performance Gap in Unnormalized ResNets", '
        "ICLR 2021, arXiv:2101.08692",
    ),
    Method(
        name="grad_centralization",
        title="Gradient centralization",
        summary="Subtracts from each gradient of a weight its mean per output unit, before every update.",
        section="less_bn",
        switch="less_bn.gc_flag",
        # It has no switch of its own in the reference: it comes with LessBN.
        enabled_by=_only(boost__less_bn=True, less_bn__fn_flag=False, less_bn__gc_flag=True),
        builder="workbench.methods.grad_centralization.method:register_centralization",
        paper='Yong, Huang, Hua, Zhang, "Gradient Centralization: A New Optimization Technique for Deep Neural '
        'Networks", ECCV 2020, arXiv:2004.01461',
    ),
    Method(
        name="grad_freeze",
        title="Gradient freezing",
        summary="Leaves out the backward pass and the update of leading layers in a share of the steps.",
        section="grad_freeze",
        switch="boost.grad_freeze",
        enabled_by=_only(boost__grad_freeze=True),
        builder="workbench.methods.grad_freeze.method:GradientFreeze",
        paper='Brock, Lim, Ritchie, Weston, "FreezeOut: Accelerate Training by Progressively Freezing Layers", '
        "NIPS 2017 workshop on optimization, arXiv:1706.04983",
    ),
    Method(
        name="grad_accumulation",
        title="Gradient accumulation",
        summary="Averages the gradients of several micro-batches and applies them in one update.",
        section="grad_accumulation",
        switch="boost.grad_accumulation",
        enabled_by=_only(boost__grad_accumulation=True, grad_accumulation__grad_accumulation_step=3),
        builder="workbench.methods.grad_accumulation.method:GradientAccumulation",
        paper='Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv:1706.02677',
    ),
    Method(
        name="adasum",
        title="AdaSum",
        summary="Combines the updates of several servers: agreement is averaged, independence is added.",
        section="common",
        switch="boost.adasum",
        enabled_by=_only(boost__adasum=True, common__device_number=1),
        builder="workbench.methods.adasum.method:AdaSum",
        paper='Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv:2006.02924',
        n_ranks=2,
    ),
    Method(
        name="loss_scale_group",
        title="Group loss scale",
        summary="Gives groups of layers whose gradients differ in size loss scales of their own.",
        section="loss_scale",
        switch="boost.loss_scale_group",
        enabled_by=_only(boost__loss_scale_group=True, amp__level="O2", amp__dtype="float16"),
        builder="workbench.methods.loss_scale_group.method:GroupLossScaleManager",
        paper='Zhao et al., "Adaptive Loss Scaling for Mixed Precision Training", 2019, arXiv:1910.12385',
    ),
    Method(
        name="dim_reduce",
        title="DimReduce",
        summary="Takes quasi-Newton steps in the space that earlier weights moved in, each tried on its own batch.",
        section="dim_reduce",
        switch="boost.dim_reduce",
        enabled_by=_only(boost__dim_reduce=True, dim_reduce__weight_load_dir="snapshots"),
        builder="workbench.methods.dim_reduce.method:DimReduce",
        paper="Li, Tan, Huang, Tao, Liu, Huang, "
        '"Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces", '
        "IEEE TPAMI 2022, doi:10.1109/TPAMI.2022.3178101, arXiv:2103.11154",
    ),
)
