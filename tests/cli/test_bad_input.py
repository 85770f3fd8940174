"""Whatever is wrong: one sentence, the right exit code, nothing finished lost."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
import torch
from pyarrow import parquet

from tests.cli.conftest import TASK, Command
from tests.kit.runs import without_checksums
from workbench import api
from workbench.cli.failures import sentence_of
from workbench.core import files as atomic_file
from workbench.core.error_place import keep_origin, origin_of
from workbench.runs import list_runs, read_run
from workbench.tasks import load_task

BAD_TASKS = """
import dataclasses

def raises():
    raise RuntimeError("no weights")

class AtStep(nn.Module):
    when = True
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(13, 3)
    def forward(self, x):
        if self.training == self.when:
            raise KeyError("forward")
        return self.layer(x)

class InEvaluation(AtStep):
    when = False

def missing(seed):
    yield from open("nowhere.csv")

model = dataclasses.replace(task, name="bad model", model=raises)
step = dataclasses.replace(task, name="bad step", model=AtStep)
shape = dataclasses.replace(task, name="bad shape", model=lambda: nn.Linear(12, 3))
evaluation = dataclasses.replace(task, name="bad evaluation", model=InEvaluation)
data = dataclasses.replace(task, name="bad data", train=missing)
diverging = dataclasses.replace(task, name="diverging", optimizer=lambda named: torch.optim.SGD(named, lr=1e30))
"""


@pytest.fixture
def bad_tasks(here: Path) -> Path:
    (here / "bad.py").write_text(TASK + BAD_TASKS)
    return here


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tuen study", "no such command 'tuen'"),
        ("tunee study", "no such command 'tunee'; did you mean 'tune'?"),
        ("tune studies/gone", "studies/gone/study.toml: there is no such study file"),
        ("export study --as keras", "'--as': 'keras' is not one of 'torch', 'transformers', 'lightning', 'mindspore'"),
        ("train", "missing option '--task'"),
        ("train --task wine.py --stepz 3", "--stepz"),
        ("train --task wine.py --steps 0", "'--steps' must be at least 1, got 0"),
        ("train --task wine.py --steps 5 --steps 0", "'--steps' must be at least 1, got 0"),
        ("train --task wine.py --steps=many", "'--steps' must be a whole number, got many"),
        ("train --task wine.py --level O7", '`level` must be one of "O0", "O1", "O2", got "O7"'),
        ("train --task wine.py --device npu:9", "`device` must be present on this machine, got 'npu:9'"),
        ("train --task wine.py --config gone.json", "gone.json: there is no such file"),
        ("train --task digits-resnett", "did you mean 'digits-resnet'?"),
        ("train --task gone.py", "gone.py is not there"),
        ("compare --task wine.py", "missing argument 'FILE...'"),
        ("replay gone", "gone is not a run directory: there is no such folder"),
        ("replay .", "is not a run directory: it has no environment.json"),
        ("replay wine.py", "is not a run directory: it is a file"),
        ("runs list gone", "gone is not a folder of runs"),
        ("runs prune", "say what may go: --keep N, --older-than-days DAYS, or both"),
        ("tune .", "study.toml: there is no such study file"),
        ("status gone", "gone/study.toml: there is no such study file"),
        ("init wine.py", "wine.py: not a folder"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_exit_code_2(workbench: Command, arguments: str, words: str) -> None:
    outcome = workbench(*arguments.split())
    assert words in outcome.refused()
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"boost": {"mode": "auto"', "half-written"),
        ('{"grad_freeze": {"freeze_p": 1.5}}', "`grad_freeze.freeze_p` must lie in [0, 1), got 1.5"),
    ],
    ids=["half-written", "out of range"],
)
def test_a_bad_configuration_names_file_and_rule(workbench: Command, here: Path, text: str, words: str) -> None:
    (here / "c.json").write_text(text)
    for command in (("validate", "c.json"), ("train", "--task", "wine.py", "--config", "c.json")):
        sentence = workbench(*command).refused()
        assert sentence.startswith("workbench: c.json: ")
        assert words in sentence
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"boost.grad_accumulation"', '"boost.grad_accumulations"', 'did you mean "boost.grad_accumulation"?'),
        ("[2, 4]", "[2, ", "is not valid TOML"),
        ("wine.py", "gone.py", "gone.py is not there"),
        ('device = "cpu"', 'device = "npu:9"', "`device` must be present on this machine"),
    ],
)
def test_a_bad_study_is_one_sentence_and_starts_nothing(
    workbench: Command, study: Path, old: str, new: str, words: str
) -> None:
    file = study / "study.toml"
    file.write_text(file.read_text().replace(old, new))
    assert words in workbench("tune", study).refused()
    assert not (study / "study.db").exists()


def test_a_study_that_was_not_started_has_no_status_and_nothing_to_export(workbench: Command, study: Path) -> None:
    for command in ("status", "export"):
        assert "has not been started; run `workbench tune study` first" in workbench(command, study).refused()


def test_an_edited_study_says_what_changed_and_keeps_everything(
    workbench: Command, tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = json.loads(workbench("status", tuned, "--json").out)["trials"]
    file = tuned / "study.toml"
    file.write_text(file.read_text().replace("budget_steps = 12", "budget_steps = 13"))
    sentence = workbench("tune", tuned).refused()
    assert "`study.budget_steps` was 12, is 13" in sentence
    assert "--fresh" in sentence
    assert json.loads(workbench("status", tuned, "--json").out)["trials"] == before
    asked: dict[str, object] = {}

    def noted(*_: object, **options: object) -> None:
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "tune", noted)
    workbench("tune", tuned, "--fresh")
    assert asked["fresh"] is True


def test_an_edited_task_is_refused_by_name_and_a_comment_in_it_is_not(workbench: Command, tuned: Path) -> None:
    task = tuned.with_name("wine.py")
    before = task.read_text()
    task.write_text(before.replace("lr=0.1", "lr=0.2"))
    sentence = workbench("tune", tuned).refused()
    assert "the task has changed since the study began (wine.py)" in sentence
    assert "--new-baseline" in sentence
    task.write_text(f"# a remark\n{before}")
    assert workbench("tune", tuned).code == 0


@pytest.mark.filterwarnings("ignore:before training, a batch cannot be evaluated:UserWarning")
@pytest.mark.parametrize(
    ("attribute", "code", "words", "guilty"),
    [
        ("model", 1, "task 'bad model': model() failed: RuntimeError: no weights", "raise RuntimeError"),
        ("step", 1, "task 'bad step': a training step failed: KeyError: 'forward'", "raise KeyError"),
        ("shape", 1, "task 'bad shape': a training step failed: RuntimeError: mat1 and mat2", ""),
        ("evaluation", 1, "task 'bad evaluation': the evaluation failed: KeyError: 'forward'", "raise KeyError"),
        ("data", 2, "task 'bad data': the training data failed: nowhere.csv: No such file or directory", "open("),
    ],
)
def test_a_failing_task_is_named_with_part_exception_and_line(
    workbench: Command, bad_tasks: Path, attribute: str, code: int, words: str, guilty: str
) -> None:
    sentence = workbench("train", "--task", f"bad.py:{attribute}", "--steps", 4, "--device", "cpu").refused(code)
    assert words in sentence
    if guilty:
        lines = (bad_tasks / "bad.py").read_text().splitlines()
        (number,) = (i for i, line in enumerate(lines, start=1) if guilty in line)
        assert f" (line {number} of {bad_tasks / 'bad.py'})" in sentence
    assert ("--traceback" in sentence) is (code == 1)


def test_a_task_that_failed_in_another_process_is_named_as_if_it_had_failed_here(bad_tasks: Path) -> None:
    task = load_task("bad.py:step")
    with pytest.raises(KeyError) as failed:
        task.compute_loss(task.new_model(), next(iter(task.batches(0))))
    keep_origin(failed.value)
    there = copy.copy(failed.value)  # as it arrives: without a traceback
    assert there.__traceback__ is None
    assert "task 'bad step': a training step failed: KeyError: 'forward' (line " in sentence_of(there)
    assert sentence_of(there) == sentence_of(failed.value)
    assert str(bad_tasks / "bad.py") in origin_of(there).text


@pytest.mark.usefixtures("bad_tasks")
def test_an_option_and_the_environment_ask_for_tracebacks(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("train", "--task", "bad.py:model")
    assert "Traceback (most recent call last)" in workbench("--traceback", *command).err
    monkeypatch.setenv("WORKBENCH_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in workbench(*command).err


@pytest.mark.filterwarnings("ignore:before training, a batch cannot be evaluated:UserWarning")
def test_a_task_that_fails_in_tune_leaves_a_study_that_can_go_on(
    workbench: Command, bad_tasks: Path, study: Path
) -> None:
    file = study / "study.toml"
    text = file.read_text().replace("wine.py", "bad.py:evaluation")
    file.write_text(text.replace("n_trials = 3", "n_trials = 1"))
    assert "task 'bad evaluation': the evaluation failed" in workbench("tune", study).refused(1)
    (bad_tasks / "bad.py").write_text(TASK + BAD_TASKS.replace("when = False", "when = None"))
    assert workbench("tune", study).code == 0


def test_a_loss_that_turns_nan_fails_the_run_and_keeps_its_record(workbench: Command, bad_tasks: Path) -> None:
    outcome = workbench("train", "--task", "bad.py:diverging", "--steps", 20, "--device", "cpu", "--json")
    assert "the loss is nan" in outcome.refused(1)
    assert "unless the loss of that batch is not defined" in outcome.sentence
    told = json.loads(outcome.out)
    assert (told["diverged"], told["metric"]) == (True, None)
    assert read_run(told["path"]).summary["state"] == "diverged"


def test_a_full_disk_while_recording_is_one_sentence_and_keeps_what_was_written(
    workbench: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 200:  # blocks of steps, not the few bytes that others write
            written.append(len(data))
            if len(written) > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("workbench.runs.recorder.os.write", full)
    command = ("train", "--task", "wine.py", "--steps", 40, "--evaluate-every", 5, "--device", "cpu")
    outcome = workbench(*command)
    monkeypatch.undo()
    assert outcome.refused(1).count("no space left on the disk") == 1
    monkeypatch.chdir(here)
    frame = list_runs("runs")
    assert frame["steps"].tolist() == [10]
    assert len(read_run(here / "runs" / frame["run"][0]).steps) == 10


def test_a_full_disk_while_exporting_leaves_the_former_files(
    workbench: Command, tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: path.read_bytes() for path in (tuned / "result").iterdir()}

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(atomic_file, "_flush_to_disk", full)
    assert "no space left to write" in workbench("export", tuned).refused(1)
    assert {path: path.read_bytes() for path in (tuned / "result").iterdir()} == files


def test_a_folder_that_may_not_be_written_is_one_sentence(
    workbench: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def refuse(path: Path, *arguments: object, **named: object) -> None:
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)  # permissions do not stop root, under whom tests may run
    for command in (("train", "--task", "wine.py", "--out", "locked"), ("init", "locked")):
        sentence = workbench(*command).refused(1)
        assert "locked" in sentence
        assert "ermission denied" in sentence


def test_a_policy_that_cannot_be_is_refused_and_without_gradients_any(workbench: Command, here: Path) -> None:
    workbench("train", "--task", "wine.py", "--steps", 2, "--device", "cpu")
    (run,) = (here / "runs").iterdir()
    for option, value in (("--init", "nan"), ("--factor", "1"), ("--window", "0")):
        assert f"`{option.removeprefix('--')}` must" in workbench("replay", run, option, value).refused()
    without_checksums(run)
    table = parquet.read_table(run / "steps.parquet")
    index = table.column_names.index("grad_amax")
    unknown = pyarrow.array([math.nan] * len(table), table.schema.field(index).type)
    parquet.write_table(table.set_column(index, table.schema.field(index), unknown), run / "steps.parquet")
    assert "nothing to replay" in workbench("replay", run).refused()


def test_nothing_from_a_file_steers_the_terminal(study: Path, workbench: Command) -> None:
    file, escapes = study / "study.toml", r"\u001b]0;title\u0007\u001b[2J"
    good = file.read_text().replace('task = "../wine.py"', 'task = "../wine.py"\nname = "x' + escapes + '"')
    asked = [
        good.replace("n_trials = 3", "n_trials = 0"),
        good.replace('task = "../wine.py"', f'task = "{escapes}"'),
        good.replace('name = "random"', f'name = "{escapes}"'),
        good.replace("[speed]", f'["{escapes}"]'),
        good,
    ]
    for text in asked:
        file.write_text(text)
        outcome = workbench("status", study)
        assert "\x1b" not in outcome.out + outcome.err
        assert "\x07" not in outcome.out + outcome.err
        assert "bug of the workbench" not in outcome.err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory (MemoryError)"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "there is not enough memory ("),
        (RuntimeError("can't start new thread"), "there is not enough memory ("),
        (UserWarning("nothing is frozen"), "a warning ended the command, because Python was asked to treat warnings"),
    ],
    ids=["memory", "a library that cannot be loaded", "a thread", "a warning"],
)
def test_what_the_machine_or_its_user_did_is_no_bug_of_ours(
    error: Exception, words: str, workbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.core import doctor

    def fails() -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fails)
    assert words in workbench("doctor").refused(1)


@pytest.mark.slow
@pytest.mark.parametrize("mib", [300, 600])
def test_too_little_memory_to_load_ends_in_a_sentence(mib: int, here: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "workbench", *words]
        return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False, timeout=60)

    ended = run("train", "--task", "wine.py", "--steps", "8", "--device", "cpu")
    assert ended.returncode == 1
    assert "there is not enough memory" in ended.stderr
    assert "bug of the workbench" not in ended.stderr
    assert run("schema").returncode == 0, "it needs no torch"


@pytest.mark.parametrize("name", ["boost_config.json", "study.toml"])
def test_half_a_character_ends_in_a_sentence(name: str, study: Path, workbench: Command) -> None:
    if name == "study.toml":
        (study / name).write_bytes(b'[study]\ntask = "\xed\xa0\x80"\n')
        sentence = workbench("tune", study).refused()
    else:
        Path(name).write_text('{"amp": {"level": "\\ud800"}}')
        sentence = workbench("validate", name).refused()
    assert name in sentence
    sentence.encode()


def test_a_last_batch_of_one_sample_may_be_dropped() -> None:
    with pytest.raises(ValueError, match="more than 1 value") as failed:
        torch.nn.BatchNorm1d(3)(torch.zeros(1, 3))
    assert sentence_of(failed.value).partition(" (line ")[0].endswith("drop_last=True leaves it out)")


def test_of_a_compiler_s_thousand_lines_the_first_and_the_last_are_said() -> None:
    lines = "warning: overflow in conversion " * 3000
    sentence = sentence_of(RuntimeError(f"C++ compile error {lines}no such file"))
    assert "RuntimeError: C++ compile error warning" in sentence
    assert " ... " in sentence
    assert "no such file" in sentence
    assert len(sentence) < 1000
