"""Adam whose arithmetic and whose memory lie on the host.

Formula, order of operations, parameter groups, dynamic rates and errors are those of MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/adam.py``, ``AdamOffload``; the formula stands in ``host_adam.py``). Differences:

* A step count belongs to a parameter, not to the optimizer, so that a layer that was frozen for a while continues with
  the bias correction that is its own. Where every parameter has a gradient at every step, both are the same.
* A step that is skipped because of an overflow counts neither for the bias correction nor for a dynamic rate.

Where the weights live decides how a step goes:

* float32 and float64 on the CPU: the native fused kernel on cached lists of tensors, in place. A step looks at each
  ``.grad`` and its strides; everything else is done per cohort (``cohorts.py``).
* On an accelerator gradients travel to the host and weights back, in buckets (``host_transfer.py``); moments and a copy
  of the weights lie in pinned host memory, no optimizer state on the device. 16-bit weights go the same way, wherever
  they live, and have a float32 master copy on the host; so do weights that are views with gaps, which the
  kernel cannot take. **On CUDA and NPU this is untested**: it has run on the CPU and on what stands in for an
  accelerator in the tests, which knows streams, pinned memory and devices, but is in order and cannot show a race.

By default gradients leave in ``step``, and transfer, host update and return are pipelined from bucket to bucket: the
step takes as long as the slowest of the three. What happened to ``.grad`` before (accumulation, unscaling, clipping,
averaging over ranks) needs no special care.

With ``offload_gradients`` they leave for good, from the second step on while the backward pass produces them: ``.grad``
is None afterwards, the device's memory is free again, micro-batches are added up on the host. A loss scale is then
divided out on the host (``unscale_offloaded_``, which ``Boosted`` calls). What looks at ``.grad`` between backward and
step (clipping, gradient statistics, ``torch.amp.GradScaler``) finds nothing. The update itself always waits for
``step``, since before that nobody knows whether another bucket has overflowed. Over several ranks nothing leaves before
``step``, which comes after gradients were averaged, by ``Boosted.distribute`` or by DistributedDataParallel.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.optim.adam_offload.cohorts import (
    Cohort,
    form_cohorts,
    share_count,
    take_gradients,
)
from workbench.optim.adam_offload.given_parameters import read_parameters
from workbench.optim.adam_offload.host_adam import adam_step_, corrected_rate
from workbench.optim.adam_offload.host_transfer import HostTransfer, compute_dtype, dense_strides
from workbench.optim.adam_offload.normalization_marks import is_scale_or_shift
from workbench.optim.adam_offload.stochastic_rounding import RoundedAdam
from workbench.optim.adam_offload.transfer_lanes import Lane, lane_for
from workbench.optim.adam_offload.watched_step import hooked_when_watched
from workbench.optim.schedule import Schedule, checked_number, read_schedule, value_at
from workbench.optim.skipping import loss_of

__all__ = ["AdamOffload"]


class AdamOffload(Optimizer):
    """Adam computed on the host.

    Args:
        params: Parameters, pairs (name, parameter), parameter groups, or a module. Groups may have the keys ``params``,
            ``lr``, ``weight_decay``, ``grad_centralization`` and torch's own; one more dictionary with the only key
            ``order_params`` lists all parameters in the order in which :attr:`parameters` shall have them.
        learning_rate: Number, 1-D tensor or iterable with one entry per step, or callable of the step (counted from 0;
            it must give the same answer when asked twice). A learning rate that is a number may also be moved by
            torch's schedulers through ``param_groups``.
        beta1: Decay rate of the first moment, in (0, 1).
        beta2: Decay rate of the second moment, in (0, 1).
        eps: Added to the denominator, > 0; not bias-corrected.
        use_locking: Let threads that step the same optimizer wait for each other.
        use_nesterov: Look ahead.
        weight_decay: L2 coefficient >= 0, added to the gradient, or a callable of the step. Without groups, parameters
            named ``beta`` or ``gamma`` are not decayed, nor are those of normalizations when ``params`` is a module;
            with groups every parameter of a group is.
        loss_scale: What gradients are divided by, > 0; leave it at 1 where the training step unscales them.
        offload_gradients: Free gradients on the device as they leave. Nothing to free for weights on the CPU.
        moments_dtype: ``torch.bfloat16`` keeps the moments in half the memory, rounded stochastically; None in the
            format of the computation.
        bucket_bytes: Size limit of a bucket, bytes.
        rounding_seed: Seed of the stochastic rounding.
        transfer: ``"always"`` sends float32 weights on the CPU through the buckets, too (for tests).

    Raises:
        TypeError: When an argument is of the wrong kind.
        ValueError: When one is out of range, a list of parameters is empty, ``order_params`` does not list exactly the
            parameters of the groups, or lists of rates differ in length.
        KeyError: When a group has an unknown key.
        RuntimeError: When groups hold a parameter twice (a plain list: ValueError).

    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> optimizer = AdamOffload(net.named_parameters(), learning_rate=[0.1, 0.05], weight_decay=0.01)
        >>> net(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["lr"]
        0.05
    """

    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        *,
        offload_gradients: bool = False,
        moments_dtype: torch.dtype | None = None,
        bucket_bytes: int = 25 * 2**20,
        rounding_seed: int = 0,
        transfer: Literal["needed", "always"] = "needed",
    ) -> None:
        _require_open_unit("beta1", beta1)
        _require_open_unit("beta2", beta2)
        _require_positive("eps", eps, float)
        _require_bool("use_locking", use_locking)
        _require_bool("use_nesterov", use_nesterov)
        _require_positive("loss_scale", loss_scale, Real)
        _require_bool("offload_gradients", offload_gradients)
        if moments_dtype not in (None, torch.bfloat16):
            raise ValueError(f"`moments_dtype` must be None or torch.bfloat16, got {moments_dtype}")
        if not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"`bucket_bytes` must be an integer >= 1, got {bucket_bytes!r}")
        if transfer not in ("needed", "always"):
            raise ValueError(f'`transfer` must be "needed" or "always", got {transfer!r}')
        rate = read_schedule("learning_rate", learning_rate)
        decay = _read_weight_decay(weight_decay)
        groups, order = read_parameters(params, decays=decay != 0.0)
        self._global_step = 0
        self._cohorts: list[Cohort] | None = None
        self._found_inf: Tensor | None = None
        self._lock = _lock(use_locking)
        self._transfer: HostTransfer | None = None
        self._pending_gradients: dict[Tensor, Tensor] = {}
        self._columns: dict[str, float] = {}
        self._rounded = None if moments_dtype is None else RoundedAdam(rounding_seed)
        defaults = {
            "lr": rate,
            "betas": (beta1, beta2),
            "eps": eps,
            "weight_decay": decay,
            "use_nesterov": use_nesterov,
            "loss_scale": float(loss_scale),
        }
        # Of the optimizer as a whole; torch copies every default into every group, where these mean nothing.
        self._options: dict[str, Any] = {
            "use_locking": use_locking,
            "offload_gradients": offload_gradients,
            "moments_dtype": moments_dtype,
            "bucket_bytes": bucket_bytes,
            "rounding_seed": rounding_seed,
            "transfer": transfer,
        }
        super().__init__(groups, defaults)
        _require_one_length([rate, *(group["lr_schedule"] for group in self.param_groups)])
        self._order = order

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, in the order of ``order_params`` where it was given."""
        held = self._held()
        if self._order is None:
            return held
        ordered = {id(parameter) for parameter in self._order}
        return self._order + [parameter for parameter in held if id(parameter) not in ordered]

    @property
    def global_step(self) -> int:
        """Steps taken so far, without skipped ones: the index into dynamic rates."""
        return self._global_step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Args:
            param_group: ``params`` and options; ``lr`` and ``weight_decay`` may be dynamic.

        Raises:
            TypeError: When a parameter is not of a floating-point type.
            ValueError: When ``moments_dtype`` is set and a parameter is of a type that needs wider moments.
        """
        group = dict(param_group)
        schedules = {key: group.pop(key, None) for key in ("lr_schedule", "weight_decay_schedule")}
        rate = read_schedule("lr", group["lr"]) if "lr" in group else self.defaults["lr"]
        decay = _read_weight_decay(group["weight_decay"]) if "weight_decay" in group else self.defaults["weight_decay"]
        group["lr"], group["lr_schedule"] = _current(rate, schedules["lr_schedule"], "learning_rate")
        group["weight_decay"], group["weight_decay_schedule"] = _current(
            decay, schedules["weight_decay_schedule"], "weight_decay"
        )
        group.setdefault("decay_by_name", False)
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            if not parameter.is_floating_point():
                raise TypeError(f"`params` must hold floating-point parameters, got {parameter.dtype}")
            if self._options["moments_dtype"] is not None and compute_dtype(parameter.dtype) != torch.float32:
                raise ValueError(f"`moments_dtype` must be None for parameters of {parameter.dtype}")
        self._drop_caches()

    def over_groups(self, groups: list[dict[str, Any]]) -> AdamOffload:
        """Return an optimizer with the arguments of this one and its place in dynamic rates, over other groups.

        Args:
            groups: Parameter groups.
        """
        defaults = self.defaults
        beta1, beta2 = defaults["betas"]
        other = type(self)(
            groups,
            defaults["lr"],
            beta1,
            beta2,
            defaults["eps"],
            use_nesterov=defaults["use_nesterov"],
            weight_decay=defaults["weight_decay"],
            loss_scale=defaults["loss_scale"],
            **self._options,
        )
        other._global_step = self._global_step
        return other

    @hooked_when_watched
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: Re-evaluates the model and returns the loss, as in every torch optimizer.

        Returns:
            The closure's loss, or None.

        Raises:
            RuntimeError: When a list of rates has come to its end, or a gradient is sparse.
        """
        loss = loss_of(closure)
        # A flag on the CPU costs nothing to read, and Adam on the host waits for the gradients anyway.
        if self._found_inf is None or self._found_inf.item() == 0:
            with self._lock, torch.no_grad():
                self._update()
        elif self._transfer is not None:
            self._transfer.discard()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those that have left included.

        Args:
            set_to_none: As in torch.
        """
        super().zero_grad(set_to_none)
        self._pending_gradients = {}
        if self._transfer is not None:
            self._transfer.discard()

    def unscale_offloaded_(self, scale_of: Callable[[Any], Tensor], found_inf: Tensor) -> None:
        """Divide gradients that have left the device by the loss scale and note whether any is inf or NaN.

        The part of unscaling that cannot be done through ``.grad``; nothing to do without ``offload_gradients``.

        Args:
            scale_of: Gives the scale of a parameter's gradient, one element.
            found_inf: Flag, float32, one element; set to 1.0 if anything is not finite.

        Raises:
            RuntimeError: When parameters have different scales.
        """
        held = {} if self._transfer is None else self._transfer.held_gradients()
        if not held:
            return
        scales = {scale.data_ptr(): scale for scale in (scale_of(parameter) for parameter in held)}
        if len(scales) > 1:
            raise RuntimeError("`offload_gradients` does not work with a loss scale per group; use one scale for all")
        factor = next(iter(scales.values())).detach().to("cpu", torch.float32).reshape(()).reciprocal()
        batches: dict[torch.dtype, list[Tensor]] = {}
        for gradient in held.values():
            batches.setdefault(gradient.dtype, []).append(gradient)
        flag = torch.zeros((), device="cpu")
        for gradients in batches.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, factor)
        if flag.item() != 0:
            found_inf.fill_(1.0)

    def columns(self) -> Mapping[str, float]:
        """Return what the host knows of the last step, for the trace.

        Returns:
            ``offload.host_ms`` (Adam on the host) and, where gradients travel, ``offload.transfer_ms`` (their way to
            the host) and ``offload.hidden_share`` (the part of both, in [0, 1], that ``step`` did not wait for).
        """
        return self._columns

    def step_with_found_inf(self, found_inf: Tensor) -> None:
        """Take a step unless gradients overflowed; weights, moments and counts stay as they are then.

        Args:
            found_inf: Flag, one element; anything but 0 means skip. Step hooks run in either case.
        """
        self._found_inf = found_inf
        try:
            self.step()
        finally:
            self._found_inf = None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to continue exactly.

        Returns:
            As in torch ``state`` (per parameter ``step``, ``exp_avg``, ``exp_avg_sq``) and ``param_groups``, without
            callables, which belong to the program. 16-bit weights have also their float32 ``master``. Under
            ``adam_offload``: ``global_step``; the rounding's ``generator``, where moments are rounded; and inside an
            accumulation window ``gradients`` that have left, by number of the parameter.
        """
        saved = super().state_dict()
        saved["param_groups"] = [
            {key: None if callable(value) else value for key, value in group.items()} for group in saved["param_groups"]
        ]
        own: dict[str, Any] = {"global_step": self._global_step}
        if self._rounded is not None:
            own["generator"] = self._rounded.generator.get_state()
        held = dict(self._pending_gradients)
        if self._transfer is not None:
            held.update(self._transfer.held_gradients())
        if held:
            own["gradients"] = {n: held[p].clone() for n, p in enumerate(self._held()) if p in held}
        saved["adam_offload"] = own
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state, or from one of ``torch.optim.Adam``. The saved tensors are copied.

        Args:
            state_dict: What :meth:`state_dict` returned for the same groups.
        """
        schedules = [(group["lr_schedule"], group["weight_decay_schedule"]) for group in self.param_groups]
        states = state_dict["state"]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        # torch would move the moments to where the parameter is, in its dtype; ours stay where they are.
        super().load_state_dict({**state_dict, "state": {}})
        for group, kept in zip(self.param_groups, schedules, strict=True):
            for key, schedule in zip(("lr_schedule", "weight_decay_schedule"), kept, strict=True):
                if group.get(key) is None:
                    group[key] = schedule if callable(schedule) else None
            for key, value in self._group_defaults().items():
                group.setdefault(key, value)
        self.state.clear()
        held = self._held()
        for number, parameter in zip(numbers, held, strict=True):
            if number in states:
                self.state[parameter] = self._own_state(parameter, states[number])
        own = state_dict.get("adam_offload", {})
        self._global_step = int(
            own.get("global_step", max((int(state["step"]) for state in self.state.values()), default=0))
        )
        if self._rounded is not None and "generator" in own:
            self._rounded.generator.set_state(own["generator"].cpu())
        self._drop_caches()
        self._pending_gradients = {held[n]: gradient.clone() for n, gradient in own.get("gradients", {}).items()}
        self._listen_again()

    def __getstate__(self) -> dict[str, Any]:
        kept = super().__getstate__()
        kept.update(
            {name: self.__dict__[name] for name in ("_global_step", "_order", "_options", "_pending_gradients")}
        )
        if self._transfer is not None:
            kept["_pending_gradients"] = self._pending_gradients | self._transfer.held_gradients()
        kept["_generator"] = None if self._rounded is None else self._rounded.generator.get_state()
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_generator" not in state:
            return  # torch loads a state dictionary through this method, too
        generator = self.__dict__.pop("_generator")
        self._rounded = None
        if generator is not None:
            self._rounded = RoundedAdam()
            self._rounded.generator.set_state(generator)
        self._transfer = None
        self._columns = {}
        # Cohorts refer to parameters and state by identity: a copy forms its own.
        self._cohorts = None
        self._found_inf = None
        self._lock = _lock(self._options["use_locking"])
        self._listen_again()

    def _listen_again(self) -> None:
        """Inside an accumulation window let gradients leave at once, so that the order in which they add up stays."""
        if self._pending_gradients:
            self._cohorts = self._form_cohorts()
            if self._transfer is not None:
                self._transfer.listen()

    def _group_defaults(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.defaults.items() if key not in ("lr", "weight_decay")}
        return {**kept, "lr_schedule": None, "weight_decay_schedule": None, "decay_by_name": False}

    def _held(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _own_state(self, parameter: Tensor, saved: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"step": torch.tensor(float(saved["step"]), dtype=torch.float32, device="cpu")}
        for name in ("exp_avg", "exp_avg_sq"):
            own[name] = self._host_moment(parameter).copy_(saved[name])
        if "master" in saved:
            own["master"] = saved["master"].detach().to("cpu", torch.float32, copy=True)
        return own

    def _host_moment(self, parameter: Tensor) -> Tensor:
        """Return zeros on the host, laid out as a parameter; pinned where it lives on an accelerator."""
        moment = torch.empty_like(
            parameter,
            dtype=self._options["moments_dtype"] or compute_dtype(parameter.dtype),
            device="cpu",
            pin_memory=parameter.device.type != "cpu",
            requires_grad=False,
        )
        return moment.zero_()

    def _travels(self, parameter: Tensor) -> bool:
        return (
            parameter.device.type != "cpu"
            or compute_dtype(parameter.dtype) != parameter.dtype
            # The kernel would also write to what lies in the gaps of a view.
            or dense_strides(parameter) != parameter.stride()
            or self._options["transfer"] == "always"
        )

    def _make_lane(self, device: torch.device) -> Lane:
        return lane_for(device)

    def _drop_caches(self) -> None:
        if self._transfer is not None:
            self._pending_gradients |= self._transfer.held_gradients()
            self._transfer.stop_listening()
        self._transfer = None
        self._cohorts = None

    def _form_cohorts(self) -> list[Cohort]:
        travellers = [parameter for parameter in self._held() if self._travels(parameter)]
        place: Mapping[Tensor, tuple[int, int]] = {}
        if travellers:
            frees = self._options["offload_gradients"]
            transfer = HostTransfer(travellers, self._options["bucket_bytes"], frees, self._make_lane)
            place = transfer.place
            for parameter, (number, index) in place.items():
                if parameter in self.state and compute_dtype(parameter.dtype) != parameter.dtype:
                    state = self.state[parameter]
                    if "master" in state:
                        transfer.buckets[number].give_master(index, state["master"])
                    state["master"] = transfer.buckets[number].weights[index]
                if parameter in self._pending_gradients:
                    transfer.buckets[number].put_sum(index, self._pending_gradients[parameter])
            self._pending_gradients = {}
            self._transfer = transfer
        return form_cohorts(
            self.param_groups,
            self.state,
            _decays,
            lambda parameter: place[parameter][0] if parameter in place else None,
        )

    def _update(self) -> None:
        for group in self.param_groups:
            for name, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
                schedule = group[f"{name}_schedule"]
                if schedule is not None:
                    group[name] = value_at(schedule, self._global_step, key)
        if self._cohorts is None:
            self._cohorts = self._form_cohorts()
        begin = time.perf_counter()
        transfer = self._transfer
        travelling = set[Tensor]() if transfer is None else transfer.collect()
        work = take_gradients(self._cohorts, self.state, travelling)
        arrived: dict[int, dict[int, Tensor]] = {}
        host_seconds = 0.0
        for cohort, gradients in work:
            if not cohort.first:
                self._begin(cohort)
            if cohort.bucket is None:
                began = time.perf_counter()
                self._adam(cohort, cohort.parameters, _laid_out(cohort, gradients))
                host_seconds += time.perf_counter() - began
                continue
            assert transfer is not None
            bucket = transfer.buckets[cohort.bucket]
            if cohort.bucket not in arrived:
                bucket.read_weights()
                arrived[cohort.bucket] = bucket.arrived()
            chosen = [transfer.place[parameter][1] for parameter in cohort.parameters]
            began = time.perf_counter()
            on_host = [arrived[cohort.bucket][i] for i in chosen]
            self._adam(cohort, [bucket.weights[i] for i in chosen], on_host)
            host_seconds += time.perf_counter() - began
            bucket.give_back(chosen)
        self._columns = {"offload.host_ms": host_seconds * 1e3}
        if transfer is not None:
            transfer.finish()
            self._note_transfer(transfer, host_seconds * 1e3, (time.perf_counter() - begin) * 1e3)
            transfer.listen()
        self._global_step += 1
        for group in self.param_groups:
            self._show_coming_values(group)

    def _note_transfer(self, transfer: HostTransfer, host_ms: float, waited_ms: float) -> None:
        transfer_ms = transfer.transfer_ms()
        total = transfer_ms + host_ms
        self._columns["offload.transfer_ms"] = transfer_ms
        self._columns["offload.hidden_share"] = max(0.0, 1.0 - waited_ms / total) if total > 0.0 else 0.0

    def _adam(self, cohort: Cohort, weights: list[Tensor], gradients: list[Tensor]) -> None:
        cohort.steps += 1
        group = cohort.group
        beta1, beta2 = group["betas"]
        take_step_ = adam_step_ if self._rounded is None else self._rounded.step_
        cohort.lists = take_step_(
            weights,
            gradients,
            cohort.first,
            cohort.second,
            rate=corrected_rate(float(group["lr"]), beta1, beta2, cohort.steps.item()),
            betas=(beta1, beta2),
            eps=group["eps"],
            weight_decay=group["weight_decay"] if cohort.decays else 0.0,
            loss_scale=group["loss_scale"],
            nesterov=group["use_nesterov"],
            before=cohort.lists,
        )

    def _begin(self, cohort: Cohort) -> None:
        cohort.first = [self._host_moment(parameter) for parameter in cohort.parameters]
        cohort.second = [self._host_moment(parameter) for parameter in cohort.parameters]
        for parameter, first, second in zip(cohort.parameters, cohort.first, cohort.second, strict=True):
            self.state[parameter].update(exp_avg=first, exp_avg_sq=second)
            if self._transfer is not None and compute_dtype(parameter.dtype) != parameter.dtype:
                number, index = self._transfer.place[parameter]
                self.state[parameter]["master"] = self._transfer.buckets[number].weights[index]
        share_count(cohort, self.state)

    def _show_coming_values(self, group: dict[str, Any]) -> None:
        """Let the group show what the coming step will use, as with torch's schedulers; the last one past an end."""
        for name, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            schedule = group[f"{name}_schedule"]
            if schedule is not None and not (isinstance(schedule, tuple) and self._global_step >= len(schedule)):
                group[name] = value_at(schedule, self._global_step, key)


def _decays(group: dict[str, Any], index: int) -> bool:
    if not group["decay_by_name"]:
        return True
    names = group.get("param_names")
    return not is_scale_or_shift(group["params"][index], "" if names is None else names[index])


def _laid_out(cohort: Cohort, gradients: list[Tensor]) -> list[Tensor]:
    """Return gradients laid out as their parameters.

    The kernel goes through memory as if they were. Those that autograd put into ``.grad`` are; those that somebody
    assigned need not be, and the result would be silently wrong (torch's fused Adam has this trap).
    """
    try:
        if cohort.is_contiguous and all(map(Tensor.is_contiguous, gradients)):  # the quicker question, mostly enough
            return gradients
        if list(map(Tensor.stride, gradients)) == cohort.strides:
            return gradients
    except RuntimeError as error:  # a sparse tensor has no strides
        raise RuntimeError("AdamOffload needs dense gradients; build the embedding with sparse=False") from error
    return [
        torch.empty_like(parameter).copy_(gradient)
        for parameter, gradient in zip(cohort.parameters, gradients, strict=True)
    ]


def _current(value: float | Schedule, schedule: Schedule | None, name: str) -> tuple[float, Schedule | None]:
    """Return what a group holds for a value that may be dynamic; a schedule that it already has stays."""
    # As upstream: an empty list fails at the first step only.
    first = 0.0 if value == () else value_at(value, 0, name)
    return first, value if schedule is None and not isinstance(value, float) else schedule


def _read_weight_decay(decay: Any) -> float | Schedule:
    return decay if callable(decay) else checked_number("weight_decay", decay)


def _lock(wanted: bool) -> AbstractContextManager[Any]:
    return threading.Lock() if wanted else nullcontext()


def _require_one_length(schedules: Iterable[object]) -> None:
    lengths = sorted({len(schedule) for schedule in schedules if isinstance(schedule, tuple)})
    if len(lengths) > 1:
        raise ValueError(f"`learning_rate` and `lr` lists must have one length in all groups, got lengths {lengths}")


def _require_open_unit(name: str, value: Any) -> None:
    if not isinstance(value, float):
        raise TypeError(f"`{name}` must be a float, got {type(value).__name__}")
    if not 0.0 < value < 1.0:
        raise ValueError(f"`{name}` must lie in (0, 1), got {value}")


def _require_positive(name: str, value: Any, kind: type) -> None:
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if not fits:
        raise TypeError(f"`{name}` must be a {'number' if kind is Real else 'float'}, got {type(value).__name__}")
    if not 0.0 < float(value) < float("inf"):
        raise ValueError(f"`{name}` must be finite and > 0, got {value}")


def _require_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be a bool, got {value!r}")
