"""Every study folder: its question can be read, its command is the one README names, its answer is there and agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from workbench.config import BoostConfig
from workbench.study.ask.study_file import read_study

STUDIES = Path(__file__).parents[2] / "studies"
MISSION = ("boost_levels", "dim_reduce", "everything", "freeze_p", "loss_scale_windows")
TUNED = (*MISSION, "quickstart")
QUOTE = re.compile(r"<!-- results\.md: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def _section(page: str, title: str) -> list[str]:
    """Return the table lines of a section."""
    body = page.split(f"## {title}\n", 1)
    assert len(body) == 2, f"results.md has no section {title!r}"
    return [line for line in body[1].split("\n## ", 1)[0].splitlines() if line.startswith("|")]


@pytest.mark.parametrize("name", TUNED)
def test_the_question_is_readable_the_readme_names_its_command_and_a_claim_needs_five_seeds(name: str) -> None:
    file = read_study(STUDIES / name)
    assert file.study.name == name
    assert f"workbench tune studies/{name}" in (STUDIES / name / "README.md").read_text(encoding="utf-8")
    assert name not in MISSION or (file.confirm.enabled and file.confirm.seeds_min >= 5)


@pytest.mark.parametrize("name", MISSION)
def test_the_answer_is_there(name: str) -> None:
    result = STUDIES / name / "result"
    for target in ("o1", "o2"):
        config = BoostConfig.from_json(result / f"boost_config.{target}.json")
        assert config.to_dict()["provenance"]["study"] == name
    environment = json.loads((result / "environment.json").read_text(encoding="utf-8"))
    assert environment["versions"]["torch"]
    assert environment["device"]["device"]
    for picture in result.glob("*.svg"):
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert f"Written by `workbench tune studies/{name}`" in (result / "results.md").read_text(encoding="utf-8")
    assert not (result / "report.html").is_symlink()


@pytest.mark.parametrize("name", MISSION)
def test_the_readme_quotes_the_tables_of_the_result_and_shows_pictures_that_exist(name: str) -> None:
    folder = STUDIES / name
    page = (folder / "result" / "results.md").read_text(encoding="utf-8")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", readme)
    assert shown
    assert all((folder / path).is_file() for path in shown)
    quotes = QUOTE.findall(readme)
    assert quotes
    for title, body in quotes:
        told = [line for line in body.splitlines() if line.startswith("|")]
        assert told == _section(page, title), f"{name}/README.md quotes an earlier {title!r}"


def test_replay_is_checked_on_twenty_policies_and_told_as_it_is() -> None:
    result = STUDIES / "loss_scale_windows" / "result"
    checked = pd.read_csv(result / "replay_check.csv")
    assert len(checked) >= 20
    assert (checked["observed"] > 0).sum() >= 15, "a check without overflows checks nothing"
    within = checked["observed"].between(checked["overflows_low"], checked["overflows_high"])
    page = (result / "results.md").read_text(encoding="utf-8")
    assert (
        f"Of {len(checked)} policies that were trained, {within.sum()} overflowed as often as their range says." in page
    )
    assert within.sum() == sum(" | yes | " in line for line in _section(page, "Loss scale by replay"))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_first_command_of_the_readme_leaves_a_checkout_clean(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    study = tmp_path / "studies" / "quickstart"
    shutil.copytree(STUDIES / "quickstart", study, ignore=shutil.ignore_patterns("result", "runs", "study.*db*"))
    shutil.copy(STUDIES.parent / ".gitignore", tmp_path)
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "as it came")
    answer = ("result/boost_config.o1.json", "result/results.md", "result/report.html")
    for name in (*answer, "runs/a/steps.jsonl", "checkpoints/a/1.pt", "study.db", "study.db-wal", "study.db.lock"):
        (study / name).parent.mkdir(parents=True, exist_ok=True)
        (study / name).write_text("new")
    assert git("status", "--porcelain") == ""
