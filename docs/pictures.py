"""Make the pictures of README and front page, light and dark, into ``docs/images``.

    pip install -c constraints.txt -e ".[test,pictures]"     # and a Chromium
    WORKBENCH_SCREENSHOTS=build/screens pytest -m long tests/browser/test_screens.py
    python docs/pictures.py build/screens

The figures are drawn from a result that the repository keeps and from a run recorded here; the workbench is one of the
pictures that the browser test takes of every tab.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Literal

import plotly.graph_objects as go
import torch
from PIL import Image

from workbench import replay, train
from workbench.core.records import CandidateRecord, GainPart, Verdict
from workbench.figures import attribution_figure, gradient_exponents_figure, loss_scale_figure, replay_policies_figure
from workbench.runs import read_run

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
ANSWER = ROOT / "studies" / "fastest" / "own" / "friedman"  # every part but one measured by itself
MOST_BYTES = 60_000
SHOWN_WIDTH = 760  # pixels
_TAB_HEIGHT = 972  # of the tab: down to the end of its second figure


def main() -> None:
    """Write all pictures, and say how large they are."""
    IMAGES.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    config = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 2.0**24, "window": 30}}
    with tempfile.TemporaryDirectory() as out:
        run = read_run(train("digits-lenet", config, level="O0", steps=240, seed=0, exponents_every=2, out=out).path)
    policies = replay(run, init=[2.0**power for power in range(8, 25, 2)], factor=[2.0, 4.0], window=[30, 100, 1000])
    for theme in ("light", "dark"):
        for name, figure, height in (
            ("attribution", attribution_figure(*_attribution(), theme=theme), 340),
            ("overflow", loss_scale_figure(run.steps, run.events, theme=theme), 400),
            ("exponents", gradient_exponents_figure(run.steps, theme=theme), 400),
            ("policies", replay_policies_figure(policies.table, theme=theme), 400),
        ):
            _keep(_drawn(figure, theme, height), f"{name}-{theme}")
    for screens in map(Path, sys.argv[1:]):
        for theme in ("light", "dark"):
            tab = Image.open(screens / f"workbench-loss_scale_{theme}_1440.png")
            _keep(tab.crop((0, 0, tab.width, min(tab.height, _TAB_HEIGHT))), f"workbench-{theme}")


def _attribution() -> tuple[list[GainPart], CandidateRecord, float]:
    """Return where the gain of the answer comes from, as its table of results says."""
    text = (ANSWER / "results.md").read_text(encoding="utf-8")
    table = re.search(r"## Where the gain.*?\n\n(.*?)\n\n", text, re.DOTALL)
    assert table
    parts = []
    for line in table.group(1).splitlines()[2:]:
        name, factor, interval, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if name.startswith(("all parts", "whole runs")):
            continue
        ends = [float(end) for end in interval.split(" to ")] if " to " in interval else [float("nan")] * 2
        parts.append(GainPart(name, float(factor), *ends))
    with (ANSWER / "candidates.csv").open(encoding="utf-8") as file:
        row = next(one for one in csv.DictReader(file) if one["exported"] == "True")
    names = ("speedup", "speedup_low", "speedup_high", "drop", "drop_bound", "allowed_drop")
    candidate = CandidateRecord(
        label=row["candidate"],
        trial_number=int(row["trial"]),
        target=row["export"],
        summary=row["in_effect"],
        config={},
        n_seeds=int(row["seeds"]),
        verdict=Verdict(row["verdict"]),
        sentence=row["sentence"],
        **{name: float(row[name]) for name in names},
    )
    tuned = re.search(r"tuned plain needs [\d.]+ of the time, ([\d.]+) x .*as long as the export", text)
    return parts, candidate, candidate.speedup / float(tuned.group(1)) if tuned else float("nan")


def _drawn(figure: go.Figure, theme: Literal["light", "dark"], height: int) -> Image.Image:
    figure.update_layout(paper_bgcolor={"light": "#FFFFFF", "dark": "#0D1117"}[theme])
    data = figure.to_image(format="png", width=SHOWN_WIDTH, height=height, scale=2)
    return Image.open(io.BytesIO(data))


def _keep(picture: Image.Image, name: str) -> None:
    """Write a picture of at most twice the shown width with as many colours as its size allows."""
    if picture.width > 2 * SHOWN_WIDTH:
        picture = picture.resize((2 * SHOWN_WIDTH, picture.height * 2 * SHOWN_WIDTH // picture.width))
    path = IMAGES / f"{name}.png"
    for share, colours in ((1.0, 128), (1.0, 48), (0.75, 64), (0.6, 48), (0.5, 32)):
        size = (int(picture.width * share), int(picture.height * share))
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"{path.relative_to(ROOT)}: {size[0]} x {size[1]}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
