"""A seal notices every bit that turns in the text of sealed values, also one in its own name."""

from __future__ import annotations

import json
import math
from typing import Any

from workbench.core.checksums import SEAL, is_intact, sealed

VALUES: dict[str, Any] = {
    "state": "finished", "steps": 12, "curve": [[6, 0.5], [12, 0.75]], "metric": 0.75, "loss": math.nan, "notes": [],
    "recorded": {"files": {"steps.parquet": 3207861234}},
}  # fmt: skip


def test_every_flipped_bit_is_noticed_or_changes_nothing() -> None:
    kept = sealed(VALUES)
    whole = json.dumps(kept, indent=1).encode()
    taken = []
    for at in range(8 * len(whole)):
        content = bytearray(whole)
        content[at // 8] ^= 1 << at % 8
        try:
            found = json.loads(content)
        except ValueError:
            continue
        if not isinstance(found, dict) or (is_intact(found) and repr(found) != repr(kept)):
            taken.append(bytes(content[max(at // 8 - 9, 0) : at // 8 + 9]))
    assert taken == []


def test_values_of_an_earlier_version_have_no_seal() -> None:
    assert SEAL not in VALUES
    assert is_intact(VALUES)
