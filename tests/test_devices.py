"""Devices: what is chosen, what is refused, and both overflow modes of an NPU on a stand-in."""

from __future__ import annotations

import gc
import json
import mmap
import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from workbench.core import devices

needs_accelerator = pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
needs_bare_cpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="says what a machine without one does")


def on_eight_cores(patch: pytest.MonkeyPatch, threads: int, accelerators: int) -> None:
    """Let this machine seem to have eight cores, torch to use so many threads, and so many accelerators to be there."""
    patch.setattr(devices, "usable_cores", lambda: 8)
    patch.setattr(torch, "get_num_threads", lambda: threads)
    patch.setattr(torch.accelerator, "device_count", lambda: accelerators)
    kind = torch.device("cuda") if accelerators else None
    patch.setattr(torch.accelerator, "current_accelerator", lambda check_available: kind)


@pytest.mark.parametrize(
    ("device", "threads", "accelerators", "places"),
    [("auto", 1, 0, 8), ("auto", 3, 0, 2), ("cpu", 8, 4, 1), ("auto", 8, 4, 4), ("cpu", 1, 4, 8), ("cuda:1", 1, 4, 1)],
)
def test_a_training_has_a_place_where_it_runs_as_here(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: int, accelerators: int, places: int
) -> None:
    on_eight_cores(monkeypatch, threads, accelerators)
    assert devices.places_to_train(device) == places


@pytest.mark.parametrize(
    ("device", "threads", "accelerators", "others", "gib", "places"),
    [
        ("auto", 2, 0, 0.2, 64, 4),
        ("auto", 1, 0, 0.2, 64, 4),  # and not eight
        ("auto", 1, 0, 6.4, 64, 2),
        ("auto", 1, 0, 7.9, 64, 1),
        ("auto", 3, 0, 3.1, 64, 1),
        ("auto", 1, 0, 0.2, 6, 3),
        ("auto", 1, 4, 0.2, 64, 1),
        ("cpu", 1, 4, 0.2, 64, 4),
    ],
)
def test_idle_cores_are_places_to_train_where_there_is_memory(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: int, accelerators: int, others: float, gib: int, places: int
) -> None:
    on_eight_cores(monkeypatch, threads, accelerators)
    monkeypatch.setattr(devices, "other_work_now", lambda: SimpleNamespace(idle_cores=lambda: 8 - others))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gib * 2**30))
    here = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=2**30))
    monkeypatch.setattr(psutil, "Process", lambda: here)
    assert devices.idle_places_to_train(device) == places
    assert devices.idle_places_to_train(device, seconds=9.0) == 1


class FakeNpuUtils(ModuleType):
    """The three functions of ``torch_npu.npu.utils`` that we use, with their rule: the flag is sticky until cleared.

    In INF/NAN mode the real functions for the flag raise RuntimeError; so do these.
    """

    def __init__(self, inf_nan_mode: bool) -> None:
        super().__init__("torch_npu.npu.utils")
        self.inf_nan_mode = inf_nan_mode
        self.flag = False

    def is_support_inf_nan(self) -> bool:
        return self.inf_nan_mode

    def get_npu_overflow_flag(self) -> bool:
        self._refuse_in_inf_nan_mode()
        return self.flag

    def clear_npu_overflow_flag(self) -> None:
        self._refuse_in_inf_nan_mode()
        self.flag = False

    def _refuse_in_inf_nan_mode(self) -> None:
        if self.inf_nan_mode:
            raise RuntimeError("Unsupported api when soc_version >= Ascend910B1, please use npu_check_overflow")


def put_in_place(monkeypatch: pytest.MonkeyPatch, utils: FakeNpuUtils) -> FakeNpuUtils:
    package, subpackage = ModuleType("torch_npu"), ModuleType("torch_npu.npu")
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    monkeypatch.setitem(sys.modules, "torch_npu.npu", subpackage)
    monkeypatch.setitem(sys.modules, "torch_npu.npu.utils", utils)
    return utils


def test_auto_takes_the_accelerator_if_there_is_one_else_the_cpu() -> None:
    here = torch.accelerator.current_accelerator(check_available=True)
    assert devices.select_device("auto") == (here or torch.device("cpu"))


def test_a_torch_built_for_an_accelerator_that_is_not_there_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def built_for_cuda(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")  # what the usual wheel answers without a driver

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for_cuda)
    assert devices.select_device("auto") == torch.device("cpu")
    assert devices.hardware_summary()["accelerator"] == ""
    with pytest.raises(ValueError, match=r"available: auto, cpu$"):
        devices.select_device("cuda")


@pytest.mark.parametrize("name", ["cpu", "CPU", " cpu ", "cpu:0", torch.device("cpu")])
def test_the_cpu_is_always_there(name: str | torch.device) -> None:
    assert devices.select_device(name) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cpu:1", "npu:97", "cuda:97", "toaster"])
def test_an_absent_device_is_refused_in_one_sentence_that_lists_what_is_there(name: str) -> None:
    with pytest.raises(ValueError, match=r"`device` must be present on this machine, got '.*'; .*cpu") as caught:
        devices.select_device(name)
    assert "\n" not in str(caught.value)


@needs_bare_cpu
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "npu", "mps"])
def test_an_accelerator_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"got '{name}'; available: auto, cpu"):
        devices.select_device(name)


@pytest.mark.parametrize("name", ["", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda 0"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"`device` must be 'auto', 'cpu' or an accelerator"):
        devices.select_device(name)


def test_a_device_must_be_named_by_text() -> None:
    with pytest.raises(TypeError, match=r"`device` must be a name .* got 0"):
        devices.select_device(0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "kind"), [("cuda:3", "cuda"), ("npu", "npu"), (torch.device("cpu"), "cpu")])
def test_the_type_of_a_device_has_no_index(device: str | torch.device, kind: str) -> None:
    assert devices.device_type(device) == kind


@pytest.mark.slow
def test_memory_on_a_cpu_follows_what_the_process_holds() -> None:
    n_bytes = 128 * 2**20
    gc.collect()
    before = devices.memory_bytes("cpu")
    block = mmap.mmap(-1, n_bytes)  # fresh pages: an allocator may serve a tensor from memory it had kept
    block.write(b"\1" * n_bytes)
    held = devices.memory_bytes("cpu")
    block.close()
    assert 0.75 * n_bytes < held - before < 1.25 * n_bytes
    assert held - devices.memory_bytes("cpu") > 0.75 * n_bytes


@pytest.mark.parametrize(
    ("device", "dtype", "works"),
    [
        ("cpu", torch.bfloat16, True),
        ("cpu", torch.float16, True),
        ("cpu", torch.float32, False),
        ("cpu", torch.float64, False),
        ("npu", torch.float16, False),
    ],
)
def test_autocast_is_supported_where_torch_says_so(device: str, dtype: torch.dtype, works: bool) -> None:
    if device == "npu" and torch.accelerator.is_available():
        pytest.skip("says what a machine without an NPU does")
    assert devices.autocast_supported(device, dtype) is works
    assert not torch.is_autocast_enabled("cpu"), "asking leaves it off"


def test_the_hardware_summary_is_plain_json_and_names_this_machine() -> None:
    summary = devices.hardware_summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["torch"] == torch.__version__
    assert summary["python"] == ".".join(map(str, sys.version_info[:3]))
    assert summary["cpu"] == devices.device_name("cpu") != ""
    assert 1 <= summary["cpu_cores_usable"] <= summary["cpu_cores"]
    assert summary["memory_bytes"] > devices.memory_bytes("cpu")
    assert (summary["accelerator_count"] > 0) == torch.accelerator.is_available()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_an_npu_the_gradients_must_tell(device: str) -> None:
    assert not devices.has_overflow_flag(device)
    devices.begin_overflow_watch(device)
    assert devices.device_overflow(device) is None


def test_an_npu_in_inf_nan_mode_leaves_it_to_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, FakeNpuUtils(inf_nan_mode=True))
    assert not devices.has_overflow_flag("npu:0")
    devices.begin_overflow_watch("npu:0")  # must not touch the flag: the real function raises in this mode
    assert devices.device_overflow("npu:0") is None


def test_an_npu_in_saturation_mode_tells_by_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = put_in_place(monkeypatch, FakeNpuUtils(inf_nan_mode=False))
    assert devices.has_overflow_flag("npu")
    utils.flag = True  # left behind by an earlier step
    devices.begin_overflow_watch("npu")
    clean = devices.device_overflow("npu")
    utils.flag = True  # the step overflows
    overflowed = devices.device_overflow("npu")
    for found, value in ((clean, 0.0), (overflowed, 1.0)):
        assert found is not None
        assert (found.item(), found.dtype) == (value, torch.float32)


@pytest.mark.gpu
@needs_accelerator
def test_an_accelerator_counts_what_was_allocated_on_it() -> None:
    device = devices.select_device("auto")
    before = devices.memory_bytes(device)
    block = torch.ones(2**20, device=device)
    assert devices.memory_bytes(device) - before >= 4 * 2**20
    del block
    devices.synchronize(device)
    assert devices.device_name(device)


@pytest.fixture
def two_accelerators(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that there are two accelerators; returns the list of those that were made current."""
    current: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    return current


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_rank_takes_the_accelerator_of_its_number(two_accelerators: list[int], name: str) -> None:
    assert [devices.rank_device(name, rank) for rank in range(2)] == [torch.device("cuda", rank) for rank in range(2)]
    assert two_accelerators == [0, 1]


def test_ranks_are_not_sent_to_one_accelerator(two_accelerators: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be 'cuda' without an index over several ranks, .* got 'cuda:1'"):
        devices.rank_device("cuda:1", 0)
    with pytest.raises(ValueError, match=r"there are 2 \(cuda\), and this is local rank 2; start fewer ranks"):
        devices.rank_device("auto", 2)
    assert two_accelerators == []


def test_ranks_share_the_cpu() -> None:
    assert [devices.rank_device("cpu", local_rank) for local_rank in range(3)] == [torch.device("cpu")] * 3


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with devices.kept_threads():
        devices.use_threads(before + 1)
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
