"""An exported file means the plan it was written for, on the study's ranks, and says what it depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, Choice, Verdict
from workbench.methods.dim_reduce.pca_files import save_pca_matrix
from workbench.study import StudyError
from workbench.study.answer.export import export_configs
from workbench.study.ask.plans import StudyPlans

ORIGIN = {"study": "study", "task": "digits-lenet", "seed": 3, "metric": "accuracy"}
O0 = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})


def exported(folder: Path, values: dict[str, Any], ranks: int = 1, snapshots: Path | None = None) -> BoostConfig:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}})
    candidate = CandidateRecord(
        "trial 1", 1, "o2", "", config.with_values(values).to_dict(), 1.2, 1.1, 1.3, 0.0, 0.0, 0.1, 5,
        Verdict.CONFIRMED, "",
    )  # fmt: skip
    choices = {"o1": Choice("o1", None, "none"), "o2": Choice("o2", candidate, "it is")}
    files = export_configs(folder, choices, O0, ORIGIN, StudyPlans(ranks), snapshots)
    return BoostConfig.from_json(files["o2"])


def told(config: BoostConfig) -> dict[str, Any]:
    assert config.provenance is not None
    return config.provenance


def test_adasum_is_exported_where_the_study_s_ranks_have_it_in_effect(tmp_path: Path) -> None:
    four = exported(tmp_path, {"common.device_number": 2}, ranks=4)
    assert four.boost.adasum
    assert told(four)["in_effect"] == "AdaSum"
    assert told(four)["ranks"] == 4
    assert "AdaSum was in effect on 4 ranks" in told(four)["adasum"]
    one = exported(tmp_path, {"common.device_number": 2})
    assert one.boost.adasum is False
    assert told(one)["ranks"] == 1
    assert "adasum" not in told(one)


def matrix(folder: Path, name: str, k: int, width: int = 6) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(k).normal(size=(k, width))
    folder.mkdir(exist_ok=True)
    save_pca_matrix(folder / name, values)
    return values


def reducing(k: int, **values: Any) -> dict[str, Any]:
    return {"boost.dim_reduce": True, "dim_reduce.n_components": k, **values}


def test_of_a_folder_s_subspaces_the_one_with_the_candidate_s_components_is_taken(tmp_path: Path) -> None:
    recorded = tmp_path / "snapshots"
    matrix(recorded, "pca_mat_aa.npy", 2)
    wanted = matrix(recorded, "pca_mat_bb.npy", 3)
    exported(tmp_path, reducing(3), snapshots=recorded)
    assert np.array_equal(np.load(tmp_path / "pca_mat.o2.npy"), wanted)
    exported(tmp_path, reducing(3, **{"dim_reduce.weight_load_dir": str(recorded)}))
    assert np.array_equal(np.load(tmp_path / "pca_mat.o2.npy"), wanted)


def test_a_matrix_in_safetensors_is_exported_as_npy_which_mindspore_reads(tmp_path: Path) -> None:
    wanted = matrix(tmp_path, "given.safetensors", 5)
    config = exported(tmp_path, reducing(3, **{"dim_reduce.pca_mat_path": str(tmp_path / "given.safetensors")}))
    assert config.dim_reduce.pca_mat_path == str((tmp_path / "pca_mat.o2.npy").absolute())
    assert np.array_equal(np.load(tmp_path / "pca_mat.o2.npy"), wanted[:3])


def test_a_section_optimizer_that_dim_reduce_drops_is_not_exported(tmp_path: Path) -> None:
    recorded = tmp_path / "snapshots"
    matrix(recorded, "pca_mat_aa.npy", 2)
    config = exported(tmp_path, reducing(2, **{"optimizer.name": "SGD", "optimizer.lr": 0.1}), snapshots=recorded)
    assert config.optimizer is None
    assert config.resolve("O2").dropped == ()


def test_subspaces_of_two_networks_in_one_folder_are_not_guessed_between(tmp_path: Path) -> None:
    recorded = tmp_path / "snapshots"
    matrix(recorded, "pca_mat_aa.npy", 2, width=6)
    matrix(recorded, "pca_mat_bb.npy", 2, width=7)
    with pytest.raises(StudyError, match="holds subspaces of several networks"):
        exported(tmp_path, reducing(2), snapshots=recorded)
