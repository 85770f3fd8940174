"""The environment of a run, described without torch."""

from __future__ import annotations

import importlib.metadata
import json
import platform

from workbench.runs import SCHEMA_VERSION, collect_environment


def test_the_environment_says_where_and_with_what() -> None:
    environment = collect_environment(
        device={"type": "cpu", "name": "test"}, seed=7, data_hash="abc", task="digits", level="O2"
    )
    for name, version in environment["versions"].items():  # what is not installed is left out
        assert importlib.metadata.version(name) == version
    assert {"numpy", "torch"} <= set(environment["versions"])
    assert environment["python"] == platform.python_version()
    assert environment["schema_version"] == SCHEMA_VERSION
    assert environment["device"] == {"type": "cpu", "name": "test"}
    assert [environment[name] for name in ("seed", "data_hash", "task", "level")] == [7, "abc", "digits", "O2"]
    assert environment["cpu"]
    assert environment["cores"] >= 1
    assert environment["memory_bytes"] > 2**28
    assert json.loads(json.dumps(environment)) == environment
