"""The form every section of a configuration has, and how a parameter is described once.

A section is a frozen, strict pydantic model. Each of its fields is declared with ``described(...)``: default, range,
search range, unit, title, meaning and when it is in effect stand there and nowhere else; plans, controls, search
spaces, the JSON schema, error sentences and the documentation are derived from it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from workbench.config.conditions import ALWAYS, Condition, Declared
from workbench.config.errors import ConfigError, sentence_of, shown

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

if TYPE_CHECKING:  # pydantic gives its metaclass no public name; the checker needs one, the program does not
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMeta
else:
    _ModelMeta = type(BaseModel)


def one_of_numbers(*values: float) -> Any:
    """Return the annotation of a parameter that is one of some numbers; true, which equals 1, is none of them."""
    return Annotated[Literal[values], BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value)]


def described(default: Any, title: str, description: str | None = None, **more: Any) -> Any:
    """Declare one parameter, in the words of `ParameterInfo`; the text below it says what it and None mean.

    ``more`` is what `Declared` holds (``unit``, ``low``, ``when``, ...), and rules that pydantic checks (``ge``,
    ``gt``, ``le``, ``lt``); the legal range may exceed the search range.
    """
    about = Declared(**{name: more.pop(name) for name in Declared.__dataclass_fields__ if name in more})
    ends = {"low": about.low, "high": about.high, "step": about.step}
    ranges = {name: list(of_one) for name, of_one in about.by_name.items()}
    search: dict[str, Any] = {name: end for name, end in ends.items() if end is not None}
    search |= {name: value for name, value in {"log": about.log, "by_name": ranges}.items() if value}
    conditions = {"when": about.when, "needs": about.needs}
    words = {name: condition.words for name, condition in conditions.items() if condition is not ALWAYS}
    said: dict[str, Any] = {"search": search, "unit": about.unit, **words}
    extra = {name: value for name, value in said.items() if value}
    field: FieldInfo = Field(default, title=title, description=description, json_schema_extra=extra or None, **more)
    field.metadata.append(about)
    return field


class _SentenceMeta(_ModelMeta):
    """Raise ConfigError, not pydantic's report, when a person builds a section.

    pydantic builds nested sections without calling the class, so its own bookkeeping of paths stays whole; an
    overridden ``__init__`` would be called for nested sections, too, and lose the path.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            model = cast("type[Section]", self)
            raise ConfigError(sentence_of(error, model, model.section)) from None


class Section(BaseModel, metaclass=_SentenceMeta):
    """Base of all sections: frozen, strict, no unknown keys, finite numbers only."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=False,  # takes milliseconds per section; those that describe so ask for it
    )

    section: ClassVar[str] = ""  # its name in `BoostConfig`, which sets it

    def summary(self) -> str:
        """Return what its method does in a few words, for lists of what is in effect; empty for the method's title."""
        return ""

    @model_validator(mode="before")
    @classmethod
    def _fits_into_64_bits(cls, values: Any) -> Any:
        # Python's integers have no end, but tables, tensors and MindSpore's counters have.
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ValueError(f"`{cls.section}.{name}` must fit into 64 bits, got {shown(value)}")
        return values

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; unlike pydantic's own, an update is validated like new values.

        Args:
            update: Field -> new value.
            deep: Whether values that can change are copied, too.
        """
        copy = super().model_copy(deep=deep)
        return type(self)(**{**dict(copy), **update}) if update else copy


class MethodSection(Section):
    """A section that a method brings along, or the optimizer: it is off while every value is at its default."""

    needs: ClassVar[Condition] = ALWAYS  # for it to be in effect, once it is asked for

    @property
    def enabled(self) -> bool:
        """Whether anything is asked for."""
        return self != _default(type(self))

    def why_not(self, config: BoostConfig, facts: Facts) -> str:
        """Return why the method, asked for, is not in effect, to stand after "because"; empty where it is."""
        return self.needs.why_not(config, facts)

    def left_out(self, config: BoostConfig, facts: Facts) -> Mapping[str, str]:
        """Return which of its parameters have no effect although the method acts, and why: name -> reason."""
        return {}


@functools.cache
def _default(kind: type[MethodSection]) -> MethodSection:
    return kind()
