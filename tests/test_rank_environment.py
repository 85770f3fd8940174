from __future__ import annotations

import pytest

from workbench.core.rank_environment import RankEnvironment, RankEnvironmentError, is_first_rank, rank_environment

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_torchruns_variables_give_a_place() -> None:
    assert rank_environment(TORCHRUN) == RankEnvironment(3, 4, 1, "node0", 29500, True, 2)


def test_without_torchrun_rank_0_serves_the_store() -> None:
    plain = {name: value for name, value in TORCHRUN.items() if not name.startswith("TORCHELASTIC")}
    assert rank_environment(plain) == RankEnvironment(3, 4, 1, "node0", 29500, False, 0)


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, {"WORLD_SIZE": ""}, TORCHRUN | {"WORLD_SIZE": "1"}])
def test_one_process_trains_alone(variables: dict[str, str]) -> None:
    assert rank_environment(variables) is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE must be a whole number, 1 or more, where WORLD_SIZE is set, got 'two'"),
        ("RANK", "", "RANK must be a whole number, 0 or more, where WORLD_SIZE is set, got ''"),
        ("RANK", "4", r"RANK must be below WORLD_SIZE \(4\), got 4"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK must be a whole number, 0 or more, .* got '-1'; start the"),
        ("MASTER_PORT", "0", "MASTER_PORT must be a whole number, 1 or more"),
        ("MASTER_ADDR", "", "MASTER_ADDR must name the machine where the ranks meet"),
    ],
)
def test_what_contradicts_itself_is_one_sentence(name: str, value: str, sentence: str) -> None:
    with pytest.raises(RankEnvironmentError, match=sentence):
        rank_environment(TORCHRUN | {name: value})


def test_rank_0_or_the_only_process_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert is_first_rank()
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert not is_first_rank()
    monkeypatch.setenv("RANK", "0")
    assert is_first_rank()
    monkeypatch.setenv("RANK", "none")  # whoever joins says what is wrong, and somebody has to print it
    assert is_first_rank()
