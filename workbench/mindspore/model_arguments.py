"""The arguments of Model, checked where they are given, so that each message names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.config import BoostConfig, ConfigLike, read_config, requested_switches
from workbench.core.arguments import checked_count
from workbench.loss_scale import FixedLossScaleManager
from workbench.methods.loss_scale_group.method import GroupLossScaleManager

_METHODS = ("get_loss_scale", "get_update_cell", "get_drop_overflow_update")
_WORDS: dict[type, str] = {
    nn.Module: "a torch.nn.Module",
    Optimizer: "a torch.optim.Optimizer",
    BoostConfig: "a BoostConfig",
    Mapping: "a dict",
    str: "the path of a JSON file",
    bool: "a bool",
}


def check_kind(name: str, value: Any, *kinds: type | None) -> None:
    """Raise TypeError unless a value is of one of the kinds: classes, and None where None is allowed."""
    if value is None and None in kinds:
        return
    classes = tuple(kind for kind in kinds if kind is not None)
    if not isinstance(value, classes):
        words = [_WORDS[kind] for kind in classes if kind in _WORDS] + ["None"] * (None in kinds)
        raise TypeError(f"`{name}` must be {' or '.join(words)}, got {_came(value)}")


def check_word(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise unless a value is one of the known words."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text, got {value!r}")
    if value not in known:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}")


def check_criterion(loss_fn: Any) -> None:
    """Raise TypeError unless ``loss_fn`` is a criterion or None."""
    if inspect.isclass(loss_fn):
        raise TypeError(f"`loss_fn` must be an object, got the class {loss_fn.__name__}; write {loss_fn.__name__}()")
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"`loss_fn` must be a criterion or None, got {_came(loss_fn)}")


def check_manager(manager: Any) -> None:
    """Raise TypeError unless ``loss_scale_manager`` is one, or None."""
    if manager is None or isinstance(manager, GroupLossScaleManager):
        return
    if inspect.isclass(manager) or not all(callable(getattr(manager, method, None)) for method in _METHODS):
        raise TypeError(
            "`loss_scale_manager` must be a FixedLossScaleManager, DynamicLossScaleManager or GroupLossScaleManager, "
            f"got {_came(manager)}"
        )


def check_dataset(name: str, dataset: Any) -> None:
    """Raise TypeError unless a dataset can be iterated for batches."""
    if isinstance(dataset, (Tensor, str, bytes, Mapping)) or not isinstance(dataset, Iterable):
        raise TypeError(f"`{name}` must be an iterable of batches, got {_came(dataset)}")


def check_sink(dataset_sink_mode: Any, sink_size: Any) -> None:
    """Raise TypeError unless ``dataset_sink_mode`` is a bool, ValueError unless ``sink_size`` is -1 or at least 1."""
    check_kind("dataset_sink_mode", dataset_sink_mode, bool)
    if type(sink_size) is not int or not (sink_size == -1 or sink_size >= 1):
        raise ValueError(f"`sink_size` must be -1 or at least 1, got {sink_size!r}")


def epoch_numbers(epoch: Any, initial_epoch: Any) -> range:
    """Return the numbers of the epochs up to ``epoch`` that follow ``initial_epoch`` trained before."""
    last, before = checked_count("epoch", epoch), checked_count("initial_epoch", initial_epoch, 0)
    if before >= last:
        raise ValueError(f"`initial_epoch` must be less than `epoch` ({last}), got {before}")
    return range(before + 1, last + 1)


def due_epochs(frequency: Any) -> Callable[[int], bool]:
    """Return whether an evaluation is due after an epoch, every so many or of these numbers, as a function of it."""
    if isinstance(frequency, (list, tuple)) and all(type(number) is int and number >= 1 for number in frequency):
        return lambda epoch: epoch in frequency
    if type(frequency) is int and frequency >= 1:
        return lambda epoch: epoch % frequency == 0
    words = "a number of epochs, at least 1, or a list of epoch numbers"
    raise ValueError(f"`valid_frequency` must be {words}, got {frequency!r}")


def settings_from(
    config: ConfigLike, amp_level: str, boost_level: str, keep_batchnorm_fp32: bool | None, manager: Any
) -> BoostConfig:
    """Return the configuration with the other arguments of a Model put in, except those that are ``"O0"`` or None."""
    settings = read_config(config)
    given: dict[str, Any] = {}
    if amp_level != "O0":
        given["amp.level"] = amp_level
    if keep_batchnorm_fp32 is not None:
        given["amp.keep_batchnorm_fp32"] = keep_batchnorm_fp32
    if manager is not None:
        given["loss_scale.kind"] = "fixed" if isinstance(manager, FixedLossScaleManager) else "dynamic"
        if requested_switches(settings, boost_level)["loss_scale_group"]:
            if not isinstance(manager, GroupLossScaleManager):
                raise ValueError(
                    "`loss_scale_manager` must be a GroupLossScaleManager when `boost.loss_scale_group` is on, got "
                    f"{_came(manager)}; without a manager the groups are found from the gradients"
                )
            if settings.boost.mode == "manual":
                given["boost.loss_scale_group"] = False  # the manager brings its groups: none have to be found
    return settings.with_values(given)


def _came(value: Any) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if inspect.isclass(value) else type(value).__name__
