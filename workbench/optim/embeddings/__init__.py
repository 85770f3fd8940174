"""Tables of embeddings for ids without end: hashed into rows, or given rows that are taken back when out of use.

``HashEmbedding`` computes the row from the id and remembers nothing. ``EvictingEmbedding`` knows whose each row is.
Both have gradients for the rows that a batch touched only; `workbench.optim.row_wise` updates no others.
"""

from __future__ import annotations

from workbench.optim.embeddings.evicting_embedding import EvictingEmbedding, TableOccupancy
from workbench.optim.embeddings.hash_embedding import HashEmbedding
from workbench.optim.embeddings.mixing import mix64, uniform_from

__all__ = ["EvictingEmbedding", "HashEmbedding", "TableOccupancy", "mix64", "uniform_from"]
