"""Devices behind one door: CPU, CUDA, Ascend NPU and whatever else ``torch.accelerator`` knows.

What differs between devices, and only that, is decided here. An Ascend NPU has two overflow modes: in *INF/NAN* mode an
overflow shows in the gradients, as elsewhere; in *saturation* mode results stick to the largest finite number, and only
a hardware flag shows it, which is cleared before the backward pass and read after it (``torch_npu.npu.utils``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import platform
import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from workbench.core.container import memory_left
from workbench.core.other_work import other_work_now
from workbench.core.processor import cpu_model
from workbench.core.processor import usable_cores as usable_cores
from workbench.core.text import first_line
from workbench.core.warning import warn

# An MPS device shares its memory with the CPU, and "pinned" memory there is the device's (torch 2.13).
_WITHOUT_PINNED_MEMORY = ("cpu", "mps", "meta")
_WORTH_STARTING = 60.0  # seconds
_MOST_IDLE_PLACES = 4  # more would take memory bandwidth from each other, and the machine from its user


def select_device(name: str | torch.device = "auto") -> torch.device:
    """Return the named device, checked to be present; an accelerator without an index means the current one.

    ``"auto"`` is the accelerator if there is one, else the CPU.

    Raises:
        ValueError: When the name is not a device name, or no such device is present on this machine.
        TypeError: When ``name`` is neither text nor a device.
    """
    if not isinstance(name, str | torch.device):
        raise TypeError(f"`device` must be a name such as 'auto', 'cpu' or 'cuda:0', got {name!r}")
    wanted = str(name).strip().lower()
    accelerator = _accelerator()
    if wanted == "auto":
        return accelerator or torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if not kind.isidentifier() or (":" in wanted and not index.isdecimal()):
        raise ValueError(f"`device` must be 'auto', 'cpu' or an accelerator such as 'cuda:0' or 'npu', got {name!r}")
    if kind == "cpu":
        if int(index or 0) > 0:
            raise ValueError(f"`device` must be present on this machine, got {name!r}; there is one CPU device, 'cpu'")
        return torch.device("cpu")
    number = 0 if accelerator is None else torch.accelerator.device_count()
    if accelerator is None or kind != accelerator.type or int(index or 0) >= number:
        present = "cpu" if accelerator is None else f"cpu, {accelerator.type} ({number})"
        raise ValueError(f"`device` must be present on this machine, got {name!r}; available: auto, {present}")
    return torch.device(wanted)


def rank_device(name: str | torch.device, local_rank: int) -> torch.device:
    """Return the device of one rank: the CPU, or the accelerator with the number ``local_rank``, made the current one.

    A ValueError when ``name`` is a str with an index, or this machine has fewer accelerators than ranks.
    """
    device = select_device(name)
    if device.type == "cpu":
        return device
    if isinstance(name, str) and device.index is not None:
        raise ValueError(
            f"`device` must be {device.type!r} without an index over several ranks, since each takes its own, "
            f"got {str(name)!r}"
        )
    if local_rank >= (number := torch.accelerator.device_count()):
        raise ValueError(
            f"`device` must have an accelerator per rank of this machine: there are {number} "
            f"({device.type}), and this is local rank {local_rank}; start fewer ranks, or train on 'cpu'"
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(device.type, local_rank)


@contextlib.contextmanager
def as_current(device: torch.device) -> Iterator[None]:
    """Make an accelerator with an index the current one while the block runs.

    Results do not depend on it, but pinned memory, libraries and their context belong to the current device.
    """
    if device.type == "cpu" or device.index is None:
        yield
        return
    with torch.accelerator.device_index(device.index):
        yield


def collective_backend(device: str | torch.device) -> str:
    """Return the backend of torch.distributed for tensors on this device: gloo, nccl, hccl, ..."""
    # torch_npu registers hccl for "npu" when it is imported, so this table is torch's to keep.
    return str(torch.distributed.get_default_backend_for_device(device_type(device)))


def threads_in_use() -> int:
    """Return how many threads CPU operations of this process use."""
    return torch.get_num_threads()


def use_threads(number: int) -> None:
    """Set how many threads CPU operations of this process use."""
    torch.set_num_threads(number)


@contextlib.contextmanager
def kept_threads() -> Iterator[None]:
    """Give CPU operations of this process the threads back that they had before the block."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        use_threads(before)


def places_to_train(device: str, threads: int | None = None, *, beside: int = 0) -> int:
    """Return in how many processes a training on a device, named as in a study, runs as it does in this one.

    On a CPU that is as many as have cores for ``threads``, by default as many as torch has here, and so many ``beside``
    them for what reads; of accelerators there is one for each.
    """
    n_accelerators = torch.accelerator.device_count() if device != "cpu" and _accelerator() is not None else 0
    if n_accelerators:
        return 1 if ":" in device else n_accelerators
    return max(1, usable_cores() // ((threads or torch.get_num_threads()) + beside))


def idle_places_to_train(device: str, threads: int | None = None, seconds: float = math.inf, *, beside: int = 0) -> int:
    """Return how many of the `places_to_train` nothing else uses at this moment, for so many seconds; at least 1.

    In less than a minute a process hardly begins to train. A CPU's cores count, at most four places, each with memory
    for as much as this process has taken and as much again, and with so many cores ``beside`` those of its threads.
    Accelerators do not: who else may want a second one is not known here.
    """
    number = min(places_to_train(device, threads, beside=beside), _MOST_IDLE_PLACES)
    if number == 1 or seconds < _WORTH_STARTING or (device != "cpu" and _accelerator() is not None):
        return 1
    idle = round(other_work_now().idle_cores())
    memory = free_host_memory() // (2 * psutil.Process().memory_info().rss)
    return max(1, min(number, idle // ((threads or torch.get_num_threads()) + beside), int(memory)))


def free_host_memory() -> float:
    """Return how many bytes of the host's memory this process may still take."""
    return min(float(psutil.virtual_memory().available), memory_left())


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters; the CPU where it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def device_type(device: str | torch.device) -> str:
    """Return the kind of a device without its index: ``"cpu"``, ``"cuda"``, ``"npu"``, ..."""
    # Not torch.device(device).type: "npu" is a device only after torch_npu was imported.
    return device.type if isinstance(device, torch.device) else device.partition(":")[0]


def device_name(device: str | torch.device) -> str:
    """Return what a person would call the device: the CPU's or the accelerator's model name."""
    if device_type(device) == "cpu":
        return cpu_model()
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name_of(device)) if name_of is not None else device_type(device)


def synchronize(device: str | torch.device) -> None:
    """Wait until everything dispatched to the device has finished; nothing to wait for on a CPU."""
    if device_type(device) != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def tensor_on(device: torch.device, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers from the host as a tensor on a device, without waiting until they are there."""
    # From memory that is not pinned a copy makes the host wait; `torch.tensor(..., device=...)` copies so.
    numbers = torch.tensor(values, dtype=dtype, device="cpu", pin_memory=pins_memory(device))
    return numbers.to(device, non_blocking=True)


def moved(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for a copy from its memory."""
    if tensor.is_cpu and tensor.layout == torch.strided and pins_memory(device):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def pins_memory(device: str | torch.device) -> bool:
    """Return whether host memory can be pinned, so that the device copies from and to it by itself."""
    return device_type(device) not in _WITHOUT_PINNED_MEMORY


def host_room(n_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a flat tensor in host memory for exchange with a device: pinned if device and system allow that.

    A limit on locked memory (``ulimit -l``, a container's) is a warning: copies then make the host wait.
    """
    if pins_memory(device):
        try:
            return torch.empty(n_elements, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError as error:
            size = n_elements * dtype.itemsize
            warn(
                f"{size:,} bytes of host memory could not be pinned ({first_line(error)}), so that copies to "
                f"and from {device_type(device)} make the host wait; raise the limit on locked memory (`ulimit -l`)"
            )
    return torch.empty(n_elements, dtype=dtype, device="cpu")


def unscales(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch's kernel that unscales gradients and looks for overflows there takes this format."""
    # bfloat16 it takes on a CPU alone (https://github.com/pytorch/pytorch/issues/127176).
    return dtype != torch.bfloat16 or device.type == "cpu"


def is_capturing(device: torch.device) -> bool:
    """Return whether what is dispatched to the device's current stream becomes part of a graph."""
    if not has_graphs(device):
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def memory_bytes(device: str | torch.device) -> int:
    """Return the memory in use, bytes: allocated tensors on an accelerator, this process's resident set on a CPU.

    Does not wait for the device; takes some 100 us. 0 if a backend does not report it.
    """
    if device_type(device) == "cpu":
        return int(psutil.Process().memory_info().rss)
    try:
        return int(torch.accelerator.memory_allocated(torch.device(device)))
    except (RuntimeError, NotImplementedError):
        return 0


def autocast_supported(device: str | torch.device, dtype: torch.dtype) -> bool:
    """Return whether ``torch.autocast`` works on this device with this dtype."""
    kind = device_type(device)
    # An unsupported dtype makes torch.autocast warn and switch itself off (CPU) or raise (CUDA without bfloat16); a
    # device type that no loaded backend owns makes the first question raise.
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError, ValueError):
        warnings.simplefilter("ignore")
        if torch.amp.is_autocast_available(kind):
            with torch.autocast(kind, dtype=dtype):
                return torch.is_autocast_enabled(kind)
    return False


@functools.cache
def has_fast_bfloat16(device: str | torch.device) -> bool:
    """Return whether the device has instructions to multiply bfloat16 matrices; without them float32 is faster."""
    kind = device_type(device)
    if kind == "cpu":
        known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch we support
        return bool(known.get("avx512_bf16") or known.get("amx_bf16"))
    if kind == "cuda":  # older GPUs emulate it
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    asked = getattr(torch.get_device_module(kind), "is_bf16_supported", None)
    return asked is not None and bool(asked())


def has_fast_products(device: str | torch.device) -> bool:
    """Return whether ``torch.set_float32_matmul_precision`` changes how this device multiplies float32 matrices."""
    return device_type(device) == "cuda" or (device_type(device) == "cpu" and has_fast_bfloat16(device))


def has_graphs(device: str | torch.device) -> bool:
    """Return whether kernels on this device can be replayed as CUDA graphs."""
    return device_type(device) == "cuda"


def has_cudnn(device: str | torch.device) -> bool:
    """Return whether cuDNN computes convolutions on this device."""
    return device_type(device) == "cuda" and torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]


def hardware_summary() -> dict[str, Any]:
    """Describe this machine and the software below us, as values that JSON can hold."""
    accelerator, accelerator_memory = _accelerator(), 0
    if accelerator is not None:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # some backends do not say; 0 stands for unknown
            accelerator_memory = int(torch.accelerator.get_memory_info(accelerator)[1])
    return {
        "cpu": cpu_model(),
        "cpu_cores": psutil.cpu_count(logical=True) or 0,
        "cpu_cores_usable": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "accelerator": "" if accelerator is None else device_name(accelerator),
        "accelerator_type": "" if accelerator is None else accelerator.type,
        "accelerator_count": 0 if accelerator is None else torch.accelerator.device_count(),
        "accelerator_memory_bytes": accelerator_memory,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _accelerator() -> torch.device | None:
    """Return the accelerator; None if none is present, even if torch was built for one."""
    return torch.accelerator.current_accelerator(check_available=True)


def has_overflow_flag(device: str | torch.device) -> bool:
    """Return whether overflows on this device show only in its flag: an NPU in saturation mode."""
    return _saturating_npu_utils(device) is not None


def begin_overflow_watch(device: str | torch.device) -> None:
    """Clear the device's overflow flag before the backward pass; does nothing where gradients show an overflow."""
    utils = _saturating_npu_utils(device)
    if utils is not None:
        utils.clear_npu_overflow_flag()


def device_overflow(device: str | torch.device) -> Tensor | None:
    """Return whether the device itself saw an overflow since ``begin_overflow_watch``; None where gradients show it.

    A float32 scalar, 1.0 or 0.0, on the *host*, because reading the flag is a host synchronisation already.
    """
    utils = _saturating_npu_utils(device)
    if utils is None:
        return None
    return torch.tensor(float(bool(utils.get_npu_overflow_flag())), dtype=torch.float32)


def _saturating_npu_utils(device: str | torch.device) -> ModuleType | None:
    """Return ``torch_npu.npu.utils`` when this is an NPU in saturation mode, else None."""
    if device_type(device) != "npu":
        return None
    utils = importlib.import_module("torch_npu.npu.utils")
    # Asked every time, not cached: a set lookup beside a step, and the mode is the driver's to change.
    return None if utils.is_support_inf_nan() else utils
