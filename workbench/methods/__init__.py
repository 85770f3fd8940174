"""Training methods, one per file; each is pure PyTorch and knows nothing of the others."""

from __future__ import annotations

__all__: list[str] = []
