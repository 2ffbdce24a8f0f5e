"""State dicts in files: every bit comes back, and a crash leaves a whole file."""

import json
import os
import struct

import numpy as np
import pytest
from backends import LIBRARIES, numpy_dtype, same_bits

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


@pytest.mark.parametrize("content", [b"", b"not a state", b"\x00" * 64])
def test_a_file_that_is_no_state_is_refused(tmp_path, content):
    path = tmp_path / "state"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a file of format 'refopt-state/1' is required"):
        refopt.load(path)


def test_a_file_of_another_format_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "a")
    with pytest.raises(ValueError, match="is required, got None"):
        refopt.load(tmp_path / "a")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        refopt.load(tmp_path / "a")


def test_a_value_that_cannot_be_stored_is_named_and_nothing_written(tmp_path):
    with pytest.raises(TypeError, match=r"state_dict: .* got <object"):
        refopt.save({"x": object()}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
