"""``digits-autoencoder``: a deep autoencoder of handwritten digits, the classic benchmark of second-order methods.

Eight tanh layers squeeze 64 pixels through a code of a few numbers and bring them back: Hinton and Salakhutdinov,
"Reducing the Dimensionality of Data with Neural Networks", Science 2006, doi:10.1126/science.1127647; as a benchmark of
curvature: Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", ICML 2015,
arXiv:1503.05671, section 13.

The data are those of ``digits-lenet`` with the same split per seed, as grey levels in [0, 1]; a batch is
``(pixels, pixels)``, float32 ``[n, 64]``. The squared error is summed over the pixels of an image, as in the sources: a
mean would move useful learning rates 64 times up, beyond what `optimizer.lr` offers.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor, nn
from torch.optim import SGD

from workbench.tasks.batches import ShuffledBatches, digest_of_batches
from workbench.tasks.digits import load_images, read_digits, split_indices
from workbench.tasks.task import Task

BATCH_SIZE = 128
EVALUATION_BATCH_SIZE = 150


def digits_autoencoder() -> Task:
    """Return the task of the deep autoencoder: SGD with momentum at a constant rate, squared error per image.

    The rate is constant because the question is how soon a level is reached: under a schedule that falls to zero at the
    end of the budget the answer would follow the budget.
    """
    return Task(
        name="digits-autoencoder",
        model=Autoencoder,
        loss=ReconstructionError(),
        optimizer=functools.partial(SGD, lr=0.005, momentum=0.9, fused=True),
        train=_training_batches,
        evaluate=_evaluation_batches,
        metric="loss",
        # Version 1 trained at a rate of 0.01, at which three of six seeds diverged: not the same task.
        data_hash=f"sklearn.datasets.load_digits pixels, version 2 sha256:{digest_of_batches([load_pixels()])}",
        steps=600,
    )


@functools.cache
def load_pixels() -> Tensor:
    """Return all images as grey levels, shape ``[1797, 64]``, 0 (paper) to 1 (ink) in steps of 1/16, exact."""
    return torch.tensor(read_digits()[0], dtype=torch.float32, device="cpu") / 16


class Autoencoder(nn.Module):
    """Linear layers with tanh down to a linear code and, mirrored, up again (118 thousand parameters).

    ``widths`` are the units per encoder layer, the last one the code. Weights begin after Glorot and Bengio,
    "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010, equation 16: with torch's
    own, smaller weights the signal fades over eight layers.
    """

    def __init__(self, widths: tuple[int, ...] = (256, 128, 64, 16), n_inputs: int = 64) -> None:
        super().__init__()
        self.encoder = _layers((n_inputs, *widths))
        self.decoder = _layers((*reversed(widths), n_inputs))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the reconstruction, shape ``[n, n_inputs]``."""
        return self.decoder(self.encoder(pixels))  # type: ignore[no-any-return]  # nn.Module calls are Any


class ReconstructionError(nn.Module):
    """Squared error summed over the pixels of an image, mean over images; float32 whatever the outputs are."""

    def forward(self, outputs: Tensor, pixels: Tensor) -> Tensor:
        """Return the error, shape ``()``, for outputs and pixels ``[n, n_pixels]``."""
        return (outputs.float() - pixels.float()).square().sum(dim=1).mean()


def _layers(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        linear = nn.Linear(n_in, n_out)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _split_pixels(seed: int) -> tuple[Tensor, Tensor]:
    training, evaluation = split_indices(load_images()[1], seed)
    return load_pixels()[training], load_pixels()[evaluation]


def _training_batches(seed: int) -> ShuffledBatches:
    pixels, _ = _split_pixels(seed)
    return ShuffledBatches(len(pixels), BATCH_SIZE, seed, _rows, held=pixels)


def _rows(pixels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    chosen = pixels[indices]
    return chosen, chosen


def _evaluation_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    return [(part, part) for part in torch.split(_split_pixels(seed)[1], EVALUATION_BATCH_SIZE)]
