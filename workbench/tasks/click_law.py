"""A law of clicks that changes: which record comes at each place of an endless stream, and why it was clicked.

Record i is a function of (seed, i) alone, by a generator with access by position (`workbench.optim.embeddings.mixing`),
so a stream can be opened anywhere and gives the same records again. A record has

* **ids**, one per field, by Zipf's law: the id of rank r, of V in all, has a chance proportional to about 1 / r. In
  even fields (users, say) the vocabulary V grows slowly and an id keeps its rank. In odd fields (items) a new id is
  born every ``birth_interval`` records; an id's rank is its age, so what was frequent fades and, ``vocabulary`` births
  later, is never seen again. The field's number stands in the bits from 40 up, so that all can share one table;
* **numbers**, roughly standard normal (sums of four uniforms, scaled);
* **a click**, with the chance ``sigmoid(logit)``::

      logit = bias + sum_f a_f(id_f) + sum_(f even) <b(id_f), b(id_(f+1))> + sum_k c_k * x_k

  a is a weight per id, b a hidden vector of two numbers per id (what a factorization machine can find and a linear
  model cannot), c a weight per number. All are drawn from the seed.

The law drifts in two ways. Abruptly: at every multiple of ``drift_every`` half of the variance of each a and c is drawn
again, as if people had changed their minds. Slowly: the other half turns, ``cos(t) * u + sin(t) * v`` with t going
round once in ``slow_period`` records.

`ClickLaw.probabilities` gives the true chance of each record, and ranking by it is the best that any model can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.optim.embeddings.mixing import mix64_array

FIELD_SHIFT = 40
"""Bits of an id below the number of its field."""

_N_COLUMNS = 256  # random numbers reserved per record
_DRAWS = {"id": 0, "number": 64, "label": 128, "poison": 160}  # first column of each use
# Seeds of the weights, apart from each other and from that of the records.
_STATIC, _TURNED, _ERA, _VECTOR = 101, 102, 1000, 301

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClickLaw:
    """The generating process; see the module's text. A number out of range is a ValueError."""

    seed: int = 0  # chooses everything
    n_fields: int = 8  # of ids, 1 to 64
    n_numbers: int = 4  # per record, 1 to 64
    vocabulary: int = 100  # ids of a field at the beginning, >= 2
    growth_interval: int = 500  # records per new id in an even field
    birth_interval: int = 1000  # records per new id in an odd field
    drift_every: int | None = 200_000  # records between two abrupt changes; None for none
    slow_period: int | None = 4_000_000  # records in which the slow drift goes round once; None for none
    bias: float = -1.0  # logit of a record without any other reason
    strength: float = 2.0  # standard deviation of the rest of the logit, >= 0, roughly

    def __post_init__(self) -> None:
        if not 1 <= self.n_fields <= 64 or not 1 <= self.n_numbers <= 64:
            raise ValueError(
                f"`n_fields` and `n_numbers` must lie in [1, 64], got {self.n_fields} and {self.n_numbers}"
            )
        least = {"seed": 0, "vocabulary": 2, "growth_interval": 1, "birth_interval": 1, "drift_every": 1}
        for name, lower in {**least, "slow_period": 1, "strength": 0}.items():
            value = getattr(self, name)
            if value is not None and not value >= lower:
                raise ValueError(f"`{name}` must be at least {lower}, got {value}")

    def records(self, places: Integers) -> tuple[Integers, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return ids ``[n, n_fields]``, numbers ``[n, n_numbers]`` and clicks (0 or 1) ``[n]`` at places ``[n]``."""
        ids, numbers = self._features(places)
        clicked = self.draws(places, "label", 1)[:, 0] < _sigmoid(self._logits(places, ids, numbers))
        return ids, numbers.astype(np.float32), clicked.astype(np.float32)

    def probabilities(self, places: Integers) -> Floats:
        """Return the true chance of a click at these places, shape ``[n]``."""
        return _sigmoid(self._logits(places, *self._features(places)))

    def era(self, places: Integers) -> Integers:
        """Return how many abrupt changes lie before each place, shape ``[n]``."""
        return places // self.drift_every if self.drift_every is not None else np.zeros_like(places)

    def draws(self, places: Integers, use: str, n: int) -> Floats:
        """Return n uniform numbers in [0, 1) per place, different for each use (a key of ``_DRAWS``)."""
        return (self._scrambled(places, use, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _scrambled(self, places: Integers, use: str, n: int) -> npt.NDArray[np.uint64]:
        counters = places[:, None] * _N_COLUMNS + (np.arange(n) + _DRAWS[use])
        return mix64_array(counters, self.seed * 2 + 1)

    def _features(self, places: Integers) -> tuple[Integers, Floats]:
        drawn = self.draws(places, "id", self.n_fields)
        fields = np.arange(self.n_fields)
        grows = fields % 2 == 0
        vocabulary = np.where(grows, (self.vocabulary + places // self.growth_interval)[:, None], self.vocabulary)
        # u uniform: V ** u has density 1 / (r ln V) on [1, V), Zipf's law between the whole numbers.
        rank = np.exp(drawn * np.log(vocabulary)).astype(np.int64) - 1
        newest = self.vocabulary + places // self.birth_interval
        ids = np.where(grows, rank, newest[:, None] - rank)
        return ids | (fields << FIELD_SHIFT), _normal(self._scrambled(places, "number", self.n_numbers))

    def _logits(self, places: Integers, ids: Integers, numbers: Floats) -> Floats:
        turn = np.zeros(len(places)) if self.slow_period is None else 2 * math.pi * places / self.slow_period
        cosine, sine = np.cos(turn)[:, None], np.sin(turn)[:, None]
        era = self.era(places)

        def weights(keys: Integers) -> Floats:
            """Return a weight of variance 1 for each key, as of each place."""
            slow = cosine * self._drawn(keys, _STATIC) + sine * self._drawn(keys, _TURNED)
            sudden = np.empty_like(slow)
            for number in np.unique(era):
                here = era == number
                sudden[here] = self._drawn(keys[here], _ERA + int(number))
            return (slow + sudden) * math.sqrt(0.5)

        linear = weights(ids).sum(axis=1)
        n_pairs = self.n_fields // 2
        paired = ids[:, : 2 * n_pairs]
        products = np.zeros(len(places))
        for part in range(2):
            vectors = self._drawn(paired, _VECTOR + part)
            products += (vectors[:, ::2] * vectors[:, 1::2]).sum(axis=1)
        # Keys of the numbers lie where no id does.
        per_number = weights(np.broadcast_to(-1 - np.arange(self.n_numbers), (len(places), self.n_numbers)))
        by_number = (per_number * numbers).sum(axis=1)
        variance = self.n_fields + 2 * n_pairs + self.n_numbers  # of the three sums together
        total: Floats = linear + products + by_number
        return self.bias + (self.strength / math.sqrt(variance)) * total

    def _drawn(self, keys: Integers, which: int) -> Floats:
        return _normal(mix64_array(np.ascontiguousarray(keys), (self.seed << 32) + which))


def _normal(scrambled: npt.NDArray[np.uint64]) -> Floats:
    """Return numbers of mean 0 and variance 1 from 64 random bits each: the sum of four uniforms of 16 bits."""
    parts = scrambled.view(np.uint16).reshape(*scrambled.shape, 4)
    total: Floats = parts.sum(axis=-1, dtype=np.float64)
    # Each part is uniform on 0 .. 65535: mean 32767.5, variance (65536 ** 2 - 1) / 12.
    return (total - 4 * 32767.5) / math.sqrt((65536.0**2 - 1) / 3)


def _sigmoid(logits: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-logits))
