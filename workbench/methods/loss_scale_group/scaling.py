"""The loss scale of a training run, one per group of parameters.

Groups are found (``boost.loss_scale_group``) from the gradients of the first window, which runs in float32 at scale 1,
or given in a `GroupLossScaleManager`; borders are put around the modules of each, unless the model calls the manager
itself (marks, as in the reference's example).

The loss is the seed of the backward pass in all of them; scales live between borders. An overflow anywhere skips the
step and lowers the scale of the group where it arose (`workbench.methods.loss_scale_group.method.arising_overflow`). If
it arose in none (the loss itself was not finite, or only the device's overflow flag shows it), every scale falls, so
that training that cannot go on ends on the floor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.config import BoostConfig
from workbench.core.warning import warn
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale import has_overflow, unscale_and_check_
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.gradient_probe import GradientProbe, is_in, joined_units
from workbench.methods.loss_scale_group.groups import group_name, resolve_groups
from workbench.methods.loss_scale_group.method import GroupLossScaleManager, arising_overflow
from workbench.methods.loss_scale_group.scale_borders import NOT_COMPILED, ScaleBorders, graph_regions, maximal_units
from workbench.methods.loss_scale_group.scale_groups import find_scale_groups
from workbench.methods.protocol import Method

__all__ = ["GroupLossScaleMethod", "GroupLossScaling", "joined_units"]

_LONGEST_CALIBRATION = 8  # windows; freezing may hide some layers in the first ones
_OUTSIDE = -1


class GroupLossScaling(LossScaling):
    """Hold the scales of groups, find out where overflows arise, and move each scale by its rule.

    The manager, whose scales these are, is moved to the device of the model's gradients. With a ``limit`` at most so
    many groups are found in the first window; else they are the manager's, and a ValueError says what is wrong there.
    Training is given up after ``collapse_after`` overflows in a row with every overflowing group at its floor.
    """

    def __init__(
        self,
        manager: GroupLossScaleManager,
        model: nn.Module,
        *,
        device: torch.device | None = None,
        limit: int | None = None,
        collapse_after: int | None = None,
    ) -> None:
        super().__init__(drop_overflow_update=True, device=device, collapse_after=collapse_after)
        self.is_unit, self.unscales = False, True
        self.minimum = manager.minimum
        self.manager = manager if device is None else manager.to(device)
        self.model = model
        self.group_names: tuple[str, ...] = ()
        self.borders: ScaleBorders | None = None
        self.probe: GradientProbe | None = None
        self.limit = limit
        self._device = device
        self._reference = manager.init_loss_scale if isinstance(manager.init_loss_scale, float) else 1.0
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self._region_of: dict[Tensor, int] = {}
        self._verdict: tuple[Tensor, Tensor] | None = None
        self._graphs_seen: set[int] = set()
        self._windows = 0
        self._has_marks = any(module is manager for module in model.modules())
        if limit is not None:
            self.probe = GradientProbe(model, device)
            return
        groups = resolve_groups(manager.loss_scale_groups, model)
        if not groups:
            raise ValueError(
                "the GroupLossScaleManager has no groups; assign `loss_scale_groups` before training, or switch "
                "`boost.loss_scale_group` on, which finds them"
            )
        self.group_names = tuple(group_name(number, group) for number, group in enumerate(groups, start=1))
        group_of = {p: index for index, group in enumerate(groups) for p in group.values()}
        if self._has_marks:
            self._groups = torch.arange(len(groups) + 2, device=device) - 1
            self._region_of = {key: group + 1 for key, group in group_of.items()}
        else:
            self._draw_borders(maximal_units(model, group_of))
            self._check_borders(group_of)

    @classmethod
    def from_config(cls, config: BoostConfig, model: nn.Module, device: torch.device) -> LossScaling:  # type: ignore[override]
        """Build automatic groups as ``config.loss_scale`` asks for; one scale where none would be dynamic here."""
        rule = config.loss_scale
        if config.effective_loss_scale_kind(device.type) != "dynamic":
            return LossScaling.from_config(config, device)
        manager = GroupLossScaleManager(
            float(rule.init),
            [],
            reduce_ratio=1.0 / rule.factor,
            growth_ratio=rule.factor,
            growth_window=rule.window,
            minimum=rule.minimum,
            maximum=rule.maximum,
            unscale_with=config.compatibility.group_loss_scale,
        )
        return cls(manager, model, device=device, limit=rule.groups, collapse_after=rule.collapse_after)

    @classmethod
    def from_manager(cls, manager: GroupLossScaleManager, model: nn.Module) -> GroupLossScaling:
        """Build from a user's manager, whose groups are given; borders are drawn unless the model calls it itself."""
        device = next((parameter.device for parameter in model.parameters()), None)
        return cls(manager, model, device=device)

    @property
    def scale(self) -> Tensor:
        """The scale of the first group, as the reference reports it; 1 while groups are being found."""
        return self.manager.dynamic_loss_scale[1].reshape(())

    def set(self, scale: Tensor) -> None:
        """Overwrite the scale of every group from a tensor with one element."""
        self.manager.group_scales.copy_(scale.detach().reshape(()).expand(self.manager.loss_scale_number))

    @property
    def group_scales(self) -> Tensor | None:
        """The live scale of each group, shape ``[n]``; None while they are being found."""
        return None if self.probe is not None else self.manager.group_scales

    @property
    def autocast_allowed(self) -> bool:
        """False while groups are being found: what is measured must not have underflowed before."""
        return self.probe is None

    @property
    def moves(self) -> bool:
        """True: a rule moves the scales, in place."""
        return True

    adapts = moves

    def group_of(self, parameter: nn.Parameter) -> int:
        """Return the index of the group whose scale a parameter's gradient carries, -1 where that is 1."""
        if self.probe is not None:
            return _OUTSIDE
        return self._group_at(self._region_of.get(parameter, _OUTSIDE))

    def scale_of(self, parameter: nn.Parameter) -> Tensor:
        """Return the scale of a parameter's group, shape ``()``; outside of all groups the sentinel 1."""
        return self.manager.dynamic_loss_scale[self.group_of(parameter) + 1]

    def seed(self, loss: Tensor) -> Tensor:
        """Return the loss itself, whose gradient is scaled at the borders, after a look at its graph."""
        if self.probe is not None:
            self.probe.look_at_graph(loss)
        else:
            self._look_at_graph(loss)
        return loss

    def unscale_(self, parameters: Sequence[nn.Parameter], found_inf: Tensor) -> None:
        """Divide every gradient by the scale it carries, in place; set ``found_inf`` if anything was not finite."""
        if self.probe is not None:
            found_inf.logical_or_(has_overflow([parameter.grad for parameter in parameters]))
            self.probe.add_parameters(parameters)
            if self.agree is not None:
                self.agree(found_inf)
            return
        received, left = self._flags
        nonfinite = torch.zeros_like(received)
        by_reference = self.manager.unscale_with == "updated"
        of_region: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                of_region.setdefault(self._region_of.get(parameter, _OUTSIDE), []).append(parameter.grad)
        if by_reference:  # As upstream: gradients are divided by scales that are known only after the verdict.
            for region, of_one in of_region.items():
                nonfinite[region] = has_overflow(of_one).to(nonfinite)
            self._judge(torch.zeros_like(received), left, nonfinite, found_inf)
            assert self._verdict is not None
            scales = torch.ones_like(self.manager.dynamic_loss_scale)
            scales[1:-1] = self.manager.next_scales(*self._verdict)[0]
        else:
            scales = self.manager.dynamic_loss_scale
        inverse = scales[self._groups + 1].reciprocal()
        factors, flags = inverse.unbind(), nonfinite.unbind()
        for region, of_one in of_region.items():
            unscale_and_check_(of_one, factors[region], flags[region])
        if not by_reference:
            self._judge(received, left, nonfinite, found_inf)

    def after_window(self, overflow: Tensor) -> None:
        """Move the scales by their rule; find the groups after the first window."""
        if self.probe is not None:
            self._windows += 1
            if self._has_seen_enough(self.probe, overflow):
                self._calibrate(self.probe)
            return
        if self._verdict is not None:
            self.manager.update(*self._verdict)
            self._verdict = None
        if self.borders is not None:
            self.borders.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return scales, counters, groups and, inside a window, which gradients were not finite.

        ``units`` is module name -> group (None with marks), ``regions`` parameter name -> region. While groups are
        being found there is also what the probe has seen, and in how many ``windows``.
        """
        state: dict[str, Any] = {
            "manager": {name: value.clone() for name, value in self.manager.state_dict().items()},
            "units": None if self.borders is None else dict(self.borders.units),
            "regions": {self._names[key]: region for key, region in self._region_of.items() if key in self._names},
            "group_names": list(self.group_names),
            "flags": None if self.probe is not None else [flag.clone() for flag in self._flags],
        }
        if self.probe is not None:
            state |= self.probe.state_dict() | {"windows": self._windows}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken, with borders where they were."""
        if "counts" in state:
            if self.probe is None:
                raise ValueError("the state was taken while scale groups were being found; these groups are given")
            self.probe.load_state_dict(state)
            self._windows = state["windows"]
            return
        if self.probe is not None:
            self.probe.remove()
            self.probe = None
        self.manager.set_loss_scale_status(len(state["group_names"]), 1.0)
        self.manager.load_state_dict(state["manager"])
        self.minimum = float(self.manager.floors[0])
        self.group_names = tuple(state["group_names"])
        if state["units"] is not None:
            self._draw_borders(state["units"])
        parameters = dict(self.model.named_parameters())
        self._region_of = {parameters[name]: region for name, region in state["regions"].items()}
        for flag, value in zip(self._flags, state["flags"], strict=True):
            flag.copy_(value)

    def remove(self) -> None:
        """Take all hooks away; the model is as it was before."""
        if self.borders is not None:
            self.borders.remove()
        if self.probe is not None:
            self.probe.remove()

    @property
    def _flags(self) -> tuple[Tensor, Tensor]:
        """Which regions received a gradient that is not finite, and which passed one on."""
        holder = self.manager if self.borders is None else self.borders
        return holder.received, holder.left

    def _judge(self, received: Tensor, left: Tensor, nonfinite: Tensor, found_inf: Tensor) -> None:
        """Find the groups in which an overflow arose, and those that merely received one."""
        if self.agree is not None:
            # An inf of one rank has reached every rank's averaged gradients, so all have to know where it came in.
            flags = torch.stack([received, left, nonfinite])
            self.agree(flags)
            received, left, nonfinite = flags
        arose = arising_overflow(received, left, nonfinite)
        torch.maximum(found_inf, torch.maximum(nonfinite.max(), arose.max().to(nonfinite)), out=found_inf)
        inside = (self._groups >= 0) & (self._groups < self.manager.loss_scale_number)
        overflowed = self._per_group(arose & inside)
        touched = self._per_group((received != 0) & inside)
        # Where none is to blame (the loss itself is not finite, or only the device's flag shows it) all scales fall, or
        # training would stand still unseen.
        overflowed = overflowed | ((found_inf > 0) & ~overflowed.any())
        self._verdict = overflowed, touched & ~overflowed

    def _per_group(self, flags: Tensor) -> Tensor:
        """Return whether a flag is set in any region of each group, bool, shape ``[groups]``."""
        number = self.manager.loss_scale_number
        counts = torch.zeros(number, device=flags.device)
        return counts.index_add_(0, self._groups.clamp(0, number - 1), flags.to(counts)) > 0

    def _draw_borders(self, units: Mapping[str, int]) -> None:
        if self.borders is not None:
            self.borders.remove()
        self.borders = ScaleBorders(self.model, units, self.manager, self._device)
        # The last region is what lies outside; index -1 of the groups is the sentinel with the scale 1.
        self._groups = torch.tensor([*units.values(), _OUTSIDE], device=self._device)
        self._region_of = {
            parameter: region
            for region, name in enumerate(units)
            for parameter in self.model.get_submodule(name).parameters()
        }

    def _check_borders(self, group_of: Mapping[Tensor, int]) -> None:
        """Check that what the user grouped can have the scale of its group."""
        assert self.borders is not None
        groups_of_units = list(self.borders.units.values())
        users: dict[Tensor, set[int]] = {}
        for name, module in self.model.named_modules():
            region = next((i for i, unit in enumerate(self.borders.units) if is_in(name, unit)), _OUTSIDE)
            for parameter in module.parameters(recurse=False):
                users.setdefault(parameter, set()).add(_OUTSIDE if region < 0 else groups_of_units[region])
        for key, groups in users.items():
            if len(groups) > 1:
                raise ValueError(
                    f"parameter {self._names[key]} is used by several modules with different loss scales; put all "
                    "parameters of these modules into one group"
                )
        for index, name in enumerate(self.group_names):
            if index not in groups_of_units:
                raise ValueError(
                    f"{name} of `loss_scale_groups` holds no whole module, so there is no place where its scale could "
                    "begin and end; put all parameters of a module into one group"
                )
        if loose := [self._names[key] for key in group_of if key not in self._region_of]:
            warn(
                f"{', '.join(loose)}: used by a module that also holds parameters of other groups, so the loss scale "
                "there is 1"
            )

    def _look_at_graph(self, loss: Tensor) -> None:
        """Check, once per number of trained parameters, that each is used where its scale is in force."""
        trained = sum(parameter.requires_grad for parameter in self.model.parameters())
        if trained in self._graphs_seen:
            return
        self._graphs_seen.add(trained)
        start = None if self.borders is not None else self.manager.loss_scale_number + 1
        for key, regions in graph_regions(loss, start).of_parameter.items():
            if key not in self._names:
                continue
            used = {_OUTSIDE if region is None else region for region in regions}
            groups = {self._group_at(region) for region in used}
            expected = self._region_of.get(key)
            if expected is None and len(groups) == 1:
                self._region_of[key] = used.pop()  # named in no group: it has the scale of where it is
            elif groups != {self._group_at(_OUTSIDE if expected is None else expected)}:
                cure = "put all parameters of the modules that use it into one group"
                raise RuntimeError(
                    f"parameter {self._names[key]} belongs to {self._called(expected)}, but the forward pass uses it "
                    f"{' and '.join(sorted(f'in {self._called(region)}' for region in used))}; "
                    f"{'move the marks or the groups' if self.borders is None else cure}"
                )

    def _group_at(self, region: int) -> int:
        number = self.manager.loss_scale_number
        if self.borders is None:
            return region - 1 if 0 < region <= number else _OUTSIDE
        return _OUTSIDE if region < 0 else list(self.borders.units.values())[region]

    def _called(self, region: int | None) -> str:
        group = _OUTSIDE if region is None else self._group_at(region)
        return "no group" if group < 0 else self.group_names[group]

    def _has_seen_enough(self, probe: GradientProbe, overflow: Tensor) -> bool:
        """Return whether the gradients so far say how to scale; waits for the device, once per calibration window."""
        if self.agree is not None:
            probe.agree_(self.agree)
        if bool(overflow):  # not even float32 holds these gradients: the step was skipped, look again
            probe.counts.zero_()
            return False
        frozen = any(not parameter.requires_grad for parameter in self.model.parameters())
        return not frozen or self._windows >= _LONGEST_CALIBRATION

    def _calibrate(self, probe: GradientProbe) -> None:
        """Find groups and scales from what the probe has seen, and put the borders where they belong."""
        probe.remove()
        self.probe = None
        parts = joined_units(self.model, probe.units(), probe.regions, probe.names) or [[""]]
        found = find_scale_groups(probe.exponents(parts), self.limit or 1)
        group_of: dict[Tensor, int] = {}
        for index, group in enumerate(found):
            for unit in itertools.chain.from_iterable(parts[member] for member in group.members):
                group_of |= dict.fromkeys(self.model.get_submodule(unit).parameters(), index)
        self.manager.calibrate([group.scale for group in found], self._reference)
        self.minimum = float(self.manager.floors[0])
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        names = [[n for n, p in parameters.items() if group_of.get(p) == index] for index in range(len(found))]
        self.group_names = tuple(group_name(number, members) for number, members in enumerate(names, start=1))
        # Parameters outside of all units stay at 1; a container whose own parameters join none is never a unit.
        self._draw_borders(maximal_units(self.model, group_of))


class GroupLossScaleMethod(Method):
    """Scales by groups instead of once for the loss."""

    def refusal(self, model: nn.Module) -> str:
        """Refuse a compiled model, whose modules cannot be seen from outside."""
        is_hidden = unwrapped(model) is not model and not isinstance(model, DistributedDataParallel)
        return NOT_COMPILED if is_hidden else ""

    def loss_scaling(self, model: nn.Module, device: torch.device) -> LossScaling:
        """Return the scaling by groups."""
        return GroupLossScaling.from_config(self.config, model, device)
