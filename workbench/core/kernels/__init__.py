"""Passes over many tensors of a CPU in one call, compiled where a C compiler is at hand.

``kernels.c`` is what runs, ``library.py`` compiles and loads it. ``tensors.py`` makes lists of tensors that a kernel
can go through, and ``lists.py`` calls kernels on them. Whoever uses one asks for a list with `listed` first, and keeps
a way through torch's own operations for when there is none.
"""

from workbench.core.kernels.lists import (
    AdamLists,
    AdamSettings,
    Lasting,
    adam_,
    adam_lists,
    adam_rounded_,
    combine_rows,
    inner_products,
    mix_,
    norm_and_maximum,
    unscale_and_check_,
)
from workbench.core.kernels.tensors import Listed, listed

__all__ = [
    "AdamLists",
    "AdamSettings",
    "Lasting",
    "Listed",
    "adam_",
    "adam_lists",
    "adam_rounded_",
    "combine_rows",
    "inner_products",
    "listed",
    "mix_",
    "norm_and_maximum",
    "unscale_and_check_",
]
