"""Record what released optimizers produce: the only writer of `conformance/golden/`.

For each implementation of the table below: make its pinned environment (environments.toml), run
its adapter there on its cases, and write one canonical file of format `refopt-golden/1`.

Protocol of an adapter (JSON Lines; standard library and one framework; never imports refopt):
  stdin   one case a line: a case of the file without "runs". "record" lists the steps to report
          (absent: all), "profiles" those to run (absent: all that the adapter has); "hyper"
          values are decimals, {"dtype", "bits", "shape"} for a tensor, or for a learning rate
          {"schedule", "config"}; a gradient is bits, null, or {"values", "indices"} by rows.
  stdout  first {"hello": {"framework", "version", "python", "platform", "cpu", "packages",
          "patched", "profiles"}}, then for each case {"id", "runs": {profile: run}} or
          {"id", "skipped": reason}. A run is {"dtypes", "steps"}, with "finalized" where the case
          asks to "finalize", or {"error": {"type", "message"}}. What only the framework's own
          network can compute is "inputs" of the run, and becomes part of the case.
  stderr  logs.

Arrays of more than LARGE elements of a case with "layers" lie in a safetensors beside its file.
"""

import argparse
import array
import contextlib
import dataclasses
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SAME, DIFFERS, USAGE, BROKEN = 0, 1, 2, 3
LARGE, BESIDE = 64, ".safetensors"
FACTORED = ("dense", "conv2d", "embedding", "embedding_lookup")
CODES = {"float16": ("F16", "H"), "float32": ("F32", "I"), "int32": ("I32", "I")}


@dataclasses.dataclass(frozen=True)
class Implementation:
    """One row of the table: what runs, where, on which cases, into which file."""

    adapter: str  # file in adapters/
    environment: str  # table in environments.toml
    golden: str  # file in golden/
    cases: str  # "module:function" in this folder; the function returns the list of cases
    argument: str = ""  # of the adapter, where it runs more than one release


IMPLEMENTATIONS = {
    "torch-2.13": Implementation(
        "torch_nadam.py", "torch-2_13", "nadam/torch-2.13.json", "cases_nadam:torch"
    ),
    "keras-legacy-2.9": Implementation(
        "keras_legacy_nadam.py",
        "keras-2_9",
        "nadam/keras-legacy-2.9.json",
        "cases_nadam_others:keras_legacy",
    ),
    "keras-2.15": Implementation(
        "keras2_nadam.py", "keras-2_15", "nadam/keras-2.15.json", "cases_nadam_others:keras2"
    ),
    "keras-3": Implementation(
        "keras3_nadam.py", "keras-3_15", "nadam/keras-3.json", "cases_nadam_others:keras3"
    ),
    "keras-3-tensorflow": Implementation(
        "keras3_nadam.py",
        "keras-3_15-tensorflow",
        "nadam/keras-3-tensorflow.json",
        "cases_nadam_others:keras3_tensorflow",
        "tensorflow",
    ),
    "keras-3-torch": Implementation(
        "keras3_nadam.py",
        "keras-3_15-torch",
        "nadam/keras-3-torch.json",
        "cases_nadam_others:keras3_torch",
        "torch",
    ),
    "optax-0.2": Implementation(
        "optax_nadam.py", "optax-0_2", "nadam/optax-0.2.json", "cases_nadam_others:optax"
    ),
    "timm-nadamw": Implementation(
        "timm_nadam.py", "timm-1_0", "nadam/timm-nadamw.json", "cases_nadam_others:timm"
    ),
    "paddle-3.3": Implementation(
        "paddle_nadam.py", "paddle-3_3", "nadam/paddle-3.3.json", "cases_nadam_others:paddle"
    ),
    "mindspore-2.10": Implementation(
        "mindspore_nadam.py",
        "mindspore-2_10",
        "nadam/mindspore-2.10.json",
        "cases_nadam_others:mindspore",
    ),
    "rmsprop:tf-2.9": Implementation(
        "tf29_rmsprop.py", "keras-2_9", "rmsprop/tf-2.9.json", "cases_rmsprop:tensorflow"
    ),
    "rmsprop:keras-legacy-2.9": Implementation(
        "tf29_rmsprop.py",
        "keras-2_9",
        "rmsprop/keras-legacy-2.9.json",
        "cases_rmsprop:keras_legacy",
    ),
    "rmsprop:tf1": Implementation(
        "tf29_rmsprop.py", "keras-2_9", "rmsprop/tf1.json", "cases_rmsprop:tf1"
    ),
    "rmsprop:torch-2.13": Implementation(
        "torch_rmsprop.py",
        "torch-2_13",
        "rmsprop/torch-2.13.json",
        "cases_rmsprop_others:torch",
    ),
    "rmsprop:timm-rmsprop-tf": Implementation(
        "timm_rmsprop.py",
        "timm-1_0",
        "rmsprop/timm-rmsprop-tf.json",
        "cases_rmsprop_others:timm",
    ),
    "rmsprop:keras-2.15": Implementation(
        "keras2_rmsprop.py",
        "keras-2_15",
        "rmsprop/keras-2.15.json",
        "cases_rmsprop_others:keras2",
    ),
    "rmsprop:keras-3": Implementation(
        "keras3_rmsprop.py",
        "keras-3_15",
        "rmsprop/keras-3.json",
        "cases_rmsprop_others:keras3",
    ),
    "rmsprop:keras-3-tensorflow": Implementation(
        "keras3_sparse.py",
        "keras-3_15-tensorflow",
        "rmsprop/keras-3-tensorflow.json",
        "cases_rmsprop_others:keras3_tensorflow",
    ),
    "rmsprop:keras-3-torch": Implementation(
        "keras3_rmsprop.py",
        "keras-3_15-torch",
        "rmsprop/keras-3-torch.json",
        "cases_rmsprop_others:keras3_torch",
        "torch",
    ),
    "rmsprop:optax-0.2": Implementation(
        "optax_rmsprop.py",
        "optax-0_2",
        "rmsprop/optax-0.2.json",
        "cases_rmsprop_others:optax",
    ),
    "rmsprop:paddle-3.3": Implementation(
        "paddle_rmsprop.py",
        "paddle-3_3",
        "rmsprop/paddle-3.3.json",
        "cases_rmsprop_others:paddle",
    ),
    "rmsprop:mindspore-2.10": Implementation(
        "mindspore_rmsprop.py",
        "mindspore-2_10",
        "rmsprop/mindspore-2.10.json",
        "cases_rmsprop_others:mindspore",
    ),
    "rmsprop:chainer-7": Implementation(
        "chainer_rmsprop.py",
        "chainer-7_8",
        "rmsprop/chainer-7.json",
        "cases_rmsprop_others:chainer",
    ),
    "rmsprop:mlx-0.32": Implementation(
        "mlx_rmsprop.py",
        "mlx-0_32",
        "rmsprop/mlx-0.32.json",
        "cases_rmsprop_others:mlx",
    ),
    "sgd:torch-2.13": Implementation(
        "torch_sgd.py", "torch-2_13", "sgd/torch-2.13.json", "cases_sgd:torch"
    ),
    "sgd:keras-3": Implementation(
        "keras3_sgd.py", "keras-3_15", "sgd/keras-3.json", "cases_sgd:keras3"
    ),
    "sgd:optax-0.2": Implementation(
        "optax_sgd.py", "optax-0_2", "sgd/optax-0.2.json", "cases_sgd:optax"
    ),
    "thor:mindspore-2.10": Implementation(
        "mindspore_thor.py",
        "mindspore-2_10-numpy-1",
        "thor/mindspore-2.10.json",
        "cases_thor:mindspore_2_10",
    ),
    "thor:mindspore-2.0": Implementation(
        "mindspore_thor.py", "mindspore-2_0", "thor/mindspore-2.0.json", "cases_thor:mindspore_2_0"
    ),
}


class Broken(Exception):
    """An environment cannot be built, or an adapter broke the protocol."""


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------- the pinned run


def environment(name: str, python: str | None) -> tuple[str, dict[str, str]]:
    """The interpreter of environment `name`, built if absent, and its variables."""
    spec = tomllib.loads((HERE / "environments.toml").read_text())[name]
    variables = spec.get("variables", {})
    if python:
        return python, variables
    cache = Path(os.environ.get("REFOPT_ENVS", Path.home() / ".cache" / "refopt" / "envs"))
    home = cache / name
    executable = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = home / "requirements.txt"  # written last: a half-built environment is built again
    wanted = "\n".join([f"# python {spec['python']}", *spec["requirements"]]) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        base = find_python(spec["python"])
        note(f"{name}: making the environment in {home}")
        shutil.rmtree(home, ignore_errors=True)
        call([base, "-m", "venv", str(home)])
        call([str(executable), "-m", "pip", "install", "--quiet", *spec["requirements"]])
        stamp.write_text(wanted)
    return str(executable), variables


def find_python(version: str) -> str:
    """A CPython of minor `version`: this one, or `pythonX.Y` on the path."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        probe = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = subprocess.run(probe, capture_output=True, text=True)
        if found.stdout.strip() == version:
            return candidate
    raise Broken(f"Python {version} is required and was not found on PATH; give --python")


def call(command: list[str]) -> None:
    with started(command):
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise Broken(f"failed: {' '.join(command)}")


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[None]:
    """A command that cannot be started is a broken environment."""
    try:
        yield
    except OSError as error:
        raise Broken(f"cannot start {command[0]}: {error.strerror}") from None


def select(selector: str) -> list[dict[str, Any]]:
    module, function = selector.split(":")
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return list(getattr(importlib.import_module(module), function)())


def answers(
    command: list[str], variables: dict[str, str], cases: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The lines that an adapter writes for `cases`, hello first."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
        stdin.writelines(json.dumps(case) + "\n" for case in cases)
        stdin.seek(0)
        with started(command):
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=inherited | one_thread | variables,
            )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    yield json.loads(line)
                except ValueError:
                    process.kill()
                    raise Broken(f"the adapter wrote a line that is not JSON: {line!r}") from None
    if process.returncode:
        raise Broken(f"the adapter exited with {process.returncode}: {' '.join(command)}")


def record(name: str, python: str | None = None) -> dict[str, Any]:
    """Run implementation `name` on its cases; the document of its golden file."""
    row = IMPLEMENTATIONS[name]
    cases = select(row.cases)
    executable, variables = environment(row.environment, python)
    command = [executable, str(HERE / "adapters" / row.adapter), *filter(None, [row.argument])]
    lines = answers(command, variables, cases)
    hello = next(lines, {}).get("hello")
    if hello is None:
        raise Broken(f"{name}: the adapter did not say hello first")
    profiles = hello.pop("profiles")
    recorded = []
    for number, case in enumerate(cases, 1):
        answer = next(lines, None)
        if answer is None or answer.get("id") != case["id"]:
            raise Broken(f"{name}: expected the answer to {case['id']}, received {answer}")
        if "skipped" in answer:
            note(f"{name}: skipped {case['id']}: {answer['skipped']}")
            continue
        inputs: dict[str, Any] = {}
        for run in answer["runs"].values():
            inputs |= run.pop("inputs", {})
        recorded.append(case | inputs | {"runs": fold(answer["runs"], profiles)})
        progress(name, number, len(cases))
    if (extra := next(lines, None)) is not None:
        raise Broken(f"{name}: the adapter wrote a line after the last case: {extra}")
    again = f"python conformance/make.py {name}"
    return {
        "format": "refopt-golden/1",
        "license": "CC0-1.0",
        "optimizer": row.golden.split("/")[0],
        "provenance": hello | {"command": again},
        "cases": recorded,
    }


def fold(runs: dict[str, Any], profiles: list[str]) -> dict[str, Any]:
    """Name runs with the same bits as an earlier profile's instead of repeating them."""
    folded: dict[str, Any] = {}
    for profile in (profile for profile in profiles if profile in runs):
        same = next((p for p in folded if folded[p] == runs[profile]), None)
        folded[profile] = {"same": same} if same else runs[profile]
    return folded


def progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {done}/{total}", end="\n" if done == total else "", file=sys.stderr)
    elif done == total:
        note(f"{name}: {done} cases")


# ------------------------------------------------------------------------------------- the file


def canonical(document: dict[str, Any]) -> str:
    """The one text of a golden document: sorted keys, one case a line."""

    def compact(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

    head = {key: value for key, value in document.items() if key != "cases"}
    cases = ",\n".join(compact(case) for case in document["cases"])
    return f'{{"cases":[\n{cases}\n],\n{compact(head)[1:]}\n'


def write(path: Path, data: bytes) -> None:
    """Write aside, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(data)
    os.replace(aside, path)


# ------------------------------------------------------------------------------ arrays beside it

Array = tuple[str, list[int], str]  # dtype, shape, bits


def places(case: dict[str, Any]) -> Iterator[tuple[Any, Any, str, str, list[int]]]:
    """Every array of a case with layers: (where, at, key, dtype, shape)."""
    id, params = case["id"], case["params"]
    factored = [layer["name"] for layer in case["layers"] if layer["kind"] in FACTORED]

    def all_params(values: list[Any], what: str) -> Iterator[tuple[Any, Any, str, str, list[int]]]:
        for i, param in enumerate(params):
            yield values, i, f"{id}/{what}/{param['name']}", param["dtype"], param["shape"]

    def all_layers(values: Any, what: str) -> Iterator[tuple[Any, Any, str, str, list[int]]]:
        for name, one in values:
            yield one, "bits", f"{id}/{what}/{name}", one["dtype"], one["shape"]

    yield from all_layers([(param["name"], param) for param in params], "0/param")
    for t, row in enumerate(case["grads"], 1):
        yield from all_params(row, f"{t}/grad")
    for t, layers in case["statistics"].items():
        for name, given in layers.items():
            for quantity, one in given.items():
                yield from all_layers([(name, one)], f"{t}/{quantity}")
    for run in case["runs"].values():
        for t, columns in run.get("steps", {}).items():
            for quantity, values in columns.items():
                if isinstance(values[0], dict) and "shape" in values[0]:
                    pairs = zip(factored, values, strict=True)
                    yield from all_layers(pairs, f"{t}/{quantity}")
                elif quantity != "t":
                    yield from all_params(values, f"{t}/{quantity}")


def detach(document: dict[str, Any]) -> dict[str, Array]:
    """Take the large arrays out of a document; what its safetensors holds, by key."""
    taken: dict[str, Array] = {}
    for case in document["cases"]:
        for where, at, key, dtype, shape in places(case) if "layers" in case else ():
            if math.prod(shape) > LARGE:
                taken[key] = dtype, shape, where[at]
                where[at] = {"tensor": key}
    return taken


def attach(document: dict[str, Any], tensors: dict[str, Array]) -> None:
    """The reverse of `detach`."""
    for case in document["cases"]:
        for where, at, key, _, _ in places(case) if "layers" in case else ():
            if isinstance(where[at], dict):
                where[at] = tensors[key][2]


def swapped(data: bytes, dtype: str) -> bytes:
    """The elements' bytes in the reverse order: safetensors are little-endian, bits are not."""
    elements = array.array(CODES[dtype][1], data)
    elements.byteswap()
    return elements.tobytes()


def safetensors(tensors: dict[str, Array]) -> bytes:
    if not tensors:
        return b""
    header: dict[str, Any] = {}
    data = b""
    for key, (dtype, shape, bits) in sorted(tensors.items()):
        here = swapped(bytes.fromhex(bits), dtype)
        offsets = [len(data), len(data) + len(here)]
        header[key] = {"dtype": CODES[dtype][0], "shape": shape, "data_offsets": offsets}
        data += here
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def read_safetensors(path: Path) -> dict[str, Array]:
    if not path.exists():
        return {}
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    names = {code: dtype for dtype, (code, _) in CODES.items()}
    tensors = {}
    for key, entry in json.loads(content[8:start]).items():
        first, last = entry["data_offsets"]
        dtype = names[entry["dtype"]]
        bits = swapped(content[start + first : start + last], dtype).hex()
        tensors[key] = dtype, entry["shape"], bits
    return tensors


# --------------------------------------------------------------------------------------- --check


def unpack(bits: str, dtype: str) -> Iterator[int]:
    """The elements as integers in the order of the floats: their difference is in ulp."""
    width = {"float16": 4, "bfloat16": 4, "float32": 8, "complex64": 8}.get(dtype, 16)
    sign = 1 << (4 * width - 1)
    for start in range(0, len(bits), width):
        value = int(bits[start : start + width], 16)
        yield sign - value if value & sign else value


def compare(stored: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """What differs between two documents, one line each; empty if the cases are the same."""
    old, new = ({case["id"]: case for case in d["cases"]} for d in (stored, fresh))
    lines = [f"case {id}: only in the stored file" for id in old.keys() - new.keys()]
    lines += [f"case {id}: only in the new run" for id in new.keys() - old.keys()]
    worst: dict[tuple[str, str, str], tuple[int, str, int]] = {}
    for id in [id for id in old if id in new and old[id] != new[id]]:
        a, b = old[id], new[id]
        lines += [
            f"case {id}: {key!r} changed"
            for key in sorted(a.keys() | b.keys())
            if key != "runs" and a.get(key) != b.get(key)
        ]
        for profile in sorted(a["runs"].keys() | b["runs"].keys()):
            run, other = resolve(a["runs"], profile), resolve(b["runs"], profile)
            if run == other:
                continue
            if "steps" not in run or "steps" not in other or run["dtypes"] != other["dtypes"]:
                lines.append(f"case {id}, {profile}: the kind of result changed")
                continue
            found = list(distances(a["params"], run, other))
            if not found:
                lines.append(f"case {id}, {profile}: what is recorded changed")
            for place, distance in found:
                key = (profile, *place)
                most, where, count = worst.get(key, (0, "", 0))
                worst[key] = max((most, where), (distance, id)) + (count + 1,)
    lines += [
        f"{profile} {quantity} {dtype}: {count} elements differ, at most {most} ulp (in {where})"
        for (profile, quantity, dtype), (most, where, count) in sorted(worst.items())
    ]
    return lines


def resolve(runs: dict[str, Any], profile: str) -> dict[str, Any]:
    run: dict[str, Any] = runs.get(profile, {})
    return resolve(runs, run["same"]) if "same" in run else run


def distances(
    params: list[dict[str, Any]], run: dict[str, Any], other: dict[str, Any]
) -> Iterator[tuple[tuple[str, str], int]]:
    """Each differing element of two runs: ((quantity, dtype), distance in ulp)."""
    nothing = [None] * len(params)
    before, after = (
        r["steps"] | {"finalized": {"param": r.get("finalized", nothing)}} for r in (run, other)
    )
    for step, quantities in before.items():
        for quantity, values in quantities.items():
            theirs = after.get(step, {}).get(quantity, [None] * len(values))
            for i, (x, y) in enumerate(zip(values, theirs, strict=True)):
                if x == y:
                    continue
                if isinstance(x, dict) and "bits" in x:
                    dtype, x, y = x["dtype"], x["bits"], y and y["bits"]
                else:
                    dtype = run["dtypes"].get(quantity, params[i]["dtype"])
                for i, j in zip(unpack(x or "", dtype), unpack(y or "", dtype), strict=False):
                    if i != j:
                        yield (quantity, dtype), abs(i - j)


def check(path: Path, document: dict[str, Any]) -> int:
    """Compare a fresh run with the stored file; the exit code."""
    if not path.exists():
        raise Broken(f"{path.name}: nothing is stored to compare with")
    text, beside = path.read_text(encoding="utf-8"), path.with_suffix(BESIDE)
    tensors = detach(document)
    same = (beside.read_bytes() if beside.exists() else b"") == safetensors(tensors)
    if text == canonical(document) and same:
        print(f"{path.name}: the same, byte for byte")
        return SAME
    stored = json.loads(text)
    attach(stored, read_safetensors(beside))
    attach(document, tensors)
    old, new = stored["provenance"], document["provenance"]
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            print(f"{path.name}: provenance {key}: {old.get(key)} stored, {new.get(key)} here")
    lines = compare(stored, document)
    for line in lines:
        print(f"{path.name}: {line}")
    if lines and old["cpu"] != new["cpu"]:
        print(f"{path.name}: recorded on {old['cpu']}, run on {new['cpu']}: ulps may differ")
    if not lines:
        print(f"{path.name}: the cases are the same, byte for byte")
    return DIFFERS if lines else SAME


# ------------------------------------------------------------------------------------- command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="conformance/make.py",
        description="Record what released optimizers produce (conformance/golden).",
        epilog="Environments live in $REFOPT_ENVS (default ~/.cache/refopt/envs). Exit codes: "
        "0 written or the same, 1 differs, 2 usage, 3 an environment or an adapter broke.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which (default: all); see --list")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing: run again and compare, byte for byte and else in ulp per quantity",
    )
    parser.add_argument("--python", metavar="PATH", help="run in this interpreter as it is")
    options = parser.parse_args(arguments)
    if options.list:
        for name, row in IMPLEMENTATIONS.items():
            print(f"{name}  {row.golden}")
        return SAME
    unknown = [name for name in options.names if name not in IMPLEMENTATIONS]
    if unknown:
        known = ", ".join(IMPLEMENTATIONS)
        parser.error(f"NAME must be one of {known}; received {', '.join(unknown)}")
    status = SAME
    for name in options.names or IMPLEMENTATIONS:
        path = HERE / "golden" / IMPLEMENTATIONS[name].golden
        try:
            document = record(name, options.python)
            if options.check:
                status = max(status, check(path, document))
            else:
                if tensors := detach(document):
                    write(path.with_suffix(BESIDE), safetensors(tensors))
                write(path, canonical(document).encode())
                note(f"{name}: {path.stat().st_size} bytes in {path.name}")
        except Broken as error:
            note(f"{name}: {error}")
            status = BROKEN
    return status


if __name__ == "__main__":
    sys.exit(main())
