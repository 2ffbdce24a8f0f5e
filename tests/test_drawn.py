"""Inputs drawn anew: what follows from a seed, who is caught by them, and who is not."""

import json
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.oracle import drawn, rop, styles, suite
from refopt.oracle.golden import parse
from refopt.oracle.layered import judging
from refopt.oracle.own import numpy_run
from refopt.oracle.spec import RULES

NADAM = """
import math
import numpy as np

def right(param, grad, state, *, lr, betas, eps, momentum_decay, scale=lambda p, n: 1.0):
    m, v, n, product = state or (np.zeros_like(param), np.zeros_like(param), 0, 1.0)
    (b1, b2), n = betas, n + 1
    grad = grad * np.asarray(scale(param, n), param.dtype)
    mu, then = (b1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)) for t in (n, n + 1))
    product *= mu
    m = b1 * m + (1 - b1) * grad
    v = b2 * v + (1 - b2) * grad * grad
    look = (1 - mu) / (1 - product) * grad + then / (1 - product * then) * m
    return param - lr * look / (np.sqrt(v / (1 - b2**n)) + eps), (m, v, n, product)

def other(scale):
    def function(param, grad, state, *, lr, betas, eps, momentum_decay):
        h = dict(lr=lr, betas=betas, eps=eps, momentum_decay=momentum_decay)
        return right(param, grad, state, scale=scale, **h)
    return function

scalar = other(lambda p, n: 2.0 if p.ndim == 0 else 1.0)
matrix = other(lambda p, n: 2.0 if p.ndim == 2 else 1.0)
many = other(lambda p, n: np.where(np.arange(p.size) < 100, 1.0, 2.0).reshape(p.shape))
last = other(lambda p, n: np.where(np.arange(p.size) < max(p.size - 1, 20), 1.0, 2.0)
             .reshape(p.shape))
late = other(lambda p, n: 1.0 if n < 21 else 2.0)
"""


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(NADAM)
    monkeypatch.chdir(tmp_path)

    def outside(function, seed):
        command = rop.function(f"mine:{function}", "nadam", sys.executable)
        program = rop.Program(command, "nadam", 60.0)
        try:
            found = program.drawn(seed)
            results = [suite.work(suite.Task(r.case, program.items(r, None))) for r in found]
        finally:
            program.close()
        return {r.case.split("-")[1] for (r,) in results if r.status == "violation"}, results

    return outside


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fault_that_no_vector_has_the_size_steps_or_shape_for_is_caught(wrong, seed):
    outside, results = wrong("right", seed)
    assert outside == set()
    assert len(results) == len(drawn.KINDS)
    for function, kinds in {
        "scalar": {"shapes"},
        "matrix": {"shapes"},
        "many": {"large"},
        "last": {"large"},
        "late": {"long"},
    }.items():
        assert wrong(function, seed)[0] >= kinds, function


def test_a_fault_in_one_element_of_thousands_is_named_by_its_place(wrong):
    _, results = wrong("last", 5)
    (large,) = (r for (r,) in results if "-large-" in r.case)
    case = drawn.case(large.case)
    assert large.verdict.first.element == len(case.params[0]) - 1


@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop", "sgd", "thor"])
def test_a_case_follows_from_its_id_and_seeds_differ(optimizer):
    takes = rop.plain(optimizer)
    one, again, other = (rop.drawn_for(optimizer, seed, takes) for seed in (7, 7, 8))
    assert [r.case for r in one] == [r.case for r in again] == [drawn.case(r.case.id) for r in one]
    assert {r.case.id for r in one}.isdisjoint(r.case.id for r in other)
    assert all(rop.needs(r.case) <= takes for r in one)
    assert len(one) == (2 if optimizer == "thor" else len(drawn.KINDS))


def test_what_takes_little_is_asked_for_every_kind():
    takes = {"float64", "lr", "rho", "epsilon"}
    found = rop.drawn_for("rmsprop", 3, takes)
    assert [r.case.id.split("-")[1] for r in found] == [*drawn.KINDS]
    assert {d for r in found for d in r.case.dtypes} == {"float64"}
    assert rop.drawn_for("rmsprop", 3, takes - {"float64"}) == []


@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop", "sgd"])
def test_no_right_implementation_is_called_wrong_in_any_style(optimizer):
    rule = RULES[optimizer]
    profile = rule.PROFILES["documented"]
    takes = {*rop.words(optimizer)} - {"float16", "bfloat16", "complex64", "complex128"}
    judged = 0
    for seed in range(4):
        for case, *_ in rop.drawn_for(optimizer, seed, takes):
            runs = [numpy_run(case, profile), numpy_run(case, profile, execution="fused")]
            if "-large-" not in case.id:
                runs += [run for _, run in styles.runs(case, profile)]
            for run in runs:
                few, shown = drawn.distinct(case, run)
                verdict = judging(rule)(rule, few, shown, profile).verdict(axes=False)
                assert verdict.first is None, (case.id, verdict.first)
                judged += 1
    assert judged == 4 * (2 + 4 * 7)


def test_of_a_large_array_each_different_element_is_judged_once():
    takes = rop.plain("nadam")
    (large,) = (r.case for r in rop.drawn_for("nadam", 1, takes) if "-large-" in r.case.id)
    run = numpy_run(large, RULES["nadam"].PROFILES["documented"])
    few, shown = drawn.distinct(large, run)
    (elements,) = few.source["elements"]
    assert len(large.params[0]) > 2000
    assert len(elements) == len(few.params[0]) == len(shown.steps[1]["m"][0]) == drawn.DISTINCT
    run.steps[2]["param"][0][1234] += 1.0
    few, shown = drawn.distinct(large, run)
    assert few.source["elements"] == [sorted([*elements, 1234])]
    small = drawn.case("nadam.drawn.1-grid-99.f32")
    assert drawn.distinct(small, run) == (small, run)


def test_files_of_questions_and_answers_have_the_seed_in_their_suite():
    takes = rop.plain("nadam")
    asked = [*rop.generate("nadam", "*drawn*", takes, 11)]
    assert asked[0]["suite"] == f"{suite.version()}-11"
    cases = [q["id"] for q in asked if q["op"] == "case"]
    assert {id_.split("-")[1] for id_ in cases} == {*drawn.KINDS}
    first = {"seq": 0, "rop": 1, "optimizer": "nadam", "suite": asked[0]["suite"]}
    first |= {"name": "x", "version": "1", "takes": sorted(takes)}
    answers = rop.Answers([json.dumps(first), json.dumps({"seq": asked[-1]["seq"]})])
    assert answers.seed == 11
    assert [*answers.tasks("*", None)] == []
    plain = [*rop.generate("nadam", "*drawn*", takes)]
    assert [q["op"] for q in plain] == ["hello", "bye"]


def test_an_id_that_is_none_is_refused():
    from refopt.errors import CaseError

    for id_ in (
        "nadam.drawn.1-none-0.f32",
        "nadam.drawn.x-grid-0.f32",
        "nadam.vector.defaults.f32",
    ):
        with pytest.raises(CaseError, match="must be OPTIMIZER"):
            drawn.case(id_)
    assert parse(drawn.case("sgd.drawn.3-edges-0.f64").source)


WEIGHTS, NUMBERS = st.fractions(0, 1, max_denominator=9), st.fractions(-9, 9, max_denominator=9)


@given(st.lists(st.tuples(WEIGHTS, NUMBERS), min_size=1, max_size=6))
def test_a_centered_variance_is_never_negative_but_by_rounding(steps):
    v = a = Fraction(0)
    for rho, g in steps:
        variance, away = v - a * a, a - g
        v, a = rho * v + (1 - rho) * g * g, rho * a + (1 - rho) * g
        assert v - a * a == rho * variance + rho * (1 - rho) * away**2 >= 0


def test_numbers_reach_from_tiny_to_huge_with_zeros_of_both_signs():
    values = np.concatenate(
        [
            np.ravel(grad)
            for seed in range(20)
            for row in drawn.case(f"rmsprop.drawn.{seed}-edges-0.f32").grads
            for grad in row
        ]
    )
    size = np.abs(values[values != 0])
    assert size.min() < 1e-27
    assert size.max() > 1e27
    zeros = np.signbit(values[values == 0])
    assert zeros.any()
    assert not zeros.all()
    assert np.isfinite(values).all()
