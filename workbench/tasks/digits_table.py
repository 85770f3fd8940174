"""The handwritten digits as scikit-learn installs them, read without importing scikit-learn.

Importing ``sklearn.datasets`` takes longer than anything else that ``workbench train`` does before its first step, and
all it is wanted for is one file of numbers.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_digits"]

_FILE: Final = Path("datasets", "data", "digits.csv.gz")


@functools.cache
def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what ``sklearn.datasets.load_digits`` returns as ``data`` and ``target``.

    Returns:
        Grey levels 0 to 16, shape ``[1797, 64]``, and classes 0 to 9, shape ``[1797]``.

    Raises:
        ModuleNotFoundError: When scikit-learn is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in [] if found is None else found.submodule_search_locations or []:
        if (path := Path(folder) / _FILE).is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    # Absent, or a release that keeps its data elsewhere: its own function knows, or says what is missing.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data, digits.target.astype(np.int64)
