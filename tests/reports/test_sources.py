"""What a report reads beside a study's answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reports.synthetic_study import full_study
from workbench.config import BoostConfig
from workbench.methods.grad_freeze.method import freeze_index_sequence
from workbench.report import Sources, read_sources
from workbench.report.sources import hardware_of


def test_the_schedule_is_that_of_the_first_export_that_freezes(tmp_path: Path) -> None:
    manual = {"mode": "manual", "less_bn": False, "grad_freeze": False}
    plain = BoostConfig.from_dict({"boost": manual})
    freezing = plain.with_values(
        {"boost.grad_freeze": True, "grad_freeze.freeze_type": 0, "grad_freeze.param_groups": 3,
         "grad_freeze.freeze_p": 0.5, "grad_freeze.total_steps": 6}
    )  # fmt: skip
    configs = {"o1": plain, "o2": freezing}
    exported = {target: one.save(tmp_path / f"boost_config.{target}.json") for target, one in configs.items()}
    sources = read_sources(replace(full_study(), exported=exported))
    frozen = freeze_index_sequence(3, 0, 0.5, 6)[:6]  # the steps it is made for
    assert sources.exported == configs
    assert vars(sources.freezing) == {"file": "boost_config.o2.json", "frozen": frozen, "n_groups": 3, "share": 0.5}


@pytest.mark.parametrize(("more", "n_updates"), [
    ({}, 40),
    ({"schedule.length": 0.5}, 20),
    ({"schedule.length": 0.5, "batch.factor": 2.0}, 10),
    ({"boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 4}, 10),
])  # fmt: skip
def test_the_schedule_is_as_long_as_a_run_of_the_study(tmp_path: Path, more: dict[str, Any], n_updates: int) -> None:
    boost = {"mode": "manual", "less_bn": False, "grad_freeze": True}
    config = BoostConfig.from_dict({"boost": boost, "grad_freeze": {"param_groups": 3}}).with_values(more)
    assert config.grad_freeze.total_steps == 65536
    file, study = config.save(tmp_path / "boost_config.o1.json"), full_study()
    o0 = replace(study.trials[0], curve=((20, 0.9), (40, 0.97)))
    freezing = read_sources(replace(study, trials=[o0, *study.trials[1:]], exported={"o1": file})).freezing
    assert freezing is not None
    assert len(freezing.frozen) == n_updates


def test_a_study_that_exported_and_recorded_nothing_has_no_sources() -> None:
    nothing = replace(full_study(), exported={}, loss_scale_policy={"failed": "the float16 recording cannot be used"})
    assert vars(read_sources(nothing)) == vars(Sources())


def test_hardware_is_told_in_words_without_what_is_not_there() -> None:
    device = {"cpu": "Z80", "cpu_cores": 2, "accelerator": "", "accelerator_count": 0, "memory_bytes": 3 * 1024**3}
    study = replace(full_study(), environment={"device": device})
    assert hardware_of(study) == {"cpu": "Z80", "cpu cores": 2, "memory": "3.0 GiB"}
    assert hardware_of(replace(study, environment={})) == {}
