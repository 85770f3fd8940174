"""Which tensors the kernels can go through, and that asking for all at once says what asking one by one says."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from workbench.core import kernels
from workbench.core.kernels import tensors as asked
from workbench.core.kernels.library import kernel_library

pytestmark = pytest.mark.skipif(kernel_library() is None, reason="no C compiler on this machine (Debian: gcc)")


class Sharded(Tensor):
    """Stands for tensors whose memory is only a part of them."""


def without_memory() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.fixture(params=["at once", "one by one"])
def _however_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    way, other = ("_asked_at_once", "_asked_one_by_one")[:: 1 if request.param == "at once" else -1]
    if way == "_asked_one_by_one":
        monkeypatch.setattr(asked, "_torchs_functions", lambda _: None)
    monkeypatch.setattr(asked, other, lambda *_: pytest.fail(f"asked {other}"))


@pytest.fixture
def fresh() -> Iterator[None]:
    asked._torchs_functions.cache_clear()
    yield
    asked._torchs_functions.cache_clear()


@pytest.mark.usefixtures("_however_asked")
@pytest.mark.parametrize(
    ("tensors", "fit"),
    [
        ([], True),
        ([torch.ones(3), torch.ones(2, 2)], True),
        ([torch.ones(0)], True),
        ([torch.ones(9)[2:5]], True),
        ([torch.ones(3, dtype=torch.float64)], False),
        ([torch.ones(3), torch.ones(2, dtype=torch.float16)], False),
        ([torch.ones(2, 3).t()], False),
        ([torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)], False),
        ([torch.ones(3).to_sparse()], False),
        ([torch.ones(3), torch.ones(3, device="meta")], False),
        ([torch.ones(3).as_subclass(Sharded)], False),
        ([torch._neg_view(torch.ones(3))], False),
        ([torch.ones(3, dtype=torch.complex64)], False),
        ([without_memory()], False),
        ([nn.Parameter(torch.ones(3))], True),
    ],
    ids=[
        *("none", "plain", "empty", "part", "double", "mixed", "transposed", "channels-last", "sparse", "elsewhere"),
        *("sharded", "negated", "complex", "no-memory", "parameter"),
    ],
)
def test_only_what_the_kernels_can_go_through_is_listed(tensors: list[Tensor], fit: bool) -> None:
    found = kernels.listed(tensors)
    assert (found is not None) is fit
    if found is not None:
        assert list(found.addresses) == [tensor.data_ptr() for tensor in tensors]
        assert list(found.lengths) == [tensor.numel() for tensor in tensors]


@pytest.mark.usefixtures("_however_asked")
def test_other_dtypes_are_listed_where_they_are_asked_for() -> None:
    assert kernels.listed([torch.ones(3, dtype=torch.bfloat16)], torch.bfloat16) is not None
    assert kernels.listed([torch.ones(3)], torch.bfloat16) is None


@pytest.mark.usefixtures("_however_asked")
def test_a_tensor_that_was_given_other_memory_is_found_there() -> None:
    weight = nn.Parameter(torch.ones(3))
    before = kernels.listed([weight])
    weight.data = torch.zeros(5)
    after = kernels.listed([weight])
    assert after.addresses[0] == weight.data_ptr() != before.addresses[0]
    assert list(after.lengths) == [5]


def test_a_list_knows_whether_its_tensors_have_moved() -> None:
    weight = nn.Parameter(torch.ones(3))
    found = kernels.listed([torch.ones(2), weight])
    assert found.still_holds()
    weight.data = torch.zeros(3)
    assert not found.still_holds()


@pytest.mark.usefixtures("fresh")
def test_this_torch_answers_all_at_once() -> None:
    library = kernel_library()
    assert asked._torchs_functions(library) is not None, "slower, but no harm: tensors are asked one by one"


@pytest.mark.usefixtures("fresh")
def test_it_is_tried_out_on_real_tensors_wherever_others_are_made() -> None:
    library = kernel_library()
    with torch.device("meta"):
        assert asked._torchs_functions(library) is not None
    asked._torchs_functions.cache_clear()
    with FakeTensorMode():
        assert kernels.listed([torch.ones(3)]) is None
        assert kernels.listed([]) is not None
        assert asked._torchs_functions(library) is not None


@pytest.mark.usefixtures("fresh")
def test_a_torch_that_answers_otherwise_is_not_asked_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asked, "_FUNCTIONS", (*asked._FUNCTIONS[:5], "get_dim"))  # in place of the number of elements
    with caplog.at_level(logging.INFO, logger="workbench"):
        found = kernels.listed([torch.ones(3, 4)])
    assert "answers otherwise" in caplog.text
    assert list(found.lengths) == [12]


@pytest.mark.usefixtures("fresh")
def test_a_torch_without_the_interface_is_asked_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asked, "_FUNCTIONS", (*asked._FUNCTIONS[:5], "no_such_function"))
    with caplog.at_level(logging.INFO, logger="workbench"):
        assert kernels.listed([torch.ones(3, 4)]) is not None
    assert "asked one by one" in caplog.text
