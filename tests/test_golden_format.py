"""Every recording is well formed, and each check refuses a file that is broken in its way."""

import copy
import importlib.util
import json
import math
import sys
from pathlib import Path

import jsonschema
import pytest

from refopt.errors import CaseError
from refopt.oracle import golden, live

CONFORMANCE = Path(__file__).parent.parent / "conformance"
FILES = sorted((CONFORMANCE / "golden").rglob("*.json"))
SCHEMA = json.loads((CONFORMANCE / "schema" / "golden.schema.json").read_text())
TF = CONFORMANCE / "golden" / "rmsprop" / "tf-2.9.json"
TORCH = CONFORMANCE / "golden" / "nadam" / "torch-2.13.json"
DIGITS = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16, "int32": 8, "int64": 16}
DIGITS |= {"complex64": 16, "complex128": 32}
BUDGET = 1_500_000  # bytes, all files of one optimizer
BUDGETS = {"thor": 4_000_000}  # of one that says otherwise
SHARED = ("product", "t", "lr")  # scalars, repeated for each parameter


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", CONFORMANCE / "make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make"]


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def violations(document):
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def floats(value):
    if isinstance(value, dict):
        return [f for child in value.values() for f in floats(child)]
    if isinstance(value, list):
        return [f for child in value for f in floats(child)]
    return [value] if isinstance(value, float | bool) else []


def size(param):
    return math.prod(param["shape"])


def inconsistencies(case):
    """What a schema cannot say about one case."""
    params, runs, found = case["params"], case["runs"], []
    lengths = [DIGITS[param["dtype"]] * size(param) for param in params]
    if [len(param["bits"]) for param in params] != lengths:
        found.append("bits of a parameter do not fill its shape")
    for row in case["grads"]:
        if len(row) != len(params):
            found.append("a row of gradients is not one entry a parameter")
        elif not all(fills(g, p) for g, p in zip(row, params, strict=True)):
            found.append("bits of a gradient do not fill its parameter's shape")
    if any(sorted(order) != list(range(len(params))) for order in case.get("order", {}).values()):
        found.append("an order does not hold every parameter once")
    if any(len(p.get("sharding", p["shape"])) != len(p["shape"]) for p in params):
        found.append("a sharding is not one entry an axis")
    if "groups" in case:
        members = [i for group in case["groups"] for i in group["params"]]
        if sorted(members) != list(range(len(params))):
            found.append("groups do not hold every parameter once")
    if any(int(t) > case["steps"] for t in case.get("changes", {})):
        found.append("a change comes after the last step")
    record = case["record"]
    if record != sorted(record) or record[-1] > case["steps"]:
        found.append("recorded steps are not ascending within the run")
    if any(t - 1 not in [0, *record] and t + 1 not in record for t in record):
        found.append("a recorded step has no neighbour")
    if not set(runs) <= set(case.get("profiles", runs)):
        found.append("a run of a profile that the case does not name")
    for run in runs.values():
        if "same" in run and "same" in runs.get(run["same"], run):
            found.append("a run is the same as one that is not there")
        if "steps" in run:
            if list(map(str, record)) != sorted(run["steps"], key=int):
                found.append("the steps of a run are not the recorded ones")
            found += values(params, lengths, run)
            if ("finalized" in run) != ("finalize" in case):
                found.append("finalized values without finalizing, or the reverse")
    return found


def fills(grad, param):
    """Whether a gradient, or the rows of a sparse one, has the digits that its parameter needs."""
    digits = DIGITS[param["dtype"]]
    if not isinstance(grad, dict):
        return grad is None or len(grad) == digits * size(param)
    rows, *row = param["shape"]
    named = all(0 <= i < rows for i in grad["indices"])
    return named and len(grad["values"]) == digits * math.prod(row) * len(grad["indices"])


def values(params, lengths, run):
    last = {"param": run.get("finalized", [None] * len(params))}
    for quantities in [*run["steps"].values(), last]:
        for name, entries in quantities.items():
            if isinstance(entries[0], dict):
                if any(len(e["bits"]) != DIGITS[e["dtype"]] * size(e) for e in entries):
                    yield f"bits of {name} do not fill their shape"
                continue
            own = run["dtypes"].get(name)
            wanted = lengths
            if name in SHARED:
                wanted = [DIGITS[own]] * len(params)
            elif own:
                wanted = [DIGITS[own] * size(param) for param in params]
            if len(entries) != len(params):
                yield f"{name} is not one entry a parameter"
            elif any(e is not None and len(e) != n for e, n in zip(entries, wanted, strict=True)):
                yield f"bits of {name} do not fill their shape"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_file_follows_the_schema_and_is_consistent(path, make):
    document = load(path)
    assert violations(document) == []
    make.attach(document, make.read_safetensors(path.with_suffix(".safetensors")))
    assert floats(document) == []
    ids = [case["id"] for case in document["cases"]]
    assert len(set(ids)) == len(ids)
    assert all(id.split(".")[0] == document["optimizer"] == path.parent.name for id in ids)
    assert [(c["id"], found) for c in document["cases"] for found in inconsistencies(c)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_file_is_canonical(path, make):
    assert path.read_bytes() == make.canonical(load(path)).encode()


def test_ids_are_unique_over_all_files():
    ids = [case["id"] for path in FILES for case in load(path)["cases"]]
    assert len(set(ids)) == len(ids)


def test_every_golden_file_has_one_recipe_in_the_table(make):
    table = sorted(row.golden for row in make.IMPLEMENTATIONS.values())
    assert table == sorted(f"{path.parent.name}/{path.name}" for path in FILES)
    for name, row in make.IMPLEMENTATIONS.items():
        provenance = load(CONFORMANCE / "golden" / row.golden)["provenance"]
        assert provenance["command"] == f"python conformance/make.py {name}"
        assert (CONFORMANCE / "adapters" / row.adapter).is_file()


def test_environments_pin_everything_exactly(make):
    environments = make.tomllib.loads((CONFORMANCE / "environments.toml").read_text())
    rows = [*make.IMPLEMENTATIONS.values(), *live.IMPLEMENTATIONS.values()]
    assert {row.environment for row in rows} == set(environments)
    pins = [pin for spec in environments.values() for pin in spec["requirements"]]
    assert [pin for pin in pins if "==" not in pin and pin != "--no-deps"] == []


def test_torch_is_recorded_on_at_least_80_cases_in_each_of_three_ways():
    cases = load(TORCH)["cases"]
    for profile in ("torch-2.13", "torch-2.13-foreach", "torch-2.13-differentiable"):
        assert sum(profile in case["runs"] for case in cases) == len(cases) >= 80
    assert sum("torch-2.13-capturable" in case["runs"] for case in cases) >= 8


def test_torch_recordings_cover_dtypes_shapes_and_lengths():
    cases = load(TORCH)["cases"]
    params = [param for case in cases for param in case["params"]]
    assert {param["dtype"] for param in params} == set(DIGITS) - {"int32", "int64"}
    assert {param.get("layout", "C") for param in params} == {"C", "F", "strided"}
    assert {0, 1, 4} <= {len(param["shape"]) for param in params}
    assert 0 in {size(param) for param in params}
    assert max(case["steps"] for case in cases) == 300
    assert any(None in row for case in cases for row in case["grads"])


def test_tensorflow_is_recorded_on_at_least_90_cases_and_both_classes_agree_bit_for_bit():
    runs = [case["runs"] for case in load(TF)["cases"]]
    both = [run for run in runs if "tf-2.9-dtensor" in run]
    assert len(both) >= 90
    assert [run["tf-2.9-experimental"] for run in both] == [{"same": "tf-2.9-dtensor"}] * len(both)


def test_tensorflow_recordings_cover_what_the_page_offers():
    cases = load(TF)["cases"]
    params = [param for case in cases for param in case["params"]]
    grads = [g for case in cases for row in case["grads"] for g in row]
    rates = [case["hyper"]["lr"] for case in cases]
    assert {param["dtype"] for param in params} == {"float16", "bfloat16", "float32", "float64"}
    assert {0, 1, 2, 4} <= {len(param["shape"]) for param in params}
    assert 0 in {size(param) for param in params}
    assert {6, 200, 500} <= {case["steps"] for case in cases}
    assert {rate["schedule"] for rate in rates if isinstance(rate, dict)} == set(
        SCHEMA["$defs"]["schedule"]["properties"]["schedule"]["enum"]
    )
    assert None in grads
    assert any(isinstance(g, dict) and len(set(g["indices"])) < len(g["indices"]) for g in grads)
    for key in ("changes", "finalize", "mesh", "order"):
        assert sum(key in case for case in cases) >= 4, key
    for name in ("clipnorm", "clipvalue", "global_clipnorm", "ema_momentum"):
        assert sum(name in case["hyper"] for case in cases) >= 4, name


def test_legacy_keras_takes_another_formula_once_momentum_is_above_zero():
    cases = {case["id"]: case for case in load(TF.with_name("keras-legacy-2.9.json"))["cases"]}
    for dtype in ("f32", "f64"):
        without, tiny = (
            cases[f"rmsprop.keras-legacy.momentum-{momentum}.{dtype}"]["runs"]["keras-legacy-2.9"]
            for momentum in ("0", "1e-30")
        )
        digits = {"f32": 8, "f64": 16}[dtype]
        a, b = (run["steps"]["1"]["param"][0] for run in (without, tiny))
        assert all(a[i : i + digits] != b[i : i + digits] for i in range(0, len(a), digits))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_is_refused_only_in_cases_that_say_so(path):
    cases = load(path)["cases"]
    refused = {case["id"] for case in cases for run in case["runs"].values() if "error" in run}
    assert refused == {case["id"] for case in cases if "error" in case["tags"]}


@pytest.mark.torch
def test_torch_here_repeats_its_recordings_byte_for_byte(make, capsys):
    cpu = load(TORCH)["provenance"]["cpu"]
    status = make.main(["torch-2.13", "--check", "--python", sys.executable])
    report = capsys.readouterr().out
    if f"recorded on {cpu}" in report:
        pytest.skip(f"recorded on {cpu}; MKL's root differs on this processor:\n{report}")
    assert status == make.SAME, report


def test_all_recordings_keep_the_budget():
    for optimizer in {path.parent for path in FILES}:
        size = sum(path.stat().st_size for path in optimizer.iterdir())
        assert size <= BUDGETS.get(optimizer.name, BUDGET)


# ---------------------------------------------------------------- the checks refuse broken files


def broken(change):
    """A file of the one case with several runs and a null gradient, after `change`."""
    document = load(TORCH)
    case = next(c for c in document["cases"] if c["id"] == "nadam.torch.none-alternating.f64")
    document["cases"] = [copy.deepcopy(case)]
    change(document, document["cases"][0])
    return document


def broken_rmsprop(id, change):
    """A file of one case of TensorFlow 2.9, after `change`."""
    document = load(TF)
    case = next(c for c in document["cases"] if c["id"] == id)
    document["cases"] = [copy.deepcopy(case)]
    change(document["cases"][0])
    return document


def drop(key):
    return lambda document, case: case.pop(key)


def put(key, value):
    return lambda document, case: case.update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        drop("comment"),
        drop("tags"),
        drop("runs"),
        put("runs", {}),
        put("comment", ""),
        put("id", "NAdam case 1"),
        put("unknown", "key"),
        put("steps", 2.5),
        put("options", {"maximize": 2, "decoupled_weight_decay": 0}),
        lambda document, case: case["hyper"].update(lr=0.05),
        lambda document, case: case["hyper"].update(learning_rate="0.05"),
        lambda document, case: case["hyper"].pop("lr"),
        lambda document, case: case["params"][0].update(bits="3F800000"),
        lambda document, case: case["params"][0].update(layout="diagonal"),
        lambda document, case: case["runs"]["torch-2.13"].pop("dtypes"),
        lambda document, case: case["runs"]["torch-2.13"]["steps"]["1"].pop("param"),
        lambda document, case: document.update(format="refopt-golden/2"),
        lambda document, case: document["provenance"].pop("version"),
        lambda document, case: document["provenance"].update(command="by hand"),
    ],
)
def test_the_schema_refuses_a_broken_file(change):
    assert violations(broken(lambda document, case: None)) == []
    assert violations(broken(change)) != []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda c: c["params"][0].update(bits="3ff0"), "bits of a parameter do not fill its shape"),
        (lambda c: c["grads"][0].pop(), "a row of gradients is not one entry a parameter"),
        (
            lambda c: c["grads"][0].__setitem__(0, "3ff0"),
            "bits of a gradient do not fill its parameter's shape",
        ),
        (
            lambda c: c.update(groups=[{"params": [0, 0], "hyper": {}}]),
            "groups do not hold every parameter once",
        ),
        (lambda c: c.update(changes={"99": {}}), "a change comes after the last step"),
        (lambda c: c["record"].append(99), "recorded steps are not ascending within the run"),
        (lambda c: c.update(record=[1, 2, 4]), "a recorded step has no neighbour"),
        (lambda c: c["profiles"].remove("torch-2.13"), "a run of a profile that the case does not"),
        (
            lambda c: c["runs"].update({"torch-2.13-foreach": {"same": "nothing"}}),
            "a run is the same as one that is not there",
        ),
        (
            lambda c: c["runs"]["torch-2.13"]["steps"].pop("3"),
            "the steps of a run are not the recorded ones",
        ),
        (
            lambda c: c["runs"]["torch-2.13"]["steps"]["1"]["m"].pop(),
            "m is not one entry a parameter",
        ),
        (
            lambda c: c["runs"]["torch-2.13"]["dtypes"].update(product="float64"),
            "bits of product do not fill their shape",
        ),
    ],
)
def test_an_inconsistent_case_is_refused(change, finding):
    (case,) = broken(lambda document, case: change(case))["cases"]
    assert any(found.startswith(finding) for found in inconsistencies(case))


SPARSE = "rmsprop.tf.sparse-repeated.f32"
SCHEDULE = "rmsprop.tf.schedule-piecewise.f32"
AVERAGED = "rmsprop.tf.ema-order-swapped.f32"
MESH = "rmsprop.tf.mesh.f32"


def experimental(case):
    return case["runs"]["tf-2.9-experimental"]


def dtensor(case):
    return case["runs"]["tf-2.9-dtensor"]


@pytest.mark.parametrize(
    ("id", "change"),
    [
        (SPARSE, lambda c: c["grads"][0][0].pop("indices")),
        (SPARSE, lambda c: c["grads"][0][0].update(indices=["1", "3", "1"])),
        (SPARSE, lambda c: c["grads"][0][0].update(dense_shape=[4, 2])),
        (SPARSE, lambda c: c["hyper"].pop("rho")),
        (SPARSE, lambda c: c["hyper"].update(beta1="0.9")),
        (SPARSE, lambda c: c["options"].update(centred=1)),
        (SPARSE, lambda c: dtensor(c)["steps"]["1"].update(m=dtensor(c)["steps"]["1"]["v"])),
        (SPARSE, lambda c: dtensor(c)["dtypes"].update(product="float32")),
        (SCHEDULE, lambda c: c["hyper"]["lr"].update(schedule="StepDecay")),
        (SCHEDULE, lambda c: c["hyper"]["lr"]["config"].update(boundaries=[1, 4])),
        (SCHEDULE, lambda c: c["hyper"].update(rho=c["hyper"]["lr"])),
        (AVERAGED, lambda c: c.update(finalize=2)),
        (AVERAGED, lambda c: c["order"].update({"3": [0, 0]})),
        (AVERAGED, lambda c: c["runs"]["tf-2.9-experimental"].update(finalized=[None, None])),
        (MESH, lambda c: c.update(mesh={})),
        (MESH, lambda c: c["params"][0].update(sharding=["X"])),
    ],
)
def test_the_schema_refuses_a_broken_file_of_rmsprop(id, change):
    assert violations(broken_rmsprop(id, lambda case: None)) == []
    assert violations(broken_rmsprop(id, change)) != []


@pytest.mark.parametrize(
    "change",
    [
        put("order", {"3": [1, 0]}),
        put("finalize", 1),
        lambda document, case: case["hyper"].update(rho="0.9"),
        lambda document, case: case["hyper"].update(
            lr={"schedule": "CosineDecay", "config": {"decay_steps": "5"}}
        ),
        lambda document, case: case["options"].update(centered=1),
        lambda document, case: case["runs"]["torch-2.13"]["dtypes"].update(buffer="float32"),
        lambda document, case: case["runs"]["torch-2.13"].update(finalized=["3ff0"]),
        lambda document, case: document.update(optimizer="adamw"),
    ],
)
def test_the_schema_refuses_in_nadam_what_is_rmsprops(change):
    assert violations(broken(change)) != []


@pytest.mark.parametrize(
    ("id", "change", "finding"),
    [
        (SPARSE, lambda c: c["grads"][0][0]["indices"].append(0), "bits of a gradient do not"),
        (SPARSE, lambda c: c["grads"][0][0].update(indices=[1, 4, 1]), "bits of a gradient do not"),
        (AVERAGED, lambda c: c["order"].update({"3": [1]}), "an order does not hold"),
        (AVERAGED, lambda c: c.pop("finalize"), "finalized values without"),
        (
            AVERAGED,
            lambda c: c["runs"]["tf-2.9-experimental"].pop("finalized"),
            "finalized values without",
        ),
        (
            AVERAGED,
            lambda c: c["runs"]["tf-2.9-experimental"]["finalized"].pop(),
            "param is not one entry a parameter",
        ),
        (SCHEDULE, lambda c: dtensor(c)["dtypes"].update(lr="float64"), "bits of lr do not"),
        (MESH, lambda c: c["params"][0].update(sharding=["x", "y"]), "a sharding is not"),
    ],
)
def test_an_inconsistent_case_of_rmsprop_is_refused(id, change, finding):
    (case,) = broken_rmsprop(id, change)["cases"]
    assert any(found.startswith(finding) for found in inconsistencies(case))


# ---------------------------------------------------------------- the reader refuses them as well

ALTERNATING = "nadam.torch.none-alternating.f64"


def read(tmp_path, document):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    return list(golden.load(path))


def first(case):
    return case["runs"]["torch-2.13"]["steps"]["1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d, c: d.update(format="refopt-golden/2"), "format must be one of"),
        (lambda d, c: d.update(optimizer="adamw"), "optimizer must be one of nadam, rmsprop"),
        (lambda d, c: d.update(optimizer="rmsprop"), "the id must begin with 'rmsprop"),
        (lambda d, c: d["provenance"].pop("version"), "provenance must"),
        (lambda d, c: d.update(cases=[]), "cases must be a list"),
        (lambda d, c: d["cases"].append(c), "an id must occur once"),
        (drop("comment"), "'comment' is required"),
        (put("unknown", 1), "keys of a case must be among .* got 'unknown'"),
        (put("id", "adam.torch"), "id must begin with one of nadam, rmsprop"),
        (put("steps", 2.5), "'steps' must be an integer; got 2.5"),
        (put("steps", True), "'steps' must be an integer; got True"),
        (put("steps", 0), "from 1 to 100000 steps"),
        (put("params", []), "from 1 to 100000 steps and a parameter"),
        (put("grads", []), "grads must be one row or more"),
        (put("grads", [[None]]), "grads must be one row or more"),
        (put("options", {"maximise": 1}), "options must be among .* got 'maximise'"),
        (put("options", {"centered": 1}), "options must be among .* got 'centered'"),
        (put("options", {"maximize": 2}), "maximize must be 0 or 1; got 2"),
        (lambda d, c: c["hyper"].pop("momentum_decay"), "momentum_decay must be stated"),
        (lambda d, c: c["hyper"].update(rho="0.9"), "hyperparameters must be .* got 'rho'"),
        (lambda d, c: c["hyper"].update(lr=0.1), "lr must be a decimal number in a text; got 0.1"),
        (lambda d, c: c["hyper"].update(lr="fast"), "lr must be a decimal number"),
        (lambda d, c: c["hyper"].update(lr={"dtype": "float8", "bits": ""}), "lr: a dtype must"),
        (lambda d, c: c["hyper"].update(lr={"dtype": "float32", "bits": ""}), "lr: 8 hexadecimal"),
        (
            lambda d, c: c["hyper"].update(lr={"schedule": "CosineDecay", "config": {}}),
            "cannot be a schedule",
        ),
        (put("changes", {"99": {"lr": "0.1"}}), "changes must name steps from 1 to"),
        (put("changes", {"2": {"rho": "0.1"}}), "hyperparameters must be among"),
        (put("order", {"2": [1, 0]}), "order must be absent"),
        (put("record", [1, 99]), "record must be different steps"),
        (put("groups", [{"params": [0]}]), "groups must hold each of"),
        (put("groups", [{"params": [0, 0, 1]}]), "groups must hold each of"),
        (lambda d, c: c["params"][0].update(dtype="float8"), "a dtype must be one of"),
        (lambda d, c: c["params"][0].update(shape=[9]), "hexadecimal digits"),
        (lambda d, c: c["params"][0].update(bits="x" * len(c["params"][0]["bits"])), "hexadecim"),
        (lambda d, c: c["params"][0].update(layout="diagonal"), "a layout must be"),
        (lambda d, c: c["grads"][0].__setitem__(0, "3ff0"), "a gradient: .* hexadecimal digits"),
        (lambda d, c: c.update(runs={}), "runs must be an object of one run or more"),
        (lambda d, c: c["runs"].update(mine={"same": "mine"}), "same must lead to a run"),
        (lambda d, c: c["runs"].update(a={"same": "b"}, b={"same": "a"}), "same must lead"),
        (lambda d, c: c["runs"].update(a={"same": "b"}), "same must lead to .* 'a', 'b'"),
        (lambda d, c: first(c).pop("param"), "every parameter is required"),
        (lambda d, c: first(c).update(m=first(c)["m"][:1]), "step 1, m: one entry"),
        (lambda d, c: first(c).update(buffer=first(c)["m"]), "quantities must be among"),
        (lambda d, c: c["runs"]["torch-2.13"]["dtypes"].update(t="int8"), "the dtype of t must"),
        (lambda d, c: c["runs"]["torch-2.13"]["dtypes"].update(param="float32"), "dtype of param"),
        (lambda d, c: c["runs"]["torch-2.13"].update(finalized=[]), "finalized must be absent"),
    ],
)
def test_the_reader_refuses_a_broken_file(tmp_path, change, said):
    assert read(tmp_path, broken(lambda d, c: None))
    with pytest.raises(CaseError, match=f"mine[.]json: .*{said}"):
        read(tmp_path, broken(change))


@pytest.mark.parametrize(
    ("id", "change", "said"),
    [
        (SPARSE, lambda c: c["grads"][0][0]["indices"].append(0), "hexadecimal digits"),
        (SPARSE, lambda c: c["grads"][0][0].update(indices=[1, 4, 1]), "indices of a gradient"),
        (SPARSE, lambda c: c["grads"][0][0].update(indices=[1, -1, 1]), "indices of a gradient"),
        (AVERAGED, lambda c: c["order"].update({"3": [1]}), "an order must hold each"),
        (AVERAGED, lambda c: experimental(c).update(finalized=[]), "finalized: one entry"),
        (SCHEDULE, lambda c: dtensor(c)["dtypes"].update(lr="float64"), "lr: 16 hexadecimal"),
        (SCHEDULE, lambda c: c["hyper"]["lr"].update(schedule="StepDecay"), "a schedule must be"),
        (SCHEDULE, lambda c: c["hyper"]["lr"]["config"].update(values=[]), "one value more"),
        (SCHEDULE, lambda c: c["hyper"]["lr"]["config"].update(rate="1"), "arguments of Piecewise"),
        (SCHEDULE, lambda c: c["hyper"]["lr"]["config"].pop("values"), "values are required"),
        (SCHEDULE, lambda c: c["hyper"].update(rho=c["hyper"]["lr"]), "rho must be a number"),
    ],
)
def test_the_reader_refuses_a_broken_file_of_rmsprop(tmp_path, id, change, said):
    assert read(tmp_path, broken_rmsprop(id, lambda c: c["runs"]))
    with pytest.raises(CaseError, match=f"mine[.]json: .*{said}"):
        read(tmp_path, broken_rmsprop(id, change))


def places(value, path=()):
    """The path to every value of a document."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize("id", [ALTERNATING, SPARSE, AVERAGED, SCHEDULE, MESH])
def test_no_value_of_a_wrong_type_ends_in_an_error_of_python(tmp_path, id):
    """Each value in its turn is left out, or becomes one of every JSON type."""
    unchanged = lambda *_: None  # noqa: E731
    document = broken(unchanged) if id == ALTERNATING else broken_rmsprop(id, unchanged)
    (case,) = document["cases"]
    case["runs"] = dict([next((k, v) for k, v in case["runs"].items() if "steps" in v)])
    outcomes = []
    for path in [p for p in places(document) if p]:
        for value in (..., None, True, -1, 0.5, 10**400, "", "x", [], [[]], {}, {"x": []}):
            changed = copy.deepcopy(document)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
            if value is ...:
                del parent[path[-1]]
            try:
                outcomes.append(len(read(tmp_path, changed)))
            except CaseError:
                outcomes.append(0)
    assert set(outcomes) == {0, 1}
    assert outcomes.count(0) > outcomes.count(1)


def test_a_changed_finalized_value_is_reported(make):
    stored, fresh = load(TF), load(TF)
    run = next(c for c in fresh["cases"] if c["id"] == AVERAGED)["runs"]["tf-2.9-experimental"]
    run["finalized"][0] = f"{int(run['finalized'][0], 16) ^ 1:016x}"
    assert make.compare(stored, fresh) == [
        f"tf-2.9-experimental param float32: 1 elements differ, at most 1 ulp (in {AVERAGED})"
    ]


def test_a_quantity_that_is_no_longer_recorded_is_reported(make):
    stored, fresh = load(TF), load(TF)
    run = next(c for c in fresh["cases"] if c["id"] == AVERAGED)["runs"]["tf-2.9-experimental"]
    del run["steps"]["3"]["average"]
    assert make.compare(stored, fresh) == [
        f"case {AVERAGED}, tf-2.9-experimental: what is recorded changed"
    ]


def test_floats_and_booleans_are_found():
    assert floats({"a": [1, {"b": 0.5}], "c": "0.5", "d": None, "e": True}) == [0.5, True]


def test_the_order_of_keys_does_not_change_the_canonical_text(make):
    document = load(TORCH)
    upside_down = json.loads(json.dumps(document), object_pairs_hook=lambda p: dict(p[::-1]))
    assert json.dumps(upside_down) != json.dumps(document)
    assert make.canonical(upside_down) == make.canonical(document) != json.dumps(document)


def test_a_changed_bit_is_reported_in_ulp(make):
    stored, fresh = load(TORCH), load(TORCH)
    assert make.compare(stored, fresh) == []
    run = next(c for c in fresh["cases"] if c["id"] == "nadam.torch.none-alternating.f64")["runs"][
        "torch-2.13"
    ]
    first = run["steps"]["1"]["v"][0]
    run["steps"]["1"]["v"][0] = f"{int(first, 16) + 3:0{len(first)}x}"
    assert make.compare(stored, fresh) == [
        f"{profile} v float64: 1 elements differ, at most 3 ulp "
        "(in nadam.torch.none-alternating.f64)"
        for profile in ("torch-2.13", "torch-2.13-foreach")
    ]


def test_ulps_are_counted_across_zero(make):
    assert list(make.unpack("8000000180000000000000000000001", "float32"))[:3] == [-1, 0, 0]
    assert list(make.unpack("bf803f80", "bfloat16")) == [-0x3F80, 0x3F80]


def test_a_new_and_a_missing_case_are_reported(make):
    stored, fresh = load(TORCH), load(TORCH)
    gone = fresh["cases"].pop()["id"]
    fresh["cases"][0]["hyper"]["lr"] = "0.75"
    assert make.compare(stored, fresh) == [
        f"case {gone}: only in the stored file",
        f"case {fresh['cases'][0]['id']}: 'hyper' changed",
    ]


# ------------------------------------------------------------------------- broken adapters

HELLO = 'print(\'{"hello": {"cpu": "x", "profiles": ["p"]}}\')\n'
ANSWER = "import json, sys\nfor line in sys.stdin:\n    id = json.loads(line)['id']\n"
RIGHT = "    print(json.dumps({'id': id, 'runs': {'p': {'dtypes': {}, 'steps': {}}}}))\n"


@pytest.fixture
def recording(make, tmp_path, monkeypatch):
    """Record with an adapter of the given source; the exit code, and what is stored after it."""

    def record(source):
        adapter, golden = tmp_path / "adapter.py", tmp_path / "nadam" / "golden.json"
        adapter.write_text(source)
        golden.parent.mkdir()
        golden.write_text("as before")
        row = make.Implementation(str(adapter), "torch-2_13", str(golden), "cases_nadam:torch")
        monkeypatch.setattr(make, "IMPLEMENTATIONS", {"fake": row})
        monkeypatch.syspath_prepend(str(CONFORMANCE))
        return make.main(["fake", "--python", sys.executable]), golden.read_text()

    return record


def test_an_adapter_that_follows_the_protocol_is_recorded(recording, make):
    status, stored = recording(HELLO + ANSWER + RIGHT)
    assert status == make.SAME
    document = json.loads(stored)
    assert len(document["cases"]) == len(load(TORCH)["cases"])
    assert document["cases"][0]["runs"] == {"p": {"dtypes": {}, "steps": {}}}


def test_a_skipped_case_is_left_out_and_named(recording, make, capsys):
    skip = "    print(json.dumps({'id': id, 'skipped': 'no such dtype'}))\n"
    some = "    if 'f64' in id:\n    " + skip + "        continue\n" + RIGHT
    status, stored = recording(HELLO + ANSWER + some)
    assert status == make.SAME
    assert not [case for case in json.loads(stored)["cases"] if "f64" in case["id"]]
    assert "skipped nadam.torch.scalar.f64: no such dtype" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "did not say hello first"),
        (ANSWER + RIGHT, "did not say hello first"),
        ("print('Loading...')\n" + HELLO + ANSWER + RIGHT, "not JSON: 'Loading...\\n'"),
        (HELLO, "expected the answer to nadam.torch"),
        (HELLO + ANSWER + "    id = 'other'\n" + RIGHT, "expected the answer to nadam.torch"),
        (HELLO + ANSWER + RIGHT + "print('{}')\n", "a line after the last case"),
        (HELLO + ANSWER + RIGHT + "sys.exit(7)\n", "exited with 7"),
    ],
)
def test_a_broken_adapter_is_reported_and_changes_no_file(
    recording, make, capsys, source, complaint
):
    assert recording(source) == (make.BROKEN, "as before")
    assert complaint in capsys.readouterr().err


def test_an_unknown_name_is_a_mistake_of_usage(make, capsys):
    with pytest.raises(SystemExit) as stop:
        make.main(["torch-1.0"])
    assert stop.value.code == make.USAGE
    assert "NAME must be one of torch-2.13, " in capsys.readouterr().err
