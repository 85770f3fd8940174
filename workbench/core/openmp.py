"""OpenMP threads that one Python thread keeps, and what they cost another one that computes.

GNU's OpenMP keeps a pool of threads for every thread that ever computed. Once there are more of them than cores, the
threads of *every* pool fall asleep at each barrier instead of waiting awake (libgomp, "GOMP_SPINCOUNT"): a training
beside a notebook's kernel takes two to four times as long if the kernel has computed anything before.
"""

from __future__ import annotations

import ctypes
import sys

_SOFT = 1  # omp_pause_soft: keep what threads have of their own (OpenMP 5.0, section 3.6.1)


def release_pool() -> bool:
    """End the OpenMP threads that wait for the calling thread; return whether they were ended.

    Nothing is ended before torch is imported, or where OpenMP is not GNU's.
    """
    if "torch" not in sys.modules:
        return False
    try:
        library = ctypes.CDLL("libgomp.so.1")  # the one that torch has loaded: by its name there is only one
        return bool(library.omp_pause_resource_all(_SOFT) == 0)
    except (OSError, AttributeError):
        return False
