"""Hypothesis strategies for configurations; written by hand, so that a wrong description in the package shows."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.kit.texts import texts
from workbench.config import BoostConfig

__all__ = ["config_dicts", "configs", "legal_values", "levels", "odd_values", "repeatable"]

# No deadline: a busy machine is no fault of a configuration. Derandomised: every draw has a seed.
repeatable = settings(
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

levels = st.sampled_from(["O0", "O1", "O2"])

_share = st.floats(0, 1, exclude_max=True)
_inner = st.floats(0, 1, exclude_min=True, exclude_max=True)
_path = st.sampled_from(["/x/pca.npy", "snapshots", "räume/ß"])
_switch = st.none() | st.booleans()

legal_values: dict[str, st.SearchStrategy[Any]] = {
    "boost.mode": st.sampled_from(["auto", "manual", "enable_all", "disable_all"]),
    **{
        f"boost.{name}": _switch
        for name in ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce", "loss_scale_group")
    },
    "common.gradient_split_groups": st.none() | st.lists(st.integers(0, 200), max_size=3),
    "common.device_number": st.integers(1, 16),
    "less_bn.fn_flag": st.booleans(),
    "less_bn.gc_flag": st.booleans(),
    "grad_freeze.param_groups": st.integers(1, 20),
    "grad_freeze.freeze_type": st.sampled_from([0, 1]),
    "grad_freeze.freeze_p": _share,
    "grad_freeze.total_steps": st.integers(0, 10**6),
    "grad_accumulation.grad_accumulation_step": st.integers(1, 8),
    "dim_reduce.rho": _inner,
    "dim_reduce.gamma": _share,
    "dim_reduce.alpha": st.floats(0, 10),
    "dim_reduce.sigma": _inner,
    "dim_reduce.line_search_trials": st.none() | st.integers(1, 32),
    "dim_reduce.n_components": st.integers(1, 64),
    "dim_reduce.pca_mat_path": st.none() | _path,
    "dim_reduce.weight_load_dir": st.none() | _path,
    "dim_reduce.timeout": st.integers(1, 10**5),
    "loss_scale.kind": st.sampled_from([None, "none", "fixed", "dynamic"]),
    "loss_scale.init": st.floats(1, 2.0**24),
    "loss_scale.factor": st.floats(1.01, 16),
    "loss_scale.window": st.integers(1, 5000),
    "loss_scale.minimum": st.floats(2.0**-20, 1),
    "loss_scale.maximum": st.none() | st.floats(2.0**24, 2.0**100),
    "loss_scale.drop_overflow_update": st.booleans(),
    "loss_scale.collapse_after": st.integers(1, 2000),
    "loss_scale.groups": st.integers(1, 8),
    "amp.level": st.sampled_from(["O0", "O2", "O3", "auto"]),
    "amp.dtype": st.sampled_from(["float16", "bfloat16"]),
    "amp.keep_batchnorm_fp32": _switch,
    "optimizer.name": st.sampled_from(
        [None, "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon", "ScheduleFreeAdamW", "thor", "adam_offload"]
    ),
    "optimizer.lr": st.none() | st.floats(1e-6, 10),
    "optimizer.lr_factor": st.none() | st.floats(0.1, 10),
    "optimizer.aux_lr": st.none() | st.floats(1e-6, 10),
    "optimizer.ns_steps": st.none() | st.integers(1, 10),
    "optimizer.warmup_steps": st.none() | st.integers(0, 10**6),
    "optimizer.momentum": st.none() | st.floats(0.1, 0.99),
    "optimizer.weight_decay": st.none() | st.floats(0, 1),
    "optimizer.nesterov": st.none() | st.just(False),  # true needs a momentum; tested by itself
    "optimizer.betas": st.none() | st.tuples(_share, _share).map(list),
    "optimizer.eps": st.none() | st.floats(1e-12, 1e-3),
    "optimizer.damping": st.none() | st.floats(1e-6, 10),
    "optimizer.damping_decay": st.none() | st.floats(0.1, 1),
    "optimizer.frequency": st.none() | st.integers(2, 1000),
    "optimizer.factor_decay": st.none() | st.floats(0, 0.99),
    "optimizer.trace_threshold": st.none() | st.floats(0, 1),
    "optimizer.kl_clip": st.none() | st.floats(1e-6, 1),
    "snapshots.every_steps": st.integers(1, 500),
    "snapshots.count": st.integers(0, 64),
    "snapshots.start_step": st.integers(0, 1000),
    "compatibility.freeze_state": st.sampled_from(["shared", "per_group"]),
    "compatibility.less_bn_match": st.sampled_from(["structure", "reference"]),
    "compatibility.fn_scope": st.sampled_from(["classifier", "every_module", "head"]),
    "compatibility.fn_bias": st.sampled_from(["keep", "drop"]),
    "compatibility.grad_centralization": st.sampled_from(["every_weight", "multiple_of_16"]),
    "compatibility.loss_scale_ceiling": st.sampled_from(["finite", "none"]),
    "compatibility.adasum_servers": st.sampled_from(["device_number", "eight"]),
    "compatibility.dim_reduce": st.sampled_from(["corrected", "reference"]),
    "compatibility.group_loss_scale": st.sampled_from(["used", "updated"]),
    "compatibility.thor_factors": st.sampled_from(["default", "mindspore"]),
    "schedule.length": st.floats(0, 1, exclude_min=True),
    "schedule.shape": st.sampled_from(["task", "cosine", "linear", "warmup_stable_decay", "constant"]),
    "schedule.warmup": _share,
    "schedule.final": st.floats(0, 1),
    "batch.factor": st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]),
    "batch.lr_rule": st.sampled_from(["none", "sqrt", "linear"]),
    "curriculum.kind": st.sampled_from(["none", "resolution", "sequence"]),
    "curriculum.start": _inner,
    "curriculum.until": st.floats(0, 1, exclude_min=True),
    "curriculum.stages": st.integers(1, 8),
    "regularization.label_smoothing": _share,
    "regularization.weight_average": st.sampled_from(["none", "ema"]),
    "regularization.decay": _share,
    "runtime.compile": st.sampled_from(["off", "default", "max-autotune", "reduce-overhead"]),
    "runtime.memory_format": st.sampled_from(["contiguous", "channels_last"]),
    "runtime.convolution": st.sampled_from(["library", "by_shape"]),
    "runtime.matmul_precision": st.sampled_from(["highest", "high", "medium"]),
    "runtime.cuda_graph": st.booleans(),
    "runtime.cudnn_benchmark": st.booleans(),
    "runtime.threads": st.none() | st.integers(1, 64),
    "runtime.data": st.sampled_from(["as_given", "resident", "prefetch"]),
}

odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(),
    texts(12),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(texts(4), st.integers(), max_size=2),
)

_json = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | texts(8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def config_dicts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a dictionary of sections with a few legal values, nulls included."""
    paths = draw(st.lists(st.sampled_from(sorted(legal_values)), unique=True, max_size=12))
    sections: dict[str, Any] = {}
    for path in paths:
        section, key = path.split(".")
        sections.setdefault(section, {})[key] = draw(legal_values[path])
    if draw(st.booleans()):
        sections["provenance"] = draw(st.dictionaries(texts(6), _json, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        sections["compatibility"] = "mindspore-2.7"
    return sections


configs = config_dicts().map(BoostConfig.from_dict)
