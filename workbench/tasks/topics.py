"""``topics-gpt``: a small byte-level transformer on Python's own help text, judged in bits per byte.

The text is ``pydoc_data.topics``, the language reference as ``help()`` shows it: some 450 KB of English and code that
every CPython carries; the data hash names its version. Of ten equal blocks one, chosen by the seed, is kept for
evaluation. A sample is ``CONTEXT + 1`` consecutive bytes: inputs are the first ``CONTEXT``, targets the last, both
int64 ``[n, CONTEXT]``. Training visits every start in nine blocks in random order; evaluation reads windows spread
evenly over the tenth.
"""

from __future__ import annotations

import functools
import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from workbench.tasks.batches import ShuffledBatches, digest_of_batches
from workbench.tasks.schedules import warmup_cosine
from workbench.tasks.task import Task

CONTEXT = 64
BATCH_SIZE = 16
N_BLOCKS_OF_TEXT = 10
N_EVALUATION_WINDOWS = 256
EVALUATION_BATCH_SIZE = 64


def topics_gpt() -> Task:
    """Return the task of a byte-level transformer on the help text: AdamW, warm-up and cosine, bits per byte."""
    return Task(
        name="topics-gpt",
        model=ByteTransformer,
        loss=next_byte_loss,
        optimizer=functools.partial(AdamW, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
        train=_training_batches,
        evaluate=_evaluation_batches,
        metric="bits_per_byte",
        scheduler=functools.partial(warmup_cosine, warmup_share=0.1, floor=0.1),
        data_hash=f"pydoc_data.topics of Python {platform.python_version()} sha256:{digest_of_batches([load_text()])}",
        steps=300,
    )


def next_byte_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of the next byte, nats per byte."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@functools.cache
def load_text() -> Tensor:
    """Return the text as bytes, shape ``[n]``, uint8."""
    from pydoc_data.topics import topics

    return torch.frombuffer(bytearray("".join(topics.values()).encode()), dtype=torch.uint8)


def training_starts(n_bytes: int, seed: int) -> tuple[Tensor, tuple[int, int]]:
    """Return the starts of a text's training windows, and the evaluation block that none touches as (first, behind).

    The block is number ``seed % 10``, so that ten consecutive seeds evaluate on all of the text.
    """
    block = n_bytes // N_BLOCKS_OF_TEXT
    first = (seed % N_BLOCKS_OF_TEXT) * block
    behind = first + block
    before_block = torch.arange(0, max(first - CONTEXT, 0), device="cpu")
    after_block = torch.arange(behind, max(n_bytes - CONTEXT, behind), device="cpu")
    return torch.cat([before_block, after_block]), (first, behind)


class ByteTransformer(nn.Module):
    """Decoder-only transformer over bytes, pre-norm, learned positions (0.4 million parameters).

    Reference:
        Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3 (GPT-2), in small.
    """

    def __init__(self, width: int = 96, n_layers: int = 3, n_heads: int = 4, context: int = CONTEXT) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, n_heads) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                # residual branches start smaller, so that the sum over layers keeps its size (GPT-2, section 2.3)
                nn.init.normal_(parameter, std=0.02 / (2 * n_layers) ** 0.5 if name.endswith("out.weight") else 0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the next byte, shape ``[n, length, 256]``, for bytes ``[n, length]``."""
        features = self.bytes(inputs) + self.positions.weight[: inputs.shape[1]]
        return self.head(self.norm(self.blocks(features)))  # type: ignore[no-any-return]  # nn.Module calls are Any


class _Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each on a normalised copy and added back."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        n, length, width = features.shape
        packed = self.attention_in(self.attention_norm(features))
        query, key, value = packed.view(n, length, 3, self.n_heads, width // self.n_heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        features = features + self.attention_out(attended.transpose(1, 2).reshape(n, length, width))
        return features + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(features))))  # type: ignore[no-any-return]


def _windows(held: tuple[Tensor, Tensor], indices: Tensor | slice) -> tuple[Tensor, Tensor]:
    text, starts = held
    window = text[starts[indices].unsqueeze(1) + torch.arange(CONTEXT + 1, device=starts.device)].long()
    return window[:, :-1], window[:, 1:]


def _training_batches(seed: int) -> ShuffledBatches:
    text = load_text()
    starts, _ = training_starts(len(text), seed)
    return ShuffledBatches(len(starts), BATCH_SIZE, seed, _windows, held=(text, starts))


def _evaluation_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    text = load_text()
    _, (first, behind) = training_starts(len(text), seed)
    last_start = max(behind - CONTEXT - 1, first)
    n_windows = min(N_EVALUATION_WINDOWS, last_start - first + 1)
    starts = torch.linspace(first, last_start, n_windows, dtype=torch.float64, device="cpu").long()
    first_ones = range(0, n_windows, EVALUATION_BATCH_SIZE)
    return [_windows((text, starts), slice(n, n + EVALUATION_BATCH_SIZE)) for n in first_ones]
