"""Settings of the runtime: each acts while training goes on, is put back, and leaves the numbers what they were."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset

import workbench
from tests.kit.runs import train_and_watch
from tests.kit.tasks import task_of
from workbench.config import BoostConfig
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.registry import METHODS
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import AgreementJob
from workbench.tasks import Task
from workbench.tasks.digits import ResNet
from workbench.training import apply
from workbench.training.agreement import agrees, first_gradient, first_losses, gradient_agrees
from workbench.training.speed import TimedSide, measure_speed_ratio

CPU = torch.device("cpu")


def config(**runtime: Any) -> BoostConfig:
    return BoostConfig.from_dict({"boost": {"mode": "disable_all"}, "runtime": runtime})


CHANNELS_LAST = config(memory_format="channels_last")


def net() -> ResNet:
    """Return a residual network of two blocks for images of three channels."""
    made = ResNet((16, 16), 1)
    made.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    return made


def image_task(look: Callable[[nn.Module, Tensor], object] = lambda model, images: None) -> Task:
    """Return a task that shows each model and images whose loss it computes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(48, 3, 6, 6, generator=generator)
    targets = (images.mean((1, 2, 3)) > 0).long()
    batches = [(images[i : i + 12], targets[i : i + 12]) for i in range(0, 48, 12)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        look(model, batch[0])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return task_of(net, batches, momentum=0.9, loss=loss, evaluate=batches[:1], metric="accuracy")


def losses_of(task: Task, asked: BoostConfig | None = None, seed: int = 0, **options: Any) -> list[float]:
    return first_losses(task, asked or config(), "O0", seed, CPU, **options)


def gradient_of(task: Task, asked: BoostConfig | None = None, **options: Any) -> Tensor:
    return first_gradient(task, asked or config(), "O0", 0, CPU, **options)


def settings() -> tuple[Any, ...]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


def test_settings_of_the_process_hold_during_a_run_and_are_put_back_even_after_a_failure() -> None:
    before = settings()
    asked = (before[0] + 1, "medium", True)
    methods = MethodsInEffect(config(threads=asked[0], matmul_precision="medium", cudnn_benchmark=True).resolve("O0"))
    with methods.running():
        assert settings() == asked
        with methods.running():  # a measurement inside a run
            assert settings() == asked
        assert settings() == asked
    assert settings() == before
    with pytest.raises(KeyError), methods.running():
        raise KeyError
    assert settings() == before


def test_a_run_trains_on_the_threads_it_is_told_to() -> None:
    found: list[int] = []
    before = torch.get_num_threads()
    task = image_task(lambda *_: found.append(torch.get_num_threads()))
    workbench.train(task, config(threads=before + 2), level="O0", steps=3, out=None)
    assert found == [before + 2] * 3
    assert torch.get_num_threads() == before


def test_each_block_of_a_measurement_runs_under_its_sides_settings() -> None:
    found: list[int] = []
    before = torch.get_num_threads()
    options: dict[str, Any] = {"device": CPU, "seed": 0, "at_least": 2}
    options["before_window"] = lambda: found.append(torch.get_num_threads())
    sides = [TimedSide(image_task(), one, "O0", **options) for one in (config(), config(threads=before + 1))]
    for side in (*sides, *sides):
        side.block()
    assert found == [before] * 2 + [before + 1] * 2 + [before] * 2 + [before + 1] * 2
    assert torch.get_num_threads() == before
    measured = measure_speed_ratio(
        image_task(), (config(), "O0"), (config(threads=before + 1), "O0"), device=CPU, rounds=1, steps_per_block=1
    )
    assert measured.ratio > 0


def test_channels_last_reaches_weights_and_images_and_changes_rounding_only() -> None:
    seen: list[Any] = []
    losses = losses_of(image_task(lambda *given: seen.append(given)), CHANNELS_LAST)
    model, images = seen[-1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.ndim == 4)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert not images.is_contiguous()
    assert agrees(losses, losses_of(image_task()), "float32") == ""


def assert_same_training_in_channels_last(plain: BoostConfig) -> None:
    """Compare a few steps; along them rounding grows."""
    other = plain.with_values({"runtime.memory_format": "channels_last"})
    assert told(other) == pytest.approx(told(plain), rel=1e-2)


def told(asked: BoostConfig, **options: Any) -> list[float]:
    return [record.loss for record in train_and_watch(image_task(), asked, **{"steps": 4} | options)[1]]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in METHODS if row.n_ranks == 1])
def test_channels_last_goes_with_every_method(row: Any, tmp_path: Path) -> None:
    values = {"grad_freeze.param_groups": 2, "grad_freeze.total_steps": 20, **row.enabled_by}
    if row.name == "dim_reduce":
        network = net()
        n = sum(p.numel() for p in network.parameters())
        matrix = torch.linalg.qr(torch.randn(n, 3, generator=torch.Generator().manual_seed(0)))[0].T.contiguous()
        np.save(tmp_path / "pca.npy", matrix.double().numpy())
        values |= {"dim_reduce.n_components": 3, "dim_reduce.pca_mat_path": str(tmp_path / "pca.npy")}
    plain = BoostConfig().with_values(values | {"runtime.memory_format": "contiguous"})
    assert_same_training_in_channels_last(plain)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "thor", "adam_offload"])
def test_channels_last_goes_with_every_optimizer(optimizer: str) -> None:
    plain = BoostConfig.from_dict({"boost": {"mode": "disable_all"}, "optimizer": {"name": optimizer, "lr": 0.01}})
    assert_same_training_in_channels_last(plain)


def test_a_loop_of_ones_own_trains_under_the_settings_from_resident_batches() -> None:
    rows = torch.arange(24.0).reshape(8, 3)
    loader = DataLoader(TensorDataset(rows), batch_size=2)
    line = nn.Linear(3, 2)
    before = torch.get_num_threads()
    boosted = apply(
        config(threads=before + 1, data="resident"), line, SGD(line.parameters(), lr=0.1), total_steps=4, level="O0"
    )
    found = [(torch.get_num_threads(), batch[0]) for batch in boosted.batches(loader, 1)]
    assert [number for number, _ in found] == [before + 1] * 4
    assert torch.equal(torch.cat([batch for _, batch in found]), rows)
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_a_loop_of_ones_own_has_its_batches_read_ahead() -> None:
    rows = torch.arange(24.0).reshape(8, 3)

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index], os.getpid()

    line = nn.Linear(3, 2)
    boosted = apply(config(data="prefetch"), line, SGD(line.parameters(), lr=0.1), total_steps=8, level="O0")
    found = list(boosted.batches(DataLoader(Rows(), batch_size=2), 2))
    assert torch.equal(torch.cat([batch for batch, _ in found]), rows.repeat(2, 1))
    assert {int(process) for _, processes in found for process in processes} != {os.getpid()}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cuda_graph": True}, "`runtime.cuda_graph` has no effect: cpu has no CUDA graphs"),
        ({"cudnn_benchmark": True}, "`runtime.cudnn_benchmark` has no effect"),
        ({"memory_format": "channels_last"}, "no weight of the model is 4-D"),
    ],
)
def test_what_a_device_or_model_has_no_use_for_is_said(asked: dict[str, Any], said: str) -> None:
    line = nn.Linear(3, 2)
    with pytest.warns(UserWarning, match=said):
        apply(config(**asked), line, SGD(line.parameters(), lr=0.1), level="O0")


def test_group_scales_leave_the_compiler_out_and_say_so() -> None:
    asked = {
        "boost": {"mode": "manual", "loss_scale_group": True, "less_bn": False, "grad_freeze": False, "adasum": False},
        "loss_scale": {"kind": "dynamic"},
    }
    alone = BoostConfig.from_dict({**asked, "runtime": {"compile": "default"}}).resolve("O0")
    assert "runtime" not in alone.in_effect()
    assert [entry.reason for entry in alone.dropped] == [
        "section runtime is not in effect because group loss scales must see gradients pass, which torch.compile hides"
    ]
    both = BoostConfig.from_dict({**asked, "runtime": {"compile": "default", "threads": 2}}).resolve("O0")
    assert "runtime" in both.in_effect()
    assert [entry.name for entry in both.dropped] == ["runtime.compile"]
    assert both == BoostConfig.from_dict({**asked, "runtime": {"threads": 2}}).resolve("O0")


def test_compile_modes_with_graphs_of_their_own_need_no_switch() -> None:
    plan = config(compile="reduce-overhead", cuda_graph=True).resolve("O0")
    assert [entry.name for entry in plan.dropped] == ["runtime.cuda_graph"]
    assert plan == config(compile="reduce-overhead").resolve("O0")


def test_a_model_that_is_compiled_already_is_refused() -> None:
    line = nn.Linear(3, 2)
    model: Any = torch.compile(line, backend="eager")
    with pytest.raises(RuntimeError, match=r"compiled already; set `runtime.compile` to off"):
        apply(config(compile="default"), model, SGD(line.parameters(), lr=0.1), level="O0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply(config(threads=1), model, SGD(line.parameters(), lr=0.1), level="O0")


@pytest.mark.parametrize("asked", [{"memory_format": "channels_last"}, {"compile": "default"}])
def test_a_convolution_that_would_overwrite_memory_is_refused(asked: dict[str, Any]) -> None:
    # Not tried: the process would end. With 16 input channels the same network trains, as the tests above show.
    small = ResNet((4, 16), 1)
    with pytest.raises(RuntimeError, match=r"convolution 'layers.1.0.downsample.0' .* set `runtime.memory_format`"):
        apply(config(**asked), small, SGD(small.parameters(), lr=0.1), level="O0")


def test_such_a_convolution_trains_where_cuda_graphs_have_no_effect() -> None:
    small = ResNet((4, 16), 1)
    with pytest.warns(UserWarning, match="cpu has no CUDA graphs"):
        apply(config(cuda_graph=True), small, SGD(small.parameters(), lr=0.1), level="O0")


def test_channels_last_leaves_kernels_of_volumes_as_they_are() -> None:
    net = nn.ModuleDict({"frame": nn.Conv2d(3, 4, 3), "volume": nn.Conv3d(3, 4, 3)})
    apply(config(memory_format="channels_last"), net, SGD(net.parameters(), lr=0.1), level="O0")
    assert net["frame"].weight.is_contiguous(memory_format=torch.channels_last)
    assert net["volume"].weight.is_contiguous()


def test_a_group_norm_of_images_without_a_gradient_does_not_end_the_process() -> None:
    images, frozen = torch.randn(4, 3, 6, 6), nn.Conv2d(3, 4, 3).requires_grad_(False)
    gradients: dict[str, list[Tensor]] = {}
    for memory_format in ("contiguous", "channels_last"):
        torch.manual_seed(0)
        first = nn.GroupNorm(1, 3)
        model = nn.Sequential(first, frozen, nn.GroupNorm(2, 4))
        boosted = apply(config(memory_format=memory_format), model, SGD(model.parameters(), lr=0.1), 10)
        for weights_of_the_first in (True, False):  # else the images need none, and the second norm's do not either
            first.requires_grad_(weights_of_the_first)
            (batch,) = boosted.methods.batches([images], 1)
            boosted.model(batch).square().mul(torch.arange(4.0)).mean().backward()
        assert not batch.requires_grad
        gradients[memory_format] = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert len(gradients["contiguous"]) == 4
    for one, other in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(one, other)


def test_losses_that_differ_are_told_by_batch_and_share() -> None:
    assert agrees([1.0, 1.001], [1.0, 1.0], "float32") == ""
    assert "batch 1 is 1.003" in agrees([1.0, 1.003], [1.0, 1.0], "float32")
    assert agrees([1.0, 1.04], [1.0, 1.0], "bfloat16") == ""
    assert "5.5 % apart, where bfloat16 may be 5 %" in agrees([1.0, 1.055], [1.0, 1.0], "bfloat16")
    assert "batch 0 is nan" in agrees([float("nan")], [1.0], "bfloat16")
    assert agrees([2.0, 1e-9], [2.0, 2e-9], "float32") == "", "what has fallen to nothing has no relative accuracy"
    with pytest.raises(ValueError, match="as many losses"):
        agrees([1.0], [], "float32")


def test_a_baseline_s_first_numbers_are_computed_once_for_all_that_is_compared_with_them(tmp_path: Path) -> None:
    given, made = image_task(), list[nn.Module]()

    def model() -> nn.Module:
        made.append(net())
        return made[-1]

    experimenter = TaskExperimenter(replace(given, model=model), CPU, tmp_path / "runs")
    plain, other = (config(), "O0"), (CHANNELS_LAST, "O0")
    jobs = [AgreementJob(plain, other, seed) for seed in (0, 0, 1)]
    counts = []
    for job in jobs:
        made.clear()
        assert experimenter.run(job).why_not == ""
        counts.append(len(made))
    assert counts == [4, 2, 4]


def test_first_losses_leave_the_generators_alone_and_begin_as_a_run_does() -> None:
    trained = told(config(), seed=3)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    found = losses_of(image_task(), seed=3, n=5)
    assert found[0] == trained[0]
    assert found[0] == found[4], "the same batch at the same weights, an epoch later"
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_tell_a_mistake_that_losses_do_not_show() -> None:
    wanted = gradient_of(image_task())
    assert gradient_agrees(gradient_of(image_task(), config(threads=2)), wanted, "float32") == ""

    def lying() -> nn.Module:
        made = net()
        made.layers[0][0].conv1.weight.register_hook(torch.neg)  # type: ignore[index, union-attr]
        return made

    wrong = replace(image_task(), model=lying)
    assert losses_of(wrong) == losses_of(image_task())
    said = gradient_agrees(gradient_of(wrong), wanted, "float32")
    assert "% of its length, where float32 may by 2 %" in said
    assert gradient_agrees(wanted * torch.nan, wanted, "bfloat16") != ""


def test_gradients_of_complex_weights_are_compared_whole() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(108, 2, dtype=torch.cfloat))

        def forward(self, images: Tensor) -> Tensor:
            return (images.flatten(1).to(torch.cfloat) @ self.weight.mul(1j).exp()).imag

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where an imaginary part is lost
        found = gradient_of(replace(image_task(), model=Turned))
    assert found.shape == (108 * 2 * 2,)
    assert found[1::2].abs().min() > 0.0


def test_a_network_with_dropout_agrees_in_another_layout_where_it_drops_other_elements() -> None:
    def dropping() -> nn.Module:
        made = net()
        made.layers.append(nn.Dropout(0.5))
        return made

    images = torch.ones(2, 4, 3, 3)
    torch.manual_seed(0)
    dropped = nn.Dropout(0.5)(images)
    torch.manual_seed(0)
    assert not torch.equal(nn.Dropout(0.5)(images.to(memory_format=torch.channels_last)), dropped)

    task = replace(image_task(), model=dropping)
    assert agrees(losses_of(task, CHANNELS_LAST), losses_of(task), "float32") == ""
    assert gradient_agrees(gradient_of(task, CHANNELS_LAST), gradient_of(task), "float32") == ""


def test_noise_that_a_loss_draws_in_the_layout_of_its_images_is_no_disagreement_but_a_wrong_loss_is() -> None:
    def denoising(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0] + 0.5 * torch.randn_like(batch[0])), batch[1])

    task = replace(image_task(), loss=denoising)
    wanted, redrawn, losses = losses_of(task), losses_of(task, redraw=True), losses_of(task, CHANNELS_LAST)
    assert agrees(losses, wanted, "float32") != ""
    assert agrees(losses, wanted, "float32", redrawn) == ""
    assert agrees([3 * loss for loss in losses], wanted, "float32", redrawn) != ""
    slopes = gradient_of(task, CHANNELS_LAST), gradient_of(task)
    assert gradient_agrees(*slopes, "float32", gradient_of(task, redraw=True)) == ""
    assert losses_of(image_task(), redraw=True) == losses_of(image_task())


def test_numbers_are_compared_without_dropout_but_in_the_training_mode_that_gradients_and_statistics_need() -> None:
    seen: list[Any] = []

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dropout = nn.BatchNorm2d(3), nn.Dropout(0.5)
            self.recurrent = nn.LSTM(18, 2, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            modes = (one.training for one in (self, self.norm, self.dropout, self.recurrent))
            seen[:] = [*modes, self.recurrent.dropout]
            return self.recurrent(self.dropout(self.norm(x)).flatten(2).unflatten(2, (2, 18)).flatten(1, 2))[0][:, -1]

    task = replace(image_task(), model=Layers)
    losses_of(task, n=1)
    assert seen == [True, True, False, True, 0.0]
    gradient_of(task)
    assert seen == [True, True, False, True, 0.0]


def test_a_sparse_gradient_counts_like_a_dense_one() -> None:
    def gradient(sparse: bool) -> Tensor:
        batch = (torch.arange(12).reshape(4, 3), torch.ones(4, 2))
        optimizer = lambda named: SGD(named, lr=0.1)  # noqa: E731  # not fused, as it is given sparse gradients
        task = task_of(lambda: nn.EmbeddingBag(16, 2, sparse=sparse), [batch], loss=nn.MSELoss(), optimizer=optimizer)
        return gradient_of(task)

    assert torch.equal(gradient(sparse=True), gradient(sparse=False))
