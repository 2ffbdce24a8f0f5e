"""The mutation score: wrong rules are caught and named, and what is right is never called wrong."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from refopt import cli
from refopt.oracle import coverage, mutants, spec, styles
from refopt.oracle.layered import judging
from refopt.oracle.mutants import AMONG, CAUGHT, MISSED, NAMED, Mutant, Outcome, Rounded
from refopt.oracle.own import numpy_run
from refopt.oracle.report import OK, VIOLATED
from refopt.oracle.verdict import CONFORMS, judge
from refopt.rules import nadam

OPTIMIZERS = coverage.optimizers()
SINGLES = [m for optimizer in OPTIMIZERS for m in mutants.singles(optimizer)]
PAIRS = 2  # of a dtype; the command draws more


def documented(optimizer):
    return spec.RULES[optimizer].PROFILES["documented"]


def judged(case, run, optimizer):
    rule = spec.RULES[optimizer]
    return judging(rule)(rule, case, run, documented(optimizer))


# -- wrong rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mutant", SINGLES, ids=lambda m: f"{m.optimizer}-{m.dtype}-{'='.join(m.changes[0])}"
)
def test_every_change_of_one_choice_is_caught_and_named(mutant):
    outcome = mutants.tried(mutant)
    equals = spec.RULES[mutant.optimizer].SAME_EXACTLY.get(mutant.changes[0][0], ())
    others = {name for names in equals if mutant.changes[0][1] in names for name in names}
    # beside it only what is equal to it over the real numbers
    assert outcome.status == NAMED or (outcome.status == AMONG and others)
    assert mutant.changes in outcome.explanations or outcome.status == NAMED


def test_every_alternative_is_a_mutant_or_says_why_it_is_not():
    for optimizer in OPTIMIZERS:
        axes = spec.RULES[optimizer].AXES
        choices = documented(optimizer).choices
        others = {
            (f"{axis}={name}", dtype)
            for axis, named in axes.items()
            for name, choice in named.items()
            if choice is not getattr(choices, axis)
            for dtype in coverage.DTYPES.values()
        }
        changes = {("=".join(m.changes[0]), m.dtype) for m in SINGLES if m.optimizer == optimizer}
        same = {
            (change.partition(" ")[0], dtype)
            for change, _ in mutants.identical(optimizer)
            for dtype in coverage.DTYPES.values()
            if " " not in change or change.endswith(dtype)
        }
        refused = {("past_end=zero", "float32"), ("past_end=last", "float32")}  # by a refusal
        assert others - changes - same == (refused if optimizer == "thor" else set())
        assert not changes & same


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_changes_of_two_choices_are_named_or_among_what_is_named(optimizer):
    drawn = mutants.pairs(optimizer, PAIRS)
    assert len(drawn) == 2 * PAIRS
    assert all(len({axis for axis, _ in m.changes}) == 2 for m in drawn)
    counts = Counter(mutants.tried(m).status for m in drawn)
    assert counts[NAMED] + counts[AMONG] >= mutants.SHARE * len(drawn)


def test_pairs_are_drawn_by_a_seed():
    assert mutants.pairs("nadam", 5) == mutants.pairs("nadam", 5)
    assert mutants.pairs("nadam", 5) != mutants.pairs("nadam", 5, seed=1)


# What was seen in the wild, each one change of the documented rule or two at once.
SEEN = {
    "no schedule, one divisor (timm)": (("divisors", "same"), ("schedule", "constant")),
    "no correction at all": (("correction", "none"), ("start", "zero")),
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("dtype", coverage.DTYPES.values())
def test_two_changes_that_were_seen_are_named(name, dtype):
    assert mutants.tried(Mutant("nadam", dtype, SEEN[name])).status == NAMED


def test_a_mutant_that_changes_nothing_is_missed():
    assert mutants.tried(Mutant("nadam", "float64", (("product", "native"),))).status == MISSED


def test_a_score_fails_where_a_mutant_is_not_named_or_what_is_right_is_wrong():
    one, two = ((("epsilon", "inside"),), (("epsilon", "inside"), ("start", "zero")))
    named = [Outcome(Mutant("nadam", "float32", changes), NAMED) for changes in (one, *[two] * 9)]
    fine = [Rounded("nadam.x", "fused", "")]
    assert mutants.scored(named, fine)
    assert not mutants.scored(named, [*fine, Rounded("nadam.x", "fused", "step 1, param")])
    for status in (CAUGHT, MISSED):
        assert not mutants.scored([named[0]._replace(status=status), *named[1:]], fine)
        tenth = Outcome(Mutant("nadam", "float32", two), status)
        assert mutants.scored([*named, tenth], fine)
        assert not mutants.scored([*named, tenth, tenth], fine)


# -- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_style_of_rounding_is_called_wrong(optimizer):
    found = list(mutants.right(optimizer, every=8))
    assert {style for _, style, _ in found} >= {"each operation", "reversed"}
    assert [x for x in found if x.wrong] == []


def test_a_rounding_of_each_operation_is_numpy_and_the_other_styles_are_not():
    case = mutants.recordings("nadam")[0].case
    plain = numpy_run(case, documented("nadam")).steps
    for name, run in styles.runs(case, documented("nadam")):
        same = all(
            run.steps[t][q] == plain[t][q] for t in plain for q in ("param", "m", "v", "product")
        )
        assert same == (name in ("each operation", "reversed"))


def test_a_fused_product_is_rounded_once():
    x = np.float32(1 + 2**-12)
    style = styles.Style(fused=True)
    square = styles.Element(x, style) * styles.Element(x, style)
    assert float(square - 1) == 2**-11 + 2**-24
    assert float(styles.Element(square.value, style) - 1) == 2**-11


def test_a_style_that_rounds_coarsely_is_called_wrong():
    case = mutants.recordings("nadam")[0].case
    run = styles.run(case, documented("nadam"), styles.Style())
    steps = {
        t: {q: [[x * (1 + 2**-20) for x in values] for values in column] for q, column in s.items()}
        for t, s in run.steps.items()
    }
    assert judge(nadam, case, run._replace(steps=steps), documented("nadam")).first is not None


# -- answers that are none ------------------------------------------------------------------------

DRAWN = random.Random(5)
ANSWERS = {
    "nan": lambda: math.nan,
    "zeros": lambda: 0.0,
    "random": lambda: float(np.float32(DRAWN.gauss(0.0, 1.0))),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nan_zeros_and_random_numbers_never_conform(optimizer, answer):
    """In place of every array, whatever the counters say, which stay as they are."""
    made, counters = ANSWERS[answer], {*spec.RULES[optimizer].Clock._fields, "lr"}
    for recording in mutants.recordings(optimizer)[::3]:
        case, run = recording.case, recording.runs["documented"]
        steps = {
            t: {
                q: column
                if q in counters
                else [None if values is None else [made() for _ in values] for values in column]
                for q, column in shown.items()
            }
            for t, shown in run.steps.items()
        }
        factors = {
            t: {
                q: {name: x._replace(values=[made() for _ in x.values]) for name, x in of.items()}
                for q, of in shown.items()
            }
            for t, shown in run.factors.items()
        }
        verdict = judged(case, run._replace(steps=steps, factors=factors), optimizer).verdict()
        assert verdict.status != CONFORMS, case.id


# -- the commands ---------------------------------------------------------------------------------


def test_the_command_prints_the_score_of_an_optimizer(monkeypatch):
    few, some = [m for m in SINGLES if m.changes == (("epsilon", "inside"),)], mutants.right
    monkeypatch.setattr(mutants, "singles", lambda o: [m for m in few if m.optimizer == o])
    monkeypatch.setattr(mutants, "pairs", lambda o, n: [])
    monkeypatch.setattr(mutants, "right", lambda o: some(o, every=20))
    given = ["mutants", "nadam", "--jobs", "1"]
    result = CliRunner().invoke(cli.app, given, env={"COLUMNS": "200"})
    assert result.exit_code == OK, result.output
    for dtype in coverage.DTYPES.values():
        assert f"one change, {dtype}: 1 named" in result.stdout
    assert ": 0 called wrong" in result.stdout
    assert "a float64 product is what a Python float holds: product=native" in result.stdout
    lines = CliRunner().invoke(cli.app, [*given, "--json"]).stdout.splitlines()
    assert json.loads(lines[0])["status"] == NAMED
    monkeypatch.setattr(mutants, "tried", lambda m: Outcome(m, CAUGHT, "nadam.x"))
    result = CliRunner().invoke(cli.app, given, env={"COLUMNS": "200"})
    assert result.exit_code == VIOLATED
    assert "caught in float32: epsilon=inside nadam.x" in result.stdout


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_changes_that_leave_nothing_of_an_inverse_are_named_together(dtype: str) -> None:
    """What is shown is excluded as a whole there, by the residual: the ranges are compared."""
    changes = (("damping", "root"), ("weighting", "half-each"))
    outcome = mutants.tried(Mutant("thor", dtype, changes))
    assert (outcome.status, outcome.explanations) == (NAMED, (changes,))
