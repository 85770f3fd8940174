"""constraints.hashed.txt names the versions of constraints.txt, all that the package needs, and a hash for each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


def test_hashed_pins_are_the_tested_ones_and_none_is_missing() -> None:
    lines = (ROOT / "constraints.hashed.txt").read_text(encoding="utf-8").splitlines()[1:]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, one in zip(lines, found, strict=True) if one is None]
    hashed = {one[1]: one[2].partition("+")[0] for one in found if one}  # torch's CPU build is 2.13.0+cpu
    tested = (line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    pinned = {canonicalize_name(name): version.partition("+")[0] for name, version in tested}
    others = {name for name, version in hashed.items() if pinned.get(name) != version}
    # torch names it, and constraints.txt leaves it open
    assert others <= {"setuptools"}, "run .ci/hash_constraints again"
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {canonicalize_name(Requirement(line).name) for line in content["project"]["dependencies"]}
    assert needed <= set(hashed), "run .ci/hash_constraints again"
