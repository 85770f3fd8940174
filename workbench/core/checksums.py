"""Checksums of what is kept: a bit that the disk or a copy has turned is noticed when the file is read.

CRC-32 finds every single flipped bit and every burst of up to 32 (Koopman, "32-bit cyclic redundancy codes for Internet
applications", DSN 2002). It does not protect against deliberate changes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "crc32"
_BLOCK = 1 << 20


def crc_of_file(path: Path) -> int:
    """Return the CRC-32 of a file's content."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def crc_of_arrays(arrays: Mapping[str, Any]) -> int:
    """Return the CRC-32 of contiguous arrays, or anything else with bytes, and their names, in whatever order."""
    crc = 0
    for name in sorted(arrays):
        crc = zlib.crc32(arrays[name], zlib.crc32(name.encode(), crc))
    return crc


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with the checksum of all of them added."""
    return {**values, SEAL: _crc_of(values)}


def is_intact(values: Mapping[str, Any]) -> bool:
    """Return whether sealed values are unchanged; those without a seal, of earlier versions, count as such."""
    # Without one, the name of a seal may have been damaged: its value still is the checksum of the others.
    seals = [SEAL] if SEAL in values else [name for name, one in values.items() if type(one) is int]
    fits = [values[seal] == _crc_of({name: one for name, one in values.items() if name != seal}) for seal in seals]
    return all(fits) if SEAL in values else not any(fits)


def _crc_of(values: Mapping[str, Any]) -> int:
    # As it is read back: keys are text, tuples are lists.
    plain = json.loads(json.dumps(values))
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())
