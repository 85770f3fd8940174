"""The experiments for the first hour on a GPU, as far as a CPU can run them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from studies.first_gpu.checks import CHECKS, late_copies, no_waits, operators, parity
from studies.first_gpu.run import BENCH, CHECK, PYTEST, ROOT, experiments
from workbench.bench import questions

CPU = torch.device("cpu")


def test_every_command_names_what_there_is() -> None:
    found = questions.benchmarks()
    asked = experiments("cuda")
    assert list(asked) == list(range(1, 11))
    for _, commands in asked.values():
        for _, command in commands:
            if command[: len(CHECK)] == CHECK:
                assert command[len(CHECK)] in CHECKS
            elif command[: len(BENCH)] == BENCH:
                assert command[len(BENCH)] in found
            else:
                assert command[: len(PYTEST)] == PYTEST
                assert Path(ROOT, command[-1]).exists()


def test_overflows_are_skipped_as_gradscaler_skips_them(capsys: pytest.CaptureFixture[str]) -> None:
    parity(CPU, steps=75)
    assert capsys.readouterr().out.count("equal after 75 steps, 1 skipped") == 2


def test_offloaded_training_is_the_same_twice(capsys: pytest.CaptureFixture[str]) -> None:
    late_copies(CPU, steps=3)
    assert capsys.readouterr().out.count("the same bits") == 2


def test_operators_say_what_they_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    operators(CPU)
    told = capsys.readouterr().out
    assert "unscale torch.float16: works" in told
    assert "norm torch.float64: linalg.vector_norm" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_steps_of_every_configuration_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    no_waits(CPU, task="digits-lenet", warm_up=2, steps=2)
    assert "THOR, dynamic loss scale: no wait in 2 steps" in capsys.readouterr().out
