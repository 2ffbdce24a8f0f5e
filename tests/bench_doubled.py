"""What pairs of float64 keep and cost: digits beside balls of 256 bits, and steps a second.

Run: python -m pytest tests/bench_doubled.py --benchmark-enable --benchmark-only -s
"""

import time

import flint
import numpy as np
import pytest

from refopt.interp import fused
from refopt.interp.balls import Space as Balls
from refopt.interp.balls import precision
from refopt.interp.doubled import numbers, program
from refopt.oracle.spec import RULES

STEPS, ELEMENTS = 200, 64
N, ROUNDS = 10_000, 99


def traced(rule, kept):
    profile = rule.PROFILES["documented"]
    choices = rule.configured(profile.choices, profile.hyper, {})
    return profile._replace(choices=choices), program(
        rule, profile._replace(choices=choices), profile.hyper, kept
    )


@pytest.mark.parametrize(("name", "kept"), [("nadam", ("m", "v")), ("rmsprop", ("v",))])
def test_pairs_keep_28_digits_at_ten_million_elements_a_second(benchmark, monkeypatch, name, kept):
    pytest.importorskip("numba", reason="refopt[fast]")
    monkeypatch.setattr(fused, "engine", lambda: "numba")
    rule = RULES[name]
    profile, made = traced(rule, kept)
    rng = np.random.default_rng(0)
    start = rng.standard_normal(ELEMENTS)
    grads = rng.standard_normal((STEPS, ELEMENTS)) * 10.0 ** rng.integers(-6, 1, ELEMENTS)

    arrays = {array: np.zeros(ELEMENTS) for array in fused.names(made) if array != "grad"}
    arrays["param"][:] = start
    own = fused.Pass([(made, arrays)])
    num, balls = Balls.numbers, Balls()
    with precision():
        true = balls.array(start.tolist(), "float64")
        state, clock = rule.init(true, profile.choices, xp=balls, num=num)
        for grad in grads:
            exact = balls.array(grad.tolist(), "float64")
            [(scalars, clock)] = rule.ticks(
                [true], [exact], [clock], profile.hyper, profile.choices, num=num
            )
            assert own.takes([grad])
            own.ready()
            own.run([grad], [numbers(made, scalars, profile.hyper)])
            given = true, exact, state, scalars, profile.hyper, profile.choices
            quantities, state = rule.step(*given, xp=balls)
            true = quantities.param
        error = max(
            float(abs((flint.arb(high) + low - ball) / ball).mid())
            for array, values in [("param", true), *((f, getattr(state, f)) for f in kept)]
            for high, low, ball in zip(arrays[array], arrays[f"{array}_low"], values, strict=True)
        )

    large = {array: np.resize(x, N) for array, x in arrays.items()}
    grad, row = np.resize(grads, N), numbers(made, scalars, profile.hyper)
    step = fused.Pass([(made, large)])
    step.takes([grad])
    step.ready()
    times = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        step.run([grad], [row])
        times.append(time.thread_time() - begun)
    rate = N / min(times)
    benchmark.extra_info.update(error=error, rate=rate)
    print(f"\n{name}: {error:.1e} after {STEPS} steps; {rate:.2e} elements a second")
    benchmark.pedantic(lambda: None)
    assert error <= 1e-28
    assert rate >= 1e7
