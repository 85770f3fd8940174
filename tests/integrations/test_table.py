"""The table of what each framework carries is printed by the code that decides, and covers every kind of choice."""

from __future__ import annotations

from pathlib import Path

from workbench.config import describe_parameters
from workbench.integrations.table import ROWS, table

PAGE = Path(__file__).parents[2] / "docs/guide/integrations.md"
BARE = {"common", "snapshots", "compatibility"}  # how other choices act, where to, and as in which version


def test_the_page_has_the_table_that_the_code_prints() -> None:
    page = PAGE.read_text(encoding="utf-8")
    printed = page.partition("<!-- table: begin -->\n")[2].partition("<!-- table: end -->")[0]
    assert printed == table(), "run `python -c 'from workbench.integrations.table import table; print(table())'`"


def test_every_section_of_a_set_up_has_a_row() -> None:
    asked = {path for _, values in ROWS.values() for path in values}
    sections = {path.partition(".")[0] for path in asked} | {path.partition(".")[2] for path in asked}
    assert sections >= {path.partition(".")[0] for path in describe_parameters()} - BARE


def test_what_a_row_says_is_what_a_framework_answers() -> None:
    lines = {line.split(" | ")[0][2:]: line.strip(" |").split(" | ")[1:] for line in table().splitlines()[2:]}
    assert len(lines) == len(ROWS)
    assert lines["AdamW"] == ["`torch.optim.AdamW`", "`optim`", "us", "us", "`nn.AdamWeightDecay`"]
    assert lines["torch.compile"] == ["`torch.compile`", "`torch_compile`", "us", "`dynamo_backend`", "–"]
    assert lines["LessBN"] == ["us", "us", "us", "us", "`Model`"]
    assert lines["Muon"] == ["us", "us", "us", "us", "–"]
