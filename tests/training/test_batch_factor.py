"""Batches concatenated and cut, whatever their form; what a run makes of them is in test_schedule.py."""

from __future__ import annotations

import pytest
import torch

from workbench.methods.batch.method import concatenated, parts_of


def test_batches_of_any_form_are_concatenated_and_cut() -> None:
    one = {"ids": torch.arange(6).reshape(3, 2), "inner": (torch.ones(3), "kept")}
    two = {"ids": torch.arange(4).reshape(2, 2), "inner": (torch.zeros(2), "kept")}
    both = concatenated([one, two])
    assert both["ids"].shape == (5, 2)
    assert both["inner"][1] == "kept"
    parts = list(parts_of(both, 2))
    assert torch.equal(torch.cat([part["ids"] for part in parts]), both["ids"])
    assert [len(part["inner"][0]) for part in parts] == [2, 3]


def test_batches_of_other_shapes_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2, 3\), \(2, 4\) cannot be concatenated; leave `batch.factor`"):
        concatenated([torch.zeros(2, 3), torch.zeros(2, 4)])
