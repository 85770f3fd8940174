"""Damage what is kept and what is read, count what comes of it: single bits, and files that are anything.

    python studies/reliability/damage.py [bits|inputs] [--count N]

``bits``: 1,000 single bits in checkpoints, snapshots, runs, publications and a study's database, as many in each; what
is read is what was written, or a sentence says what is damaged. ``inputs``: 5,000 mutated or made-up files of all
readers, which are the fuzz tests of ``tests/reliability`` with more examples each: what is read can be used, what is
not is one sentence. ``result/damage.md`` is the table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
RESULT = HERE / "result" / "damage.md"
HEAD = "| what | tried | read as something else | called a bug, or a traceback |\n| --- | --- | --- | --- |\n"


def bits(count: int) -> tuple[str, int, int, int]:
    """Turn single bits in each kind of files; return a row of the table."""
    sys.path.insert(0, str(CHECKOUT))
    from tests.reliability.flipped_bits import KEPT, Tally, flip_and_read

    told = Tally()
    for number, name in enumerate(KEPT):
        share = count // len(KEPT) + (number < count % len(KEPT))
        told += flip_and_read(name, share, number)
        print(f"{name}: {told.tried} so far, wrong {told.wrong}, bugs {told.bugs}", flush=True)
    return (
        "single bits of checkpoints, snapshots, publications, runs and databases",
        told.tried,
        len(told.wrong),
        len(told.bugs),
    )


def inputs(count: int) -> tuple[str, int, int, int]:
    """Let each reader read its share of damaged files; return a row of the table.

    What is read is compared with nothing: a damaged file may be another valid one.
    """
    files = sorted(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("tests/reliability/test_fuzz_*.py"))
    tests = sum(text.count("@FUZZ") for text in map(Path.read_text, CHECKOUT.glob("tests/reliability/test_fuzz_*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--hypothesis-show-statistics", *files],
        env={**os.environ, "WORKBENCH_FUZZ_EXAMPLES": str(-(-count // tests))},
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    counted = re.findall(r"(\d+) passing, (\d+) failing, and \d+ invalid", done.stdout)
    failed = re.findall(r"^FAILED .*", done.stdout, re.MULTILINE)
    print(*done.stdout.splitlines()[-3:], *failed, sep="\n")
    if len(failed) == 0 and done.returncode:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
    tried = sum(int(passing) + int(failing) for passing, failing in counted)
    return f"inputs of {tests} kinds (configurations, study files, runs, ...)", tried, 0, len(failed)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["bits", "inputs"])
    parser.add_argument("--count", type=int, help="1,000 bits and 5,000 inputs by default")
    given = parser.parse_args()
    kinds = {"bits": (bits, 1_000), "inputs": (inputs, 5_000)}
    harm = 0
    for name in [given.what] if given.what else list(kinds):
        act, usual = kinds[name]
        what, tried, wrong, bugs = act(given.count or usual)
        harm += wrong + bugs
        rows = {}
        if RESULT.exists():  # as it is now: the other command may have ended meanwhile
            rows = {line.split(" ")[1]: line for line in RESULT.read_text(encoding="utf-8").splitlines()[2:]}
        line = f"| {what} | {tried:,} | {wrong} | {bugs} |"
        rows[line.split(" ")[1]] = line
        RESULT.write_text(HEAD + "\n".join(rows[one] for one in sorted(rows, reverse=True)) + "\n", encoding="utf-8")
    sys.exit(bool(harm))


if __name__ == "__main__":
    main()
