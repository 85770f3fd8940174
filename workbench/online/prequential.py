"""Test, then train: how good are the predictions that a step makes before it learns from their labels?

A stream has no test set, and needs none: every record is new when it comes, so the forward pass of the training step is
a test, and its figures over the last records say how good the model is now (Dawid, "Present Position and Potential
Developments", JRSS A 147(2), 1984; Gama, Sebastião and Rodrigues, "On evaluating stream learning algorithms", Machine
Learning 90, 2013).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workbench.core.arguments import checked_count
from workbench.core.metrics import OutputKind

Floats: TypeAlias = npt.NDArray[np.float64]

_LARGEST_LOG = 100.0  # as torch's BCELoss: a probability of exactly 0 or 1 costs 100, not infinity


class Prequential:
    """Area under the ROC curve and log loss of the last records.

    Predictions stay on the device for ``every`` steps and then come to the host together.

    Args:
        window: Records the figures are taken over, at least 2.
        every: Steps between two looks, at least 1. One look at 10,000 records takes about a third of a millisecond.
    """

    def __init__(self, window: int = 10_000, every: int = 200) -> None:
        self.window = checked_count("window", window, 2, kind="a whole number of records")
        self.every = checked_count("every", every, kind="a whole number of steps")
        self.kind: OutputKind = "logits"  # what the network returns; set from the criterion when training begins
        self.n_seen = 0  # records judged so far
        self.n_nonfinite = 0  # that are not among them, because their prediction was NaN or infinite
        # These are in the window, too, with a loss of NaN, as is what was never filled: what a model that has died did
        # well before must not go on counting.
        self._records: dict[str, npt.NDArray[Any]] = {
            "scores": np.zeros(window),
            "positive": np.zeros(window, dtype=np.bool_),
            "losses": np.full(window, np.nan),
        }
        self._pending: list[tuple[Tensor, Tensor]] = []

    def see(self, prediction: Tensor, label: Tensor) -> None:
        """Keep a forward pass's predictions, ``[n]``, ``[n, 1]`` or ``[n, 2]``, and labels, without synchronising."""
        if prediction.ndim != 1 and (prediction.ndim != 2 or prediction.shape[1] not in (1, 2)):
            raise ValueError(
                f"`prequential` needs predictions of shape [n], [n, 1] or [n, 2], got {list(prediction.shape)}"
            )
        if len(prediction) != label.numel():
            raise ValueError(
                f"`prequential` needs one label per prediction, got {list(prediction.shape)} and {list(label.shape)}"
            )
        self._pending.append((prediction.detach(), label.detach()))

    def take_in(self) -> list[float]:
        """Bring what waits on the device into the window.

        Returned is the mean log loss of each forward pass since the last call; NaN where no prediction was finite.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return []
        scores = torch.cat([click_scores(prediction, self.kind) for prediction, _ in pending]).double()
        labels = torch.cat([label.reshape(-1) for _, label in pending]).to(scores)
        scores_array, labels_array = torch.stack([scores, labels]).cpu().numpy()
        losses = binary_log_losses(scores_array, labels_array, self.kind)
        finite = np.isfinite(losses)
        self._append(scores_array, labels_array, losses)
        n_finite = int(np.count_nonzero(finite))
        self.n_seen, self.n_nonfinite = self.n_seen + n_finite, self.n_nonfinite + len(finite) - n_finite
        return _means(losses, finite, [len(prediction) for prediction, _ in pending])

    def auc(self) -> float:
        """Return the area under the ROC curve over the window, 0 to 1; NaN while only one class is in it."""
        known = np.isfinite(self._records["losses"])
        return exact_auc(self._records["scores"][known], self._records["positive"][known])

    def log_loss(self) -> float:
        """Return the mean log loss over the window, in nats per record; NaN while none in it is known."""
        losses = self._records["losses"]
        known = losses[np.isfinite(losses)]
        return float(known.mean()) if len(known) else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the window; a RuntimeError when predictions wait, whose losses would be lost."""
        if self._pending:
            raise RuntimeError("predictions wait to be taken in; call take_in() before state_dict()")
        records = {name: torch.from_numpy(values.copy()) for name, values in self._records.items()}
        return {"n_seen": self.n_seen, "n_nonfinite": self.n_nonfinite, **records}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken, of a window of the same size, or raise ValueError."""
        if len(state["scores"]) != self.window:
            raise ValueError(f"`window` must be {len(state['scores'])}, as in the checkpoint, got {self.window}")
        self.n_seen, self.n_nonfinite = state["n_seen"], state["n_nonfinite"]
        for name, values in self._records.items():
            values[:] = state[name].cpu().numpy()
        losses = self._records["losses"]
        if not np.isnan(losses).any():  # earlier checkpoints have 0 where nothing is known
            losses[self.n_seen :] = np.nan
        self._pending = []

    def _append(self, scores: Floats, labels: Floats, losses: Floats) -> None:
        skipped = max(len(scores) - self.window, 0)  # what would be overwritten at once
        places = (self.n_seen + self.n_nonfinite + np.arange(skipped, len(scores))) % self.window
        self._records["scores"][places] = scores[skipped:]
        self._records["positive"][places] = labels[skipped:] > 0.5
        self._records["losses"][places] = losses[skipped:]


def exact_auc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, 0 to 1; NaN while there are records of one class only.

    It is the probability that a positive record has a higher score than a negative one; a tie counts half (Mann and
    Whitney, Annals of Mathematical Statistics 18(1), 1947). Only one class has to be sorted: the other one's places in
    it are looked up, which for rare clicks is most of the work saved.

    Example:
        >>> exact_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
        0.75
    """
    hits, others = scores[positive], np.sort(scores[~positive])
    if not len(hits) or not len(others):
        return math.nan
    hits.sort()  # neighbours are looked up in cached memory
    below = int(np.searchsorted(others, hits, "left").sum())
    not_above = int(np.searchsorted(others, hits, "right").sum())
    return (below + not_above) / (2 * len(hits) * len(others))


def click_scores(prediction: Tensor, kind: OutputKind) -> Tensor:
    """Return a logit per record, or a probability where a network returns those.

    The shape is ``[n]`` or ``[n, 1]``, or ``[n, 2]`` with the positive class second.
    """
    if prediction.ndim == 2 and prediction.shape[1] == 2:
        prediction = prediction.float() if prediction.dtype in (torch.float16, torch.bfloat16) else prediction
        return prediction[:, 1] if kind == "probabilities" else prediction[:, 1] - prediction[:, 0]
    return prediction.reshape(-1)


def binary_log_losses(scores: Floats, labels: Floats, kind: OutputKind) -> Floats:
    """Return the log loss of each record, in nats; NaN where a score of `click_scores` or a label is not finite."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if kind == "probabilities":
            hit = np.maximum(np.log(scores), -_LARGEST_LOG)
            miss = np.maximum(np.log1p(-scores), -_LARGEST_LOG)
            return np.asarray(-(labels * hit + (1 - labels) * miss))
        losses = np.logaddexp(0.0, scores) - labels * scores
    return np.asarray(np.where(np.isfinite(scores), losses, np.nan))


def _means(losses: Floats, finite: npt.NDArray[np.bool_], sizes: list[int]) -> list[float]:
    """Return the mean over the finite losses of each of several neighbouring parts; NaN where there is none."""
    # Each part is summed by itself, so that it does not matter which parts are looked at together.
    means = [math.nan] * len(sizes)
    filled = [index for index, size in enumerate(sizes) if size]
    starts = np.cumsum([0, *sizes])[filled]
    if not filled:
        return means
    sums = np.add.reduceat(np.where(finite, losses, 0.0), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    for index, total, count in zip(filled, sums.tolist(), counts.tolist(), strict=True):
        means[index] = total / count if count else math.nan
    return means
