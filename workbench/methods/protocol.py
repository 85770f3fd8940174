"""What a method of training is to the rest of the package: a description, and hooks that are all optional.

A method is a folder: its ``__init__`` describes it (`Description`, without torch, so that panels and documentation
load at once), and a class derived from `Method` acts. Nothing else knows a method by name: `apply`, the training step
and the run iterate over :mod:`workbench.methods.registry`. Hooks stand in the order in which they are called.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    from workbench.config import BoostConfig, NetworkFacts, Plan
    from workbench.config.section import Section
    from workbench.loss_scale.scaler import LossScaling
    from workbench.methods.weight_update import CompleteWindow, WeightUpdate


def alone(**values: Any) -> Mapping[str, Any]:
    """Return config values under which, at O0, only what is switched on acts; ``__`` stands for the dot."""
    return MappingProxyType({"boost.mode": "manual", **{key.replace("__", "."): one for key, one in values.items()}})


@dataclass(frozen=True)
class Description:
    """One method: what it is called, how it is switched on, where it comes from."""

    name: str  # of its folder, and of its switch and config section unless those say otherwise
    title: str  # in headings
    summary: str  # one sentence: what it does
    section: str  # config section with its parameters
    switch: str  # path that switches it on and off
    enabled_by: Mapping[str, Any]  # config values (path -> value) under which this method alone is in effect at O0
    acts: str  # "module:attribute" of the class, derived from `Method`, that acts
    paper: str  # authors, title, venue, year and identifier of its source
    n_ranks: int = 1  # fewest ranks on which it can be in effect
    #: ``"module:attribute"`` of the section that the method brings along, a
    #: :class:`~workbench.config.section.MethodSection`, or a `Section` with a parameter ``enabled``; empty where the
    #: reference's sections have its parameters.
    section_class: str = ""
    comes_with: str = ""  # method without which it is never in effect, where `switch` is only a parameter of that one
    snapshot_folder: str = ""  # path of the parameter that names a folder of snapshots to train in the span of
    snapshots_above: str = ""  # path of the parameter that their number must exceed
    #: Whether it makes the optimizer a `GroupSchedule`; its section then has a method ``frozen_share()``.
    schedules_groups: bool = False
    updates: str = ""  # path of the parameter that says how many updates a run has
    micro_batches: str = ""  # path of the parameter that says how many micro-batches make an update
    torch_lacks: str = ""  # why torch by itself does not do it, a clause; empty where a loop of one's own can
    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of the trace: name -> unit and meaning
    exported_files: tuple[str, ...] = ()  # files that go with an exported configuration; {export} is "o1" or "o2"
    export_note: str = ""  # what to know of an export that has it in effect; {export}, and the {seed} of the search
    first_space: Mapping[str, Any] = field(default_factory=dict)  # what a new study begins to search: path -> choice
    #: What the search for the fastest set-up tries on a network: path -> choice; None where that does not try it.
    tried_on: Callable[[NetworkFacts], Mapping[str, Any]] | None = None

    def card(self) -> str:
        """Return the method's card: Markdown with what it does, when it helps, usual values, limits and source."""
        folder = self.acts.partition(":")[0].rpartition(".")[0]
        return resources.files(folder).joinpath("card.md").read_text(encoding="utf-8")

    def is_in_effect(self, plan: Plan) -> bool:
        """Return whether a plan has this method in effect."""
        section, _, name = self.switch.partition(".")
        switched_on = not self.comes_with or bool(getattr(getattr(plan.config, section), name))
        return switched_on and plan.is_in_effect(self.comes_with or self.name)

    def load_section(self) -> type[Section] | None:
        """Import and return the config section that the method brings along; None when it brings none."""
        return cast("type[Section]", pkgutil.resolve_name(self.section_class)) if self.section_class else None

    def load(self) -> type[Method]:
        """Import and return the class that acts."""
        return cast("type[Method]", pkgutil.resolve_name(self.acts))


class FirstBatch:
    """Example inputs that are a batch as training sees it, with its loss: what methods may record and try.

    Args:
        loss: Gives the loss of a network for a batch.
        read: Gives the batch, on the model's device; called once, when it is first needed.
        to_join: Gives it in the form in which several batches are made one, where that is another.
    """

    def __init__(
        self,
        loss: Callable[[nn.Module, Any], Tensor],
        read: Callable[[], Any],
        to_join: Callable[[], Any] | None = None,
    ) -> None:
        self.loss, self.first = loss, functools.cache(read)
        self.to_join = to_join or self.first

    def __call__(self, network: nn.Module) -> None:
        """Call a network with the batch."""
        self.loss(network, self.first())


@dataclass
class Preparation:
    """A model and its optimizer on their way to training; each method in effect changes them in turn."""

    model: nn.Module  # changed in place
    optimizer: Optimizer  # to train with; a method may replace it
    plan: Plan  # what is in effect; resolved again when a method has found out what the network offers
    criterion: Any = None  # what judges the model's output; None when unknown
    example_inputs: Any = None  # what a method may call the model with, as for `workbench.apply`, or a `FirstBatch`
    #: Gives the seed of the methods' own random choices, the same on every rank; None leaves them to numpy's global
    #: generator, as the reference does.
    draw_seed: Callable[[], int | None] = lambda: None
    #: Resolves the plan by what the network offers as it stands now.
    look_again: Callable[[Preparation], Plan] = lambda preparation: preparation.plan
    notes: list[str] = field(default_factory=list)  # what became of the model, one line each, for display
    warned: set[str] = field(default_factory=set)  # methods that have warned by themselves where they find no work


class GroupSchedule(ABC):
    """An optimizer that trains another group of parameters from step to step; by default there is one, always trained.

    Derive, and override all that a schedule decides.
    """

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return 1

    @property
    def strategy(self) -> Sequence[int] | None:
        """Group of each update, repeated; None when the groups take turns."""
        return None

    @abstractmethod
    def group_parameters(self, index: int) -> Sequence[Tensor]:
        """Return the parameters that a group trains."""

    @abstractmethod
    def optimizer_of(self, index: int) -> Optimizer:
        """Return the optimizer that updates a group."""

    def begin_step(self) -> int:
        """Enter the group of the coming step; return how many leading parameter groups rest."""
        return 0

    def advance(self) -> None:  # noqa: B027  # nothing to do by default, as for the two below
        """Count an update."""

    def enter_group(self, index: int) -> None:  # noqa: B027
        """Train a given group in the coming step, whatever the schedule says."""

    def unfreeze_all(self) -> contextlib.AbstractContextManager[Any]:
        """Let every parameter require gradients; as a context, until it ends."""
        return contextlib.nullcontext()

    def check_graph(self, loss: Tensor) -> None:  # noqa: B027
        """Raise RuntimeError where the loss's graph hides parameters that should be trained."""


class NoFreezing(GroupSchedule):
    """The schedule of an optimizer that has none."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def group_parameters(self, index: int) -> list[Tensor]:
        """Return everything that is trained."""
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def optimizer_of(self, index: int) -> Optimizer:
        """Return the optimizer."""
        return self._optimizer


class StepHook:
    """Acts in every window of micro-batches that ends in an update; derive and override what is needed."""

    def before_update(self, window: CompleteWindow) -> None:
        """Look at or change the averaged, unscaled gradients, with overflow decided (``window.found_inf``)."""

    def after_update(self, window: CompleteWindow) -> Mapping[str, float]:
        """Follow the update, which an overflow may have skipped; return numbers for the trace, by namespaced column."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""


class Method:
    """What acts, under a plan that has it in effect: derive, and override the hooks that the method needs."""

    #: Whether `common.gradient_split_groups` marks the parameters when this method is in effect.
    splits_gradients: ClassVar[bool] = False
    #: Whether it looks at shapes of parameters before training; those of lazy layers are known after a forward pass.
    needs_shapes: bool = True
    #: Why the model cannot be in a DistributedDataParallel; "" if it can.
    refuses_ddp: ClassVar[str] = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config = plan.config

    @staticmethod
    def counts(network: nn.Module) -> Mapping[str, int]:
        """Return those of `NetworkFacts`' counts that the method knows of a network as it stands now."""
        return {}

    @staticmethod
    def foreseen(
        network: nn.Module,
        new_network: Callable[[], nn.Module],
        untrained: Collection[str],
        call: Callable[[nn.Module], None] | None,
    ) -> Mapping[str, int]:
        """Return those counts of a fresh network that the method would change, found on this copy and new ones.

        ``untrained`` names the parameters that the optimizer does not hold; ``call`` calls a copy, where it is known.
        """
        return {}

    @staticmethod
    def reasons(
        network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None
    ) -> Mapping[str, str]:
        """Return those of `NetworkFacts`' reasons that the method knows; the network stays as it is.

        The criterion is None when unknown. Inputs may be tried where they are a `FirstBatch`, else nothing is said
        against them: as the configuration asks for, or without one in some usual ways.
        """
        return {}

    def refusal(self, model: nn.Module) -> str:
        """Return why the model, wrapped or compiled as it is, cannot be trained so; empty when it can."""
        from torch.nn.parallel import DistributedDataParallel

        wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
        return self.refuses_ddp if wrapped else ""

    def reshape(self, preparation: Preparation) -> None:
        """Replace modules or change the optimizer's groups; what lists parameters comes later."""

    def prepare(self, preparation: Preparation) -> None:
        """Mark parameters, wrap or replace the optimizer; all modules are final."""

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        """Bring a model that was never trained here into the form that training would have given it."""

    def criterion(self, criterion: Any) -> Any:
        """Return the criterion to train with in place of the task's."""
        return criterion

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the module to call in the model's place; its parameters are the model's."""
        return model

    def captured(self, model: nn.Module) -> nn.Module | None:
        """Return the module to call where both passes of a micro-batch are captured as one graph; None where not."""
        return None

    def length(self, n_batches: float) -> float:
        """Return the loader's batches that a run takes which today takes so many."""
        return n_batches

    def passes(self, n_batches: float) -> float:
        """Return the forward passes made of so many of the loader's batches."""
        return n_batches

    @staticmethod
    def fitted(config: BoostConfig, updates: int) -> BoostConfig:
        """Return the configuration as a run of so many updates takes it."""
        return config

    @staticmethod
    def groups_at_rest(config: BoostConfig) -> tuple[Sequence[int], int]:
        """Return how many leading groups a `GroupSchedule` freezes in each update, and how many groups there are."""
        return (), 1

    @staticmethod
    def export(plan: Plan, folder: Path, export: str, snapshots: Path | None) -> Mapping[str, Any]:
        """Write `Description.exported_files` into a folder; return the config values that make the plan read them.

        ``snapshots`` is the folder of those it was trained from, None where that is unknown. A LookupError says in one
        sentence what is missing.
        """
        return {}

    def reading(self) -> Literal["as_given", "resident", "prefetch"]:
        """Return how the loader's batches are read: by its own means, from the device, or ahead of the training."""
        return "as_given"

    def loader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return what reads the task's batches in place of its DataLoader."""
        return loader

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Return the batches to train on in place of the task's; the run has so many forward passes."""
        return batches

    def loss_scaling(self, model: nn.Module, device: torch.device) -> LossScaling | None:
        """Return how the loss is scaled; None leaves it to the configuration's one scale."""
        return None

    def n_micro(self) -> int:
        """Return the micro-batches per update; those of all methods are multiplied."""
        return 1

    def scheduler(self, optimizer: Optimizer, updates: int) -> LRScheduler | None:
        """Return the learning-rate schedule of a run of so many updates; None leaves it to the task."""
        return None

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate | None:
        """Return what turns gradients into new weights in the optimizer's place; None leaves it to the optimizer."""
        return None

    def step_hook(self, model: nn.Module, optimizer: Optimizer) -> StepHook | None:
        """Return what acts in every window: before and after the update, columns, state; None for nothing."""
        return None

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a run, or each part of it that is measured: settings of the process, put back then."""
        return contextlib.nullcontext()

    def evaluating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Return the context of evaluations: the weights or modules to evaluate with."""
        return contextlib.nullcontext()
