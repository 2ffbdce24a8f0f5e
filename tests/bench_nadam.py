"""What the plain NumPy step costs beside the same formula written out by hand.

Run: python -m pytest tests/bench_nadam.py --benchmark-enable --benchmark-only -s
"""

import statistics
import time

import numpy as np
import pytest

import refopt
from refopt.interp.arrays import init, run
from refopt.rules import nadam

N = 1_000_000
ROUNDS = 40
LIMIT = 1.5  # what the project promises: by hand, out of place = 1


def by_hand(p, g):
    """NAdam as the page writes it, out of place; a step of the whole state."""
    m, v, product, t = np.zeros_like(p), np.zeros_like(p), 1.0, 0
    beta1, beta2 = 0.9, 0.999

    def step():
        nonlocal p, m, v, product, t
        t += 1
        mu = beta1 * (1 - 0.5 * 0.96 ** (t * 4e-3))
        mu_next = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * 4e-3))
        product *= mu
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * g
        v_hat = v / (1 - beta2**t)
        p = p - 2e-3 * m_hat / (np.sqrt(v_hat) + 1e-8)
        return p

    return step


def by_run(p, g):
    """The same through the arrays interpreter."""
    profile = nadam.PROFILES["documented"]
    profile = profile._replace(choices=nadam.configured(profile.choices, nadam.Hyper(), {}))
    (state, clock), params = init(nadam, profile, p), [p]
    now = [state], [clock]

    def step():
        nonlocal params, now
        (q,), *now = run(nadam, profile, params, [g], *now, profile.hyper)
        params = [q.param]
        return q.param

    return step


def by_object(p, g):
    """The same through the optimizer object, which writes the parameter in place."""
    param = refopt.Parameter(p.copy())
    param.grad = g
    optimizer = refopt.NAdam([param])

    def step():
        optimizer.step()
        return param.data

    return step


@pytest.mark.parametrize("make", [by_run, by_object], ids=["run", "object"])
def test_the_plain_step_costs_little_more_than_by_hand(benchmark, make):
    random = np.random.default_rng(0)
    p, g = random.standard_normal((2, N)).astype("f4")
    ours, hand = make(p, g), by_hand(p, g)
    for _ in range(3):
        assert np.array_equal(ours(), hand())
    ratios = []
    for _ in range(ROUNDS):  # interleaved, so that both meet the same machine
        times = []
        for step in (hand, ours):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        ratios.append(times[1] / times[0])
    ratio = statistics.median(ratios)
    benchmark.extra_info["ratio to by hand"] = ratio
    print(f"\n{make.__name__}: {ratio:.2f} x by hand ({N} float32, median of {ROUNDS} pairs)")
    benchmark.pedantic(ours, rounds=ROUNDS)
    assert ratio <= LIMIT
