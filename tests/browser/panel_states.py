"""A notebook that shows every panel in each of its states at once: empty, running, stopped, done, failed.

Each cell makes one panel, brings it into a state through its own buttons, and shows it. What runs is held at a step and
goes no further; a kernel that is shut down ends it.
"""

from __future__ import annotations

from tests.browser.notebook_page import normalised_task_of_the_readme

__all__ = ["CELLS", "STATES"]

_SETUP = """\
import dataclasses
import threading
from pathlib import Path

from workbench import train, tune
from workbench.config import BoostConfig
from workbench.panels import *

torch.set_num_threads(1)
LONG, SHARED = 300.0, lambda level="O1", **sections: SharedConfig(BoostConfig.from_dict(sections), level)
FLOAT16 = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 2.0**24, "window": 20}}
HALVED = {"kind": "dynamic", "init": 2.0**24, "window": 20}
FREEZING = {"grad_freeze": {"param_groups": 2}}  # as many as the network can be cut into, so that O1 is not O0


def task_that(at, act, name="mine"):
    counted = {"losses": 0}

    def loss(model, batch):
        counted["losses"] += 1
        if counted["losses"] == at:
            act()
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return dataclasses.replace(task, loss=loss, name=name)


def fail():
    raise RuntimeError("the cable is out")


class Held:
    def __init__(self, at):
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.task = task_that(at, self)

    def __call__(self):
        self.reached.set()
        self.go_on.wait()


def held(make, at, *, stop=False, pause=False):
    hold = Held(at)
    panel = make(hold.task)
    panel.start()
    while not hold.reached.wait(0.1):
        assert panel.state.busy, f"it ended before step {at}: {panel.error}"
    if stop:
        panel.stop()
        hold.go_on.set()
        assert panel.wait(LONG)
    else:
        if pause:
            panel.pause_or_resume()
            hold.go_on.set()
        threading.Event().wait(2.0)  # until what was reported is drawn
    return panel


def started(panel):
    panel.start()
    assert panel.wait(LONG)
    return panel


STUDY = '''
[study]
task = "mine"
n_trials = 6
budget_steps = 40
objective = "pareto"
[space]
"boost.less_bn" = [true, false]
"boost.grad_freeze" = [true, false]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }
"grad_freeze.param_groups" = { low = 2, high = 4 }
[confirm]
seeds_min = 2
seeds_max = 2
candidates = 1
'''


def study_in(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(STUDY)
    return folder


def study(folder, **options):
    study_in(f"{folder}/mine")
    return held(lambda given: StudyPanel(given, SHARED(), studies=folder), 180, **options)


recorded = train(task, FLOAT16, level="O0", steps=160, out="screens", exponents_every=2)
plain = train(task, {}, level="O0", steps=60, out="screens")
_ = tune(study_in("screen_studies/done"), task=task)"""

_EDITED = """\
shared = SHARED("O1", **FLOAT16, grad_freeze={"freeze_p": 0.5})
panel = ConfigPanel(shared)
panel.sections.selected_index = list(panel._paths).index("grad_freeze")
panel"""

_BENCH = """\
from workbench import Workbench

panel = Workbench(task, out="screens", studies="screen_studies")
panel.panel("Loss scale").open(recorded.path)
panel.tabs.selected_index = 2
panel"""

_TAKEN = """\
shared = SHARED()
tune = StudyPanel("screen_studies/done", shared)
tune.wait(LONG)
tune.take_buttons["o1"].click()
ExportPanel(None, shared)"""

STATES: dict[str, str] = {
    "configure-empty": "ConfigPanel(SHARED())",
    "configure-edited": _EDITED,
    "train-empty": "TrainPanel(task, SHARED('O0'), out=None)",
    "train-running": "held(lambda t: TrainPanel(t, SHARED('O1', **FLOAT16), out=None, steps=200), 120)",
    "train-paused": "held(lambda t: TrainPanel(t, SHARED('O1', **FLOAT16), out=None, steps=200), 120, pause=True)",
    "train-stopped": "held(lambda t: TrainPanel(t, SHARED('O1'), out=None, steps=200), 90, stop=True)",
    "train-done": "started(TrainPanel(task, SHARED('O1'), out='runs', steps=200))",
    "train-failed": "started(TrainPanel(task_that(20, fail), SHARED('O1'), out=None))",
    "train-unknown": "started(TrainPanel('digits-lenett', SHARED('O1'), out=None))",
    "loss_scale-empty": "LossScalePanel('nowhere', SHARED())",
    "loss_scale-done": "LossScalePanel(recorded.path, SHARED())",
    "loss_scale-float32": "LossScalePanel(plain.path, SHARED())",
    "loss_scale-failed": "LossScalePanel('screen_studies/done/study.toml', SHARED())",
    "tune-empty": "StudyPanel(task, SHARED(), studies='new_studies')",
    "tune-running": "study('held')",
    "tune-stopped": "study('ended', stop=True)",
    "tune-done": "panel = StudyPanel('screen_studies/done', SHARED())\npanel.wait(LONG)\npanel.pick(2)\npanel",
    "tune-over": "StudyPanel('screen_studies/done', SHARED())",
    "tune-failed": "started(StudyPanel(task_that(20, fail, 'bad'), SHARED(), studies='broken', objective='speed'))",
    "compare-empty": "ComparePanel(task, SHARED())",
    "compare-running": "held(lambda t: ComparePanel(t, SHARED(**FREEZING), steps=40, seeds=3), 200)",
    "compare-stopped": "held(lambda t: ComparePanel(t, SHARED(**FREEZING), steps=40, seeds=3), 200, stop=True)",
    "compare-done": "started(ComparePanel(task, SHARED(**FREEZING), steps=60, seeds=3))",
    "compare-failed": "started(ComparePanel(task_that(20, fail), SHARED(**FREEZING), steps=40, seeds=3))",
    "workbench-loss_scale": _BENCH,
    "export-empty": "ExportPanel(None, SHARED())",
    "export-done": "panel = ExportPanel('screen_studies/done', SHARED(), folder='saved')\n_ = panel.save()\npanel",
    "export-taken": _TAKEN,
    "export-failed": "ExportPanel('nowhere', SHARED())",
}
"""Name of a picture (tab and state) -> the cell that shows it."""

CELLS = (normalised_task_of_the_readme(), _SETUP, *STATES.values())
