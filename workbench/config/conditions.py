"""When a parameter is in effect: small conditions, declared with the parameter and combined with ``&`` and ``|``.

    init = described(..., when=loss_scale_is("fixed", "dynamic"))
    device_number = described(..., when=method_on("name"))
    name = described(..., when=in_mode_manual, needs=without("other", ...) & several_ranks)

A condition is asked about a configuration and the `Facts` it meets, and answers with the reason why the parameter is
not in effect: the words that follow "because". A *method* is an algorithm with a switch in section ``boost``: it acts
when it is asked for (`BoostSwitches.asks_for`) and what it ``needs`` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts


@dataclass(frozen=True, slots=True)
class Condition:
    """Says whether something is in effect, and if not, why.

    ``why_not`` gets a configuration and the facts and returns the reason why it does not hold, empty where it does.
    ``words`` are the condition in short, for the schema and the documentation; ``reads`` the paths of the parameters
    that the answer depends on, where a switch stands for all that its method needs.
    """

    why_not: Callable[[BoostConfig, Facts], str]
    words: str
    reads: frozenset[str] = frozenset()

    def __and__(self, other: Condition) -> Condition:
        """Both must hold; the reason is that of the first that does not."""
        words, reads = f"{self.words} and {other.words}", self.reads | other.reads
        return Condition(lambda *met: self.why_not(*met) or other.why_not(*met), words, reads)

    def __or__(self, other: Condition) -> Condition:
        """One of them must hold; the reason is the second's."""
        words, reads = f"({self.words} or {other.words})", self.reads | other.reads
        return Condition(lambda *met: self.why_not(*met) and other.why_not(*met), words, reads)


ALWAYS = Condition(lambda _config, _facts: "", "always")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is declared with a parameter, in addition to what pydantic checks."""

    when: Condition = ALWAYS  # it is in effect
    needs: Condition = ALWAYS  # of a switch: for its method to be in effect, once it is asked for
    must_act: bool = False  # of a switch: asking for it without what it needs is an error
    low: float | None = None  # ends of the default SEARCH range, not of the legal one; None when it has none
    high: float | None = None
    log: bool = False  # whether the search range is walked in logarithmic steps
    step: float | None = None  # its grid
    by_name: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # search ranges of named optimizers
    unit: str = ""  # for a person, empty when dimensionless
    step_time: bool = True  # whether it may change how long a step takes
    unset: Callable[[BoostConfig], Any] | None = None  # the value that None stands for, where a rule gives one
    #: The number in [0, 1] that the parameter comes to, where it is rounded: plans that share it train alike.
    share: Callable[[BoostConfig], float] | None = None
    share_name: str = ""  # what that is a share of, for a person
    names: Mapping[Any, str] = field(default_factory=dict)  # of a choice: value -> what it does, in a few words
    ours: bool = False  # whether MindSpore passes over it, in a section that it reads
    in_mindspore: Condition = ALWAYS  # of a switch: for MindSpore to do the same; the reason is a whole sentence

    def share_text(self, config: BoostConfig) -> str:
        """Say what the parameter comes to, such as "frozen steps: 30 %"; empty where it is what it says."""
        return f"{self.share_name}: {100 * self.share(config):.3g} %" if self.share else ""


_UNCONDITIONAL = Declared()


def declared(member: FieldInfo) -> Declared:
    """Return what is declared with a section's field."""
    return next((one for one in member.metadata if isinstance(one, Declared)), _UNCONDITIONAL)


def acts(name: str, config: BoostConfig, facts: Facts) -> bool:
    """Return whether a method is asked for and finds what it needs."""
    return config.boost.asks_for(name, facts.level) and not declared(_switch(name, config)).needs.why_not(config, facts)


def method_on(name: str) -> Condition:
    """Hold where a method is in effect."""
    return _of_method(
        name,
        "in effect",
        lambda config, facts: "" if acts(name, config, facts) else f"{_switch(name, config).title} is off",
    )


def method_off(name: str, why_not: str) -> Condition:
    """Hold where a method is not in effect."""
    return _of_method(name, "not in effect", lambda config, facts: why_not if acts(name, config, facts) else "")


def without(name: str, why_not: str) -> Condition:
    """Hold where a method is not even asked for."""
    return _of_method(
        name, "not asked for", lambda config, facts: why_not if config.boost.asks_for(name, facts.level) else ""
    )


def is_not(path: str, value: Any, why_not: str) -> Condition:
    """Hold where a parameter has another value than the given one."""
    section, _, name = path.partition(".")
    return Condition(
        lambda config, _facts: why_not if getattr(getattr(config, section), name) == value else "",
        f"{path} is not {str(value).lower() if isinstance(value, bool) else value}",
        frozenset({path}),
    )


def loss_scale_is(*kinds: str, why_not: str = "the loss scale is {kind}") -> Condition:
    """Hold for some kinds of loss scale; one that only the device decides may be dynamic."""

    def reason(config: BoostConfig, _facts: Facts) -> str:
        kind = loss_scale_kind(config) or "dynamic"
        if kind in kinds:
            return ""
        return why_not.format(kind=kind) if kind != "none" else _NO_SCALE

    return Condition(reason, f"the loss scale is {' or '.join(kinds)}", _LOSS_SCALE_KIND)


def loss_scale_kind(config: BoostConfig) -> str | None:
    """Return the kind of loss scale; None when only the device decides it (amp auto with float16)."""
    if config.loss_scale.kind is None and config.amp.level == "auto" and config.amp.dtype == "float16":
        return None
    return config.effective_loss_scale_kind("")


_NO_SCALE = "there is no loss scale (loss_scale.kind)"
_LOSS_SCALE_KIND = frozenset({"loss_scale.kind", "amp.level", "amp.dtype"})


def condition(words: str, *reads: str) -> Callable[[Callable[[BoostConfig, Facts], str]], Condition]:
    """Turn the function below into a condition."""
    return lambda why_not: Condition(why_not, words, frozenset(reads))


@condition("boost.mode is manual", "boost.mode")
def in_mode_manual(config: BoostConfig, _facts: Facts) -> str:
    """Hold in mode manual."""
    mode = config.boost.mode
    return "" if mode == "manual" else f"switches count in mode manual, and the mode is {mode}"


@condition("several ranks train")
def several_ranks(_config: BoostConfig, facts: Facts) -> str:
    """Hold over several ranks."""
    return "" if facts.world_size > 1 else "a single rank reduces nothing"


@condition("the loss scale is dynamic", *_LOSS_SCALE_KIND)
def dynamic_scale(config: BoostConfig, _facts: Facts) -> str:
    """Hold for a dynamic loss scale."""
    if (kind := loss_scale_kind(config)) in {"dynamic", None}:
        return ""
    way = "set `loss_scale.kind` to dynamic, or `amp.level` to O2 with `amp.dtype` float16"
    return f"the loss scale is {kind}; {way}"


def _of_method(name: str, words: str, why_not: Callable[[BoostConfig, Facts], str]) -> Condition:
    return Condition(why_not, f"{name} is {words}", frozenset({f"boost.{name}"}))


def _switch(name: str, config: BoostConfig) -> FieldInfo:
    return type(config.boost).model_fields[name]
