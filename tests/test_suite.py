"""The suite's machinery: refopt's own runs, what is no verdict, and the work over processes."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flint import arb

import refopt
from refopt.errors import CaseError
from refopt.interp import arrays
from refopt.interp.balls import precision
from refopt.interp.envelope import Interval
from refopt.oracle import golden, suite
from refopt.oracle.golden import Recording, Run
from refopt.oracle.own import array, bfloat16, flat, numpy_run
from refopt.oracle.report import STALE, Tally, Terminal, summary
from refopt.oracle.suite import AGREES, BROKEN, DIFFERS, Item, Result, Task
from refopt.oracle.verdict import CONFORMS, FORCED, VIOLATION, Check, _distance
from refopt.rules import nadam

RECORDINGS = {r.case.id: r for r in suite.recordings()}
SHARP = ["nadam.torch.sharp-l2-psi-1.f32", "nadam.torch.sharp-l2-psi-1.f64"]


def judged(recording: Recording, run: Run, name: str = "torch-2.13", axes: bool = False) -> Result:
    item = Item("test", name, name, run, axes=axes)
    (result,) = suite.work(Task(recording.case, (item,)))
    return result


def changed(run: Run, change: Callable[[str, float], float]) -> Run:
    steps = {
        t: {
            q: [None if xs is None else [change(q, x) for x in xs] for xs in column]
            for q, column in quantities.items()
        }
        for t, quantities in run.steps.items()
    }
    return run._replace(steps=steps)


# -- answers that must not pass -------------------------------------------------------------------


@pytest.mark.parametrize("case", SHARP)
@pytest.mark.parametrize(
    "change",
    [
        lambda q, x: math.nan,
        lambda q, x: 0.0,
        lambda q, x: math.inf,
        lambda q, x: float(np.float32(math.sin(1e4 * x + len(q)))),
        lambda q, x: math.nan if q == "param" else x,
        lambda q, x: x * (1 + 2**-18) if q == "v" else x,
    ],
    ids=["nan", "zero", "infinity", "random", "nan-parameter", "v-off-by-2^-18"],
)
def test_wrong_answers_are_violations(case: str, change: Callable[[str, float], float]) -> None:
    recording = RECORDINGS[case]
    assert judged(recording, recording.runs["torch-2.13"]).status == CONFORMS
    assert judged(recording, changed(recording.runs["torch-2.13"], change)).status == VIOLATION


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda steps: steps.pop("2"), "step 2 is required"),
        (lambda steps: steps["2"].update(m=[steps["2"]["m"][0][:-8]]), "step 2, m: 32 hex"),
        (lambda steps: steps["2"].update(m=[steps["2"]["m"][0] + "00000000"]), "step 2, m: 32 hex"),
        (lambda steps: steps["2"]["product"].append("3f000000"), "step 2, product: one entry"),
        (lambda steps: steps["2"]["param"].__setitem__(0, None), "every parameter is required"),
        (lambda steps: steps["2"].pop("param"), "every parameter is required"),
        (lambda steps: steps.update({"0": steps["1"]}), "steps from 1 to"),
        (lambda steps: steps.update({"1000": steps["1"]}), "steps from 1 to"),
        (lambda steps: steps["2"].update(x=steps["2"]["m"]), "quantities must be among"),
    ],
)
def test_an_incomplete_answer_is_refused(fault: Callable[[Any], Any], said: str) -> None:
    runs = {"torch-2.13": _source(SHARP[0])["runs"]["torch-2.13"]}
    case = RECORDINGS[SHARP[0]].case
    assert golden.parse_run(case, "torch-2.13", runs).steps
    fault(runs["torch-2.13"]["steps"])
    with pytest.raises(CaseError, match=said):
        golden.parse_run(case, "torch-2.13", runs)


def _source(case: str) -> Any:
    path = golden.root() / "golden" / "nadam" / "torch-2.13.json"
    return next(c for c in json.loads(path.read_text())["cases"] if c["id"] == case)


def test_a_failure_while_judging_leaves_the_other_runs_alone() -> None:
    recording = RECORDINGS[SHARP[0]]
    run = recording.runs["torch-2.13"]
    items = (
        Item("test", "no-such-profile", "no-such-profile", run),
        Item("test", "torch-2.13", "torch-2.13", run, axes=False),
    )
    broken, fine = suite.work(Task(recording.case, items))
    assert (broken.status, fine.status) == (BROKEN, CONFORMS)
    assert "KeyError: 'no-such-profile'" in broken.item.detail


def test_a_vector_that_lost_its_power_is_stale() -> None:
    recording = RECORDINGS["nadam.vector.sharp-l2-psi-1.f32"]
    run = recording.runs["documented"]
    assert not judged(recording, run, "documented", axes=True).item.stale
    source = recording.case.source | {"kills": [*recording.case.source["kills"], "root=of-each"]}
    claims_more = recording._replace(case=recording.case._replace(source=source))
    result = judged(claims_more, run, "documented", axes=True)
    assert result.item.stale == "does not exclude root=of-each any more"
    tally = Tally()
    tally.add(result)
    assert tally.exit_code == STALE


def test_an_interval_that_is_a_point_but_for_the_error_of_balls_has_no_share() -> None:
    recording = RECORDINGS[SHARP[1]]

    def share(low: arb, high: arb, observed: float) -> float:
        check = Check(2, "m", 0, 0, observed, Interval(low, high), FORCED)
        return _distance(check, recording.case, recording.runs["torch-2.13"])[1]

    with precision():
        third = arb(1) / 3  # a ball of radius 2**-257 or so
        assert not third.is_exact()
        assert share(third, third, 1 / 3) == 0
        assert share(third, third * (1 + arb(2) ** -250), 1 / 3) == 0
        assert share(arb(1), arb(3), 2.5) == 0.5
        assert share(arb(-1), arb(1), 1.0) == 1
        assert share(arb(0), arb(0), 0.0) == 0


def test_ulp_are_counted_where_the_update_has_digits() -> None:
    """A learning rate kept in bfloat16 leaves no half of the digits: its distance is no count."""
    recording = RECORDINGS["nadam.torch.lr-tensor-bf16.f64"]
    wide = judged(recording, recording.runs["torch-2.13"]).verdict
    assert wide is not None
    assert wide.worst_share > 0.1
    assert wide.worst_ulp == 0
    recording = RECORDINGS[SHARP[0]]
    narrow = judged(recording, recording.runs["torch-2.13"]).verdict
    assert narrow is not None
    assert 0 < narrow.worst_ulp < 100


# -- against the documented rule ------------------------------------------------------------------

Found = dict[tuple[str, str, str], Result]


def compared(recordings: list[Recording]) -> Found:
    """Comparisons by run, feature, dtype."""
    results = [
        result
        for case, items in suite.tasks(recordings, numpy=False, beside="documented")
        for result in suite.work(Task(case, tuple(item for item in items if item.feature)))
    ]
    return {(r.item.name, r.item.feature, r.dtype): r for r in results}


@pytest.fixture(scope="module")
def rmsprop() -> Found:
    return compared([r for name, r in RECORDINGS.items() if name.startswith("rmsprop.")])


@pytest.fixture(scope="module")
def nadams() -> Found:
    return compared([r for name, r in RECORDINGS.items() if name.startswith("nadam.")])


def explained(found: Found, name: str, feature: str, dtype: str = "float32") -> set[str]:
    """The explanations of a comparison; empty where it agrees."""
    result = found[name, feature, dtype]
    named = {" ".join(sorted("=".join(change) for change in changes)) for changes in result.named}
    assert (result.status == AGREES) == (not named)
    return named


def test_legacy_keras_moves_epsilon_and_learning_rate_with_momentum_alone(rmsprop: Found) -> None:
    assert explained(rmsprop, "keras-legacy-2.9", "plain") == set()
    assert explained(rmsprop, "keras-legacy-2.9", "centered") == set()
    assert explained(rmsprop, "keras-legacy-2.9", "momentum") == {
        "epsilon=inside move=lr-inside",
        "epsilon=inside-with-momentum move=lr-inside",
    }


def test_the_centered_form_of_tf_2_9_is_another_formula(rmsprop: Found) -> None:
    for name in ("tf-2.9-dtensor", "tf-2.9-experimental"):
        assert explained(rmsprop, name, "plain") == set()
        assert explained(rmsprop, name, "momentum") == set()
        assert explained(rmsprop, name, "centered") == {"variance=cumulative"}


def test_torch_and_documented_agree_on_rmsprop(rmsprop: Found) -> None:
    torch = [r for (name, _, _), r in rmsprop.items() if name.startswith("torch")]
    assert {r.item.feature for r in torch} == {"plain", "momentum", "centered", "weight_decay"}
    assert {r.status for r in torch} == {AGREES}


def test_releases_that_start_at_one_are_told_by_three_changes(rmsprop: Found) -> None:
    for name in ("tf1", "timm-rmsprop-tf", "mindspore-2.10"):
        assert explained(rmsprop, name, "plain") == {"epsilon=inside start=one"}
        both = explained(rmsprop, name, "momentum")
        assert "epsilon=inside move=lr-inside start=one" in both


def test_the_float64_product_of_torch_is_float32(nadams: Found) -> None:
    for name in ("torch-2.13", "torch-2.13-foreach"):
        assert explained(nadams, name, "plain", "float64") == {"product=float32"}


def test_every_release_is_compared_and_explained_in_float32(rmsprop: Found, nadams: Found) -> None:
    for optimizer, found in (("rmsprop", rmsprop), ("nadam", nadams)):
        golden_runs = {
            name
            for case, r in RECORDINGS.items()
            if case.startswith(optimizer) and "framework" in r.provenance
            for name in r.runs
        }
        assert {name for name, _, _ in found} == golden_runs
        assert {r.status for r in found.values()} <= {AGREES, DIFFERS}
        assert [key for key, r in found.items() if key[2] == "float32" and not r.named] == [
            key for key, r in found.items() if key[2] == "float32" and r.status == AGREES
        ]


def test_who_made_a_run_is_no_hint(rmsprop: Found) -> None:
    """Under another name a run is chosen, and explained, as before."""
    legacy = [
        recording._replace(runs={"documented": recording.runs["keras-legacy-2.9"]})
        for name, recording in RECORDINGS.items()
        if name.startswith("rmsprop.keras-legacy.")
    ]
    again = compared(legacy)
    assert {key[1:]: (r.status, r.named) for key, r in again.items()} == {
        key[1:]: (r.status, r.named) for key, r in rmsprop.items() if key[0] == "keras-legacy-2.9"
    }


def test_what_no_change_explains_is_said(rmsprop: Found) -> None:
    recording = RECORDINGS[rmsprop["torch-2.13", "plain", "float32"].case]
    run = changed(recording.runs["torch-2.13"], lambda q, x: x * (1 + 2**-12) if q == "v" else x)
    again = compared([recording._replace(runs={"torch-2.13": run})])
    (result,) = again.values()
    assert (result.status, list(result.named)) == (DIFFERS, [])
    assert "no 3 changes explain it" in printed(again)


def printed(*found: Found) -> str:
    """What a check prints, wrapped lines joined."""
    tally, file = Tally(), io.StringIO()
    for results in found:
        for result in results.values():
            tally.add(result)
            case = RECORDINGS[result.case]
            name = next(iter(case.runs))
            tally.add(Result(result.case, "basics", Item("test", name, name), CONFORMS))
    summary(tally, Terminal(file=file, width=200), 1.0)
    assert tally.exit_code == 0
    return file.getvalue()


def test_a_check_prints_what_each_release_does_otherwise(rmsprop: Found, nadams: Found) -> None:
    said = printed(rmsprop, nadams)
    assert (
        "  keras-legacy-2.9\n"
        "    plain, centered: agrees\n"
        "    momentum: epsilon=inside or inside-with-momentum, move=lr-inside\n"
    ) in said
    assert (
        "  tf-2.9-dtensor, tf-2.9-experimental\n"
        "    plain, momentum: agrees\n"
        "    centered: variance=cumulative\n"
    ) in said
    assert (
        "  torch-2.13, torch-2.13-foreach\n"
        "    plain, centered, momentum, weight_decay, plain in float64: agrees\n"
    ) in said
    assert "    plain in float64: product=float32\n" in said
    assert "  epsilon: Where is epsilon added?\n    inside (RMS-5.4b): under the root\n" in said
    assert "storage=float32-variables or float32-casts (rounding alone)" in said


# -- processes ------------------------------------------------------------------------------------


def test_two_processes_give_what_one_gives_in_order() -> None:
    chosen = [RECORDINGS[name] for name in (*SHARP, "nadam.torch.half.bf16")]
    one, two = (
        [
            r._replace(seconds=0)
            for results in suite.spread(suite.tasks(chosen, every=True), jobs)
            for r in results
        ]
        for jobs in (1, 2)
    )
    # NaN, where an envelope has no finite value, is unequal to itself
    assert repr(one) == repr(two)
    assert [r.case for r in one] == sorted(
        (r.case for r in one), key=lambda c: [*SHARP, c].index(c)
    )


# -- refopt on NumPy ------------------------------------------------------------------------------


def test_bfloat16_rounds_as_ml_dtypes_does() -> None:
    bits = np.arange(0, 2**32, 2**32 // 2**18 - 1, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | np.uint32(0x8000)
    x = np.concatenate([bits, ties, ties - np.uint32(1), ties + np.uint32(1)]).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(bfloat16(x), expected)


@pytest.mark.parametrize("profile", ["documented", "torch-2.13", "torch-2.13-foreach"])
def test_bfloat16_runs_as_it_does_on_ml_dtypes(profile: str) -> None:
    case = RECORDINGS["nadam.torch.half.bf16"].case
    run = numpy_run(case, suite.profiles(case)[profile])
    assert run.dtypes["param"] == ["bfloat16"]
    params = [np.array(case.params[0], dtype=ml_dtypes.bfloat16).reshape(case.shapes[0])]
    own = suite.profiles(case)[profile]
    hyper = own.hyper._replace(**case.hyper)
    own = own._replace(choices=nadam.configured(own.choices, hyper, case.options))
    states, clocks = zip(*(arrays.init(nadam, own, p) for p in params), strict=True)
    for t in range(1, case.steps + 1):
        grads = [np.array(case.gradients(t)[0], ml_dtypes.bfloat16).reshape(case.shapes[0])]
        quantities, states, clocks = arrays.run(nadam, own, params, grads, states, clocks, hyper)
        params = [quantities[0].param]
        if t in run.steps:
            for q, x in {"param": params[0], "m": states[0].m, "v": states[0].v}.items():
                assert run.steps[t][q] == [x.astype(np.float64).reshape(-1).tolist()]


@pytest.mark.parametrize(
    "case",
    [
        "nadam.torch.sharp-l2-psi-1.f64",
        "nadam.torch.sharp-decoupled.f32",
        "nadam.torch.complex-l2-maximize.c128",
        "nadam.torch.groups-everything.f64",
        "nadam.torch.none-alternating.f32",
        "nadam.torch.everything-changed.f64",
        "nadam.torch.strided.f64",
        "nadam.torch.fortran.f64",
    ],
)
def test_the_rule_that_is_judged_is_the_object_that_is_used(case: str) -> None:
    """`refopt.NAdam` gives the bits of `numpy_run`."""
    given = RECORDINGS[case].case
    run = numpy_run(given, suite.profiles(given)["documented"])
    dtypes = [p["dtype"] for p in given.source["params"]]
    params = [
        refopt.Parameter(array(values, dtype, shape))
        for values, dtype, shape in zip(given.params, dtypes, given.shapes, strict=True)
    ]

    def settings(hyper: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        names = {"lr": "lr", "epsilon": "eps", "weight_decay": "weight_decay"}
        names["momentum_decay"] = "momentum_decay"
        found = {names[k]: v for k, v in hyper.items() if k in names}
        first, second = group.get("betas", (None, None))
        return found | {"betas": (hyper.get("beta1", first), hyper.get("beta2", second))}

    defaults = settings(given.hyper, {})
    groups = [
        {"params": [params[i] for i in members], **settings(overrides, defaults)}
        for members, overrides in given.groups
    ]
    options = {name: bool(value) for name, value in given.options.items()}
    optimizer = refopt.NAdam(groups, **{**defaults, **options})
    for t in range(1, given.steps + 1):
        for group in optimizer.param_groups:
            group.update(settings(given.changes.get(t, {}), group))
        gradients = zip(given.gradients(t), params, dtypes, given.shapes, strict=True)
        for gradient, param, dtype, shape in gradients:
            param.grad = None if gradient is None else array(gradient, dtype, shape)
        optimizer.step()
        if t in run.steps:
            assert [flat(p.data) for p in params] == run.steps[t]["param"]


# -- what is read ---------------------------------------------------------------------------------


def test_the_version_of_the_suite_is_that_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "golden" / "nadam").mkdir(parents=True)
    (tmp_path / "golden" / "nadam" / "a.json").write_text("{}")
    monkeypatch.setattr(golden, "root", lambda: tmp_path)
    before = suite.version()
    (tmp_path / "golden" / "nadam" / "a.json").write_text("{ }")
    assert suite.version() != before
    assert len(before) == 12


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": "other"}', '{"format": 1, "cases": 3}']
)
def test_a_file_that_is_no_recording_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(CaseError, match=r"mine\.json"):
        list(suite.recordings(path))


def test_a_run_without_a_profile_asks_for_one(tmp_path: Path) -> None:
    recording = RECORDINGS[SHARP[0]]
    renamed = recording._replace(runs={"my-optimizer": recording.runs["torch-2.13"]})
    with pytest.raises(CaseError, match="'my-optimizer' is no profile: pass --profile") as found:
        list(suite.tasks([renamed], numpy=False))
    assert "optax-0.2" in str(found.value)
    assert "tf-2.9" not in str(found.value)
    with pytest.raises(CaseError, match="--profile must be one of its optimizer, got 'tf1'"):
        list(suite.tasks([renamed], "tf1", numpy=False))
    (task,) = suite.tasks([renamed], "torch-2.13", numpy=False)
    assert [item.profile for item in task.items] == ["torch-2.13"]


def test_json_of_a_case_keeps_its_numbers() -> None:
    recording = RECORDINGS[SHARP[1]]
    again = golden.parse(json.loads(json.dumps(recording.case.source)))
    assert again.params == recording.case.params
