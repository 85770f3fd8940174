"""Where golden files lie and how they are read.

The folder is named by the environment variable ``WORKBENCH_GOLDEN_DIR`` (default ``tests/golden``), so that another
set of the same form can be checked. Tests are parametrised over the files found there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GOLDEN_DIR", "golden_paths", "load_json", "load_npz"]

GOLDEN_DIR = Path(os.environ.get("WORKBENCH_GOLDEN_DIR") or Path(__file__).parent / "golden")


def golden_paths(pattern: str) -> list[Path]:
    """Return the golden files that match a glob pattern, sorted; empty when the folder has none of them."""
    return sorted(GOLDEN_DIR.glob(pattern))


def load_json(path: Path) -> Any:
    """Read a golden JSON file (it may contain NaN)."""
    return json.loads(path.read_text(encoding="utf-8"))


def load_npz(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a golden .npz file without pickle: its meta data and its arrays."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files if key != "meta_json"}
        meta = json.loads(str(archive["meta_json"]))
    return meta, arrays
