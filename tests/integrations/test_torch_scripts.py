"""A set-up as a script of torch's: what it computes is what this package computes, and it runs where this is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit.configurations import accumulating
from tests.kit.script_runs import run_here, run_script
from workbench.config import BoostConfig
from workbench.core.records import ExportedScript
from workbench.integrations.scripts.set_up import SetUp
from workbench.integrations.scripts.writing import write_script
from workbench.tasks import load_task
from workbench.training.evaluation import evaluate
from workbench.training.setup import prepare
from workbench.training.task_look import look_at

QUICKSTART = Path(__file__).parents[2] / "studies/quickstart/published/boost_config.o1.json"
PLAIN: dict[str, Any] = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
ACCUMULATED = accumulating(2)
OWN = '''\
"""A small net on the digits."""
from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from workbench import Task

RUN = 64  # samples of a batch


def build_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def build_optimizer(named):
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9)


def loader_of(seed):
    table = load_digits()
    images = torch.tensor(table.images[:1280], dtype=torch.float32) / 16
    samples = TensorDataset(images, torch.tensor(table.target[:1280]))
    return DataLoader(samples, RUN, shuffle=True, generator=torch.Generator().manual_seed(seed))


def kept():
    table = load_digits()
    return [(torch.tensor(table.images[1280:], dtype=torch.float32) / 16, torch.tensor(table.target[1280:]))]


task = Task(name="own", model=build_model, loss=nn.CrossEntropyLoss(), optimizer=build_optimizer, train=loader_of,
            evaluate=kept(), metric="accuracy", steps=60)

if __name__ == "__main__":
    raise SystemExit("this is no program")
'''

PARTICULAR = """\
import math
from dataclasses import replace

import torch
from torch import nn

from workbench import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.body, self.spare = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(1, 1)
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1), persistent=False)

    def forward(self, x):
        x = self.norm(x)
        return self.spare(((self.body(x)[:, :, None] + self.mask).softmax(2) * x[:, None]).sum((1, 2))[:, None])


def today(named):
    named = dict(named)
    slow = {"params": [named["body.weight"], named["norm.weight"]], "lr": 0.005}
    return OPTIMIZER


def clipping(optimizer):
    optimizer.register_step_pre_hook(clip)
    return optimizer


def clip(optimizer, *_):
    nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 0.1)


x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
batches = [(part, part.prod(1, keepdim=True)) for part in x.split(12)]
longer = Task("particular", Net, nn.MSELoss(), today, batches[:6], batches[6:], "loss")
task = replace(longer, steps=24)
"""

TWO_TOWERS = """\
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

from workbench import Task

Pair = namedtuple("Pair", "user item y")


@dataclass
class Named:
    user: torch.Tensor
    item: torch.Tensor
    y: torch.Tensor
    source: str = "clicks"


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, user, item, source=None):
        return ACTIVATION((self.user(user) * self.item(item)).sum(1))


def own_loss(model, batch):
    if isinstance(batch, torch.Tensor):
        batch = Pair(batch[:, 0], batch[:, 1], ((batch[:, 0] * batch[:, 1]).sum(1) > 0).float())
    return nn.functional.binary_cross_entropy_with_logits(model(batch.user, batch.item), batch.y)


def by_name(model, batch):
    return nn.functional.binary_cross_entropy_with_logits(model(batch["user"], batch["item"]), batch["y"])


def in_order(model, batch):
    return nn.functional.binary_cross_entropy_with_logits(model(*batch[:-1]), batch[-1])


users, items = torch.randn(2, 96, 4, generator=torch.Generator().manual_seed(1))
clicks = ((users * items).sum(1) > 0).float()
batches = [BATCH for part in torch.arange(96).split(12)]
task = Task(name="towers", model=Towers, loss=LOSS, optimizer=lambda named: torch.optim.SGD(named, lr=0.3),
            train=batches[:6], evaluate=batches[6:], metric="METRIC")
"""


def written(
    folder: Path, task: str, config: BoostConfig, steps: int, framework: str = "torch", **more: Any
) -> ExportedScript:
    script = write_script(framework, SetUp(config, "o1", steps, task=load_task(task), **more))
    (folder / script.name).write_text(script.text, encoding="utf-8")
    config.save(folder / "boost_config.o1.json")
    return script


def own_task(folder: Path, text: str) -> str:
    """Write a file of the user's, and return the name of the task in it."""
    (folder / "own.py").write_text(text, encoding="utf-8")
    return f"{folder / 'own.py'}:task"


def particular(folder: Path, optimizer: str) -> str:
    """Write the task whose network and optimizer have peculiarities; return its name."""
    return own_task(folder, PARTICULAR.replace("OPTIMIZER", optimizer))


def two_towers(batch: str, loss: str, metric: str, activation: str = "") -> str:
    """Return the task of two towers whose batches, loss, metric and last layer are these."""
    text = TWO_TOWERS.replace("BATCH", batch).replace("ACTIVATION", activation)
    return text.replace("METRIC", metric).replace("LOSS", loss)


def trained_here(task: str, config: BoostConfig, steps: int) -> dict[str, float]:
    """Return the metric and the sum of the weights that this package trains."""
    torch.set_num_threads(1)
    made = prepare(load_task(task), config, level="O1", seed=0, device=torch.device("cpu"), steps=steps)
    boosted, batches = made.boosted, made.batches(0)
    with boosted.methods.running():
        for _ in range(made.passes):
            with boosted.autocast():
                loss = made.task.compute_loss(boosted.model, next(batches))
            boosted.backward(loss)
            boosted.step()
    boosted.finish()
    with boosted.evaluating():
        metric = evaluate(load_task(task), boosted.model, boosted.device, boosted.precision)
        total = sum(float(value.double().abs().sum()) for value in boosted.model.state_dict().values())
    return {"metric": metric, "weights": total}


SET_UPS = {
    "float16": PLAIN
    | {"amp": {"level": "O2"}, "loss_scale": {"init": 2.0**18, "window": 10}, "schedule": {"length": 0.5}},
    "fixed": PLAIN | {"loss_scale": {"kind": "fixed", "init": 128.0}, "schedule": {"shape": "cosine", "final": 0.1}},
    "accumulated": ACCUMULATED
    | {"schedule": {"shape": "warmup_stable_decay"}, "regularization": {"label_smoothing": 0.1}},
    "cut": PLAIN | {"batch": {"factor": 0.25, "lr_rule": "sqrt"}, "schedule": {"length": 0.5, "shape": "constant"}},
    "averaged": PLAIN | {"regularization": {"weight_average": "ema", "decay": 0.9}, "optimizer": {"lr": 0.02}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "averaged")) for name in SET_UPS]
)
def test_torch_alone_computes_the_same(tmp_path: Path, name: str) -> None:
    config = BoostConfig.from_dict(SET_UPS[name])
    script = written(tmp_path, "digits-lenet", config, 24)
    assert "needs nothing of workbench" in script.needs
    assert not re.search(r"^\s*(from|import) workbench", script.text, re.MULTILINE)
    here = trained_here("digits-lenet", config, 24)
    ran = run_here(tmp_path / script.name)
    assert ran["metric"] == here["metric"]
    assert ran["weights"] == pytest.approx(here["weights"], rel=1e-6)


@pytest.mark.slow
def test_the_quickstart_s_answer_is_a_script_without_this_package(tmp_path: Path) -> None:
    script = written(tmp_path, "digits-resnet", BoostConfig.from_json(QUICKSTART), 180)
    ran = run_script(tmp_path / script.name, without=["workbench"])
    here = trained_here("digits-resnet", BoostConfig.from_json(QUICKSTART), 180)
    assert ran["metric"] == here["metric"] > 0.95
    assert ran["weights"] == pytest.approx(here["weights"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits-autoencoder", "topics-gpt"])
def test_every_built_in_task_is_copied_whole(tmp_path: Path, task: str) -> None:
    config = BoostConfig.from_dict(PLAIN | {"schedule": {"length": 0.5, "shape": "linear"}})
    script = written(tmp_path, task, config, 8)
    ran, here = run_script(tmp_path / script.name, without=["workbench"]), trained_here(task, config, 8)
    assert ran["metric"] == pytest.approx(here["metric"], rel=1e-6)


@pytest.mark.slow
def test_a_set_up_with_methods_of_ours_goes_through_apply(tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": True, "grad_freeze": True}})
    script = written(tmp_path, "digits-resnet", config, 12)
    assert "no counterpart for boost.less_bn, boost.grad_freeze" in script.needs
    assert "apply(" in script.text
    assert run_script(tmp_path / script.name)["metric"] == trained_here("digits-resnet", config, 12)["metric"]


@pytest.mark.slow
def test_a_task_of_the_user_s_is_copied_from_its_file(tmp_path: Path) -> None:
    config = BoostConfig.from_dict(PLAIN | {"optimizer": {"name": "AdamW", "lr": 0.01}, "schedule": {"length": 0.5}})
    worth = {"optimizer.lr": "1.50 x faster (95 % interval 1.40 to 1.60)"}
    script = written(tmp_path, own_task(tmp_path, OWN), config, 60, worth=worth)
    assert "needs nothing of workbench" in script.needs
    for line in (
        "\n    # the optimizer: 1.50 x faster (95 % interval 1.40 to 1.60)\n    optimizer = torch.optim.AdamW(",
        "# a shorter run, annealed to its own end: not measured separately",
        "def build_model():",
    ):
        assert line in script.text
    assert run_script(tmp_path / script.name, without=["workbench"])["metric"] > 0.8


_PAIRED, _NAMED = "(users[part], items[part], clicks[part])", "dict(user=users[part], item=items[part], y=clicks[part])"
_FIELDS, _TUPLES = "Named(users[part], items[part], clicks[part])", "Pair(users[part], items[part], clicks[part])"
_ALONE = "torch.stack([users[part], items[part]], 1)"
_COMPARED = {  # where the loss is a function, and the metric compares what the model returns
    "a mapping with a target": (_NAMED, "by_name"),
    "a named tuple with a target": (_TUPLES, "own_loss"),
    "fields with a target": (_FIELDS, "own_loss"),
    "two inputs and a target": (_PAIRED, "in_order"),
}
_FORMS = ("fields", "named tuples", "fields as a whole", "named tuples as a whole", "a tensor alone")


@pytest.mark.parametrize(
    ("batch", "activation", "loss", "metric"),
    [
        (_PAIRED, "torch.relu", "nn.MSELoss()", "loss"),
        (_NAMED, "torch.sigmoid", "nn.BCELoss()", "accuracy"),
        (_PAIRED, "torch.sigmoid", "nn.MSELoss()", "accuracy"),
        (_NAMED, "", "nn.BCEWithLogitsLoss()", "accuracy"),
        (_FIELDS, "torch.relu", "nn.MSELoss()", "loss"),
        (_TUPLES, "torch.relu", "nn.MSELoss()", "loss"),
        (_FIELDS, "", "own_loss", "loss"),
        (_TUPLES, "", "own_loss", "loss"),
        (_ALONE, "", "own_loss", "loss"),
        *((batch, "", loss, "accuracy") for batch, loss in _COMPARED.values()),
    ],
    ids=["several inputs", "names", "probabilities", "logits", *_FORMS, *_COMPARED],
)
def test_a_script_calls_model_and_loss_with_what_a_batch_holds_as_the_task_does(
    tmp_path: Path, batch: str, activation: str, loss: str, metric: str
) -> None:
    task, config = own_task(tmp_path, two_towers(batch, loss, metric, activation)), BoostConfig.from_dict(PLAIN)
    script = written(tmp_path, task, config, 20)
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 20), rel=1e-6)


PADDED = '''\
"""Texts that are padded to the longest of a batch."""
from __future__ import annotations

import dataclasses

import torch
from torch import nn

from workbench import Task


@dataclasses.dataclass
class Texts:
    words: torch.Tensor
    labels: torch.Tensor

    def joined(self, batches):
        longest = max(one.words.shape[1] for one in batches)
        words = [nn.functional.pad(one.words, (0, longest - one.words.shape[1])) for one in batches]
        return Texts(torch.cat(words), torch.cat([one.labels for one in batches]))


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, words):
        return self.out(self.words(words).sum(1) / (words > 0).sum(1, keepdim=True))


def texts(seed):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 12, (8, 3 + seed % 5), generator=generator)
    return Texts(words, (words.sum(1) > 6.5 * words.shape[1]).long())


task = Task(name="own", model=Mean, loss=nn.CrossEntropyLoss(), train=[texts(seed) for seed in range(20)],
            optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=0.5),
            evaluate=[texts(seed) for seed in range(20, 30)], metric="accuracy")
'''


def test_batches_that_know_how_are_padded_together_here_and_in_a_script(tmp_path: Path) -> None:
    task, config = own_task(tmp_path, PADDED), BoostConfig.from_dict(PLAIN | {"batch": {"factor": 4.0}})
    assert not look_at(load_task(task), torch.device("cpu"), 40).no_merging
    script = written(tmp_path, task, config, 40)
    assert "needs nothing of workbench" in script.needs
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 40), rel=1e-6)


COLLATED = '''\
"""Texts that are padded by a collate_fn, and graphs put together by one."""
from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from workbench import Task


class Graphs:
    def __init__(self, graphs):
        sizes = [len(x) for x, _ in graphs]
        self.x = torch.cat([x for x, _ in graphs])
        self.batch = torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes))
        self.y = torch.tensor([y for _, y in graphs])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, SIGNATURE):
        x, batch = PARTS
        return self.out(torch.zeros(int(batch.max()) + 1, 3).index_add(0, batch, x))


def padded(samples):
    x = nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
    return {"x": x, "y": torch.tensor([y for _, y in samples])}


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(x.sum(1))


def own_loss(model, batch):
    return nn.functional.cross_entropy(model(batch), batch.y)


def samples():
    generator = torch.Generator().manual_seed(0)
    for number in range(32):
        x = torch.randn(2 + number % 5, 3, generator=generator)
        yield x, int(x.sum() > 0)


data = list(samples())
criterion = nn.CrossEntropyLoss()
task = Task(name="collated", model=MODEL, loss=LOSS, optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            train=TRAIN, evaluate=DataLoader(data, 8, collate_fn=COLLATE), metric="METRIC")
'''
_OF_GRAPHS = {"MODEL": "Net", "COLLATE": "Graphs", "PARTS": "graphs.x, graphs.batch", "SIGNATURE": "graphs"}
_BY_NAME = _OF_GRAPHS | {"PARTS": "x, batch", "SIGNATURE": "x, batch"}
_OF_TEXTS = _OF_GRAPHS | {"MODEL": "Mean", "COLLATE": "padded"}


@pytest.mark.parametrize(
    ("chosen", "loss", "metric", "is_function", "data"),
    [
        (_OF_TEXTS, "criterion", "accuracy", False, "resident"),
        (_OF_TEXTS, "criterion", "loss", True, "prefetch"),
        (_OF_GRAPHS, "criterion", "accuracy", False, "prefetch"),
        (_OF_GRAPHS, "own_loss", "accuracy", False, "resident"),
        (_OF_GRAPHS, "own_loss", "loss", False, "as_given"),
        (_BY_NAME, "criterion", "loss", False, "as_given"),
    ],
    ids=["texts", "texts of a seed", "graphs", "graphs by a function", "the loss of graphs", "graphs by name"],
)
def test_a_loader_s_own_way_of_making_batches_makes_larger_ones(
    tmp_path: Path, chosen: dict[str, str], loss: str, metric: str, is_function: bool, data: str
) -> None:
    train = f"DataLoader(data, 4, collate_fn={chosen['COLLATE']})"
    text = COLLATED.replace("TRAIN", f"lambda seed: {train}" if is_function else train)
    for name, value in (chosen | {"LOSS": loss, "METRIC": metric}).items():
        text = text.replace(name, value)
    chosen_too = {"batch": {"factor": 3.0}, "runtime": {"data": data}}
    task, config = own_task(tmp_path, text), BoostConfig.from_dict(PLAIN | chosen_too)
    assert not look_at(load_task(task), torch.device("cpu"), 40).no_merging
    script = written(tmp_path, task, config, 24)
    assert "needs nothing of workbench" in script.needs
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 24), rel=1e-6)


OWN_METRICS = """

def distance(outputs, targets):
    return (outputs - targets).abs().max()


class Distances:
    def reset(self):
        self.largest = {}

    def update(self, outputs, targets):
        found = float((outputs - targets).abs().max())
        self.largest = {"largest": max(found, self.largest.get("largest", 0.0)), "last": found}

    def compute(self):
        return self.largest


task = replace(longer, steps=24, metric=METRIC, direction="minimize")
"""


@pytest.mark.parametrize("metric", ["distance", "Distances()"])
def test_a_script_computes_a_metric_of_one_s_own_as_the_task_does(tmp_path: Path, metric: str) -> None:
    text = PARTICULAR.replace("OPTIMIZER", _WHOLE) + OWN_METRICS.replace("METRIC", metric)
    task, config = own_task(tmp_path, text), BoostConfig.from_dict(PLAIN)
    script = written(tmp_path, task, config, 24)
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 24), rel=1e-6)


_AVERAGED = {"regularization": {"weight_average": "ema", "decay": 0.9}}
_ADAMW = {"optimizer": {"name": "AdamW", "lr": 0.02}}
_WHOLE = "torch.optim.SGD(named.values(), lr=0.02, momentum=0.9, fused=True)"
_SLOWER = "torch.optim.SGD([slow, {'params': [one for name, one in named.items() if 'bias' in name]}], lr=0.1)"


@pytest.mark.parametrize(
    ("optimizer", "chosen", "why"),
    [
        (_WHOLE, {}, ""),
        (_WHOLE, _AVERAGED, ""),
        (_WHOLE, _ADAMW, ""),
        (f"clipping({_WHOLE})", {"optimizer": {"lr": 0.05}}, ""),
        (f"clipping({_WHOLE})", _ADAMW, "today's optimizer has step hooks, which apply() hands on"),
        (_SLOWER, _ADAMW, "parameter groups and weights of its own choice, which apply() hands on"),
        (_WHOLE, _AVERAGED | {"optimizer": {"name": "Muon", "lr": 0.02}}, "torch.optim.Muon"),
        (_WHOLE, {"optimizer": {"name": "ScheduleFreeAdamW", "lr": 0.05}}, "torch.optim has no ScheduleFreeAdamW"),
    ],
    ids=["as today", "mask averaged", "one group", "hook kept", "hook", "groups", "Muon averaged", "Schedule-Free"],
)
def test_a_script_returns_the_weights_of_the_set_up_whatever_todays_optimizer_does(
    tmp_path: Path, optimizer: str, chosen: dict[str, Any], why: str
) -> None:
    task, config = particular(tmp_path, optimizer), BoostConfig.from_dict(PLAIN | chosen)
    script = written(tmp_path, task, config, 24)
    assert why in " ".join(script.text.split())
    assert ("needs nothing of workbench" in script.needs) is (why == "")
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 24), rel=1e-6)


def test_an_overflow_counts_in_the_rise_of_an_average(tmp_path: Path) -> None:
    scaled = {"amp": {"level": "O2"}, "loss_scale": {"init": 2.0**24, "window": 10}}
    task, config = particular(tmp_path, _WHOLE), BoostConfig.from_dict(PLAIN | _AVERAGED | scaled)
    script, here = written(tmp_path, task, config, 24), trained_here(task, config, 24)
    assert run_here(tmp_path / script.name)["metric"] == pytest.approx(here["metric"], rel=1e-4)


def test_what_a_script_imports_is_used_and_imported_once(tmp_path: Path) -> None:
    text = written(tmp_path, own_task(tmp_path, OWN), BoostConfig.from_dict(PLAIN), 30).text
    head, _, rest = text.partition("\n# --- Your model")
    imports = [line for line in text.splitlines() if re.match("(import|from) ", line)]
    assert imports == [line for line in head.splitlines() if re.match("(import|from) ", line)]
    assert len({*imports}) == len(imports)
    assert "A small net on the digits" not in text
    assert "task = task\n" not in rest


def test_rows_of_tensors_are_gathered_at_once_in_a_script_of_torch_alone(tmp_path: Path) -> None:
    task, config = own_task(tmp_path, OWN), BoostConfig.from_dict(PLAIN | {"runtime": {"data": "resident"}})
    script = written(tmp_path, task, config, 60)
    assert "needs nothing of workbench" in script.needs
    assert script.carried["runtime.data"] == "torch.utils.data.DataLoader"
    assert run_here(tmp_path / script.name)["metric"] > 0.8


def test_samples_that_a_stream_holds_are_left_to_this_package(tmp_path: Path) -> None:
    script = written(tmp_path, "digits-lenet", BoostConfig.from_dict(PLAIN | {"runtime": {"data": "resident"}}), 24)
    assert "a stream that says itself where its samples lie" in script.left["runtime.data"]
    assert "apply(" in script.text


def test_samples_stay_on_the_device_in_a_script_through_apply_too(tmp_path: Path) -> None:
    chosen = {"optimizer": {"name": "Muon", "lr": 0.01}, "runtime": {"data": "resident"}}
    script = written(tmp_path, own_task(tmp_path, OWN), BoostConfig.from_dict(PLAIN | chosen), 30)
    assert "apply(" in script.text
    assert run_here(tmp_path / script.name)["metric"] > 0.5  # a warning that it has no effect would be an error


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("import Task", "import Task, train", "own.py imports train from workbench"),
        ("def kept():\n", "def kept():\n    import workbench\n", "own.py imports workbench in line"),
        ("def kept()", "def moved():\n    pass\n\n\ndef kept()", "both define moved"),
        ("import torch\n", "import torch\nfrom time import time\n", "both define time"),
    ],
)
def test_a_file_that_cannot_be_copied_is_loaded_and_the_script_says_why(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    script = written(tmp_path, own_task(tmp_path, OWN.replace(old, new)), BoostConfig.from_dict(PLAIN), 10)
    assert why in script.needs
    assert "load_task(" in script.text
    assert why in script.text.partition('"""')[2].partition('"""')[0].replace("\n", " ")


def test_of_a_task_that_only_a_program_knows_the_user_fills_in_the_pieces() -> None:
    script = write_script("torch", SetUp(BoostConfig.from_dict(PLAIN), "o1", 10))
    assert "name yours here" in script.text
    assert "fill in the section" in script.needs
    with pytest.raises(ValueError, match="no framework 'jax'; one of torch"):
        write_script("jax", SetUp(BoostConfig.from_dict(PLAIN), "o1", 10))
