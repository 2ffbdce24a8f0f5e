"""The recordings of THOR: what they cover, and that each array is where and as it is said to be."""

import copy
import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from refopt.errors import CaseError
from refopt.oracle import golden
from refopt.rules import thor

GOLDEN = Path(__file__).parent.parent / "conformance" / "golden" / "thor"
FILES = sorted(GOLDEN.glob("*.json"))
GPU, ASCEND = "mindspore-gpu", "mindspore-ascend"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", GOLDEN.parent.parent / "make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make"]


def documents():
    return [json.loads(path.read_text(encoding="utf-8")) for path in FILES]


def cases(profile=None):
    return [
        case
        for document in documents()
        for case in document["cases"]
        if profile in (None, *case["runs"])
    ]


def recordings():
    return [(r.case, run) for path in FILES for r in golden.load(path) for run in r.runs.values()]


def test_all_files_together_are_at_most_4_megabytes():
    assert [path.stem for path in FILES] == ["mindspore-2.0", "mindspore-2.10"]
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) <= 4_000_000


def test_every_run_is_of_a_profile_of_the_rule_and_of_one():
    assert all([*case["runs"]] == case["profiles"] for case in cases())
    assert {name for case in cases() for name in case["runs"]} == {GPU, ASCEND}
    assert {GPU, ASCEND} <= set(thor.PROFILES)


def test_each_path_is_recorded_over_six_steps_often_enough():
    for profile, count in ((GPU, 12), (ASCEND, 5)):
        complete = [case for case in cases(profile) if "steps" in case["runs"][profile]]
        assert len(complete) >= count
        assert all(len(case["runs"][profile]["steps"]) >= 6 for case in complete)


def test_recorded_steps_are_consecutive_from_the_first():
    for case in cases():
        assert case["record"] == list(range(1, case["steps"] + 1)), case["id"]
        for run in case["runs"].values():
            steps = run.get("steps", dict.fromkeys(map(str, case["record"])))
            assert [*map(int, sorted(steps, key=int))] == case["record"], case["id"]


def test_gpu_recordings_cover_what_the_optimizer_offers():
    own = cases(GPU)
    kinds = {layer["kind"] for case in own for layer in case["layers"]}
    assert kinds == set(thor.KINDS)
    assert {layer.get("padding") for c in own for layer in c["layers"]} == {None, "same", "valid"}
    assert any(max(p["shape"]) > 128 for case in own for p in case["params"])
    assert {case["hyper"]["frequency"] for case in own} >= {"1", "2", "3"}
    assert {case["hyper"]["loss_scale"] for case in own} == {"1.0", "128.0"}
    assert any("groups" in case for case in own)
    for name in ("use_nesterov", "enable_clip_grad"):
        assert {case["options"][name] for case in own} == {0, 1}
    for name in ("lr", "damping"):
        assert any(isinstance(case["hyper"][name], list) for case in own)
    assert sum(float(case["hyper"]["weight_decay"]) > 0 for case in own) >= 4
    rows = {case["id"]: case["data"]["shape"][0] for case in own}
    assert sum(rows[c["id"]] == float(c["hyper"]["batch_size"]) for c in own) == 1


def test_rows_and_columns_of_the_first_dense_layer_differ():
    for case in cases(GPU):
        inputs = case["statistics"]["1"][case["layers"][0]["name"]]["a"]["shape"]
        assert inputs[0] != inputs[1], case["id"]


def test_ascend_recordings_cover_what_sets_that_path_apart():
    own = [case for case in cases(ASCEND) if "steps" in case["runs"][ASCEND]]
    weights = [(case, case["params"][layer["params"][0]]["shape"]) for case in own
               for layer in case["layers"] if layer["kind"] in ("dense", "conv2d")]  # fmt: skip
    assert any(math.prod(shape[1:]) > 256 for _, shape in weights)
    assert any(shape[0] == 2 for _, shape in weights)
    scaled = [c for c in own if any("scale" in s for s in c["runs"][ASCEND]["steps"].values())]
    assert scaled == [c for c in own if any(x["kind"] == "conv2d" for x in c["layers"])]
    last = [[x["kind"] for x in case["layers"]][-2:] for case in scaled]
    assert ["conv2d", "other"] in last
    assert ["norm", "dense"] in last


def test_a_step_refreshes_when_its_number_less_one_is_a_multiple_of_frequency():
    for case, run in recordings():
        due = {t for t in range(1, case.steps + 1) if (t - 1) % case.hyper["frequency"] == 0}
        assert set(case.statistics) == due, case.id
        assert {t for t, shown in run.factors.items() if shown} == (set() if run.error else due)


def test_statistics_have_the_shapes_of_their_layers():
    for case, run in recordings():
        for t, given in case.statistics.items():
            for name, one in given.items():
                layer = case.layers[name]
                rows, columns = layer.shape[0], math.prod(layer.shape[1:])
                square = {"A": (columns, columns), "G": (rows, rows)}
                if layer.kind in thor.TABLES:
                    square = {"A": (rows,), "G": (columns, columns)}
                shown = {q: x[name] for q, x in run.factors.get(t, {}).items() if q in square}
                shown |= {q: x for q, x in one.items() if q in square}
                assert run.error or {q: x.shape for q, x in shown.items()} == square, case.id


def test_every_array_beside_a_file_is_named_in_it_once_and_is_large(make):
    for path in FILES:
        stored = make.read_safetensors(path.with_suffix(".safetensors"))
        document = json.loads(path.read_text(encoding="utf-8"))
        found = [
            (where[at]["tensor"], key, dtype, shape)
            for case in document["cases"]
            for where, at, key, dtype, shape in make.places(case)
            if isinstance(where[at], dict)
        ]
        assert sorted(stored) == sorted(name for name, *_ in found)
        assert all(name == key for name, key, *_ in found)
        assert all(stored[key][:2] == (dtype, shape) for _, key, dtype, shape in found)
        assert min(math.prod(shape) for *_, shape in found) > make.LARGE


def test_a_file_taken_apart_and_put_together_is_the_same(make):
    for path in FILES:
        document = json.loads(path.read_text(encoding="utf-8"))
        beside = path.with_suffix(".safetensors")
        make.attach(document, make.read_safetensors(beside))
        assert '{"tensor":' not in make.canonical(document)
        assert make.safetensors(make.detach(document)) == beside.read_bytes()
        assert make.canonical(document).encode() == path.read_bytes()


def test_the_two_readers_of_the_arrays_agree(make):
    for path in FILES:
        beside = path.with_suffix(".safetensors")
        one = {key: bits for key, (_, _, bits) in make.read_safetensors(beside).items()}
        assert golden._tensors(beside.read_bytes()) == one


def test_a_changed_element_of_an_inverse_is_reported_in_ulp(make):
    stored = documents()[0]
    make.attach(stored, make.read_safetensors(FILES[0].with_suffix(".safetensors")))
    fresh = copy.deepcopy(stored)
    inverse = fresh["cases"][0]["runs"][GPU]["steps"]["4"]["a_inverse"][0]
    inverse["bits"] = f"{int(inverse['bits'], 16) ^ 2:0{len(inverse['bits'])}x}"
    assert make.compare(stored, stored) == []
    assert make.compare(stored, fresh) == [
        f"{GPU} a_inverse float32: 1 elements differ, at most 2 ulp (in {stored['cases'][0]['id']})"
    ]


# ------------------------------------------------------------------ the reader refuses broken files


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["layers"].pop(), "layers must hold each parameter once"),
        (lambda c: c["layers"][0].update(kind="lstm"), "a kind of"),
        (lambda c: c["layers"][0].update(params=[9]), "a layer must have"),
        (lambda c: c["layers"][1].update(name="fc1"), "a layer must have a name of its own"),
        (lambda c: c["statistics"].update({"7": {}}), "statistics must name steps from 1 to 6"),
        (lambda c: c["statistics"]["1"].update(fc9={}), "layers must be among fc1, fc2"),
        (lambda c: c["statistics"]["1"]["fc1"].update(b=1), "statistics of fc1 must be among"),
        (lambda c: c["statistics"]["1"]["fc1"]["a"].update(shape=[6, 5]), "a, statistics of fc1"),
        (lambda c: c["statistics"]["1"]["fc1"]["a"].update(dtype="int8"), "a dtype must be one of"),
        (lambda c: c["runs"][GPU]["steps"]["1"]["A"].pop(), "step 1, A: one entry for each of fc1"),
        (lambda c: c["runs"][GPU]["steps"]["1"].update(v=[]), "quantities must be among"),
        (lambda c: c["params"][0].update(bits={"tensor": "thor.x"}), "a tensor must be one of"),
        (lambda c: c["hyper"].update(lr=[]), "lr must be a decimal number in a text"),
        (lambda c: c["hyper"].update(momentum=["0.5"]), "momentum must be a decimal number"),
        (lambda c: c.update(order={"1": [0]}), "order must be absent"),
    ],
)
def test_the_reader_refuses_a_broken_file_of_thor(tmp_path, change, said):
    document = documents()[0]
    document["cases"] = [c for c in document["cases"] if c["id"].endswith(".mlp")]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    assert len(list(golden.load(path))) == 1
    change(document["cases"][0])
    path.write_text(json.dumps(document))
    with pytest.raises(CaseError, match=f"mine[.]json: .*{said}"):
        list(golden.load(path))


def test_the_reader_refuses_a_broken_safetensors_by_the_name_of_the_file(tmp_path):
    for source in (FILES[0], FILES[0].with_suffix(".safetensors")):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    beside = tmp_path / FILES[0].with_suffix(".safetensors").name
    for content in (b"", beside.read_bytes()[:-1], (9).to_bytes(8, "little") + b'{"a":null}'):
        beside.write_bytes(content)
        with pytest.raises(CaseError, match=r"mindspore-2\.0\.json: "):
            list(golden.load(tmp_path / FILES[0].name))
