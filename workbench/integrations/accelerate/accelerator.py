"""An Accelerator whose step is a set-up's, for a training loop that stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from workbench.config import ConfigLike
from workbench.integrations.accelerate.loop import prepare
from workbench.training.boosted import Boosted
from workbench.training.outcome import StepOutcome


class BoostedAccelerator(Accelerator):  # type: ignore[misc]  # accelerate has no types
    """Train under a set-up in a loop that is written for Accelerate, each of its lines as it is.

    Two lines change, the import and this one::

        accelerator = BoostedAccelerator(boost="boost_config.o1.json", epochs=epochs)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    The first call of ``prepare`` with a model, its optimizer and its loader applies the set-up to them. From then on
    ``backward``, ``clip_grad_norm_`` and ``optimizer.step()`` are the set-up's, the model computes in its precision,
    and the loader's epochs hold its batches: a loop over a shorter run ends with epochs that are empty. After the last
    batch the model has the weights to use; ``with accelerator.boosted.evaluating():`` puts them in place for an
    evaluation before that. After ``load_state`` the loader goes on where it was. Labels are smoothed by
    ``accelerator.boosted.criterion``, made of ``criterion``.

    Args:
        boost: Configuration, dictionary, or path of a ``boost_config.json``.
        epochs: Epochs that the model is trained for today.
        level: Boost level, as for ``apply``.
        seed: Seed of the freezing schedule.
        criterion: What judges the model's output, where the set-up smooths labels.
        example_inputs: As for ``apply``.
        scheduler: Today's schedule, a function of the optimizer and the number of updates.
        options: Accelerate's own arguments.

    Raises:
        ConfigError: When the configuration is not valid.
        ValueError: In ``prepare``, when the accelerator and the set-up would both do the same, the model is sharded,
            or a scheduler is given that the set-up steps.
    """

    def __init__(
        self,
        *,
        boost: ConfigLike,
        epochs: int,
        level: str = "O1",
        seed: int = 0,
        criterion: Any = None,
        example_inputs: Any = None,
        scheduler: Callable[[Optimizer, int], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._config = boost
        self._options = {
            "epochs": epochs, "level": level, "seed": seed, "criterion": criterion, "example_inputs": example_inputs,
            "scheduler": scheduler,
        }  # fmt: skip
        self._pair: Boosted | None = None
        self._steps: _Steps | None = None
        self._norm = torch.tensor(float("nan"))

    @property
    def boosted(self) -> Boosted:
        """The boosted pair.

        Raises:
            RuntimeError: Before ``prepare`` has made it.
        """
        if self._pair is None:
            raise RuntimeError("the set-up is in place after accelerator.prepare(model, optimizer, loader)")
        return self._pair

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Apply the set-up to the model, the optimizer and the first loader of these; the rest is Accelerate's."""
        model = next((one for one in args if isinstance(one, nn.Module)), None)
        optimizer = next((one for one in args if isinstance(one, Optimizer)), None)
        loader = next((one for one in args if isinstance(one, DataLoader)), None)
        if any(isinstance(one, LRScheduler) for one in args):
            raise ValueError(
                "a scheduler was given to prepare(), but the set-up steps the schedule; leave it out, and its step(), "
                "and give a function: BoostedAccelerator(scheduler=lambda optimizer, updates: ...)"
            )
        if self._pair is not None or optimizer is None:
            return super().prepare(*args, device_placement=device_placement)
        if model is None or loader is None:
            raise ValueError("the set-up needs all three in one call: accelerator.prepare(model, optimizer, loader)")
        boosted, shared = prepare(self, self._config, model, optimizer, loader, **self._options)
        self._pair, self._steps = boosted, _Steps(boosted)
        ours = {
            id(model): _computing(boosted),
            id(optimizer): self._steps,
            id(loader): _RunBatches(boosted, shared, self._options["epochs"]),
        }
        place = super().prepare
        return tuple(ours[id(one)] if id(one) in ours else place(one) for one in args)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last update was dropped because of an overflow; waits for the device to know."""
        return self._steps is not None and self._steps.step_was_skipped

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run the backward pass of a batch, scaled; gradients add up in ``.grad``."""
        if kwargs:
            raise TypeError(f"the backward pass is the set-up's and takes a loss alone, got {', '.join(kwargs)}")
        self.boosted.backward(loss)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clip the unscaled gradients of the coming update, once its window is complete.

        Returns:
            The norm before clipping in the update before this one, nan before the first: this one's is not known yet.
        """

        def clip(chosen: list[nn.Parameter]) -> None:
            self._norm = nn.utils.clip_grad_norm_(chosen, max_norm, norm_type)

        self._clip_with(clip, parameters)
        return self._norm

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip the elements of the unscaled gradients of the coming update, once its window is complete."""
        self._clip_with(lambda chosen: nn.utils.clip_grad_value_(chosen, clip_value), parameters)

    def _clip_with(self, clip: Callable[[list[nn.Parameter]], None], parameters: Any) -> None:
        named = [parameters] if isinstance(parameters, Tensor) else parameters
        chosen = {id(parameter) for parameter in named}
        self.boosted.observer = lambda trained: clip([one for one in trained if id(one) in chosen])


class _Steps(AcceleratedOptimizer):  # type: ignore[misc]  # accelerate has no types
    """The optimizer that a loop holds: its step ends the batch, and gradients are cleared with the update."""

    def __init__(self, boosted: Boosted) -> None:
        super().__init__(boosted.optimizer, device_placement=False)
        self._boosted = boosted
        self._outcome: StepOutcome | None = None

    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        self._outcome = self._boosted.step(closure)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Do nothing: gradients are those of the window, and cleared at its end."""

    @property
    def step_was_skipped(self) -> bool:
        """Whether the update was dropped because of an overflow; waits for the device to know."""
        return self._outcome is not None and self._boosted.skips(self._outcome)


class _RunBatches:
    """The batches of a run in a loop over epochs: one stream, of which an epoch is the next share.

    An epoch has as many samples as today, within a batch; those after the run's end have none.
    """

    def __init__(self, boosted: Boosted, loader: Any, epochs: int) -> None:
        self._boosted, self._loader = boosted, loader
        self._ends = boosted.course.epoch_ends(epochs)
        self._stream: Iterator[Any] = iter(())
        self._position = -1  # of the stream

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has: its data set, its sampler, ``set_epoch``."""
        if name == "_loader":  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        """Return the forward passes of the coming epoch, or what is left of it."""
        return self._end() - self._boosted.step_index

    def __iter__(self) -> Iterator[Any]:
        start, end = self._boosted.step_index, self._end()
        if start != self._position:  # at the beginning, and after load_state
            self._stream, self._position = self._boosted.batches(self._loader, start=start), start
        for batch in islice(self._stream, end - start):
            self._position += 1
            yield batch
        if end == self._ends[-1] and not self._boosted.has_weights_to_use:
            next(self._stream, None)  # ends it, and with it the settings of the process that hold while it lasts
            self._boosted.finish()
            self._boosted.leave_weights_to_use(self._boosted.model)

    def _end(self) -> int:
        return next((end for end in self._ends if end > self._boosted.step_index), self._ends[-1])


def _computing(boosted: Boosted) -> nn.Module:
    """Return the model to call, in the set-up's precision and with results in float32, as Accelerate does it."""
    model = boosted.model
    if boosted.precision.level == "O2":
        own = model.forward

        @functools.wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with boosted.autocast():
                return own(*args, **kwargs)

        model.forward = convert_outputs_to_fp32(forward)
    return model
