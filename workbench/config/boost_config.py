"""The whole configuration: MindSpore's sections and our own, as one frozen value.

A file written by ``save`` is loaded unchanged by MindSpore's AutoBoost, which ignores the sections it does not know,
and by this package, which refuses what it does not know.
"""

from __future__ import annotations

import copy
import html
import json
import math
import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from workbench.config.amp import AmpConfig
from workbench.config.boost import (
    BoostSwitches,
    CommonConfig,
    DimReduceConfig,
    GradAccumulationConfig,
    GradFreezeConfig,
    LessBNConfig,
)
from workbench.config.boost_json import read_json
from workbench.config.compatibility import PRESETS, RETIRED, CompatibilityConfig
from workbench.config.errors import ConfigError, did_you_mean, sections_of, sentence_of, shown
from workbench.config.loss_scale import LossScaleConfig
from workbench.config.optimizer import TASKS_OWN, OptimizerConfig
from workbench.config.section import Section
from workbench.config.snapshots import SnapshotConfig
from workbench.core.files import write_text_atomically
from workbench.methods.registry import METHODS

if TYPE_CHECKING:
    from workbench.config.facts import NetworkFacts
    from workbench.config.resolve import Plan

BOOST_SECTIONS = ("boost", "common", "less_bn", "grad_freeze", "grad_accumulation", "dim_reduce")
"""The sections MindSpore's AutoBoost reads."""

_SectionT = TypeVar("_SectionT", bound=Section)


class BoostConfig(Section):
    """A training configuration: frozen, strict, with every section present.

    Only ``optimizer`` (None: the task's own) and ``provenance`` may be None.

    Raises:
        ConfigError: When a key is unknown, a type is wrong or a value is out of range.

    Example:
        >>> config = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}})
        >>> config.with_values({"grad_freeze.freeze_p": 0.5})
        BoostConfig(boost.mode="manual", boost.grad_freeze=true, grad_freeze.freeze_p=0.5)
        >>> config.with_values({"grad_freeze.freeze_p": 1.2})
        Traceback (most recent call last):
            ...
        workbench.config.errors.ConfigError: `grad_freeze.freeze_p` must lie in [0, 1), got 1.2
    """

    # Order: the reference's, then ours; files are written in it.
    boost: BoostSwitches = BoostSwitches()
    common: CommonConfig = CommonConfig()
    less_bn: LessBNConfig = LessBNConfig()
    grad_freeze: GradFreezeConfig = GradFreezeConfig()
    grad_accumulation: GradAccumulationConfig = GradAccumulationConfig()
    dim_reduce: DimReduceConfig = DimReduceConfig()
    loss_scale: LossScaleConfig = LossScaleConfig()
    amp: AmpConfig = AmpConfig()
    optimizer: OptimizerConfig | None = None
    snapshots: SnapshotConfig = SnapshotConfig()
    compatibility: CompatibilityConfig = CompatibilityConfig()
    provenance: dict[str, Any] | None = Field(
        None,
        title="Provenance",
        description="Where an exported file comes from: versions, task, data, hardware, verdict.",
    )

    @field_validator("optimizer")
    @classmethod
    def _nothing_set_is_none(cls, value: OptimizerConfig | None) -> OptimizerConfig | None:
        # One meaning, one value: a section that sets nothing is the task's own optimizer.
        return None if value == OptimizerConfig() else value

    @field_validator("provenance")
    @classmethod
    def _plain_json(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        plain = _plain(value, "provenance")
        return plain or None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | str | None) -> Self:
        """Build a configuration from a dictionary of sections; what is missing keeps its default.

        Args:
            values: Sections by name, each a dictionary. None and ``""``, which is the default of MindSpore's
                ``boost_config_dict``, are the empty configuration.

        Raises:
            ConfigError: When a key is unknown, a type is wrong or a value is out of range.
        """
        if values is None or values == "":
            return cls()
        if not isinstance(values, Mapping):
            raise ConfigError(f"boost_config must be an object of sections, got {shown(values)}")
        try:
            return cls.model_validate(
                {name: dict(part) if isinstance(part, Mapping) else part for name, part in values.items()}
            )
        except ValidationError as error:
            raise ConfigError(sentence_of(error, cls)) from None

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read a configuration from a JSON file, written by ``save`` or by hand.

        Raises:
            ConfigError: When the file is missing, half-written, not UTF-8 or not strict JSON, or its content is
                refused; the sentence begins with the file's name.
        """
        file = Path(path)
        values = read_json(file)
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise ConfigError(f"{file.name}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return sections of plain values, in the reference's order; values that are None are left out."""
        sections = self.model_dump(mode="json", exclude_none=True)  # the real AutoBoost refuses null
        if self.provenance is not None:  # in which JSON's nulls stay, and texts that are no Unicode
            sections["provenance"] = copy.deepcopy(self.provenance)
        return sections

    def found_elsewhere(self, task: str) -> str:
        """Return a sentence where it was found on another task than the one of this name; empty where it was not."""
        searched = (self.provenance or {}).get("environment")
        found_on = searched.get("task") if isinstance(searched, Mapping) else None
        if found_on in (None, task):
            return ""
        return f"found on the task {found_on}: what it gains and costs on {task} was not measured"

    def to_boost_dict(self) -> dict[str, Any]:
        """Return only the sections MindSpore's AutoBoost reads, ready to be its ``boost_config_dict``."""
        sections = self.to_dict()
        return {name: sections[name] for name in BOOST_SECTIONS}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the configuration as JSON, atomically: a reader sees the old file or the new one. Returns the path."""
        file = Path(path)
        # ASCII, because MindSpore's users open the file in the encoding of their platform.
        write_text_atomically(file, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        return file

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of a file.

        Everything ``from_dict`` accepts is valid under it. Rules between two values cannot be expressed in it and are
        checked by ``from_dict`` only. Search ranges and units stand under the keywords ``search`` and ``unit``.
        """
        schema = cls.model_json_schema()
        for part in schema["$defs"].values():
            for member in part["properties"].values():  # texts below fields have several lines
                member["description"] = " ".join(member["description"].split())
        preset = {"type": "string", "enum": list(PRESETS), "description": "The reference's behaviour everywhere."}
        schema["$defs"]["OptimizerConfig"]["properties"]["name"]["anyOf"][0]["enum"].append(TASKS_OWN)
        schema["$defs"]["CompatibilityConfig"]["properties"][RETIRED] = {"deprecated": True}
        compatibility = schema["properties"]["compatibility"]
        compatibility["anyOf"] = [{"$ref": compatibility.pop("$ref", None)}, preset]
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "boost_config"}

    def leaves(self) -> dict[str, Any]:
        """Return every parameter by its path, in file order; unset ones are None, ``provenance`` is one leaf."""
        leaves: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name in _MODELS:
                leaves |= {f"{name}.{key}": value and getattr(value, key) for key in _MODELS[name].model_fields}
            else:
                leaves[name] = value
        return leaves

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """Return a changed copy, validated like a new configuration.

        Args:
            values: New values by path, for example ``{"grad_freeze.freeze_p": 0.5}``. A section's name replaces the
                whole section, before single values are set: ``{"compatibility": "mindspore-2.7"}``,
                ``{"optimizer": None}``.

        Raises:
            ConfigError: When a path is unknown (the nearest known one is named) or a value is refused.
        """
        fields = type(self).model_fields
        for path in values:
            if path not in _DEFAULTS and path not in fields:
                raise ConfigError(f"unknown parameter {shown(path)}{did_you_mean(str(path), [*_DEFAULTS, *fields])}")
        sections = {path: value for path, value in values.items() if path in fields}
        start = self.from_dict({**self.to_dict(), **sections}) if sections else self
        members: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            if path not in fields:
                section, _, key = path.partition(".")
                members.setdefault(section, {})[key] = value
        # Only what changes is validated again: a search makes thousands of configurations.
        changed: dict[str, Section | None] = {
            name: _MODELS[name](**(vars(getattr(start, name) or _MODELS[name]()) | new))
            for name, new in members.items()
        }
        if changed.get("optimizer") == OptimizerConfig():
            changed["optimizer"] = None
        return BaseModel.model_copy(start, update=changed) if changed else start

    def diff(self, other: BoostConfig) -> dict[str, tuple[Any, Any]]:
        """Return path -> (value here, value there) of the parameters in which two configurations differ."""
        there = other.leaves()
        return {path: (value, there[path]) for path, value in self.leaves().items() if value != there[path]}

    def resolve(self, level: str = "O0", world_size: int = 1, network: NetworkFacts | None = None) -> Plan:
        """Say what is in effect at a level on so many ranks, and why the rest is not; see ``workbench.config.resolve``.

        Args:
            level: ``"O0"``, ``"O1"`` or ``"O2"``.
            world_size: Number of ranks, at least 1.
            network: What the network offers; None where it is not known, and every method is taken to find work.

        Raises:
            ConfigError: When the level is unknown, or dim_reduce is asked for without a source for its subspace.
        """
        from workbench.config.resolve import resolve

        return resolve(self, level, world_size, network)

    def part(self, kind: type[_SectionT]) -> _SectionT:
        """Return the section of this class, which a method brings along."""
        return cast("_SectionT", getattr(self, kind.section))

    def effective_amp_level(self, device_type: str) -> str:
        """Return the amp level on a device of a type, such as ``"cpu"``: ``"O0"``, ``"O2"`` or ``"O3"``."""
        if self.amp.level == "auto":
            return {"cuda": "O2", "npu": "O3"}.get(device_type, "O0")
        return self.amp.level

    def effective_loss_scale_kind(self, device_type: str) -> str:
        """Return the kind of loss scale on a type of device: ``"none"``, ``"fixed"`` or ``"dynamic"``."""
        if self.loss_scale.kind is not None:
            return self.loss_scale.kind
        float16_autocast = self.effective_amp_level(device_type) == "O2" and self.amp.dtype == "float16"
        return "dynamic" if float16_autocast else "none"

    def effective_keep_batchnorm_fp32(self, device_type: str) -> bool:
        """Return whether BatchNorm stays in float32 on a type of device."""
        level = self.effective_amp_level(device_type)
        if level == "O0" or self.amp.keep_batchnorm_fp32 is None:
            return level != "O3"
        return self.amp.keep_batchnorm_fp32

    def __repr__(self) -> str:
        changes = (f"{path}={shown(value)}" for path, value in self.leaves().items() if value != _DEFAULTS[path])
        return f"BoostConfig({', '.join(changes)})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return a small table of all parameters, those that differ from the default in bold."""
        colour = "color:var(--jp-content-font-color1,inherit)"
        faint = "color:var(--jp-content-font-color2,#666)"
        line = "border-top:1px solid var(--jp-border-color2,#ddd)"
        rows = []
        for section, entries in groupby(self.leaves().items(), key=lambda entry: entry[0].partition(".")[0]):
            if getattr(self, section) is None:
                continue
            rows.append(f'<tr style="{line}"><th colspan="3" style="text-align:left">{html.escape(section)}</th></tr>')
            fields = _MODELS[section].model_fields if section in _MODELS else type(self).model_fields
            for path, value in entries:
                name = path.rpartition(".")[2]
                title, default = fields[name].title or name, _DEFAULTS[path]
                text = html.escape("unset" if value is None else shown(value))
                if value != default:
                    text = f"<b>{text}</b>"
                    title += f" · default {shown(default)}" if default is not None else ""
                rows.append(
                    f'<tr><td style="text-align:left"><code>{html.escape(path)}</code></td>'
                    f'<td style="text-align:left">{text}</td>'
                    f'<td style="text-align:left;{faint}">{html.escape(title)}</td></tr>'
                )
        return f'<table style="{colour};border-collapse:collapse">{"".join(rows)}</table>'


ConfigLike = BoostConfig | Mapping[str, Any] | str | Path | None
"""What names a configuration: one, its values, the path of a JSON file; None or an empty text for the defaults."""


def read_config(config: ConfigLike) -> BoostConfig:
    """Return a validated configuration from whatever names one.

    A ConfigError names the key that is not valid; anything of another kind is a TypeError.
    """
    if isinstance(config, BoostConfig):
        return config
    if config is None or config == "" or isinstance(config, Mapping):
        return BoostConfig.from_dict(config)
    if isinstance(config, str | Path):
        return BoostConfig.from_json(config)
    raise TypeError(f"`config` must be a BoostConfig, a dict or the path of a JSON file, got {type(config).__name__}")


# Sections that methods bring along. The registry and the descriptions in it are plain data, below the configuration;
# what acts imports the configuration.
for _method in METHODS:
    if (_model := _method.load_section()) is not None:
        BoostConfig.model_fields[_method.section] = FieldInfo.from_annotated_attribute(_model, _model())
        BoostConfig.model_rebuild(force=True)

_MODELS = cast("dict[str, type[Section]]", sections_of(BoostConfig))  # by section; ``provenance`` has none
for _name, _kind in _MODELS.items():
    _kind.section = _name
_DEFAULTS = BoostConfig().leaves()


def _plain(value: Any, path: str) -> Any:
    """Return a copy of plain JSON values without null members; ValueError names the first that is not plain."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"`{path}` must have texts as keys, got {shown(key)}")
        return {key: _plain(member, f"{path}.{key}") for key, member in value.items() if member is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(member, f"{path}[{position}]") for position, member in enumerate(value)]
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"`{path}` must be a plain JSON value (text, finite number, true, false, list, object), got {shown(value)}"
    )
