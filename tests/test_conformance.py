"""Every recorded run and every vector lies inside the envelope of its profile."""

from collections import Counter

import pytest

from refopt.oracle import golden, suite
from refopt.oracle.golden import Case, Run
from refopt.oracle.report import paragraph
from refopt.oracle.spec import RULES
from refopt.oracle.suite import DEVIATES, REJECTED, Item, Result, Task
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, Judge

# No element, or NaN in every one: the counters are right, and no alternative is excluded.
UNDECIDED = {
    "rmsprop.tf.empty.f32",
    "rmsprop.tf.clipnorm-infinite.f32",
    "rmsprop.tf.global-infinite.f32",
}
RUNS = [
    pytest.param(recording.case, name, run, id=f"{recording.case.id}-{name}")
    for recording in suite.recordings()
    for name, run in recording.runs.items()
]


def judged(case: Case, name: str, run: Run, *, axes: bool) -> Result:
    item = suite.recorded("recorded", name, name, run)._replace(axes=axes)
    (result,) = suite.work(Task(case, (item,)))
    return result


@pytest.mark.parametrize(("case", "name", "run"), RUNS)
def test_a_run_conforms_to_its_profile(case: Case, name: str, run: Run) -> None:
    result = judged(case, name, run, axes=False)
    if run.error:
        assert result.status == REJECTED
        assert run.error["type"]
        assert not run.steps
        return
    assert result.verdict is not None
    if result.status == DEVIATES:
        assert result.verdict.first is not None
        assert result.item.detail  # the reason
        return
    wanted = INCONCLUSIVE if case.id in UNDECIDED else CONFORMS
    assert result.status == wanted, "\n".join(paragraph(result))
    assert result.verdict.first is None
    if any(case.params):
        assert result.verdict.open < result.verdict.checks


DECIDED = [
    p
    for p in RUNS
    if not p.values[2].error
    and p.values[0].id not in UNDECIDED
    and (p.values[0].id, p.values[1]) not in golden.expected()
]


@pytest.mark.parametrize(("case", "name", "run"), DECIDED[::25])
def test_a_run_excludes_alternatives_and_says_which_it_cannot(
    case: Case, name: str, run: Run
) -> None:
    result = judged(case, name, run, axes=True)
    assert result.status == CONFORMS, "\n".join(paragraph(result))
    assert result.verdict is not None
    told = [
        (axis, alternative)
        for found in (result.verdict.excluded, result.verdict.undecided)
        for axis, names in found.items()
        for alternative in names
    ]
    assert len(told) == len(set(told))
    assert not result.item.stale


def test_the_suite_is_as_large_as_it_claims() -> None:
    recordings = list(suite.recordings())
    recorded: dict[str, Counter[str]] = {}
    for r in recordings:
        ran = [name for name, run in r.runs.items() if not run.error]
        recorded.setdefault(suite.optimizer(r.case.id), Counter()).update(ran)
        assert r.runs.keys() <= suite.profiles(r.case).keys()
    for optimizer in [path.name for path in (golden.root() / "golden").iterdir()]:
        unrecorded = {"corrected", "kfac"} if optimizer == "thor" else set()
        assert recorded[optimizer].keys() == RULES[optimizer].PROFILES.keys() - unrecorded
        assert min(recorded[optimizer].values()) >= 5
    assert min(count for name, count in recorded["rmsprop"].items() if name != "documented") >= 15
    assert len({r.case.id for r in recordings}) == len(recordings)
    torch = [r for r in recordings if r.case.id.startswith("nadam.torch.")]
    assert len(torch) >= 80


def test_every_case_has_a_topic() -> None:
    other = [r.case.id for r in suite.recordings() if suite.group(r.case) == "other"]
    assert [case for case in other if suite.optimizer(case) != "rmsprop"] == []


def test_refopt_itself_is_among_what_is_judged() -> None:
    for task in suite.tasks(suite.recordings()):
        own = {item.profile for item in task.items if item.run is None and not item.status}
        recorded = {item.profile for item in task.items if item.run is not None}
        assert own == recorded | {"documented"}
        assert all(isinstance(item, Item) for item in task.items)


def test_in_which_dtype_keras_keeps_the_weight_decay_shows() -> None:
    nadam = RULES["nadam"]
    decided = {"keras-2.15": "float32-casts", "keras-2.15-graph": "float32-casts"}
    for r in suite.recordings():
        if r.case.id == "nadam.keras-2.15.weight-decay-inexact.f64":
            for name, run in r.runs.items():
                judge = Judge(nadam, r.case, run, nadam.PROFILES[name])
                held = [
                    storage
                    for storage, choice in nadam.AXES["storage"].items()
                    if judge.holds({"storage": choice})
                ]
                assert held == [decided.pop(name)]
    assert not decided
