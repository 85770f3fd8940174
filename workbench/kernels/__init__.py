"""Passes over many tensors of a CPU in one call, compiled where a C compiler is at hand.

``kernels.c`` is what runs, ``library.py`` compiles and loads it, ``lists.py`` calls it on lists of tensors. Whoever
uses one asks `are_fit` first and keeps a way through torch's own operations.
"""

from workbench.kernels.lists import (
    AdamSettings,
    adam_,
    adam_at_,
    adam_rounded_,
    addresses_of,
    are_fit,
    combine_rows,
    inner_products,
    lengths_of,
    mix_,
    norm_and_maximum,
    unscale_and_check_,
)

__all__ = [
    "AdamSettings",
    "adam_",
    "adam_at_",
    "adam_rounded_",
    "addresses_of",
    "are_fit",
    "combine_rows",
    "inner_products",
    "lengths_of",
    "mix_",
    "norm_and_maximum",
    "unscale_and_check_",
]
