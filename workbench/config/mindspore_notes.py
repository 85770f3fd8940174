"""What a user of MindSpore has to know about a configuration that was found here."""

from __future__ import annotations

from workbench.config.boost import NOT_REBUILT, SWITCHES, rebuilt_in_mindspore
from workbench.config.boost_config import BOOST_SECTIONS, BoostConfig
from workbench.config.parameters import describe_parameters
from workbench.config.resolve import Plan


def mindspore_notes(config: BoostConfig, plan: Plan) -> list[str]:
    """Say what a user of MindSpore has to know: how to pass it, what cannot work there, what is passed over.

    As read in MindSpore 2.7, ``mindspore/boost/boost.py`` and ``mindspore/train/model.py``; what this package exports
    was also given to the real one.
    """
    notes = [_how_to_pass(config, plan)]
    infos = describe_parameters()
    there = [infos[f"boost.{name}"].in_mindspore for name in SWITCHES if getattr(plan, name)]
    notes += dict.fromkeys(sentence for one in there if (sentence := one.why_not(config, plan.facts)))
    if rebuilt_in_mindspore in there and not (config.optimizer and config.optimizer.name):
        notes.append(NOT_REBUILT)  # of the task's own optimizer the file does not say what it is
    own = (name for name in config.to_dict() if name not in BOOST_SECTIONS)
    passed_over = [f"`{name}`" for name in own if getattr(getattr(config, name), "enabled", True)]
    passed_over += [
        f"`{path}`"
        for path, value in config.leaves().items()
        if path in infos and infos[path].ours and value is not None
    ]
    if passed_over:
        notes.append(f"It ignores {', '.join(passed_over)}, which only this package reads.")
    if config.effective_amp_level("npu") != "O0" or plan.parameters_in_effect().get("loss_scale.kind") != "none":
        notes.append(
            "Mixed precision and loss scale are arguments there: pass amp_level and loss_scale_manager to "
            "mindspore.train.Model."
        )
    if config.optimizer is not None:
        notes.append("The optimizer is an argument there, too; the section `optimizer` does not reach it.")
    idle = [f"`{name}`" for name in BOOST_SECTIONS if name not in ("boost", "common") and not getattr(plan, name)]
    if idle:
        notes.append(f"It reads a section only when its switch is on, so not {', '.join(idle)}.")
    return notes


def _how_to_pass(config: BoostConfig, plan: Plan) -> str:
    if not plan.in_effect():
        return "Nothing is switched on, so the file changes nothing there; leave out boost_level."
    if plan.level == "O0" and config.resolve("O1", plan.world_size).key() != plan.key():
        return (
            "At O0 mindspore.train.Model does not read boost_config_dict at all, and at O1 the switches that are "
            'unset here would come on: set each of them by hand, then pass boost_level="O1".'
        )
    level, is_auto = plan.level if plan.level != "O0" else "O1", config.boost.mode == "auto"
    reason = (
        "in mode auto the level alone decides" if is_auto else "with O0 mindspore.train.Model does not read it at all"
    )
    either = "MindSpore 2.7 leaves boosting off unless metrics or an eval_network is given, too"
    return f'Pass boost_level="{level}" and the content of this file as boost_config_dict; {reason}. {either}.'
