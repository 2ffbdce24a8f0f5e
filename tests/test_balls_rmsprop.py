"""RMSprop on balls agrees with the transcription written from the page, to the last digit."""

import math

import flint
import mpmath
import pytest

from refopt.interp.balls import PRECISION, Balls, Space, precision
from refopt.interp.formats import FORMATS
from refopt.oracle import golden
from refopt.oracle.golden import Schedule, Sparse
from refopt.oracle.replay import Replay
from refopt.rules import rmsprop
from tests.independent.rmsprop import run as independent
from tests.independent.rmsprop import schedules

DIGITS = 60
BITS = 4 * PRECISION
STEPS = 30  # of each case; a restart, an overwriting and each change lie before
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
SAME = ("rho", "momentum", "epsilon", "weight_decay", "ema_momentum")


def values(grad):
    return grad.values if isinstance(grad, Sparse) else grad


def cases():
    """Recordings whose input both can state, with digits to compare."""
    for recording in golden.recordings("rmsprop"):
        case = recording.case
        numbers = [x for x in case.hyper.values() if not isinstance(x, Schedule)]
        arrays = [values(g) for step in (*case.grads, case.params) for g in step if g is not None]
        both = len(case.groups) == 1 and set(case.options) <= {"centered", "use_ema"}
        both &= all(isinstance(x, float) and math.isfinite(x) for x in numbers)
        both &= all(math.isfinite(x) for array in arrays for x in array)
        both &= all(set(change) == {"lr"} for change in case.changes.values())
        both &= not ("clipnorm" in case.hyper and "global_clipnorm" in case.hyper)
        both &= not case.hyper.get("initial_scale") and case.hyper["epsilon"] > 0
        both &= 0 <= case.hyper["rho"] <= 1 and case.hyper["momentum"] >= 0
        both &= "of-zero" not in case.id  # 1 / 0, which a ball does not have
        if both and case.id.startswith("rmsprop.tf."):
            yield case


CASES = {case.id: case for case in cases()}


def gradient(given, shape):
    """A gradient as the transcription takes it."""
    if not isinstance(given, Sparse):
        return given
    width = math.prod(shape[1:])
    places = [i * width + j for i in given.indices for j in range(width)]
    return {"values": given.values, "places": places}


def rate(case):
    """The learning rate as a function of the steps done, or a number."""
    lr = case.hyper["lr"]
    if isinstance(lr, Schedule):
        return schedules(lr.name, lr.config)
    starts = {1: lr} | {t: change["lr"] for t, change in case.changes.items()}
    return lambda count: starts[max(t for t in starts if t <= count + 1)]


def nearest(dtype):
    """Rounds to 16 bits, ties to even."""
    f = FORMATS[dtype]

    def stored(x):
        _, exponent = mpmath.frexp(x)
        unit = mpmath.ldexp(1, max(exponent - 1, f.emin) - f.precision + 1)
        return mpmath.nint(x / unit) * unit

    return stored if f.precision < 24 else mpmath.mpf


@pytest.mark.parametrize("name", sorted(CASES))
def test_balls_agree_with_the_independent_transcription(name):
    case = CASES[name]
    steps = min(case.steps, STEPS)
    every = case.hyper.get("ema_overwrite_frequency")
    limits = {q: x for q in LIMITS if (x := case.hyper.get(q, 0.0)) > 0}
    theirs = independent(
        case.params,
        [
            [gradient(g, shape) for g, shape in zip(case.gradients(t), case.shapes, strict=True)]
            for t in range(1, steps + 1)
        ],
        lr=rate(case),
        centered=bool(case.options.get("centered")),
        use_ema=bool(case.options.get("use_ema")),
        ema_overwrite_frequency=int(every) if every else None,
        stored=nearest(case.dtypes[0]),
        digits=160,
        **{q: case.hyper[q] for q in SAME if q in case.hyper},
        **limits,
    )
    compared = 0
    with precision(BITS), mpmath.mp.workdps(160):
        replay = Replay(rmsprop, case, rmsprop.PROFILES["documented"], space=Space())
        for t, memory in replay.open_loop():
            if on_a_jump(case, t):
                break
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


def on_a_jump(case, t):
    """Whether step `t` begins a period that a ball cannot tell from the end of the one before."""
    lr = case.hyper["lr"]
    if not t or not isinstance(lr, Schedule) or lr.name != "CosineDecayRestarts":
        return False
    period, rest = lr.config["first_decay_steps"], t - 1
    grows = lr.config.get("t_mul", 2.0)
    while rest >= period:
        rest, period = rest - period, period * grows
    return grows != 1 and t > 1 and not rest


@pytest.mark.parametrize("name", [name for name in sorted(CASES) if "restarts" in name])
def test_restarts_agree_with_the_independent_transcription(name):
    case = CASES[name]
    lr, choices = case.hyper["lr"], rmsprop.PROFILES["documented"].choices
    jumps = [on_a_jump(case, t) for t in range(1, 31)]
    assert any(jumps) == (lr.config.get("t_mul", 2.0) != 1)
    with precision(BITS), mpmath.mp.workdps(160):
        theirs = schedules(lr.name, lr.config)
        for t, jump in enumerate(jumps, 1):
            ball = rmsprop.scheduled(lr.name, lr.config, t, choices, num=Balls())
            if jump:  # both sides of it
                assert ball.contains(flint.arb(theirs(t - 1)))
            else:
                assert digits(ball) == printed(theirs(t - 1))


def digits(ball):
    """A ball's decimal digits, as mpmath prints them; all of them proven."""
    assert ball.is_exact() or ball.rel_accuracy_bits() > 3.4 * DIGITS
    return printed(mpmath.mpf(ball.mid()._mpf_))


def printed(value):
    """A number with all digits that are compared."""
    return mpmath.nstr(value, DIGITS, strip_zeros=False)


def test_enough_cases_of_every_kind_are_compared():
    assert len(CASES) > 200
    kinds = {
        "sparse": lambda c: any(isinstance(g, Sparse) for step in c.grads for g in step),
        "changed": lambda c: bool(c.changes),
        "order": lambda c: bool(c.orders),
        "overwritten": lambda c: bool(c.hyper.get("ema_overwrite_frequency")),
        "restarts": lambda c: getattr(c.hyper["lr"], "name", "") == "CosineDecayRestarts",
        "half": lambda c: c.dtypes[0] in ("float16", "bfloat16"),
    }
    counts = {kind: sum(map(holds, CASES.values())) for kind, holds in kinds.items()}
    assert min(counts.values()) >= 5, counts
