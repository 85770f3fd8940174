"""A small text classifier of Hugging Face's with random weights, sentences to classify, and arguments that train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

N_TOKENS = 12
NO_METHODS = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}


def classifier(dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """Return a two-layer BERT with two classes."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)  # type: ignore[no-any-return]


def sentences(n: int = 256, *, ragged: bool = False) -> list[dict[str, Any]]:
    """Return token numbers, and whether the first one is large; ragged ones are lists of different lengths."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 100, (n, N_TOKENS), generator=generator)
    labels = (tokens[:, 0] > 50).long()
    if not ragged:
        return [{"input_ids": part, "labels": of} for part, of in zip(tokens, labels, strict=True)]
    lengths = torch.randint(4, N_TOKENS + 1, (n,), generator=generator).tolist()
    return [
        {"input_ids": part[:length].tolist(), "labels": int(of)}
        for part, of, length in zip(tokens, labels, lengths, strict=True)
    ]


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate ragged samples: pad each batch to its longest."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in zip(tokens, samples, strict=True):
        row[: len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}


def arguments(folder: Path, **given: Any) -> Any:
    """Return arguments for 40 updates of 32 sentences on a CPU."""
    usual: dict[str, Any] = {
        "max_steps": 40, "per_device_train_batch_size": 32, "per_device_eval_batch_size": 64, "learning_rate": 2e-3,
        "use_cpu": True, "save_strategy": "no", "logging_steps": 10, "report_to": [], "disable_tqdm": True,
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **usual | given)
