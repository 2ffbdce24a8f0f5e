"""Vectors, recordings and answers are untrusted: whatever they hold, nothing breaks or escapes.

A malformed one is a CaseError (a file), an AdapterError or a Failure (a program), and no memory is
taken for what it merely announces.
"""

import copy
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refopt.errors import AdapterError, CaseError
from refopt.oracle import golden, live, process, rop, suite, vectors
from refopt.oracle.golden import Recording
from refopt.oracle.process import Failure
from refopt.oracle.suite import FAILURES

BOUNDED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CHOSEN = {
    "nadam": ("groups-everything.f32", "reject-shape.f32"),
    "rmsprop": ("sparse-repeated-momentum.f32", "ema-order-overwrite.f32", "schedule-cosine.f64"),
    "thor": ("conv-dilated.f32", "embedding.f32", "reject-no-statistics.f32"),
}
HUGE, DEEP = 10**18, 900
HOSTILE = (
    *(None, True, -1, 0, 1, 2, 10**9, HUGE, 10**400, 0.5, float("nan"), float("inf")),
    *(
        "",
        "x",
        "nan",
        "-inf",
        "1e999999999",
        "../../x",
        "/etc/passwd",
        "\x00",
        "\ud800",
        "9" * 5000,
    ),
    *([], {}, [[]], [None], {"": 0}, [HUGE, HUGE], [0, HUGE], [1] * 100, {"tensor": "x"}),
)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def documents():
    """Small documents: a vector each, of every class and kind of input."""
    for optimizer, names in CHOSEN.items():
        document = json.loads(vectors.path(optimizer).read_text())
        cases = {case["id"]: case for case in document["cases"]}
        for name in names:
            yield document | {"cases": [cases[f"{optimizer}.vector.{name}"]]}


DOCUMENTS = list(documents())


def places(value, path=()):
    """The path to every value of a document."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


PLACES = [[p for p in places(document) if p] for document in DOCUMENTS]


def put(document, path, value):
    """A document with another value at a place; ... leaves it out."""
    changed = parent = copy.deepcopy(document)
    for key in path[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


@st.composite
def mutated(draw):
    """A document in which up to three values are left out, hostile, or one of elsewhere."""
    n = draw(st.integers(0, len(DOCUMENTS) - 1))
    document = DOCUMENTS[n]
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(PLACES[n]))
        other = draw(st.sampled_from(PLACES[n]))
        elsewhere = document
        try:
            for key in other:
                elsewhere = elsewhere[key]
            values = (*HOSTILE, ..., elsewhere, nested(DEEP))
            document = put(document, path, draw(st.sampled_from(values)))
        except (KeyError, IndexError, TypeError):  # a change before this one took the place away
            continue
    return document


def refused(call, *errors):
    """(what a call gives, None), or (None, the error of these that it raises)."""
    try:
        return call(), None
    except errors as error:
        return None, error


def load(folder, text):
    """The recordings of a file with this text; None where it is refused."""
    path = folder / "mine.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
    found, error = refused(lambda: list(golden.load(path)), CaseError)
    assert error is None or "mine.json" in str(error)
    return found


# -- files ----------------------------------------------------------------------------------------


@BOUNDED
@given(document=mutated())
def test_a_file_in_which_values_are_hostile_is_read_or_refused(tmp_path, document):
    load(tmp_path, json.dumps(document))


@BOUNDED
@given(data=st.data())
def test_a_file_whose_text_is_damaged_is_read_or_refused(tmp_path, data):
    text = json.dumps(data.draw(st.sampled_from(DOCUMENTS))).encode()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 40)))
    noise = data.draw(st.binary(max_size=8) | st.sampled_from([b"NaN", b"{" * 2000, b'"id":0,']))
    load(tmp_path, text[:first] + noise + text[last:])


def test_whatever_is_there_unchanged_is_read(tmp_path):
    for document in DOCUMENTS:
        assert load(tmp_path, json.dumps(document)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        json.dumps(nested(DEEP)),
        '{"cases": ' + json.dumps(nested(DEEP)) + "}",
        '{"format": "refopt-golden/1", "format": "refopt-vectors/1"}',
        "NaN",
        "9" * 10**6,
        "\x00",
        "",
    ],
    ids=["open", "deep", "deep-cases", "twice", "nan", "digits", "zero", "empty"],
)
def test_a_text_that_is_no_document_is_refused(tmp_path, text):
    assert load(tmp_path, text) is None


def changed(n, **values):
    document = copy.deepcopy(DOCUMENTS[n])
    document["cases"][0].update(values)
    return json.dumps(document)


ARRAY = {"dtype": "float32", "bits": ""}
CONV, TABLE = 5, 6


def layered(n, change):
    document = copy.deepcopy(DOCUMENTS[n])
    change(document["cases"][0])
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        changed(0, steps=10**9),
        changed(0, record=[10**9], steps=10**9),
        changed(0, params=[ARRAY | {"shape": [0, HUGE]}] * 2),
        changed(0, params=[ARRAY | {"shape": [HUGE, HUGE]}] * 2),
        changed(0, params=[ARRAY | {"shape": [0] * 10**5}] * 2),
        changed(2, grads=[[{"indices": [HUGE], "values": ""}] * 1]),
        layered(CONV, lambda c: c["layers"][0].update(dilation=[10**9, 1])),
        layered(CONV, lambda c: c["layers"][0].update(stride=[0, 1])),
        layered(CONV, lambda c: c["statistics"]["1"]["conv"]["a"].update(shape=[0, 1, HUGE, 1])),
        layered(TABLE, lambda c: c["statistics"]["1"]["emb"]["a"].update(bits="7fffffff" * 6)),
        layered(TABLE, lambda c: c["statistics"]["1"]["emb"]["a"].update(bits="ffffffff" * 6)),
    ],
)
def test_no_memory_is_taken_for_what_a_file_announces(tmp_path, text):
    tracemalloc.start()
    try:
        assert load(tmp_path, text) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000 + 10 * len(text)


def test_a_factor_larger_than_memory_is_refused(tmp_path):
    """A weight of many columns is small, and its factor has their square."""

    def widen(case):
        (weight, *_) = case["params"]
        weight |= {"shape": [1, 10**5], "bits": "00000000" * 10**5}
        case["layers"][0] = {"kind": "dense", "name": "conv", "params": [0]}

    assert load(tmp_path, layered(CONV, widen)) is None


@pytest.mark.parametrize("id_", ["../../x", "nadam.../x", "nadam.a/b", "nadam.\x00", "nadam." * 99])
def test_an_id_that_could_be_a_path_is_refused(tmp_path, id_):
    assert load(tmp_path, changed(0, id=id_)) is None
    assert load(tmp_path, changed(0, id="nadam.mine.one")) is not None


# -- the arrays beside a file ---------------------------------------------------------------------


def beside(folder, header, payload=b"", length=None):
    """A file whose arrays lie in safetensors beside it, with this header."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    size = len(text) if length is None else length
    content = (size % 2**64).to_bytes(8, "little") + text + payload
    (folder / "mine.safetensors").write_bytes(content)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"x": ENTRY | {"data_offsets": [-8, HUGE]}}, None),
        ({"x": ENTRY | {"data_offsets": [0, 3]}}, None),
        ({"x": ENTRY | {"data_offsets": ["0", None]}}, None),
        ({"x": ENTRY | {"dtype": "F99"}}, None),
        ({"x": ENTRY | {"dtype": []}}, None),
        ({"x": []}, None),
        ([], None),
        (b"[" * 10**5, None),
        (b"\xff\xfe", None),
        ({"x": ENTRY}, 2**64 - 1),
        ({"x": ENTRY}, HUGE),
        ({"../../x": ENTRY}, 0),
    ],
)
def test_arrays_beside_a_file_are_read_or_refused(tmp_path, header, length):
    beside(tmp_path, header, b"\x00" * 4, length)
    document = copy.deepcopy(DOCUMENTS[0])
    document["cases"][0]["params"][0]["bits"] = {"tensor": "x"}
    assert load(tmp_path, json.dumps(document)) is None


def test_a_tensor_is_looked_up_in_the_file_beside_alone(tmp_path):
    """A name that is a path opens nothing."""
    (tmp_path / "secret").write_bytes(b"\x00" * 8)
    beside(tmp_path, {"x": ENTRY}, b"\x00" * 4)
    opened = []
    watching = [True]

    def watch(event, arguments):
        if watching[0] and event == "open" and isinstance(arguments[0], str):
            opened.append(Path(arguments[0]).name)

    sys.addaudithook(watch)
    try:
        for name in ("../../secret", "secret", "/etc/passwd", "file:secret"):
            document = copy.deepcopy(DOCUMENTS[0])
            document["cases"][0]["params"][0]["bits"] = {"tensor": name}
            document["cases"][0]["id"] = "nadam.mine"
            assert load(tmp_path, json.dumps(document)) is None
    finally:
        watching[0] = False
    assert {*opened} <= {"mine.json", "mine.safetensors"}


# -- what is read is judged -----------------------------------------------------------------------


@settings(BOUNDED, max_examples=40)
@given(document=mutated())
def test_a_hostile_file_that_is_read_is_judged_and_the_judging_is_no_crash(tmp_path, document):
    for recording in load(tmp_path, json.dumps(document)) or ():
        if recording.case.steps <= 20:
            known = suite.profiles(recording.case)
            runs = {name: run for name, run in recording.runs.items() if name in known}
            for task in suite.tasks([recording._replace(runs=runs)], numpy=False):
                assert all(result.status for result in suite.work(task))


# -- programs -------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
HELLO = {"rop": 1, "name": "mine", "version": "1", "suite": suite.version(), "optimizer": "nadam"}
HELLO |= {"takes": sorted(rop.plain("nadam")), "seq": 0}
RECORDING, PARTS = next(iter(rop.questions(rop.vectors("nadam"))))


@BOUNDED
@given(line=st.text(max_size=80) | JSON.map(json.dumps) | st.sampled_from(["[" * 9999, "1" * 9999]))
def test_a_line_of_a_program_is_an_object_or_a_failure(line):
    found, failure = refused(lambda: process.message(line), Failure)
    assert isinstance(found, dict) or failure.status in FAILURES
    assert failure is None or len(failure.detail) < 1000


@BOUNDED
@given(answer=st.dictionaries(st.sampled_from([*HELLO, "x"]), JSON | st.sampled_from(HOSTILE)))
def test_a_hello_is_one_or_a_failure(answer):
    found, failure = refused(lambda: rop.spoken(HELLO | answer, "nadam"), Failure)
    assert failure.status in FAILURES if found is None else found.takes <= {*rop.words("nadam")}


QUANTITIES = ("param", "m", "v", "t", "product", "dtypes", "x", "skipped", "rejected", "error")
ANSWER = st.dictionaries(st.sampled_from(QUANTITIES), JSON | st.sampled_from(HOSTILE))


@BOUNDED
@given(answers=st.lists(ANSWER, min_size=1, max_size=3))
def test_an_answer_is_an_item_or_a_failure(answers):
    program = rop.Spoken("mine", "1", {*rop.words("nadam")})
    right = {"param": [RECORDING.case.source["params"][0]["bits"]]}

    def ask(question):
        seq = {"seq": question["seq"]}
        return seq | (
            right | answers[seq["seq"] % len(answers)] if question["op"] == "step" else {}
        )

    call = lambda: rop.items(program, RECORDING, PARTS, ask, None)  # noqa: E731
    found, failure = refused(call, Failure)
    assert found is None or all(item.status or item.run for item in found)
    assert failure is None or failure.status in FAILURES


@settings(BOUNDED, max_examples=40)
@given(
    lines=st.lists(
        st.text(max_size=60)
        | JSON.map(json.dumps)
        | ANSWER.map(lambda a: json.dumps(a | {"seq": 1}, default=str))
        | st.sampled_from([json.dumps(HELLO), '{"seq": 0, "optimizer": []}', "x" * 70_000])
    )
)
def test_a_file_of_answers_is_judged_or_refused(lines):
    for said in ([json.dumps(HELLO), *lines], lines):
        found, error = refused(lambda x=said: list(rop.Answers(x).tasks("*", None)), CaseError)
        assert found is None or all(item.status or item.run for t in found for item in t.items)
        assert error is None or "hello" in str(error)


def test_what_a_file_of_answers_is_kept_of_is_bounded():
    """Lines without end, numbers without end, and answers as long as one likes."""
    endless = (json.dumps({"seq": n, "x": "y" * 1000}) for n in range(12_000))
    long = ("x" * 70_000 for _ in range(50))
    tracemalloc.start()
    try:
        with pytest.raises(CaseError, match="hello"):
            rop.Answers(line for lines in (long, endless) for line in lines)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000 * rop.MANY


@settings(BOUNDED, max_examples=40)
@given(answer=st.dictionaries(st.sampled_from(["id", "runs", "skipped"]), JSON))
def test_an_answer_of_an_adapter_is_an_item_or_a_failure(answer):
    recording = Recording(RECORDING.case, RECORDING.runs, {})
    call = lambda: list(live._items("mine 1", recording, answer, None))  # noqa: E731
    found, failure = refused(call, Failure, AdapterError)
    assert all(found or ())
    assert failure is None or str(failure)
