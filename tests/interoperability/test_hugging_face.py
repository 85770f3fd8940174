"""Models and the Trainer of Hugging Face's transformers, used as they come; weights are random."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.kit.runs import run_task
from workbench import apply
from workbench.config import BoostConfig
from workbench.nn import AdamOffload, thor
from workbench.tasks import Task

transformers = pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "own_loop.md"
N_TOKENS = 12


def small_bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def sentences(n: int = 256) -> tuple[Tensor, Tensor]:
    """Return token numbers and whether the first one is large."""
    tokens = torch.randint(1, 100, (n, N_TOKENS), generator=torch.Generator().manual_seed(1))
    return tokens, (tokens[:, 0] > 50).long()


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "thor": lambda net: thor(net, 0.02, 0.03, 0.9, frequency=5),
    "adam_offload": lambda net: AdamOffload(net, learning_rate=2e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bert_learns_unchanged(name: str) -> None:
    torch.manual_seed(0)
    model = small_bert()
    optimizer = OPTIMIZERS[name](model)
    tokens, labels = sentences(64)
    losses = []
    for _ in range(60):
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 0.6
    assert losses[-1] < 0.1


def test_thor_takes_every_linear_layer_and_embedding_of_a_bert() -> None:
    model = small_bert()
    taken = set(thor(model, 0.02, 0.03, 0.9).layer_names)
    expected = {name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))}
    assert expected <= taken


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bert_is_a_task_like_any_other(name: str) -> None:
    tokens, labels = sentences()
    batches = [{"input_ids": part, "labels": of} for part, of in zip(tokens.split(64), labels.split(64), strict=True)]
    task = Task(
        name="bert", model=small_bert, loss=lambda model, batch: model(**batch).loss,
        optimizer=lambda named: AdamW(named, lr=1e-3, fused=True), train=batches, evaluate=batches, metric="loss",
    )  # fmt: skip
    section = {"name": name, "lr": 0.02 if name == "thor" else 2e-3}
    config = BoostConfig.from_dict({"optimizer": section, "amp": {"level": "O2", "dtype": "bfloat16"}})
    result = run_task(task, config, steps=40, device=torch.device("cpu"))
    assert not result.diverged
    assert result.metric < 0.3


@pytest.mark.slow
def test_the_trainer_of_the_docs_trains_boosted_and_resumes(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n# boosted_trainer\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    tokens, labels = sentences()
    data = [{"input_ids": part, "labels": of} for part, of in zip(tokens, labels, strict=True)]
    config = {"boost": {"mode": "manual", "grad_freeze": True, "less_bn": False}, "loss_scale": {"kind": "fixed"}}

    def trainer(steps: int) -> Any:
        torch.manual_seed(0)
        model = small_bert()
        boosted = apply(config, model, AdamW(model.named_parameters(), lr=2e-3, fused=True))
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=32, max_grad_norm=0, use_cpu=True,
            save_steps=20, save_strategy="steps", logging_steps=60, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        return names["BoostedTrainer"](boosted, arguments, train_dataset=data)

    whole = trainer(40)
    rate = whole.boosted.optimizer.param_groups[0]["lr"]
    assert whole.train().training_loss < 0.6
    assert whole.boosted.optimizer.param_groups[0]["lr"] < 0.1 * rate, "the Trainer's schedule reached the optimizer"
    resumed = trainer(40)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    for mine, other in zip(whole.boosted.model.parameters(), resumed.boosted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
