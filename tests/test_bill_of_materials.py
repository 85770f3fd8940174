"""The bill of materials: every distribution that the package needs, with its version and its licence."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from tests.cli.conftest import Command, here, workbench
from workbench.core.bill_of_materials import bill_of_materials, licences_of

__all__ = ["here", "workbench"]


def test_the_command_prints_every_dependency_with_version_and_licence(workbench: Command) -> None:
    outcome = workbench("doctor", "--sbom")
    assert outcome.code == 0
    bill = json.loads(outcome.out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "boost-workbench"
    listed = {one["name"]: one for one in bill["components"]}
    assert {"torch", "optuna", "numpy", "sqlalchemy", "mako"} <= set(listed), "what dependencies need is there, too"
    assert "pytest" not in listed, "an extra is no part of the package"
    assert all(one["version"] == metadata.version(name) for name, one in listed.items())
    without = [name for name, one in listed.items() if not one.get("licenses")]
    assert len(without) <= len(listed) // 10, without
    names = {one["bom-ref"] for one in (*bill["components"], bill["metadata"]["component"])}
    assert {one["ref"] for one in bill["dependencies"]} == names
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} <= names


@pytest.mark.parametrize(
    ("said", "licences"),
    [
        ("License-Expression: MIT OR Apache-2.0", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: x\nClassifier: License :: OSI Approved :: MIT License", [{"license": {"name": "MIT License"}}]),
        ("License: BSD", [{"license": {"name": "BSD"}}]),
        ("License: Apache-2.0 AND MIT", [{"expression": "Apache-2.0 AND MIT"}]),
        ("License: " + "long " * 40, []),
        ("Author: nobody", []),
    ],
)
def test_a_licence_is_taken_from_the_most_exact_place(said: str, licences: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "some-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: some\nVersion: 1.0\n{said}\n")
    assert licences_of(metadata.Distribution.at(folder)) == licences


def test_what_is_not_installed_has_no_bill() -> None:
    with pytest.raises(ValueError, match="no-such-package is not installed here"):
        bill_of_materials("no-such-package")
