"""Adam whose arithmetic and whose memory lie on the host.

Formula, order of operations, parameter groups, dynamic rates and errors are those of MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/adam.py``, ``AdamOffload``; the formula stands in ``host_adam.py``). Differences:

* A step count belongs to a parameter, not to the optimizer, so that a layer that was frozen for a while continues with
  the bias correction that is its own. Where every parameter has a gradient at every step, both are the same.
* A step that is skipped because of an overflow counts neither for the bias correction nor for a dynamic rate.

Where the weights live decides how a step goes:

* float32 and float64 on the CPU: the native fused kernel on cached lists of tensors, in place (``host_adam.py``).
* On an accelerator gradients travel to the host and weights back, in buckets (``host_transfer.py``); moments lie in
  host memory and a copy of the weights in pinned memory, no optimizer state on the device. 16-bit weights go the same
  way, wherever they live, and have a float32 master copy on the host; so do weights that are views with gaps, which the
  kernel cannot take. **On NPU this is untested**: it has run on the CPU, on CUDA (``studies/first_gpu``) and on a
  stand-in that knows streams, pinned memory and devices and detects races by the order of events, but computes in
  order.

  Such a step takes longer than one on the device, since the next forward pass needs the new weights: for 1e9 float32
  weights 4 GB each way and 28 GB of host memory traffic: 2.3 times the step on an H200, 1.7 times with
  ``offload_gradients``. It is for what does not fit otherwise.

By default gradients leave in ``step``, pipelined from bucket to bucket, so that accumulation, unscaling, clipping and
averaging over ranks need no special care. With ``offload_gradients`` they leave for good during the backward pass, from
the second step on: ``.grad`` is None afterwards, so that clipping, gradient statistics and ``torch.amp.GradScaler``
find nothing, and a loss scale is divided out on the host (``unscale_offloaded_``, which ``Boosted`` calls). The update
waits for ``step``, since before that it is unknown whether another bucket has overflowed.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.core.arguments import checked_count, checked_number, checked_switch
from workbench.core.step_optimizer import StepOptimizer, held_parameters
from workbench.optim.adam_offload.given_parameters import read_parameters
from workbench.optim.adam_offload.host_adam import RoundedAdam, StepGroup, form_step_groups, take_gradients
from workbench.optim.adam_offload.host_transfer import (
    Bucket,
    CopyStream,
    HostTransfer,
    compute_dtype,
    needs_transfer,
)
from workbench.optim.schedule import Schedule, read_schedule, value_at

#: Per dynamic option of a group: the key of its schedule, and the name users know it by.
_SCHEDULES = {"lr": ("lr_schedule", "learning_rate"), "weight_decay": ("weight_decay_schedule", "weight_decay")}


class AdamOffload(StepOptimizer):
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
        ValueError: When one is out of range, there is no parameter, ``order_params`` does not list exactly those of the
            groups, or lists of rates differ in length.
        KeyError: When a group has an unknown key.
        RuntimeError: When groups hold a parameter twice (a plain list: ValueError); in ``step``, when a list of rates
            has come to its end or a gradient is sparse.

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
        arguments = dict(locals())
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            checked_number(name, beta, above=0.0, below=1.0, kind=float)
        checked_number("eps", eps, above=0.0, kind=float)
        checked_switch("use_locking", use_locking)
        checked_switch("use_nesterov", use_nesterov)
        checked_switch("offload_gradients", offload_gradients)
        if moments_dtype not in (None, torch.bfloat16):
            raise ValueError(f"`moments_dtype` must be None or torch.bfloat16, got {moments_dtype}")
        checked_count("bucket_bytes", bucket_bytes)
        if transfer not in ("needed", "always"):
            raise ValueError(f'`transfer` must be "needed" or "always", got {transfer!r}')
        rate = read_schedule("learning_rate", learning_rate)
        decay = _read_weight_decay(weight_decay)
        groups, order = read_parameters(params, any_decay=decay != 0.0)
        self._global_step = 0
        self._step_groups: list[StepGroup] | None = None
        self._transfer = HostTransfer()  # what travels is known when step groups are formed
        self._lock = _lock(use_locking)
        self._pending_gradients: dict[Tensor, Tensor] = {}
        self._columns: dict[str, float] = {}
        self._rounded = None if moments_dtype is None else RoundedAdam(rounding_seed)
        defaults = {
            "lr": rate,
            "betas": (beta1, beta2),
            "eps": eps,
            "weight_decay": decay,
            "use_nesterov": use_nesterov,
            "loss_scale": checked_number("loss_scale", loss_scale, above=0.0),
        }
        # Those of the optimizer as a whole are no defaults: torch copies every default into every group.
        self._arguments = {key: value for key, value in arguments.items() if key not in ("self", "params", "__class__")}
        self._arguments["learning_rate"] = rate  # an iterable can be read only once
        super().__init__(groups, defaults)
        schedules = [rate, *(group["lr_schedule"] for group in self.param_groups)]
        lengths = sorted({len(schedule) for schedule in schedules if isinstance(schedule, tuple)})
        if len(lengths) > 1:
            raise ValueError(
                f"`learning_rate` and `lr` lists must have one length in all groups, got lengths {lengths}"
            )
        self._order = order

    @property
    def has_own_rates(self) -> bool:
        """See `StepOptimizer`."""
        return any(not isinstance(group["lr_schedule"], float) for group in self.param_groups)

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, in the order of ``order_params`` where it was given."""
        first = self._order or []
        ordered = set(first)
        return [*first, *(parameter for parameter in held_parameters(self) if parameter not in ordered)]

    @property
    def global_step(self) -> int:
        """Steps taken so far, without skipped ones: the index into dynamic rates."""
        return self._global_step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its ``lr`` and ``weight_decay`` may be dynamic.

        Raises:
            TypeError: When a parameter is not of a floating-point type.
            ValueError: When ``moments_dtype`` is set and a parameter is of a type that needs wider moments.
        """
        group = dict(param_group)
        for option, read in (("lr", functools.partial(read_schedule, "lr")), ("weight_decay", _read_weight_decay)):
            key, name = _SCHEDULES[option]
            value = read(group[option]) if option in group else self.defaults[option]
            kept = group.get(key)  # a group of another AdamOffload brings its own
            # As upstream: an empty list fails at the first step only.
            group[option] = 0.0 if value == () else value_at(value, 0, name)
            group[key] = value if kept is None and not isinstance(value, float) else kept
        group.setdefault("decay_by_name", False)
        super().add_param_group(group)
        for parameter in self.param_groups[-1]["params"]:
            if not parameter.is_floating_point():
                raise TypeError(f"`params` must hold floating-point parameters, got {parameter.dtype}")
            if self._arguments["moments_dtype"] is not None and compute_dtype(parameter.dtype) != torch.float32:
                raise ValueError(f"`moments_dtype` must be None for parameters of {parameter.dtype}")
        self._drop_caches()

    def over_groups(self, groups: Sequence[dict[str, Any]]) -> AdamOffload:
        """Return an optimizer with the arguments of this one and its place in dynamic rates, over other groups."""
        other = type(self)(groups, **self._arguments)
        other._global_step = self._global_step
        return other

    def _step(self) -> None:
        # A flag on the CPU costs nothing to read, and Adam on the host waits for the gradients anyway.
        if self.found_inf is None or self.found_inf.item() == 0:
            with self._lock:
                self._update()
        else:
            self._transfer.discard()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those that have left included; ``set_to_none`` as in torch."""
        super().zero_grad(set_to_none)
        self._pending_gradients = {}
        self._transfer.discard()

    def unscale_offloaded_(self, scale_of: Callable[[Any], Tensor], found_inf: Tensor) -> None:
        """Divide gradients that have left the device by the loss scale and note whether any is inf or NaN.

        Args:
            scale_of: Gives the scale of a parameter's gradient, one element; it must be the same for all.
            found_inf: Flag, float32, one element; set to 1.0 if anything is not finite.

        Raises:
            RuntimeError: When parameters have different scales.
        """
        self._transfer.unscale_(scale_of, found_inf)

    def columns(self) -> Mapping[str, float]:
        """Return what the host knows of the last step, for the trace.

        ``offload.host_ms`` (Adam on the host) and, where gradients travel, ``offload.transfer_ms`` (their way to the
        host) and ``offload.hidden_share`` (the part of both, in [0, 1], that ``step`` did not wait for).
        """
        return self._columns

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to continue exactly.

        As in torch ``state`` (per parameter ``step``, ``exp_avg``, ``exp_avg_sq``) and ``param_groups``, without
        callables, which belong to the program. 16-bit weights have also their float32 ``master``. Under
        ``adam_offload``: ``global_step``; the rounding's ``generator``, where moments are rounded; and inside an
        accumulation window ``gradients`` that have left, by number of the parameter.
        """
        saved = super().state_dict()
        for group in saved["param_groups"]:  # torch has made them for this dictionary
            group.update({key: None for key, value in group.items() if callable(value)})
        own: dict[str, Any] = {"global_step": self._global_step}
        if self._rounded is not None:
            own["generator"] = self._rounded.generator.get_state()
        if held := self._gradients_away():
            own["gradients"] = {n: held[p].clone() for n, p in enumerate(held_parameters(self)) if p in held}
        saved["adam_offload"] = own
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state of the same groups, or of ``torch.optim.Adam``. The saved tensors are copied."""
        schedules = [{key: group[key] for key, _ in _SCHEDULES.values()} for group in self.param_groups]
        states = state_dict["state"]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        # torch would move the moments to where the parameter is, in its dtype; ours stay where they are.
        super().load_state_dict({**state_dict, "state": {}})
        options = {key: value for key, value in self.defaults.items() if key not in _SCHEDULES}
        for group, kept in zip(self.param_groups, schedules, strict=True):
            for key, schedule in kept.items():
                if group.get(key) is None:
                    group[key] = schedule if callable(schedule) else None
            for key, value in {**options, "decay_by_name": False}.items():
                group.setdefault(key, value)
        self.state.clear()
        held = held_parameters(self)
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
        kept = {name: self.__dict__[name] for name in ("_global_step", "_order", "_arguments")}
        kept["_pending_gradients"] = self._gradients_away()
        kept["_generator"] = None if self._rounded is None else self._rounded.generator.get_state()
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_generator" not in state:
            return  # torch loads a state dictionary through this method, too
        generator = self.__dict__.pop("_generator")
        self._rounded = None if generator is None else RoundedAdam()
        if self._rounded is not None:
            self._rounded.generator.set_state(generator)
        self._transfer = HostTransfer()
        self._columns = {}
        self._step_groups = None  # they refer to parameters and state by identity: a copy forms its own
        self._lock = _lock(self._arguments["use_locking"])
        self._listen_again()

    def _listen_again(self) -> None:
        """Inside an accumulation window let gradients leave at once, so that the order in which they add up stays."""
        if self._pending_gradients:
            self._step_groups = self._form_step_groups()
            self._transfer.listen()

    def _own_state(self, parameter: Tensor, saved: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"step": torch.tensor(float(saved["step"]), dtype=torch.float32, device="cpu")}
        for name in ("exp_avg", "exp_avg_sq"):
            own[name] = self._host_moment(parameter).copy_(saved[name])
        if "master" in saved:
            own["master"] = saved["master"].detach().to("cpu", torch.float32, copy=True)
        return own

    def _host_moment(self, parameter: Tensor) -> Tensor:
        """Return zeros on the host, laid out as a parameter; not pinned, since moments never travel."""
        dtype = self._arguments["moments_dtype"] or compute_dtype(parameter.dtype)
        return torch.zeros_like(parameter, dtype=dtype, device="cpu", requires_grad=False)

    _make_stream = CopyStream

    def _drop_caches(self) -> None:
        self._pending_gradients = self._gradients_away()
        self._transfer.stop_listening()
        self._transfer = HostTransfer()
        self._step_groups = None

    def _gradients_away(self) -> dict[Tensor, Tensor]:
        return self._pending_gradients | self._transfer.held_gradients()

    def _form_step_groups(self) -> list[StepGroup]:
        bucket_of: dict[Tensor, Bucket] = {}
        every = self._arguments["transfer"] == "always"
        travellers = [parameter for parameter in held_parameters(self) if every or needs_transfer(parameter)]
        if travellers:
            limit, frees = self._arguments["bucket_bytes"], self._arguments["offload_gradients"]
            self._transfer = HostTransfer(travellers, limit, frees, self._make_stream)
            for parameter, (bucket, index) in self._transfer.place.items():
                bucket_of[parameter] = bucket
                if parameter in self.state:
                    self._keep_master(parameter)
                if parameter in self._pending_gradients:
                    bucket.put_sum(index, self._pending_gradients.pop(parameter))
        for parameter, gradient in self._pending_gradients.items():  # that travelled where the state was saved
            own = gradient.to(parameter)
            parameter.grad = own if parameter.grad is None else parameter.grad + own
        self._pending_gradients = {}
        return form_step_groups(self.param_groups, self.state, bucket_of)

    def _keep_master(self, parameter: Tensor) -> None:
        """Let the state of 16-bit weights have the host's copy as ``master``, with the value it had so far."""
        if compute_dtype(parameter.dtype) == parameter.dtype:
            return
        (bucket, index), state = self._transfer.place[parameter], self.state[parameter]
        if "master" in state:
            bucket.give_master(index, state["master"])
        state["master"] = bucket.weights[index]

    def _update(self) -> None:
        self._follow_schedules()
        if self._step_groups is None:
            self._step_groups = self._form_step_groups()
        began = time.perf_counter()
        transfer = self._transfer
        travelling = transfer.collect()
        arrived: dict[int, dict[int, Tensor]] = {}
        host_seconds = 0.0
        for step_group, gradients in take_gradients(self._step_groups, self.state, travelling):
            bucket = step_group.bucket
            if not step_group.first:
                self._begin(step_group)
            if bucket is None:
                gradients = step_group.laid_out(gradients)
                host_seconds += step_group.take_step(step_group.parameters, gradients, self._rounded)
                continue
            if bucket.number not in arrived:
                bucket.read_weights()
                arrived[bucket.number] = bucket.arrived()
            chosen = [transfer.place[parameter][1] for parameter in step_group.parameters]
            on_host = [arrived[bucket.number][i] for i in chosen]
            weights = [bucket.weights[i] for i in chosen]
            host_seconds += step_group.take_step(weights, on_host, self._rounded)
            bucket.give_back(chosen)
        self._columns = {"offload.host_ms": host_seconds * 1e3}
        if transfer.buckets:
            transfer_ms = transfer.finish()
            waited_ms, total_ms = (time.perf_counter() - began) * 1e3, transfer_ms + host_seconds * 1e3
            self._columns["offload.transfer_ms"] = transfer_ms
            self._columns["offload.hidden_share"] = max(0.0, 1.0 - waited_ms / total_ms) if total_ms > 0.0 else 0.0
            transfer.listen()
        self._global_step += 1
        # Let groups show what the coming step will use, as with torch's schedulers.
        self._follow_schedules(past_end="last")

    def _begin(self, step_group: StepGroup) -> None:
        """Make the state of parameters that have none yet."""
        for parameter in step_group.parameters:
            first, second = self._host_moment(parameter), self._host_moment(parameter)
            step_group.first.append(first)
            step_group.second.append(second)
            self.state[parameter].update(exp_avg=first, exp_avg_sq=second)
            self._keep_master(parameter)
        step_group.share_count(self.state)

    def _follow_schedules(self, past_end: Literal["error", "last"] = "error") -> None:
        for group in self.param_groups:
            for option, (key, name) in _SCHEDULES.items():
                if group[key] is not None and (group[key] or past_end == "error"):
                    group[option] = value_at(group[key], self._global_step, name, past_end=past_end)


def _read_weight_decay(decay: Any) -> float | Schedule:
    return decay if callable(decay) else checked_number("weight_decay", decay)


def _lock(wanted: bool) -> AbstractContextManager[Any]:
    return threading.Lock() if wanted else nullcontext()
