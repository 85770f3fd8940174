"""Small functions of the methods, each on numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from workbench.loss_scale import ExponentTable
from workbench.methods.accumulation_window import AccumulationWindow
from workbench.methods.adasum.method import adasum_pair, adasum_sets_, adasum_tree
from workbench.methods.curriculum.method import size_at, stage_of
from workbench.methods.dim_reduce.method import component_rows
from workbench.methods.dim_reduce.pca import principal_components
from workbench.methods.dim_reduce.pca_files import load_pca_matrix, save_pca_matrix
from workbench.methods.loss_scale_group.method import arising_overflow
from workbench.methods.loss_scale_group.scale_groups import ScaleGroup, find_scale_groups, significand_loss
from workbench.methods.parameter_groups import plain_name, split_into_chunks
from workbench.methods.regularization.method import decay_at, why_no_smoothing
from workbench.methods.schedule.method import factor_at, stretched


def test_a_window_of_three_is_complete_with_the_third_micro_batch() -> None:
    window = AccumulationWindow(3)
    assert [window.advance() for _ in range(4)] == [False, False, True, False]


def test_orthogonal_vectors_are_added_and_parallel_ones_averaged() -> None:
    assert adasum_pair(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0])).tolist() == [2.0, 3.0]
    assert adasum_pair(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 0.0])).tolist() == [3.0, 0.0]


def test_servers_are_combined_in_pairs_and_pairs_of_pairs() -> None:
    assert adasum_tree([torch.tensor([v]) for v in (1.0, 2.0, 3.0, 6.0)]).tolist() == [3.0]


def test_orthogonal_updates_are_added_in_place_of_the_first() -> None:
    ours, theirs = [torch.tensor([2.0, 0.0])], [torch.tensor([0.0, 3.0])]
    adasum_sets_(ours, theirs)
    torch.testing.assert_close(ours[0], torch.tensor([2.0, 3.0]))


def test_an_overflow_arises_where_what_came_in_was_finite() -> None:
    received, left, nonfinite = (torch.tensor(flags) for flags in ([1.0, 1, 0], [1.0, 1, 1], [1.0, 1, 0]))
    assert arising_overflow(received, left, nonfinite).tolist() == [False, False, True]


def test_components_are_dealt_out_in_shares_that_differ_by_one() -> None:
    assert [component_rows(6, rank, 4) for rank in range(4)] == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]


def test_the_first_component_is_where_the_snapshots_differ() -> None:
    found = principal_components(np.array([[1.0, 0, 2], [1, 3, 2], [1, -3, 2]]), 1)
    np.testing.assert_allclose(np.abs(found.components), [[0.0, 1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(found.explained_variance_ratio, [1.0])


def test_a_rank_reads_its_rows_of_the_first_components(tmp_path: Path) -> None:
    path = save_pca_matrix(tmp_path / "pca.npy", np.eye(3, 5))
    assert load_pca_matrix(path, n_components=2, n_weights=5, rows=slice(1, 2)).tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]


def test_stages_share_the_passes_before_full_size() -> None:
    assert [stage_of(index, 10, 0.6, 2) for index in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_a_rate_rises_and_falls_to_its_end() -> None:
    factors = [factor_at(update, 5, "linear", warmup=0.2) for update in range(5)]
    assert factors == pytest.approx([1.0, 1.0, 2 / 3, 1 / 3, 0.0])


def test_a_recorded_course_is_run_through_in_fewer_updates() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = stretched(optimizer, 3, [(1.0,), (0.75,), (0.5,), (0.25,), (0.0,)])
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(2):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [2.0, 1.0, 0.0]


def test_the_decay_of_an_average_rises_to_its_limit() -> None:
    assert [round(decay_at(t, 0.5), 2) for t in (0, 1, 5, 8, 100)] == [0.1, 0.18, 0.4, 0.5, 0.5]


def test_a_criterion_without_label_smoothing_says_so() -> None:
    assert why_no_smoothing(nn.CrossEntropyLoss()) == ""
    assert why_no_smoothing(nn.MSELoss()) == "MSELoss has no label smoothing"


def test_float16_loses_bits_below_its_smallest_normal_number() -> None:
    np.testing.assert_allclose(significand_loss([0, -14, -24, -30]), [0.0, 0.0, 10 / 11, 1.0])


def test_parts_of_like_gradients_share_a_scale() -> None:
    table = ExponentTable(lowest=-40, counts=np.eye(41)[[40, 38, 0]])  # gradients of 1, 2**-2 and 2**-40
    assert find_scale_groups(table, 2) == (ScaleGroup((0, 1), 2048.0), ScaleGroup((2,), 2.0**51))


def test_a_size_is_one_that_networks_are_likely_to_take() -> None:
    given = [(32, 0.5), (224, 0.6), (28, 0.5), (127, 0.5), (32, 1.0)]
    assert [size_at(full, share) for full, share in given] == [16, 128, 16, 64, 32]


def test_a_name_is_plain_without_the_prefixes_of_wrappers() -> None:
    assert plain_name("module._orig_mod.layer1.0.conv1.weight") == "layer1.0.conv1.weight"


def test_a_convolution_and_its_norm_are_one_chunk() -> None:
    names = ["c1.weight", "bn1.weight", "bn1.bias", "c2.weight"]
    assert split_into_chunks(names) == [names[:3], names[3:]]
