"""A boost_config.json and a study.toml from anywhere: what they say, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cli.conftest import STUDY as WINE
from tests.kit.fake_runner import STUDY as FAKE
from tests.reliability.guarded import FUZZ, result_or_sentence
from tests.reliability.mutations import json_texts, mutated
from workbench.config import BoostConfig, ConfigError
from workbench.study.ask.study_file import StudyFile, parse_study, read_study
from workbench.study.errors import StudyError

VALID = BoostConfig.from_dict(
    {
        "boost": {"mode": "manual", "grad_freeze": True},
        "grad_freeze": {"freeze_p": 0.5, "param_groups": 8},
        "loss_scale": {"kind": "dynamic", "init": 65536.0, "groups": 3},
        "optimizer": {"name": "thor", "lr": 0.1, "betas": [0.9, 0.999]},
        "provenance": {"study": "s", "task": "t", "verdict": "confirmed", "hardware": {"cores": 2}},
    }
)
TEXT = json.dumps(VALID.to_dict(), indent=2).encode()
WHOLE_STUDY = (
    FAKE
    + """
[sampler]
name = "tpe"
n_startup_trials = 5
[pruner]
name = "median"
[speed]
rounds = 4
[loss_scale_replay]
steps = 20
[baseline]
"grad_freeze.freeze_p" = 0.5
amp = { level = "O0" }
"""
)
STUDIES = [text.encode() for text in (FAKE, WINE, WHOLE_STUDY)]


def read_config(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return result_or_sentence(lambda: BoostConfig.from_json(path), ConfigError)


@FUZZ
@given(content=mutated(TEXT))
@example(content=b"\xef\xbb\xbf{}")
@example(content=b'{"provenance": {"\\ud800": 1}}')
def test_a_configuration_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    config = read_config(tmp_path / "boost_config.json", content)
    if isinstance(config, BoostConfig):  # what was read is whole: it can be written and read again
        assert BoostConfig.from_json(config.save(tmp_path / "again.json")) == config
        for level in ("O1", "O2"):
            result_or_sentence(lambda level=level: config.resolve(level).summary(), ConfigError)


@FUZZ
@given(text=json_texts(VALID.to_dict()))
def test_a_configuration_with_odd_values_is_read_or_refused(text: str, tmp_path: Path) -> None:
    config = read_config(tmp_path / "boost_config.json", text.encode("utf-8", "surrogatepass"))
    if isinstance(config, BoostConfig):
        assert BoostConfig.from_json(config.save(tmp_path / "again.json")) == config
        repr(config)
        config._repr_html_()


@FUZZ
@given(content=mutated(STUDIES))
@example(content=b"a = " + b"[" * 20_000)
@example(content=b"a = " + b"9" * 5000)
@example(content=b"\xef\xbb\xbf" + STUDIES[0])
def test_a_study_file_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_bytes(content)
    use(result_or_sentence(lambda: read_study(tmp_path), StudyError))


def use(file: StudyFile | str) -> None:
    """Do with what was read what a search does; a refusal is one line."""
    if isinstance(file, StudyFile):
        asked = (file.canonical, file.base_config, lambda: file.dimensions, lambda: file.warm_up_steps)
        result_or_sentence(lambda: [ask() for ask in asked], StudyError)
    else:
        assert "\n" not in file


_ODD_TOML = st.sampled_from(
    [
        *("nan", "inf", "-inf", "-1", "0", "1", "1e308", "9223372036854775808", "9" * 400, "true", '""', '"auto"'),
        *("[]", "{}", "[[]]", '[1, "a"]', "[nan]", "[true, 1, 1.0]", "[[1], [2]]", "{ a = { b = 1 } }"),
        *("{ low = 1, high = 0 }", "{ low = nan, high = inf }", "{ low = 0.1, high = 0.2, log = 1 }"),
        *("{ low = 0, high = 1, log = true }", "{ low = -1e308, high = 1e308 }", "{ low = 1, high = 10, step = 0 }"),
        *("1979-05-27T07:32:00Z", "07:32:00", '"\\u0000"', '"../.."'),
    ]
)
_ODD_KEYS = st.sampled_from(['"boost.mode"', '"dim_reduce.n_components"', "name"])
_ODD_LINES = st.sampled_from(["", "[space]", "[x]", "[[space]]", "[study.sub]", '["space"."level"]', "["])


@FUZZ
@given(data=st.data())
def test_a_study_file_with_odd_values_is_read_or_refused(data: st.DataObject) -> None:
    lines = WHOLE_STUDY.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[at].partition(" = ")
        if equals:
            key = data.draw(st.sampled_from([key, key, key, f"{key}x"]) | _ODD_KEYS)
            lines[at] = f"{key} = {data.draw(_ODD_TOML)}"
        else:
            lines[at] = data.draw(_ODD_LINES)
    use(result_or_sentence(lambda: parse_study("\n".join(lines)), StudyError))


@pytest.mark.parametrize("name", ["boost_config.json", "study.toml"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    if name.endswith(".json"):
        told = result_or_sentence(lambda: BoostConfig.from_json(tmp_path / name), ConfigError)
    else:
        told = result_or_sentence(lambda: read_study(tmp_path), StudyError)
    assert name in told
