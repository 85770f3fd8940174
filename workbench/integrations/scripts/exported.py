"""A study's exports in the words of other frameworks: their scripts, as texts and as files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from workbench.config import BoostConfig
from workbench.core.files import write_text_atomically
from workbench.core.records import StudyResult
from workbench.integrations.float32_layers import float32_layers
from workbench.integrations.scripts.set_up import SetUp
from workbench.integrations.scripts.writing import FRAMEWORKS, write_script
from workbench.loss_scale import ScalePolicy
from workbench.runs import RunError, read_run
from workbench.tasks import Task, TaskError, load_task


def with_scripts(
    result: StudyResult, steps: int, seed: int, worth: Mapping[str, Mapping[str, str]], *, written: Sequence[str]
) -> StudyResult:
    """Return a study's answer with its exports in the words of every framework; of some, files are written, too.

    A script is written into the folder of its configuration. Where the task cannot be loaded, its place in the script
    is left for the user to fill in. ``steps`` are the loader batches that the task is trained for today; ``worth`` maps
    an export and a config path to what that part was measured to be worth.
    """
    task, scripts = _task_of(result), []
    for target, path in result.exported.items():
        config = BoostConfig.from_json(path)
        headline = result.headlines.get(target) or (result.choices[target].sentence if target in result.choices else "")
        layers = _float32_layers(result, config)
        set_up = SetUp(config, target, steps, headline, worth.get(target, {}), task, layers, seed)
        for name in FRAMEWORKS:
            script = write_script(name, set_up)
            if name in written:
                place = path.with_name(script.name)
                write_text_atomically(place, script.text)
                script = dataclasses.replace(script, path=place)
            scripts.append(script)
    return dataclasses.replace(result, scripts=tuple(scripts))


def _task_of(result: StudyResult) -> Task | None:
    try:
        return load_task(result.task, result.directory)
    except TaskError:
        return None


def _float32_layers(result: StudyResult, config: BoostConfig) -> tuple[str, ...] | None:
    """Return the layers that float16 does not hold at an export's loss scale, where a float16 run was recorded."""
    recorded, rule = (result.loss_scale_policy or {}).get("recording"), config.loss_scale
    if not recorded:
        return None
    try:
        run = read_run(result.directory / str(recorded))
        return float32_layers(run, ScalePolicy(rule.init, rule.factor, rule.window, min(rule.minimum, rule.init)))
    except (RunError, ValueError):  # of which nothing is left here, or nothing can be replayed
        return None
