"""What the first hour on a GPU asks that neither a test nor a benchmark does; `run.py` calls one by its name."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from studies.bench.host_waits import CONFIGS
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.batch import move_batch
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.tasks import load_task
from workbench.training import Boosted, TraceBuffer, apply, training_loop
from workbench.training.setup import prepare

_SCALE, _WINDOW = 2.0**10, 40
_PLANNED = "this failure was planned"
_SCALED = {
    "amp.level": "O0",
    "loss_scale.kind": "dynamic",
    "loss_scale.init": _SCALE,
    "loss_scale.window": _WINDOW,
    "loss_scale.minimum": 2.0**-60,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "fused SGD": partial(SGD, lr=0.01, momentum=0.9, fused=True),
    "fused Adam": partial(Adam, lr=1e-3, fused=True),
}


def operators(device: torch.device) -> None:
    """Call what the package rests on, in every format; print what refuses (bfloat16 and float64 may: A1, A2)."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        values, flag = [torch.ones(3, dtype=dtype, device=device)], torch.zeros((), device=device)
        _tried(
            f"unscale {dtype}",
            lambda values=values, flag=flag: torch._amp_foreach_non_finite_check_and_unscale_(
                values, flag, torch.ones_like(flag)
            ),
        )
        _tried(f"norm {dtype}", lambda values=values: torch._foreach_norm(values, 2.0, torch.float32))
    _tried("memory", lambda: torch.accelerator.get_memory_info(device))
    here, there = torch.zeros(4, pin_memory=devices.pins_memory(device)), torch.ones(4, device=device)
    _tried("mixed copy", lambda: torch._foreach_copy_([here], [there], non_blocking=True))


def parity(device: torch.device, *, steps: int = 300) -> None:
    """Train under our dynamic scale and under GradScaler, overflows injected: scales, skips, weights are equal."""
    for name, make in OPTIMIZERS.items():
        torch.manual_seed(0)
        ours = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
        theirs = copy.deepcopy(ours)
        boosted = apply(BoostConfig().with_values(_SCALED), ours, make(ours.parameters()), level="O0")
        scaler = torch.amp.GradScaler(device.type, init_scale=_SCALE, growth_interval=_WINDOW)
        optimizer, skipped = make(theirs.parameters()), 0
        for step in range(steps):
            x = torch.randn(8, 16, device=device)
            factor = torch.inf if step % 70 == 60 else 1.0
            with boosted.autocast():
                loss = boosted.model(x).square().mean() * factor
            boosted.backward(loss)
            outcome = boosted.step()
            scaler.scale(theirs(x).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            skipped += bool(outcome.overflow)
            if outcome.loss_scale_after.item() != scaler.get_scale():
                raise AssertionError(f"{name}, step {step}: {outcome.loss_scale_after.item()} and {scaler.get_scale()}")
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        print(f"{name}: equal after {steps} steps, {skipped} skipped, scale {scaler.get_scale():g}")


def no_waits(device: torch.device, *, task: str = "digits-resnet", warm_up: int = 40, steps: int = 20) -> None:
    """Train every configuration of `host_waits` while torch raises where the host waits."""
    trained = load_task(task)
    for name, (values, level) in CONFIGS.items():
        config = BoostConfig().with_values(values)
        boosted = prepare(trained, config, level=level, seed=0, device=device, steps=10_000).boosted
        batches = (move_batch(batch, device) for batch in cycle(list(islice(trained.batches(0), 4))))
        trace = TraceBuffer(boosted, exponents_every=10)
        loop = training_loop(boosted, trained.compute_loss, batches, trace=trace)
        for _ in islice(loop, warm_up):
            pass
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in islice(loop, steps):
                pass
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        print(f"{name}: no wait in {steps} steps")


def late_copies(device: torch.device, *, steps: int = 200) -> None:
    """Train AdamOffload while the device sleeps at random on its streams: weights are those of undisturbed training."""
    for bucket_bytes in (256, 25 << 20):
        trained = [_offloaded(device, steps, bucket_bytes, disturbed=disturbed) for disturbed in (False, True)]
        for one, other in zip(*trained, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        print(f"buckets of {bucket_bytes} bytes: the same bits after {steps} steps")


def _offloaded(device: torch.device, steps: int, bucket_bytes: int, *, disturbed: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)
    optimizer = AdamOffload(model, learning_rate=1e-3, offload_gradients=True, bucket_bytes=bucket_bytes)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = devices.moved(torch.randn(16, 64, generator=generator), device)
        model(x).square().mean().backward()
        if disturbed and device.type == "cuda":
            torch.cuda._sleep(1_000_000 * (step % 7))  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    devices.synchronize(device)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def compiled(
    device: torch.device, *, modes: tuple[str | None, ...] = (None, "reduce-overhead"), steps: int = 8
) -> None:
    """Train a compiled net with accumulation: losses, read at the end only, are those of the plain one."""
    config = BoostConfig().with_values(
        {"boost.mode": "manual", "boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2}
    )
    for mode in modes:
        losses = []
        for kind in ("plain", "compiled"):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
            boosted = apply(config, net, SGD(net.parameters(), lr=0.05, momentum=0.9), level="O1")
            model = torch.compile(net, mode=mode) if kind == "compiled" else net
            losses.append(_losses(boosted, model, device, steps))
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        print(f"mode {mode}: losses of {steps} steps are those of the plain net")


def half_norms(device: torch.device, *, steps: int = 5) -> None:
    """Train BatchNorm whose own weights are float16 (`keep_batchnorm_fp32` off), with LessBN and without (A14)."""
    for level in ("O0", "O1"):
        values = {**_SCALED, "amp.level": "O2", "amp.keep_batchnorm_fp32": False}
        boosted = prepare(
            load_task("digits-resnet"),
            BoostConfig().with_values(values),
            level=level,
            seed=0,
            device=device,
            steps=100,
        ).boosted
        task = load_task("digits-resnet")
        batches = (move_batch(batch, device) for batch in cycle(list(islice(task.batches(0), 4))))
        outcomes = list(islice(training_loop(boosted, task.compute_loss, batches), steps))
        formats = Counter(str(one.weight.dtype) for one in boosted.model.modules() if isinstance(one, nn.BatchNorm2d))
        print(f"level {level}: BatchNorm in {dict(formats)}, loss {float(outcomes[-1].loss):.4f} after {steps} steps")


def one_rank(device: torch.device, *, steps: int = 12) -> None:
    """Train one rank under the device's own backend of collectives, with our buckets and under DDP, frozen groups too.

    Several ranks on one GPU are refused by NCCL; one shows formats and initialisation. The losses are those without.
    """
    values = {"boost.mode": "manual", "boost.grad_freeze": True, "grad_freeze.param_groups": 3}
    config = BoostConfig().with_values({**_SCALED, "amp.level": "O2", **values})
    losses = {}
    for kind in ("alone", "ours", "ddp"):
        if kind == "ours":
            _one_process_group(device)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
        boosted = apply(config, net, SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True), level="O1")
        model = net if kind == "alone" else boosted.distribute(ddp=kind == "ddp")
        losses[kind] = _losses(boosted, model, device, steps)
        torch.testing.assert_close(losses[kind], losses["alone"], rtol=1e-3, atol=1e-4)
        print(f"{kind}: losses of {steps} steps are those without a process group")
    torch.distributed.destroy_process_group()


def exit_after_error(device: torch.device, *, patience: float = 90.0) -> None:
    """Let a rank fail with collectives of the device under way: its process has to end by itself, and say why (A11)."""
    command = [sys.executable, "-m", "studies.first_gpu.checks", "failing", str(device)]
    began = time.monotonic()
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=patience, check=False)
    if done.returncode == 0 or _PLANNED not in done.stderr:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    print(f"exit {done.returncode} after {time.monotonic() - began:.0f} s, which says that {_PLANNED}")


def failing(device: torch.device, *, width: int = 4096) -> None:
    """Fail as one rank whose process group stays, as `joined` leaves it where collectives are not those of gloo."""
    _one_process_group(device)
    net = nn.Linear(width, width).to(device)
    boosted = apply(BoostConfig(), net, SGD(net.parameters(), lr=0.01), level="O0")
    boosted.distribute()
    for _ in range(3):
        boosted.backward(net(torch.randn(width, width, device=device)).square().mean())
        boosted.step()
    for _ in range(50):
        torch.distributed.all_reduce(net.weight.detach().clone(), async_op=True)
    raise RuntimeError(_PLANNED)


def _one_process_group(device: torch.device) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(devices.collective_backend(device), store=store, rank=0, world_size=1)


def recording(device: torch.device, *, width: int = 2048, layers: int = 8, steps: int = 20) -> None:
    """Time and weigh steps of a large transformer with and without a trace, exponents every tenth step (A8)."""
    encoder = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
    for name in ("plain", "recorded"):
        torch.manual_seed(0)
        net = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False).to(device)
        optimizer = SGD(net.parameters(), lr=1e-4, momentum=0.9, fused=True)
        boosted = apply(BoostConfig().with_values({**_SCALED, "amp.level": "O2"}), net, optimizer, level="O0")
        trace = TraceBuffer(boosted, exponents_every=10) if name == "recorded" else None
        x = torch.randn(8, 256, width, device=device)
        loop = training_loop(
            boosted, lambda model, batch: model(batch).float().square().mean(), cycle([x]), trace=trace
        )
        list(islice(loop, steps))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        devices.synchronize(device)
        began = time.perf_counter()
        list(islice(loop, steps))
        devices.synchronize(device)
        milliseconds = 1e3 * (time.perf_counter() - began) / steps
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        number = sum(weight.numel() for weight in net.parameters())
        print(f"{name}: {number:,} weights, {milliseconds:.2f} ms a step, at most {peak:.2f} GiB")


def _losses(boosted: Boosted, model: nn.Module, device: torch.device, steps: int) -> Tensor:
    """Train on noise; return the losses, read at the end only."""
    outcomes = []
    for _ in range(steps):
        with boosted.autocast():
            loss = model(torch.randn(8, 16, device=device)).square().mean()
        boosted.backward(loss)
        outcomes.append(boosted.step())
    return torch.tensor([float(outcome.loss) for outcome in outcomes])


def _tried(name: str, call: Callable[[], object]) -> None:
    try:
        call()
        print(f"{name}: works")
    except (RuntimeError, NotImplementedError) as error:
        print(f"{name}: {str(error).splitlines()[0]}")


CHECKS = {
    check.__name__: check
    for check in (
        operators,
        parity,
        half_norms,
        no_waits,
        late_copies,
        compiled,
        one_rank,
        exit_after_error,
        failing,
        recording,
    )
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    CHECKS[sys.argv[1]](devices.select_device(sys.argv[2]))
