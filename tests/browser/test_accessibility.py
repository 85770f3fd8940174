"""axe, the checker of accessibility, over report, view page and documentation, light and dark, wide and narrow.

It comes from npm (`npm install --no-save axe-core` in the checkout, or `-g`); without it these are skipped. The pages
of the documentation are those of the last `sphinx-build docs build/docs`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.fake_runner import STUDY, make_fake, write_study
from tests.reports.synthetic_study import fastest_study, full_sources, full_study
from tests.view.conftest import Visitor, record_run, served
from workbench import BoostConfig
from workbench.report import Sources, study_report_html
from workbench.study import tune

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "build" / "docs"
PAGES_OF_DOCS = ("index", "guide/own_model", "methods/less_bn", "reference/study", "zh/index")
THEMES, WIDTHS = ("light", "dark"), (1440, 420)
_FINDINGS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter(({impact}) => ["serious", "critical"].includes(impact))
  .map(({id, nodes}) => `${id}: ${nodes[0].html.slice(0, 200)}`)"""
_BESIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def axe() -> str:
    npm = shutil.which("npm")
    homes = [ROOT / "node_modules"]
    if npm is not None:
        everywhere = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=False)
        homes.append(Path(everywhere.stdout.strip()))
    for home in homes:
        script = home / "axe-core" / "axe.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    pytest.skip("axe-core is not there: npm install --no-save axe-core")


@pytest.fixture
def visit() -> Iterator[Callable[[Path], Visitor]]:
    yield from served()


def findings(chromium: Browser, axe: str, *addresses: str) -> dict[str, Any]:
    """Return what is serious about pages, and which of them have to be scrolled sideways, by page, theme and width."""
    found: dict[str, Any] = {}
    for theme in THEMES:
        for width in WIDTHS:
            view = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
            with chromium.new_context(**view, bypass_csp=True) as context:
                for address in addresses:
                    page = context.new_page()
                    page.goto(address)
                    page.wait_for_function(
                        "() => [...document.querySelectorAll('.plot .drawing')].every((one) => one.firstChild)"
                    )
                    page.evaluate(axe)
                    said = [
                        *page.evaluate(_FINDINGS),
                        *[f"{page.evaluate(_BESIDE)} px too wide"] * (page.evaluate(_BESIDE) > 0),
                    ]
                    if said:
                        found[f"{address}, {theme}, {width} px"] = said
                    page.close()
    return found


def test_a_report_has_no_serious_finding(chromium: Browser, axe: str, tmp_path: Path) -> None:
    full, fastest = tmp_path / "full.html", tmp_path / "fastest.html"
    full.write_text(study_report_html(full_study(), full_sources()), encoding="utf-8")
    fastest.write_text(study_report_html(fastest_study(), Sources({"o1": BoostConfig()}, None, None)), encoding="utf-8")
    assert findings(chromium, axe, full.as_uri(), fastest.as_uri()) == {}


def test_the_view_page_has_no_serious_finding(
    chromium: Browser, axe: str, visit: Callable[[Path], Visitor], tmp_path: Path
) -> None:
    tune(write_study(tmp_path / "mine", STUDY), make_experimenter=make_fake)
    run = record_run(tmp_path / "runs", "first")
    root = visit(tmp_path).server.address
    assert findings(chromium, axe, root, f"{root}mine/", f"{root}runs/{run.path.name}/") == {}


def test_the_documentation_has_no_serious_finding(chromium: Browser, axe: str) -> None:
    pages = [DOCS / f"{name}.html" for name in PAGES_OF_DOCS]
    if not all(page.is_file() for page in pages):
        pytest.skip("the documentation is not built: sphinx-build docs build/docs")
    assert findings(chromium, axe, *(page.as_uri() for page in pages)) == {}
