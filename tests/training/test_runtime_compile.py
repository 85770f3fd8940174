"""``runtime.compile``: compiled training gives the same numbers under the same names, or says why it cannot."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import workbench
from tests.kit.configurations import freezing
from tests.kit.tasks import task_of
from workbench.config import BoostConfig
from workbench.methods.runtime import compilation
from workbench.methods.runtime.compilation import compiling
from workbench.tasks import Task
from workbench.training import Boosted, apply
from workbench.training.agreement import agrees, first_gradient, first_losses, gradient_agrees

CPU = torch.device("cpu")
COMPILED = {"boost": {"mode": "disable_all"}, "runtime": {"compile": "default"}}


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> Iterator[None]:
    """Let the collections below look only at what these tests make."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    import torch.compiler.config as compiler

    torch.compiler.reset()
    with compiler.patch(recompile_limit=8):  # freezing may have raised it for the whole process
        yield
    gc.collect()  # else a model that an earlier test compiled lives on
    torch.compiler.reset()


def network(n_layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(n_layers - 1)]
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *inner, nn.Linear(8, 2))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    sizes = [6, 6, 6, 3]  # the last is short
    return [(torch.randn(n, 4, generator=generator), torch.randint(0, 2, (n,), generator=generator)) for n in sizes]


def task(evaluated: list[nn.Module] | None = None) -> Task:
    def model() -> nn.Module:
        made = network()
        if evaluated is not None:
            made.register_forward_hook(lambda module, *_: None if module.training else evaluated.append(module))
        return made

    return task_of(model, batches(), momentum=0.9, metric="accuracy")


def train(boosted: Boosted, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    losses = []
    with boosted.methods.running():
        for x, y in data:
            loss = nn.functional.cross_entropy(boosted.model(x), y)
            boosted.backward(loss)
            losses.append(float(boosted.step().loss))
    return losses


def boosted_with(values: dict[str, Any], n_layers: int = 2) -> Boosted:
    net = network(n_layers)
    return apply(values, net, SGD(net.parameters(), lr=0.1, momentum=0.9), level="O0")


@pytest.mark.slow  # g++ takes seconds per graph
def test_losses_gradients_and_names_are_the_models_and_a_checkpoint_fits_both(tmp_path: Any) -> None:
    plain, made = boosted_with({"boost": {"mode": "disable_all"}}), boosted_with(COMPILED)
    x, y = batches()[0]
    with made.methods.running():
        for one in (plain, made):
            one.backward(nn.functional.cross_entropy(one.model(x), y))
    for wanted, found in zip(plain.model.parameters(), made.model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-6)
    plain.step(), made.step()
    assert made.state_dict()["model"].keys() == plain.state_dict()["model"].keys() == network().state_dict().keys()
    torch.save(made.state_dict(), tmp_path / "state.pt")
    wanted = train(made, batches())
    resumed = boosted_with(COMPILED)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert train(resumed, batches()) == wanted  # bit for bit
    eager = boosted_with({"boost": {"mode": "disable_all"}})
    eager.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert train(eager, batches()) == pytest.approx(wanted, rel=1e-3)


def test_checkpoints_with_the_wrappers_names_still_load() -> None:
    made, other = boosted_with(COMPILED), boosted_with(COMPILED)
    state = made.state_dict()
    state["model"] = {f"_orig_mod.{name}": value + 1 for name, value in state["model"].items()}
    other.load_state_dict(state)
    for wanted, found in zip(made.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(found, wanted + 1)


@pytest.mark.slow  # g++ takes seconds per graph
def test_a_run_is_compiled_for_training_and_evaluates_eagerly() -> None:
    evaluated: list[nn.Module] = []
    asked = BoostConfig.from_dict(COMPILED)
    result = workbench.train(task(evaluated), asked, level="O0", steps=8, out=None, evaluate_every=4)
    assert len(result.curve) == 2
    assert {type(module) for module in evaluated} == {nn.Sequential}
    plain = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})
    losses = [first_losses(task(), one, "O0", 0, CPU, 8) for one in (asked, plain)]
    assert agrees(*losses, "float32") == ""
    assert gradient_agrees(*(first_gradient(task(), one, "O0", 0, CPU) for one in (asked, plain)), "float32") == ""


@pytest.mark.slow  # g++ takes seconds per graph
def test_freezing_keeps_a_graph_per_group() -> None:
    compiled = {**freezing(3), "runtime": {"compile": "default"}}
    wanted, found = (train(boosted_with(values, n_layers=6), batches() * 3) for values in (freezing(3), compiled))
    assert found == pytest.approx(wanted, rel=1e-3)


def compile_with(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Let torch.compile hand its graphs to a backend that is quicker than g++."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend=backend))


def test_what_cannot_be_compiled_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such register")

    compile_with(monkeypatch, broken)
    with pytest.raises(RuntimeError, match=r"^torch.compile failed on this model \(.*no such register\); set `runtime"):
        train(boosted_with(COMPILED), batches())


def test_an_error_of_the_model_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with(monkeypatch, "eager")
    with pytest.raises(RuntimeError, match=r"failed on this model \(.*\[2, 5\] X \[4, 8\]"):
        train(boosted_with(COMPILED), [(torch.ones(2, 5), torch.zeros(2, dtype=torch.long))])


class Growing(nn.Module):
    """Reads a label, which a caller may change."""

    def __init__(self) -> None:
        super().__init__()
        self.label = "a"

    def forward(self, x: Tensor) -> Tensor:
        return x * len(self.label) if self.label.startswith("a") else x


def test_graphs_without_end_are_an_error_and_not_a_silent_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_with_changing_label() -> None:
        with compiling():
            for i in range(20):
                net.label = "a" * (i + 1)
                made(torch.ones(2))

    compile_with(monkeypatch, "eager")
    net = Growing()
    made = compilation.compiled(net, key="growing")
    with pytest.raises(RuntimeError, match="made 8 graphs of this model and needs yet another"):
        call_with_changing_label()


def of_width(width: int) -> Boosted:
    net = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    return apply(COMPILED, net, SGD(net.parameters(), lr=0.1), level="O0")


@pytest.mark.slow
def test_many_trainings_of_one_process_do_not_use_up_each_others_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with(monkeypatch, "eager")
    for width in range(3, 13):  # more different models than torch keeps graphs of
        assert len(train(of_width(width), batches()[:1])) == 1


@pytest.mark.slow
def test_models_that_live_side_by_side_have_room_for_all_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with(monkeypatch, "eager")
    living = [of_width(width) for width in range(3, 13)]
    for boosted in living * 2:
        assert len(train(boosted, batches()[:1])) == 1


def test_the_next_seed_of_a_set_up_finds_its_graphs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def counting(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_with(monkeypatch, counting)
    for _ in range(3):
        train(boosted_with(COMPILED), batches()[:2])
    assert len(graphs) == 1
    train(boosted_with({**COMPILED, "amp": {"level": "O2", "dtype": "bfloat16"}}), batches()[:2])
    assert len(graphs) == 2
