"""PCA matrices and weight snapshots from anywhere: what numpy and safetensors write, or one sentence."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save

from tests.reliability.guarded import FUZZ, result_or_sentence
from tests.reliability.mutations import json_texts, mutated, odd_values
from workbench.methods.dim_reduce.pca_files import load_explained_variance, load_pca_matrix, load_snapshots

MATRIX = np.arange(10, dtype=np.float32).reshape(2, 5)
SHAPES = {"a": (2, 2), "b": (1,)}


def npy(array: np.ndarray, version: tuple[int, int] | None = None, *, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=pickled)
    return file.getvalue()


def npy_of(header: str) -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 40


def safetensors_of(header: str, data: bytes = b"\0" * 40) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, pca=MATRIX)
    return file.getvalue()


NPY = [
    npy(MATRIX),
    npy(MATRIX.astype(np.float64), (2, 0)),
    npy(np.asfortranarray(MATRIX.astype(np.float16)), (3, 0)),
    npy(np.array([{}, None], dtype=object), pickled=True),
    archive(),
]
SAFETENSORS = [
    save({"pca_mat": MATRIX, "explained_variance_ratio": np.array([0.5, 0.2])}),
    save({"pca_mat": MATRIX.astype(np.float16)}),
]
SNAPSHOT = save({"a": MATRIX[:, :2].copy(), "b": MATRIX[0, :1].copy(), "other": np.arange(3)})
HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0), }",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 5L), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': '<f0', 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': '|V1000000000000', 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': " + "(" * 3000 + ")" * 3000 + ", 'fortran_order': False, 'shape': (2, 5), }",
    "{'descr': '''<f4",
    "{'descr': (((",
    "{[]: 1}",
    "",
]
SAFE_HEADERS = [
    '{"pca_mat": {"dtype": "F32", "shape": [1000000000000, 5], "data_offsets": [0, 20000000000000]}}',
    '{"pca_mat": {"dtype": "F32", "shape": [2, 5], "data_offsets": [0, 18446744073709551615]}}',
    '{"pca_mat": {"dtype": "BF16", "shape": [2, 10], "data_offsets": [0, 40]}}',
    '{"pca_mat": {"dtype": "F8_E5M2", "shape": [2, 20], "data_offsets": [0, 40]}}',
    '{"pca_mat": {"dtype": "F4", "shape": [2, 40], "data_offsets": [0, 40]}}',
    '{"pca_mat": {"dtype": "I64", "shape": [1, 5], "data_offsets": [0, 40]}}',
    '{"pca_mat": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}',
    '{"pca_mat": {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}}',
    '{"pca_mat": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}',
    '{"__metadata__": {"a": 1}}',
    '{"__metadata__": {"a": "\ud800"}}',
    "[" * 100_000,
    "{}",
]


def read_matrix(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for arguments in ({}, {"n_components": 1, "n_weights": 5}, {"rows": slice(1, 2)}):
        matrix = result_or_sentence(lambda arguments=arguments: load_pca_matrix(path, **arguments), ValueError)
        if isinstance(matrix, np.ndarray):
            assert matrix.ndim == 2
            assert np.isfinite(matrix).all()
    result_or_sentence(lambda: load_explained_variance(path))


@FUZZ
@given(content=mutated(NPY))
def test_a_damaged_npy_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    read_matrix(tmp_path / "pca.npy", content)


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_header_of_npy_is_not_believed(header: str, tmp_path: Path) -> None:
    read_matrix(tmp_path / "pca.npy", npy_of(header))


@FUZZ
@given(
    shape=odd_values | st.tuples(odd_values, odd_values),
    kind=odd_values | st.sampled_from(["<f4", ">f2", "<f16", "<c8", "<M8[s]", "<U9", "|S0", "|b1"]),
)
def test_a_header_of_npy_with_odd_values_is_read_or_refused(shape: object, kind: object, tmp_path: Path) -> None:
    header = repr({"descr": kind, "fortran_order": False, "shape": shape})
    if len(header) < 60_000:
        read_matrix(tmp_path / "pca.npy", npy_of(header.encode("latin-1", "replace").decode("latin-1")))


@FUZZ
@given(content=mutated(SAFETENSORS))
@example(content=struct.pack("<Q", 2**63) + b"{}")
@example(content=struct.pack("<Q", 10**8) + b"{}")
def test_a_damaged_safetensors_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    read_matrix(tmp_path / "pca.safetensors", content)


@pytest.mark.parametrize("header", SAFE_HEADERS, ids=range(len(SAFE_HEADERS)))
def test_a_header_of_safetensors_is_not_believed(header: str, tmp_path: Path) -> None:
    read_matrix(tmp_path / "pca.safetensors", safetensors_of(header))


@FUZZ
@given(content=mutated(SNAPSHOT))
def test_damaged_snapshots_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.safetensors").write_bytes(content)
    matrix = result_or_sentence(lambda: load_snapshots(tmp_path, SHAPES), ValueError)
    if isinstance(matrix, np.ndarray):
        assert matrix.shape == (1, 5)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "U64"])
def test_snapshots_of_any_type_are_read_or_refused(dtype: str, tmp_path: Path) -> None:
    width = {"BF16": 2, "F16": 2, "F64": 8, "I32": 4, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "C64": 8, "U64": 8}[dtype]
    header = {
        "a": {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, 4 * width]},
        "b": {"dtype": dtype, "shape": [1], "data_offsets": [4 * width, 5 * width]},
    }
    (tmp_path / "s.safetensors").write_bytes(safetensors_of(json.dumps(header), b"\0" * 5 * width))
    result_or_sentence(lambda: load_snapshots(tmp_path, SHAPES), ValueError)


@FUZZ
@given(
    text=json_texts({"explained_variance_ratio": [0.75, 0.2]}) | mutated(b'{"explained_variance_ratio": [0.75, 0.2]}')
)
def test_shares_beside_a_matrix_are_read_or_left_out(text: str | bytes, tmp_path: Path) -> None:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    (tmp_path / "pca.json").write_bytes(content)
    shares = result_or_sentence(lambda: load_explained_variance(tmp_path / "pca.npy"))
    assert shares is None or (shares.ndim == 1 and np.isfinite(shares).all())


@pytest.mark.parametrize("name", ["pca.npy", "pca.safetensors"])
def test_a_folder_or_a_link_in_the_place_of_a_matrix_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for path in (tmp_path / name, tmp_path / f"link-{name}"):
        told = result_or_sentence(lambda path=path: load_pca_matrix(path), ValueError, FileNotFoundError)
        assert isinstance(told, str)
