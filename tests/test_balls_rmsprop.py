"""RMSprop on balls agrees with the transcription written from the page, to the last digit."""

import math

import mpmath
import pytest

from refopt.interp.balls import PRECISION, Space, precision
from refopt.oracle import golden
from refopt.oracle.golden import Schedule, Sparse
from refopt.oracle.replay import Replay
from refopt.rules import rmsprop
from tests.independent.rmsprop import run as independent
from tests.independent.rmsprop import schedules

DIGITS = 60
BITS = 4 * PRECISION
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
SAME = ("rho", "momentum", "epsilon", "weight_decay", *LIMITS, "ema_momentum")


def plain_cases():
    """Recordings whose input both can state, with digits to compare."""
    for recording in golden.recordings("rmsprop"):
        case = recording.case
        numbers = [x for x in case.hyper.values() if not isinstance(x, Schedule)]
        arrays = [g for step in (*case.grads, case.params) for g in step if g is not None]
        plain = not (case.changes or case.orders or len(case.groups) > 1)
        plain &= all(isinstance(x, float) and math.isfinite(x) for x in numbers)
        plain &= not any(isinstance(g, Sparse) or not all(map(math.isfinite, g)) for g in arrays)
        plain &= set(case.options) <= {"centered", "use_ema"}
        plain &= case.dtypes[0] not in ("float16", "bfloat16")
        plain &= all(case.hyper.get(q, 1.0) > 0 for q in LIMITS)
        plain &= not ("clipnorm" in case.hyper and "global_clipnorm" in case.hyper)
        plain &= not case.hyper.get("initial_scale") and case.hyper["epsilon"] > 0
        plain &= 0 <= case.hyper["rho"] <= 1 and case.hyper["momentum"] >= 0
        plain &= case.hyper.get("ema_overwrite_frequency") != 0
        plain &= "of-zero" not in case.id  # 1 / 0, which a ball does not have
        # a centered variance loses digits under a constant gradient; some restarts sit on a jump
        plain &= "constant" not in case.id and "restarts" not in case.id
        if plain and case.id.startswith("rmsprop.tf."):
            yield case


CASES = {case.id: case for case in plain_cases()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_balls_agree_with_the_independent_transcription(name):
    case = CASES[name]
    steps = min(case.steps, 30)
    lr, frequency = case.hyper["lr"], case.hyper.get("ema_overwrite_frequency")
    theirs = independent(
        case.params,
        [case.gradients(t) for t in range(1, steps + 1)],
        lr=schedules(lr.name, lr.config) if isinstance(lr, Schedule) else lr,
        centered=bool(case.options.get("centered")),
        use_ema=bool(case.options.get("use_ema")),
        ema_overwrite_frequency=None if frequency is None else int(frequency),
        digits=160,
        **{q: case.hyper[q] for q in SAME if q in case.hyper},
    )
    compared = 0
    with precision(BITS), mpmath.mp.workdps(160):
        replay = Replay(rmsprop, case, rmsprop.PROFILES["documented"], space=Space())
        for t, memory in replay.open_loop():
            for i, record in enumerate(theirs[t - 1] if t else ()):
                state = memory.states[i]._asdict()
                ours = {"param": memory.params[i], **state}
                for quantity, balls in ours.items():
                    if balls is None or quantity not in record:
                        continue
                    for ball, value in zip(balls, record[quantity], strict=True):
                        assert digits(ball) == printed(value), quantity
                        compared += 1
                assert float(memory.clocks[i].t) == record["t"]
            if t == steps:
                break
    assert compared or not case.params[0]


def digits(ball):
    """A ball's decimal digits, as mpmath prints them; all of them proven."""
    assert ball.is_exact() or ball.rel_accuracy_bits() > 3.4 * DIGITS
    return printed(mpmath.mpf(ball.mid()._mpf_))


def printed(value):
    """A number with all digits that are compared."""
    return mpmath.nstr(value, DIGITS, strip_zeros=False)


def test_enough_cases_are_compared():
    assert len(CASES) > 80
