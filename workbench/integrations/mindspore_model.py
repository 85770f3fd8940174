"""Which choices of a set-up MindSpore's `Model` takes as arguments, in its own names (MindSpore 2.7)."""

from __future__ import annotations

from typing import Any

from workbench.config import BOOST_SECTIONS, SWITCHES, BoostConfig, describe_parameters
from workbench.integrations.carried import FORMATS, RATES, Carried, Sorting, learning_rate, rate_factor

_ADAM = {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "eps"}
_OPTIMIZERS: dict[str, tuple[str, dict[str, str]]] = {  # ours -> theirs, with the names of its arguments
    "SGD": ("nn.Momentum", {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"}),
    "Adam": ("nn.Adam", _ADAM),
    "AdamW": ("nn.AdamWeightDecay", _ADAM),
    "adam_offload": ("nn.AdamOffload", _ADAM | {"nesterov": "use_nesterov"}),
}
_BY_ITSELF = "MindSpore compiles whole graphs, and chooses layouts and threads, by itself"
_LEFT = {
    "optimizer": "MindSpore has no such optimizer, or measures its parameters otherwise",
    "batch.lr_rule": "the rate that follows is that of an optimizer that MindSpore does not have",
    "curriculum": "MindSpore feeds a network what the dataset makes",
    "regularization.weight_average": "MindSpore's Model evaluates with the weights as they are",
    "regularization.decay": "MindSpore's Model evaluates with the weights as they are",
    "runtime": _BY_ITSELF,
    "loss_scale": "MindSpore's manager has a floor of 1 and no other bound",
    "amp": "the device decides what amp.level auto means; name O2 or O3",
    "compatibility": "it restores MindSpore's own behaviour here",
}


def carried(config: BoostConfig, *, level: str = "O1") -> Carried:
    """Return what of a set-up MindSpore's ``Model`` and its surroundings take, and why they do not take the rest.

    Arguments are calls of MindSpore by name, each with keyword arguments; ``boost_config_dict`` is the exported file
    as it is. ``nn.AdamWeightDecay`` is AdamW without the correction of its first steps.
    A ConfigError is `BoostConfig.resolve`'s.
    """
    plan = config.resolve(level)
    sorting = Sorting("MindSpore", plan)
    infos = describe_parameters()
    for name in SWITCHES:
        if getattr(plan, name) and (why := infos[f"boost.{name}"].in_mindspore.why_not(config, plan.facts)):
            sorting.leave(why.rstrip("."), f"boost.{name}", name)
    theirs = [path for path, about in infos.items() if path.partition(".")[0] in BOOST_SECTIONS and not about.ours]
    model: dict[str, Any] = {}
    if sorting.is_chosen(*theirs):
        model |= {"boost_level": level, "boost_config_dict": "the exported file"}
        sorting.carry(*theirs, Model=model)
    for path, about in infos.items():
        if about.ours:
            sorting.leave("AutoBoost passes over it", path)
    _precision(sorting, model)
    _loss_scale(sorting)
    _optimizer(sorting, config)
    _course(sorting)
    sorting.take("regularization.label_smoothing", lambda share: {"nn.CrossEntropyLoss": {"label_smoothing": share}})
    for name, why in _LEFT.items():
        sorting.leave(why, name)
    return sorting.done()


def _precision(sorting: Sorting, model: dict[str, Any]) -> None:
    low, dtype = sorting.value("amp.level"), sorting.value("amp.dtype")
    if low not in ("O2", "O3"):
        return
    if dtype == "float16":
        model["amp_level"] = low
        if (keep := sorting.value("amp.keep_batchnorm_fp32")) != (low == "O2"):
            model["keep_batchnorm_fp32"] = keep
        sorting.carry(*FORMATS, Model=model)
    elif sorting.value("amp.keep_batchnorm_fp32") == (low == "O2"):
        sorting.carry(*FORMATS, **{"amp.auto_mixed_precision": {"amp_level": low, "dtype": "ms.bfloat16"}})
    sorting.leave(f"in bfloat16 MindSpore's {low} has its own rule for BatchNorm", "amp")


def _loss_scale(sorting: Sorting) -> None:
    init, kind = sorting.value("loss_scale.init"), sorting.value("loss_scale.kind")
    if kind == "dynamic" and init >= 1.0:
        rule = {"init_loss_scale": init, "scale_factor": sorting.value("loss_scale.factor")}
        rule["scale_window"] = sorting.value("loss_scale.window")
        paths = [f"loss_scale.{name}" for name in ("kind", "init", "factor", "window")]
        sorting.carry(*paths, **{"amp.DynamicLossScaleManager": rule})
    elif kind == "fixed":
        drops = sorting.value("loss_scale.drop_overflow_update")
        paths = [f"loss_scale.{name}" for name in ("kind", "init", "drop_overflow_update")]
        call = {"amp.FixedLossScaleManager": {"loss_scale": init, "drop_overflow_update": drops}}
        sorting.carry(*paths, **call)


def _optimizer(sorting: Sorting, config: BoostConfig) -> None:
    """Carry the optimizer and what multiplies its rate."""
    name, fields = sorting.value("optimizer.name"), sorting.hyper_parameters()
    if name is None:
        known, call = {"lr": "learning_rate"} if set(fields) <= {"lr"} else {}, "your optimizer"
    else:
        call, known = _OPTIMIZERS.get(name, ("", {}))
    if name == "SGD" and (not sorting.value("optimizer.momentum") or sorting.value("optimizer.nesterov")):
        # Momentum's kernel on a CPU passes over `use_nesterov`, and the class needs a momentum.
        call, known = "nn.SGD", {**known, "nesterov": "nesterov"}
    if not known or (set(fields) - {"betas"}) - set(known):
        return
    values = {known[one]: sorting.value(f"optimizer.{one}") for one in fields if one != "betas"}
    if "betas" in fields and name != "SGD":
        values["beta1"], values["beta2"] = sorting.value("optimizer.betas")
    if name == "AdamW":  # torch's own values, where MindSpore has others
        values = {"eps": 1e-8, "weight_decay": 0.01} | values
    paths = ["optimizer.name", *(f"optimizer.{one}" for one in fields)]
    if (rate := learning_rate(config, 1e-3 if name else None)) is not None:
        values["learning_rate"] = rate
    if sorting.is_chosen(*RATES[1:]):
        values.setdefault("learning_rate", f"{rate_factor(config):g} x")
    if values or name is not None:
        sorting.carry(*paths, *RATES, **{call: values})


def _course(sorting: Sorting) -> None:
    """Carry the number of batches, their size, and the course of the rate, which there is a list of rates."""
    sorting.take("batch.factor", lambda factor: {"Dataset.batch": {"batch_size": f"{factor:g} x"}})
    sorting.take("schedule.length", lambda share: {"Model.train": {"epoch": f"{share:g} x"}})
    sorting.carry_course("list of learning rates")
