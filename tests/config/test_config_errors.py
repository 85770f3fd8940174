"""Whatever is wrong becomes one sentence that names path, rule, value and the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.config import BoostConfig, ConfigError, GradFreezeConfig
from workbench.config.boost_json import parse_json

NAN = float("nan")
MODES = "auto manual enable_all disable_all"
NAMES = "SGD Adam AdamW RMSprop Adagrad Muon ScheduleFreeAdamW thor adam_offload"
POSITIONS = "`common.gradient_split_groups` must be a list of whole numbers, each at least 0"


def one_of(names: str) -> str:
    return "must be one of " + ", ".join(f'"{name}"' for name in names.split())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"boost": {"grad_freez": True}}, 'unknown key "grad_freez" in section "boost"; did you mean "grad_freeze"?'),
        ({"common": {"rho": 0.1}}, 'unknown key "rho" in section "common"; it belongs to section "dim_reduce"'),
        ({"grad_freeze": {"xyz": 0.1}}, 'unknown key "xyz" in section "grad_freeze"'),
        ({"bost": {}}, 'unknown section "bost"; did you mean "boost"?'),
        ({"boost": {3: 1}}, 'unknown key "3" in section "boost"'),
        ({"boost": "manual"}, 'section `boost` must be an object of named values, got "manual"'),
        ({"grad_freeze": None}, "section `grad_freeze` must be an object of named values, got null"),
        ({"grad_freeze": {"freeze_p": 1.2}}, "`grad_freeze.freeze_p` must lie in [0, 1), got 1.2"),
        ({"grad_freeze": {"freeze_p": 1}}, "`grad_freeze.freeze_p` must lie in [0, 1), got 1"),
        ({"grad_freeze": {"freeze_p": "high"}}, '`grad_freeze.freeze_p` must be a finite number in [0, 1), got "high"'),
        ({"grad_freeze": {"freeze_p": True}}, "`grad_freeze.freeze_p` must be a finite number in [0, 1), got true"),
        ({"grad_freeze": {"freeze_p": NAN}}, "`grad_freeze.freeze_p` must be a finite number in [0, 1), got NaN"),
        ({"grad_freeze": {"freeze_type": True}}, "`grad_freeze.freeze_type` must be one of 0, 1, got true"),
        ({"grad_freeze": {"freeze_type": 1.0}}, "`grad_freeze.freeze_type` must be one of 0, 1, got 1.0"),
        ({"grad_freeze": {"freeze_type": 2}}, "`grad_freeze.freeze_type` must be one of 0, 1, got 2"),
        ({"grad_freeze": {"param_groups": 0}}, "`grad_freeze.param_groups` must be at least 1, got 0"),
        ({"grad_freeze": {"total_steps": 2.0}}, "`grad_freeze.total_steps` must be a whole number at least 0, got 2.0"),
        ({"grad_freeze": {"total_steps": 10**30}}, f"`grad_freeze.total_steps` must fit into 64 bits, got {10**30}"),
        ({"dim_reduce": {"alpha": -0.1}}, "`dim_reduce.alpha` must be at least 0, got -0.1"),
        ({"dim_reduce": {"rho": NAN}}, "`dim_reduce.rho` must be a finite number in (0, 1), got NaN"),
        ({"dim_reduce": {"alpha": float("inf")}}, "`dim_reduce.alpha` must be a finite number at least 0, got inf"),
        ({"boost": {"less_bn": 1}}, "`boost.less_bn` must be true or false, got 1"),
        ({"boost": {"mode": "Manual"}}, f'`boost.mode` {one_of(MODES)}, got "Manual"; did you mean "manual"?'),
        ({"optimizer": {"name": "adamw"}}, f'`optimizer.name` {one_of(NAMES)}, got "adamw"; did you mean "AdamW"?'),
        ({"common": {"gradient_split_groups": 5}}, f"{POSITIONS}, got 5"),
        ({"common": {"gradient_split_groups": (5, 6)}}, f"{POSITIONS}, got [5, 6]"),
        (
            {"common": {"gradient_split_groups": [1, -2]}},
            "`common.gradient_split_groups[1]` must be at least 0, got -2",
        ),
        ({"optimizer": {"betas": [0.9, 1]}}, "`optimizer.betas[1]` must lie in [0, 1), got 1"),
        ({"optimizer": {"betas": [0.9]}}, "`optimizer.betas` must be a list of two numbers, each in [0, 1), got [0.9]"),
        (
            {"optimizer": {"name": "SGD", "nesterov": True}},
            "`optimizer.nesterov` needs `optimizer.momentum` above 0; set a momentum or switch nesterov off",
        ),
        ({"loss_scale": {"factor": 1}}, "`loss_scale.factor` must be greater than 1, got 1"),
        ({"loss_scale": {"init": 0.5}}, "`loss_scale.init` must be at least `loss_scale.minimum` (1.0), got 0.5"),
        ({"loss_scale": {"maximum": 4.0}}, "`loss_scale.init` must be at most `loss_scale.maximum` (4.0), got 65536.0"),
        (
            {"compatibility": "mindspore-2.6"},
            '`compatibility` must be an object of options or the preset "mindspore-2.7", got "mindspore-2.6"; '
            'did you mean "mindspore-2.7"?',
        ),
        ({"provenance": {"a": {1: 2}}}, "`provenance.a` must have texts as keys, got 1"),
        (
            {"provenance": {"a": [NAN]}},
            "`provenance.a[0]` must be a plain JSON value (text, finite number, true, false, list, object), got NaN",
        ),
        (["boost"], "boost_config must be an object of sections, got ['boost']"),
    ],
)
def test_sentence_names_path_rule_and_value(values: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BoostConfig.from_dict(values)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "build",
    [
        lambda: GradFreezeConfig(freeze_p=2),
        lambda: BoostConfig(grad_freeze={"freeze_p": 2}),  # type: ignore[arg-type]
        lambda: GradFreezeConfig().model_copy(update={"freeze_p": 2}),
    ],
    ids=["section", "configuration", "changed copy"],
)
def test_what_is_built_by_hand_speaks_in_the_same_sentence(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"^`grad_freeze.freeze_p` must lie in \[0, 1\), got 2$"):
        build()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("grad_freeze.freez_p", 'unknown parameter "grad_freeze.freez_p"; did you mean "grad_freeze.freeze_p"?'),
        ("freeze_p.x.y", 'unknown parameter "freeze_p.x.y"'),
        ("ampp", 'unknown parameter "ampp"; did you mean "amp"?'),
        ("", 'unknown parameter ""'),
    ],
)
def test_unknown_path_names_the_nearest_one(path: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BoostConfig().with_values({path: 1})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"boost": {"mode": nope}}', "c.json: is not valid JSON (line 1, column 20"),
        (b"", "c.json: is empty; expected a JSON object"),
        (b'{"boost": {"mode": "au', "c.json: ends too early, it looks half-written"),
        (b'{"boost": {"mode": "auto"', "c.json: ends too early, it looks half-written"),
        (b'{"boost": {"mode": "auto"},}', "c.json: is not valid JSON (line 1, column 2"),
        (b"{'boost': 1}", "c.json: is not valid JSON (line 1, column 2"),
        (b'{"a": 1} x', "c.json: is not valid JSON"),
        (b'{"grad_freeze": {"freeze_p": NaN}}', "c.json: numbers must be finite, got NaN"),
        (b'{"grad_freeze": {"freeze_p": -Infinity}}', "c.json: numbers must be finite, got -Infinity"),
        (b'{"dim_reduce": {"alpha": 1e999}}', "c.json: `dim_reduce.alpha` must be a finite number at least 0, got inf"),
        (b'{"amp": {}, "amp": {}}', 'c.json: key "amp" appears twice in one object'),
        (b'{"amp": {"level": "O0", "level": "O2"}}', 'c.json: key "level" appears twice in one object'),
        (b"[1]", "c.json: must hold an object of sections, got [1]"),
        (b"null", "c.json: must hold an object of sections, got null"),
        (b'""', 'c.json: must hold an object of sections, got ""'),
        (b'{"boost": {"mode": "\xff"}}', "c.json: is not UTF-8 text (byte 20)"),
        (b"\x00\x01\x02", "c.json: is not valid JSON"),
        (b"[" * 200_000, "c.json: is nested too deeply"),
        (b'{"grad_freeze": {"total_steps": ' + b"1" * 5000 + b"}}", "c.json: a number has too many digits"),
        (
            b'{"boost": {"grad_freez": true}}',
            'c.json: unknown key "grad_freez" in section "boost"; did you mean "grad_freeze"?',
        ),
    ],
    ids=lambda value: None if isinstance(value, bytes) else "",
)
def test_broken_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        BoostConfig.from_json(file)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"dim_reduce": {"pca_mat_path": 'räume\\"/ß'}, "provenance": {"shift": -1e-5}})
    whole = config.save(tmp_path / "whole.json").read_text(encoding="ascii")
    for length in range(len(whole.rstrip())):
        with pytest.raises(ConfigError, match=r"^half\.json: (ends too early, it looks half-written|is empty)"):
            parse_json(whole[:length], "half.json")


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json: there is no such file; a study writes"):
        BoostConfig.from_json(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match=r"is a folder, not a file$"):
        BoostConfig.from_json(tmp_path)


def test_a_folder_is_answered_with_the_file_in_it(tmp_path: Path) -> None:
    file = tmp_path / "result" / "boost_config.o1.json"
    file.parent.mkdir()
    file.touch()
    for folder in (tmp_path, file.parent):
        with pytest.raises(ConfigError, match=f"is a folder, not a file; give {re.escape(str(file))}$"):
            BoostConfig.from_json(folder)


def test_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(b'\xef\xbb\xbf{"grad_freeze": {"freeze_p": 0.25}}')
    assert BoostConfig.from_json(file).grad_freeze.freeze_p == 0.25
