"""The column documentation agrees with the records it documents."""

from __future__ import annotations

from dataclasses import fields

import pytest

from workbench.core.records import Event, StepRecord
from workbench.runs import COLUMNS, EVENT_COLUMNS, METHOD_COLUMNS, column_info
from workbench.runs.schema import is_method_column


def test_every_field_of_a_record_is_documented_in_its_order() -> None:
    assert list(COLUMNS) == [field.name for field in fields(StepRecord) if field.name != "columns"]
    assert list(EVENT_COLUMNS) == [field.name for field in fields(Event)]


def test_every_measured_column_has_a_unit_and_a_sentence() -> None:
    for name, info in {**COLUMNS, **METHOD_COLUMNS}.items():
        assert info.description.endswith("."), name
        assert (info.unit == "") == (info.kind in {"bool", "str"}), name


def test_method_columns_are_found_by_name_and_by_prefix() -> None:
    assert column_info("loss").unit == "1"
    assert column_info("time.backward").unit == "ms"
    assert column_info("dim_reduce.rho") is METHOD_COLUMNS["dim_reduce.rho"]
    assert column_info("adasum.angle").description == "Recorded by adasum; NaN on steps without it."
    with pytest.raises(KeyError, match="unknown step column 'rho'"):
        column_info("rho")


@pytest.mark.parametrize(
    ("name", "valid"), [("a.b", True), ("a.b.c", True), ("a", False), (".b", False), ("a.", False)]
)
def test_a_method_column_has_parts_joined_by_dots(name: str, valid: bool) -> None:
    assert is_method_column(name) is valid
