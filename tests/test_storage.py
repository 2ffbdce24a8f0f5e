"""State dicts in files: every bit comes back, and a crash leaves a whole file."""

import json
import os
import pickle
import re
import struct

import numpy as np
import pytest
from backends import LIBRARIES, numpy_dtype, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as serialize

import refopt
from refopt.optim import storage

VALUES = np.array([[1.5, -0.0, np.inf], [np.nan, 1e-45, 3.0]])


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("layout", ["C", "F", "strided", "empty", "scalar"])
def test_every_dtype_and_layout_comes_back_bit_for_bit(tmp_path, dtype, layout):
    with np.errstate(all="ignore"):
        x = VALUES.astype(numpy_dtype(dtype))
    x = {
        "C": x,
        "F": np.asfortranarray(x),
        "strided": x[:, ::2],
        "empty": x[:0],
        "scalar": np.asarray(x[0, 0]),
    }[layout]
    refopt.save({"x": x}, tmp_path / "a")
    got = refopt.load(tmp_path / "a")["x"]
    assert type(got) is np.ndarray
    assert got.flags.writeable
    if x.size:
        assert got.tobytes() == x.tobytes()
    assert (got.dtype, got.shape) == (x.dtype, x.shape)


def test_the_tree_comes_back_with_its_types(tmp_path):
    tree = {
        "state": {0: {"a": 1, "b": None}, "name": [True, 2, 2.5], (1, "x"): ()},
        "param_groups": [{"betas": (0.9, 0.999), "inf": float("inf"), "params": [0, 1]}],
        "tiny": 5e-324,
        "third": 1 / 3,
        "empty": {},
        "text": 'naïve \N{GREEK SMALL LETTER GAMMA} "quoted"',
    }
    refopt.save(tree, tmp_path / "a")
    got = refopt.load(tmp_path / "a")
    assert got == tree
    assert type(got["param_groups"][0]["betas"]) is tuple
    assert type(got["state"]["name"][0]) is bool
    assert type(got["state"][0]["a"]) is int
    assert np.isnan(roundtrip(tmp_path, {"x": float("nan")})["x"])
    assert roundtrip(tmp_path, {"lr": np.float64(1 / 3)})["lr"] == 1 / 3


def roundtrip(folder, tree):
    refopt.save(tree, folder / "r")
    return refopt.load(folder / "r")


@pytest.mark.parametrize("row", [row for row in LIBRARIES if row.id != "jax-jit"])
def test_a_run_goes_on_bit_for_bit_from_a_file(tmp_path, row):
    library = row()
    with library.session():
        for dtype in library.dtypes[:: 3 if library.slow else 1]:
            whole, parts = (refopt.Parameter(library.array(np.ones((2, 3)), dtype)) for _ in "ab")
            gradients = np.random.default_rng(1).normal(size=(4, 2, 3))
            optimizer = refopt.NAdam([whole], lr=0.1)
            for i, grad in enumerate(gradients):
                whole.grad = library.array(grad, dtype)
                optimizer.step()
                if i == 1:
                    refopt.save(optimizer.state_dict(), tmp_path / "state")
                    parts.data = library.like(library.get(whole.data), whole.data)
            other = refopt.NAdam([parts])
            other.load_state_dict(refopt.load(tmp_path / "state"))
            for grad in gradients[2:]:
                parts.grad = library.array(grad, dtype)
                other.step()
            assert same_bits(library.get(parts.data), library.get(whole.data))


def test_a_file_is_safetensors_with_the_tree_as_json(tmp_path):
    refopt.save({"x": np.ones(2, "f4")}, tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    assert header["0"]["dtype"] == "F32"
    assert header["__metadata__"]["format"] == "refopt-state/1"
    assert json.loads(header["__metadata__"]["tree"]) == {
        "dict": [["x", {"array": ["0", "float32", [2]]}]]
    }


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_crash_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, broken):
    path = tmp_path / "state"
    refopt.save({"x": np.ones(2)}, path)
    before = path.read_bytes()

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os if broken == "fsync" else storage.Path, broken, crash)
    with pytest.raises(KeyboardInterrupt):
        refopt.save({"x": np.zeros(2)}, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]  # noqa: PTH208


def test_the_content_reaches_the_disk_before_the_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, storage.Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(storage.Path, "replace", lambda a, b: (calls.append("name"), replace(a, b)))
    refopt.save({}, tmp_path / "state")
    assert calls[:2] == ["fsync", "name"]


def refused(path, content, fault=""):
    """A file of this content is refused, by its name and the fault."""
    path.write_bytes(content)
    named = re.escape(f"path: a file of format 'refopt-state/1' is required, got '{path}': ")
    with pytest.raises(ValueError, match=named + f".*{fault}"):
        refopt.load(path)


@pytest.mark.parametrize("content", [b"", b"not a state", b"\x00" * 64])
def test_a_file_that_is_no_state_is_refused(tmp_path, content):
    refused(tmp_path / "state", content, "SafetensorError")


def content_of(tree, arrays=None):
    """A file with this tree, right in everything else."""
    arrays = {} if arrays is None else arrays
    crc = storage._crc(tree, arrays)
    return serialize(arrays, {"format": storage.FORMAT, "tree": tree, "crc32": crc})


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        ("{", "JSONDecodeError"),
        ("[1]", "tree: <class 'dict'> is required, got <class 'list'>"),
        ('{"dict": [], "tuple": []}', "too many values"),
        ('{"set": []}', "kind: 'dict' is required, got 'set'"),
        ('{"tuple": "ab"}', "tuple: <class 'list'> is required, got <class 'str'>"),
        ('{"dict": [["x"]]}', "not enough values"),
        ('{"dict": [[["x"], 1]]}', "unhashable"),
        ('{"dict": [["x", {"array": ["9", "float32", [2]]}]]}', "KeyError: '9'"),
        ('{"dict": [["x", {"array": ["0", "float99", [2]]}]]}', "float99"),
        ('{"dict": [["x", {"array": ["0", "float32", [3]]}]]}', "reshape"),
        ('{"dict": [["x", {"array": ["0", "float32", [-1]]}]]}', "shape of array 0"),
        ('{"dict": [["x", {"array": [[], "float32", [2]]}]]}', "unhashable"),
        ('{"dict": [["x", ' + "[" * 10**5 + "]" * 10**5 + "]]}", "RecursionError"),
        ('{"tuple": [' * 10**5 + "]}" * 10**5, "RecursionError"),
    ],
)
def test_a_tree_of_another_structure_is_refused_by_its_fault(tmp_path, tree, fault):
    refused(tmp_path / "state", content_of(tree, {"0": np.ones(2, "f4")}), fault)


def test_a_file_without_one_of_its_entries_is_refused(tmp_path):
    whole = {"format": storage.FORMAT, "tree": '{"dict": []}', "crc32": "0"}
    for key in whole:
        metadata = {k: v for k, v in whole.items() if k != key}
        refused(tmp_path / "state", serialize({}, metadata), key)
    refused(tmp_path / "state", serialize({}, whole), "crc32: '[0-9a-f]{8}' is required, got '0'")


TREE = {"state": {0: {"step": np.array(2.0), "exp_avg": np.ones(5, "f4")}}, "betas": (0.9, 0.999)}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_refused_by_name_and_never_read_as_something_else(tmp_path, data):
    path = tmp_path / "state"
    refopt.save(TREE, path)
    whole = path.read_bytes()
    place = st.integers(0, len(whole) - 1)
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(place)]
    else:
        flips = data.draw(st.dictionaries(place, st.integers(1, 255), min_size=1, max_size=3))
        damaged = bytes(x ^ flips.get(i, 0) for i, x in enumerate(whole))
    try:
        refused(path, damaged)
    except pytest.fail.Exception:  # read: only white space of JSON was changed
        assert pickle.dumps(refopt.load(path)) == pickle.dumps(TREE)


def test_every_flipped_bit_of_an_array_is_noticed(tmp_path):
    path = tmp_path / "state"
    refopt.save(TREE, path)
    whole = bytearray(path.read_bytes())
    for i in range(len(whole) - 4 * 5, len(whole)):
        whole[i] ^= 1
        refused(path, bytes(whole), "crc32")
        whole[i] ^= 1
    path.write_bytes(whole)
    assert refopt.load(path).keys() == TREE.keys()


def test_a_file_of_another_format_is_refused(tmp_path):
    refused(tmp_path / "a", serialize({"x": np.ones(2)}), "format: .* is required, got None")
    other = serialize({}, {"format": "refopt-state/2"})
    refused(tmp_path / "a", other, "format: .* is required, got 'refopt-state/2'")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        refopt.load(tmp_path / "a")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        np.longdouble(0.1),
        np.array([1.0], np.longdouble),
        np.array(["text"]),
        np.array([object()]),
        np.array([(1, 2.0)], "i4,f8"),
        np.array(["2020-01-01"], "M8[D]"),
        np.datetime64("2020-01-01"),
        np.ma.masked_array([1.0], [True]),
        b"bytes",
        1j,
        {1, 2},
        {(1, (np.float64, 2)): 0},
    ],
)
def test_a_value_that_cannot_be_stored_is_named_and_nothing_written(tmp_path, value):
    with pytest.raises(TypeError, match=r"state_dict: arrays of numbers, .* are required, got "):
        refopt.save({"x": [value]}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_an_array_as_a_key_could_not_be_loaded_and_is_refused(tmp_path):
    import torch

    for key in (torch.ones(2), (1, torch.ones(2))):
        with pytest.raises(TypeError, match="got an array of float32 as key"):
            refopt.save({"x": {key: 1}}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tree", [None, 3, [1], (), np.ones(2), "text"])
def test_what_is_no_dict_is_refused_and_nothing_written(tmp_path, tree):
    with pytest.raises(TypeError, match="state_dict: a dict is required, got"):
        refopt.save(tree, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8", "c16"])
@pytest.mark.parametrize("order", "<>")
def test_either_order_of_bytes_comes_back_with_its_values(tmp_path, dtype, order):
    x = np.arange(6.0).reshape(2, 3).astype(order + dtype)
    got = roundtrip(tmp_path, {"x": x, "lr": np.array(0.1, x.dtype)})
    assert np.array_equal(got["x"], x)
    assert got["lr"] == np.array(0.1, x.dtype)


@pytest.mark.parametrize("dtype", sorted(storage.DTYPES))
def test_every_dtype_that_is_accepted_comes_back(tmp_path, dtype):
    x = np.array([0, 1, 1], numpy_dtype(dtype))
    got = roundtrip(tmp_path, {"x": x})["x"]
    assert (got.dtype, got.tobytes()) == (x.dtype, x.tobytes())


def test_a_symlink_stays_one_and_a_file_keeps_its_mode(tmp_path):
    (tmp_path / "sub").mkdir()
    real, link = tmp_path / "sub" / "state", tmp_path / "link"
    refopt.save({"x": 1}, real)
    real.chmod(0o600)
    link.symlink_to(real)
    refopt.save({"x": 2}, link)
    assert link.is_symlink()
    assert refopt.load(real) == {"x": 2}
    assert real.stat().st_mode & 0o777 == 0o600
    assert len(os.listdir(tmp_path / "sub")) == 1  # noqa: PTH208
