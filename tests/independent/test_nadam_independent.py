"""Checks of the NAdam transcription against facts derivable by hand.

Where every intermediate value is dyadic the comparison is exact. Elsewhere the hand-derived value
is an exact `Fraction` and half of the working digits must agree: a step subtracts close numbers
only in 1 - beta_2**t and the like, which for float64 inputs costs at most 16 of the 100 digits.
"""

from fractions import Fraction
from math import prod
from typing import Any

import pytest
from mpmath import mp, nstr

from .nadam import run

PLAIN: dict[str, Any] = {
    "lr": 0.5,
    "betas": (0.5, 0.5),
    "eps": 1.0,
    "weight_decay": 0.0,
    "momentum_decay": 0.0,
}
# No hyperparameter here is dyadic, so each one's exact float64 value matters.
GENERIC: dict[str, Any] = {
    "lr": 0.002,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "momentum_decay": 0.004,
}
# With psi = 1 the powers 0.96**(t psi) are rational, and with every |g_t| equal to G so is the run.
RATIONAL: dict[str, Any] = GENERIC | {"momentum_decay": 1.0, "eps": 0.3}
G = 0.7
SIGNS = (1, 1, -1, 1, -1, -1, -1, 1)


def first50(x: Any) -> str:
    """Return the first 50 significant digits of an mpf or a Fraction."""
    with mp.workdps(100):
        return str(nstr(mp.mpmathify(x), 50))


def rational(values: dict[str, Any]) -> dict[str, Fraction]:
    beta_1, beta_2 = map(Fraction, values["betas"])
    names = ("lr", "eps", "weight_decay")
    return {n: Fraction(values[n]) for n in names} | {"beta_1": beta_1, "beta_2": beta_2}


def mu_at(t: int) -> Fraction:
    """Return mu_t of RATIONAL."""
    return Fraction(0.9) * (1 - Fraction(0.96) ** t / 2)


def sole(steps: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the records of a run that has one parameter."""
    return [record for (record,) in steps]


def test_one_element_without_momentum_is_exact() -> None:
    # beta_1 = 0: m_hat = g. v_hat is 25, then (25 + 2)/3 = 9. Steps: 5/(5+1)/2, and 1/(3+1)/2.
    first, second = sole(run([[1.0]], [[[5.0]], [[1.0]]], **PLAIN | {"betas": (0.0, 0.5)}))
    assert (first["mu"], first["mu_next"], first["product"]) == (0, 0, 0)
    assert (first["m"], first["m_hat"]) == ([5], [5])
    assert (first["v"], first["v_hat"]) == ([12.5], [25])
    assert first50(first["param"][0]) == first50(1 - Fraction(5, 12))
    assert (second["m_hat"], second["v_hat"]) == ([1], [9])
    assert first50(second["param"][0]) == first50(1 - Fraction(5, 12) - Fraction(1, 8))


def test_no_momentum_decay_halves_beta_1() -> None:
    records = sole(run([[1.0]], [[[1.0]]] * 9, **PLAIN))
    for t, record in enumerate(records, 1):
        assert record["t"] == t
        assert record["mu"] == record["mu_next"] == 0.25
        assert record["product"] == 0.25**t


def test_momentum_schedule_uses_the_float64_nearest_to_096() -> None:
    records = sole(run([[1.0]], [[[1.0]]] * 5, **RATIONAL))
    for t, record in enumerate(records, 1):
        assert first50(record["mu"]) == first50(mu_at(t))
        assert first50(record["mu_next"]) == first50(mu_at(t + 1))
        assert first50(record["product"]) == first50(prod(mu_at(i) for i in range(1, t + 1)))


def test_constant_gradient() -> None:
    # m_t = (1 - beta_1**t) g, v_t = (1 - beta_2**t) g**2, hence v_hat = g**2 at every step.
    records = sole(run([[1.0, -4.0]], [[[3.0, -2.0]]] * 8, **PLAIN))
    for t, record in enumerate(records, 1):
        assert record["m"] == [(1 - 0.5**t) * g for g in (3.0, -2.0)]
        assert record["v"] == [(1 - 0.5**t) * g**2 for g in (3.0, -2.0)]
        assert record["v_hat"] == [9, 4]


@pytest.mark.parametrize("maximize", [False, True])
def test_gradient_of_constant_size_gives_a_rational_run(maximize: bool) -> None:
    # |g_t| = G makes sqrt(v_hat) = G, so theta has a closed form with m_t as a weighted sum.
    h = rational(RATIONAL)
    grads = [G * sign for sign in SIGNS]
    signed = [Fraction(-g if maximize else g) for g in grads]
    options = RATIONAL | {"decoupled_weight_decay": True, "maximize": maximize}
    records = sole(run([[0.1]], [[[g]] for g in grads], **options))
    theta = Fraction(0.1)
    for t, record in enumerate(records, 1):
        m = (1 - h["beta_1"]) * sum(h["beta_1"] ** (t - i) * signed[i - 1] for i in range(1, t + 1))
        through_t = prod(mu_at(i) for i in range(1, t + 1))
        m_hat = mu_at(t + 1) * m / (1 - through_t * mu_at(t + 1))
        m_hat += (1 - mu_at(t)) * signed[t - 1] / (1 - through_t)
        shrunk = (1 - h["lr"] * h["weight_decay"]) * theta
        theta = shrunk - h["lr"] * m_hat / (Fraction(G) + h["eps"])
        expected = {"m": m, "m_hat": m_hat, "v_hat": Fraction(G) ** 2, "param": theta}
        for name, value in expected.items():
            assert first50(record[name][0]) == first50(value), (t, name)


def test_first_step_with_coupled_weight_decay() -> None:
    # m_1 = (1 - beta_1) d and sqrt(v_hat) = |d| with d = g + lambda theta_0.
    h = rational(RATIONAL)
    d = Fraction(G) + h["weight_decay"] * Fraction(-2.5)
    m_hat = mu_at(2) * (1 - h["beta_1"]) * d / (1 - mu_at(1) * mu_at(2)) + d
    (record,) = sole(run([[-2.5]], [[[G]]], **RATIONAL))
    assert first50(record["m_hat"][0]) == first50(m_hat)
    expected = Fraction(-2.5) - h["lr"] * m_hat / (d + h["eps"])
    assert first50(record["param"][0]) == first50(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The step is lr times the sign of: g + lambda theta; g alone, after shrinking; and so on.
        # theta starts at 4 with lambda = 1/2, lr = 1/2 and g = -1, then -3.
        ({}, [3.5, 4.0]),  # sign(-1 + 2) = +1; sign(-3 + 1.75) = -1
        ({"maximize": True}, [3.5, 3.0]),  # sign(1 + 2), sign(3 + 1.75)
        ({"decoupled_weight_decay": True}, [3.5, 3.125]),  # 4 - 1 + 1/2; 3.5 - 0.875 + 1/2
        ({"decoupled_weight_decay": True, "maximize": True}, [2.5, 1.375]),
        ({"weight_decay": 0.0}, [4.5, 5.0]),
    ],
)
def test_sign_descent_limit(options: dict[str, Any], expected: list[float]) -> None:
    # beta_1 = beta_2 = epsilon = 0 leave theta_t = theta_(t-1) - lr sign(g_t).
    limit = PLAIN | {"betas": (0.0, 0.0), "eps": 0.0, "weight_decay": 0.5} | options
    records = sole(run([[4.0]], [[[-1.0]], [[-3.0]]], **limit))
    assert [record["param"][0] for record in records] == expected


def test_absent_gradient_skips_the_parameter_and_its_t() -> None:
    a, b = [1.0, -2.0], [0.25]
    g, h = [0.3, -0.1], [0.7]
    both = run([a, b], [[g, None], [None, h], [h + h, h], [None, None]], **GENERIC)
    assert [[record["t"] for record in records] for records in both] == [
        [1, 0],
        [1, 1],
        [2, 2],
        [2, 2],
    ]
    untouched = {"t": 0, "product": 1, "param": b, "m": [0], "v": [0]}
    assert both[0][1] == untouched | dict.fromkeys(("mu", "mu_next", "m_hat", "v_hat"))
    only_a = sole(run([a], [[g], [h + h]], **GENERIC))
    only_b = sole(run([b], [[h], [h]], **GENERIC))
    assert [both[0][0], both[2][0]] == only_a
    assert [both[1][1], both[2][1]] == only_b
    assert both[1][0] == both[0][0]
    assert both[3] == both[2]


@pytest.mark.parametrize("decoupled", [False, True])
def test_doubling_the_digits_keeps_the_first_50(decoupled: bool) -> None:
    grads = [[[0.1 * k - 1.3, 1e-3 / k]] for k in range(1, 31)]
    options = GENERIC | {"decoupled_weight_decay": decoupled}
    coarse, fine = (sole(run([[0.3, -7.1]], grads, **options, digits=d)) for d in (100, 200))
    assert coarse != fine
    for low, high in zip(coarse, fine, strict=True):
        for name in ("mu", "mu_next", "product"):
            assert first50(low[name]) == first50(high[name])
        for name in ("m", "v", "m_hat", "v_hat", "param"):
            assert [*map(first50, low[name])] == [*map(first50, high[name])]


def test_empty_parameter_still_counts_its_steps() -> None:
    (record,) = sole(run([[]], [[[]]], **PLAIN))
    assert (record["t"], record["product"], record["param"]) == (1, 0.25, [])


def test_too_few_digits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"digits must be at least 17 .* got 16"):
        run([[1.0]], [[[1.0]]], **PLAIN, digits=16)


@pytest.mark.parametrize("grads", [[[[1.0, 2.0]]], [[[1.0], [1.0]]], [[]]])
def test_lists_of_unequal_length_are_refused(grads: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        run([[1.0]], grads, **PLAIN)


def test_zero_denominator_is_reported() -> None:
    with pytest.raises(ZeroDivisionError):
        run([[1.0]], [[[0.0]]], **PLAIN | {"eps": 0.0})
