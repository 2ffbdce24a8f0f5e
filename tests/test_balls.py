"""Balls agree with the transcription that was written from the page alone, to the last digit."""

import math

import flint
import mpmath
import pytest

from refopt.interp.balls import PRECISION, Balls, Space, array, precision, rounded
from refopt.interp.formats import FORMATS
from refopt.oracle import golden
from refopt.oracle.replay import Replay
from refopt.rules import nadam
from tests.independent.nadam import run as independent

DIGITS = 60  # printed; the balls' radii are below 1e-60 of the values here
BITS = 4 * PRECISION


def constant_cases():
    """Recordings whose input both can state: one set of Python floats, finite, for all steps."""
    for recording in golden.recordings():
        case = recording.case
        plain = all(isinstance(x, float) and math.isfinite(x) for x in case.hyper.values())
        finite = all(
            flint.arb(x).is_finite()
            for step in (*case.grads, case.params)
            for column in step
            for x in column or []
        )
        zero = case.hyper["epsilon"] == 0 or not case.params[0]
        half = case.dtypes[0] in ("float16", "bfloat16")
        torch = case.id.startswith("nadam.torch.")
        varied = case.changes or len(case.groups) > 1
        if torch and plain and finite and not (varied or zero or half):
            yield case


CASES = {case.id: case for case in constant_cases()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_balls_agree_with_the_independent_transcription(name):
    case = CASES[name]
    steps = min(case.steps, 40)
    theirs = independent(
        case.params,
        [case.gradients(t) for t in range(1, steps + 1)],
        lr=case.hyper["lr"],
        betas=(case.hyper["beta1"], case.hyper["beta2"]),
        eps=case.hyper["epsilon"],
        weight_decay=case.hyper["weight_decay"],
        momentum_decay=case.hyper["momentum_decay"],
        decoupled_weight_decay=bool(case.options.get("decoupled_weight_decay")),
        maximize=bool(case.options.get("maximize")),
        digits=120,
    )
    compared = 0
    with precision(BITS), mpmath.mp.workdps(120):
        replay = Replay(nadam, case, nadam.PROFILES["documented"], space=Space())
        for t, memory in replay.open_loop():
            if not 0 < t <= steps:
                continue
            for i, record in enumerate(theirs[t - 1]):
                ours = {"param": memory.params[i], "m": memory.states[i].m, "v": memory.states[i].v}
                for quantity, balls in ours.items():
                    for ball, value in zip(balls, record[quantity], strict=True):
                        assert digits(ball) == mpmath.nstr(value, DIGITS, strip_zeros=False), (
                            quantity
                        )
                        compared += 1
                clock = memory.clocks[i]
                assert digits(clock.product) == mpmath.nstr(
                    record["product"], DIGITS, strip_zeros=False
                )
                assert float(clock.t) == record["t"]
            if t == steps:
                break
    assert compared or not case.params[0]


def digits(ball):
    """A ball's decimal digits, as mpmath prints them; all of them proven."""
    assert ball.is_exact() or ball.rel_accuracy_bits() > 3.4 * DIGITS
    return mpmath.nstr(mpmath.mpf(ball.mid()._mpf_), DIGITS, strip_zeros=False)


def test_enough_cases_are_compared():
    assert len(CASES) > 80


def test_precision_is_restored_after_an_error():
    before = flint.ctx.prec
    with pytest.raises(ZeroDivisionError), precision(77):
        1 / (flint.ctx.prec - 77)
    assert flint.ctx.prec == before


def test_rounding_is_performed_and_a_ball_across_a_tie_keeps_both():
    f = FORMATS["float32"]
    with precision():
        assert float(Balls().float32(0.1)) == 0.10000000149011612
        tie = flint.arb(1) + flint.arb(2) ** -24
        assert float(rounded(tie, f)) == 1.0  # to even
        both = rounded(flint.arb(tie, flint.arb(2) ** -60), f)
        assert both.contains(1)
        assert both.contains(flint.arb(1) + flint.arb(2) ** -23)


def test_the_root_of_a_ball_around_zero_holds_every_root_and_of_a_negative_one_is_nan():
    around, below = flint.arb(0, "1e-20"), flint.arb(-1, "1e-20")
    root, nothing = Space().sqrt(array([around, below]))
    assert root.contains(0)
    assert root.contains(flint.arb("0.99e-10"))
    assert not root.contains(flint.arb("1e-9"))
    assert nothing.is_nan()
