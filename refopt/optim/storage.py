"""State dicts in files: lossless, without pickle, and whole or not there at all.

A file is safetensors: arrays by number, and in its metadata the JSON tree that they hang in and
the CRC-32 of the tree and of the arrays' bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from refopt.interp.host import is_array, numpy_dtype, to_numpy
from refopt.optim.parameter import kind

FORMAT = "refopt-state/1"
# Dtypes that safetensors lacks or cannot read back, and what holds their bits.
BITS = {"bfloat16": "uint16", "complex64": "float32", "complex128": "float64"}
DTYPES = {"bool", "float16", "float32", "float64", *BITS} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def save(state_dict: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state dict to `path`; a crash leaves the old file or the new one.

    Arrays of any library are stored bit for bit, 16-bit and complex ones too, but not the library
    itself: `load` returns NumPy arrays, and `load_state_dict` moves them beside its parameters.
    A symlink stays one, and a file keeps its mode.

    Raises
    ------
    TypeError
        Not a dict; a value in it that is no array of numbers, number, string, bool, None, dict,
        list or tuple; an array in a key.
    OSError
        `path` cannot be written.

    """
    from safetensors.numpy import save as serialize

    if not isinstance(state_dict, dict):
        msg = f"state_dict: a dict is required, got {kind(state_dict)}"
        raise TypeError(msg)
    arrays: dict[str, Any] = {}
    tree = json.dumps(_packed(state_dict, arrays))
    content = serialize(arrays, {"format": FORMAT, "tree": tree, "crc32": _crc(tree, arrays)})
    path = Path(path).resolve()
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        with aside.open("xb") as file:
            if path.exists():
                shutil.copymode(path, aside)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a state dict that `save` wrote.

    Returns
    -------
    The state dict, its arrays those of NumPy; bfloat16 takes ml_dtypes.

    Raises
    ------
    ValueError
        The file is no state dict of this format, or damaged; the message names it and the fault.
    OSError
        `path` cannot be read.

    """
    from safetensors import safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        _equal("format", metadata.get("format"), FORMAT)
        _equal("crc32", metadata["crc32"], _crc(metadata["tree"], arrays))
        result = _unpacked(json.loads(metadata["tree"]), arrays)
        _equal("tree", type(result), dict)
    except (OSError, ImportError):
        raise
    except Exception as error:  # a damaged file may break any part of its reading
        fault = f"{type(error).__name__}: {error}"
        msg = f"path: a file of format {FORMAT!r} is required, got {os.fspath(path)!r}: {fault}"
        raise ValueError(msg) from error
    tree: dict[str, Any] = result
    return tree


def _crc(tree: str, arrays: dict[str, Any]) -> str:
    crc = zlib.crc32(tree.encode())
    for _, x in sorted(arrays.items()):
        crc = zlib.crc32(x.tobytes(), crc)
    return f"{crc:08x}"


def _equal(what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        msg = f"{what}: {wanted!r} is required, got {got!r}"
        raise ValueError(msg)


def _packed(value: Any, arrays: dict[str, Any] | None) -> Any:
    """`value` as JSON: every array, dict and tuple becomes an object with one key.

    The arrays go to `arrays`; where that is None there may be none.
    """
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return _packed(value.item(), arrays)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": [[_packed(k, None), _packed(v, arrays)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(item, arrays) for item in value]}
    if isinstance(value, list):
        return [_packed(item, arrays) for item in value]
    x = to_numpy(value) if is_array(value) else None
    if x is None or arrays is None or x.dtype.name not in DTYPES:
        got = repr(value) if x is None else f"an array of {x.dtype}{' as key' * (arrays is None)}"
        msg = f"state_dict: arrays of numbers, numbers, text and containers are required, got {got}"
        raise TypeError(msg)
    x = np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True)
    name = str(len(arrays))
    dtype = x.dtype.name
    arrays[name] = x.reshape(-1).view(BITS[dtype]) if dtype in BITS else x
    return {"array": [name, dtype, list(x.shape)]}


def _unpacked(node: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_unpacked(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    _equal(kind, type(content), list)
    if kind == "array":
        name, dtype, shape = content
        x = arrays[name].view(numpy_dtype(dtype)).reshape(shape)
        _equal(f"shape of array {name}", shape, list(x.shape))
        return x
    if kind == "tuple":
        return tuple(_unpacked(item, arrays) for item in content)
    _equal("kind", kind, "dict")
    return {_unpacked(k, arrays): _unpacked(v, arrays) for k, v in content}
