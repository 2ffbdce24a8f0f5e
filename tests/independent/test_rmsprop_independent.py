"""Checks of the RMSprop transcription against facts derivable by hand.

Where every intermediate value is dyadic the comparison is exact. Elsewhere the hand-derived value
is an exact `Fraction` (or the root of one) and half of the working digits must agree.
"""

from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from mpmath import mp, mpf, nstr, sqrt

from .rmsprop import run, schedules

# rho = 3/4 and these gradients make every v_t = (3 v_(t-1) + g_t**2)/4 a square: 100/4 = 25,
# (75 + 121)/4 = 49, (147 + 5.1875**2)/4 = 6.59375**2, and for a constant size nothing moves:
GRADS, ROOTS = (10.0, -11.0, 5.1875, 6.59375, -6.59375), (5.0, 7.0, 6.59375, 6.59375, 6.59375)
# rho = 1/2 does the same for the variance s_t = (2 s_(t-1) + (g_t - a_(t-1))**2)/4 and these:
CENTERED_GRADS, CENTERED_ROOTS = (2.0, 1.5, 0.375), (1.0, 0.75, 0.6875)
RATES = (0.5, 0.1, 2.0, 0.3, 0.7)
# rho = 0 makes a the (clipped, decayed) gradient itself, the variance 0, and the update g/epsilon.
SEEN: dict[str, Any] = {"lr": 0.5, "rho": 0.0, "centered": True, "epsilon": 1.0}
# rho = epsilon = 0 leaves theta - lr sign(g).
SIGN: dict[str, Any] = {"lr": 0.5, "rho": 0.0, "epsilon": 0.0}


def first50(x: Any) -> str:
    """Return the first 50 significant digits of an mpf or a Fraction."""
    with mp.workdps(100):
        return str(nstr(mp.mpmathify(x), 50))


def sole(steps: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the records of a run that has one parameter."""
    return [record for (record,) in steps]


def seen(grads: list[Any], thetas: float = 0.0, **options: Any) -> list[Any]:
    """Return the gradients that reach the averages in one step, None for an absent one."""
    params = [[thetas] * len([0] if g is None else g) for g in grads]
    (records,) = run(params, [grads], **SEEN | options)
    return [r["a"] if g is not None else None for r, g in zip(records, grads, strict=True)]


def test_example_of_the_source() -> None:
    (record,) = sole(run([[10.0]], [[[10.0]]], lr=0.1))
    assert nstr(record["param"][0], 7) == "9.683772"
    assert set(record) == {"t", "lr", "v", "param"}


def test_defaults_of_the_source() -> None:
    # (lr g / (theta_0 - theta_1) - epsilon)**2 is v_1 = (1 - rho) g**2.
    (record,) = sole(run([[10.0]], [[[-3.0]]], lr=0.1))
    assert first50(record["v"][0]) == first50((1 - Fraction(0.9)) * 9)
    with mp.workdps(100):
        root = mpf(0.1) * -3 / (10 - record["param"][0]) - mpf(1e-7)
        assert first50(root**2) == first50(record["v"][0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("centered", "rho", "grads", "roots"),
    [(False, 0.75, GRADS, ROOTS), (True, 0.5, CENTERED_GRADS, CENTERED_ROOTS)],
)
def test_rational_runs(
    momentum: float, centered: bool, rho: float, grads: tuple[float], roots: tuple[float]
) -> None:
    epsilon = 0.3
    options = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered}
    records = sole(run([[0.1]], [[[g]] for g in grads], lr=RATES.__getitem__, **options))
    exact = zip(map(Fraction, grads), map(Fraction, roots), strict=True)
    updates = [g / (root + Fraction(epsilon)) for g, root in exact]
    buffers = [*accumulate(updates, lambda buffer, u: Fraction(momentum) * buffer + u)]
    theta = Fraction(0.1)
    for t, record in enumerate(records, 1):
        theta -= Fraction(RATES[t - 1]) * buffers[t - 1]
        assert (record["t"], record["lr"]) == (t, RATES[t - 1])
        assert first50(record["param"][0]) == first50(theta)
        assert ("buffer" in record, "a" in record) == (momentum > 0, centered)
        if momentum:
            assert first50(record["buffer"][0]) == first50(buffers[t - 1])
        square = record["v"][0] - (record["a"][0] ** 2 if centered else 0)
        assert square == roots[t - 1] ** 2


def test_averages_are_discounted_sums() -> None:
    rho, wd = Fraction(0.9), Fraction(0.01)
    grads = [1.3 * (-0.5) ** k + 0.1 for k in range(12)]
    # lr = 0 keeps theta, and with it the decayed gradient, known.
    options = {"lr": 0.0, "centered": True, "weight_decay": 0.01}
    decayed = [Fraction(g) + wd * Fraction(-2.3) for g in grads]
    for t, record in enumerate(sole(run([[-2.3]], [[[g]] for g in grads], **options)), 1):
        weights = [(1 - rho) * rho ** (t - i) for i in range(1, t + 1)]
        for name, power in (("a", 1), ("v", 2)):
            total = sum(w * g**power for w, g in zip(weights, decayed, strict=False))
            assert first50(record[name][0]) == first50(total), (t, name)


def test_constant_gradient() -> None:
    # v_t = (1 - rho**t) g**2, a_t = (1 - rho**t) g, so v - a**2 = (1 - rho**t) rho**t g**2.
    options = {"rho": 0.5, "epsilon": 0.25, "centered": True, "lr": 1.0}
    before = mpf(1)
    for t, record in enumerate(sole(run([[1.0]], [[[-3.0]]] * 40, **options)), 1):
        part = 0.5**t
        assert (record["v"], record["a"]) == ([(1 - part) * 9], [-3 * (1 - part)])
        with mp.workdps(100):
            root = 3 * sqrt(mpf(1 - part) * part)
            assert first50(record["param"][0] - before) == first50(3 / (root + 0.25))
        before = record["param"][0]


def test_sign_descent_limit_with_momentum() -> None:
    # buffer: 1, then 1/2 - 1, then -1/4 - 1.
    grads = [[[7.0]], [[-0.3]], [[-1e-9]]]
    records = sole(run([[4.0]], grads, **SIGN, momentum=0.5))
    assert [r["buffer"] for r in records] == [[1], [-0.5], [-1.25]]
    assert [r["param"] for r in records] == [[3.5], [3.75], [4.375]]


def test_weight_decay_uses_the_parameter_of_each_step() -> None:
    # -1 + 4/2 = 1 lowers theta to 3.5; -3 + 1.75 raises it again; -2 + 2 leaves no gradient.
    records = sole(run([[4.0]], [[[-1.0]], [[-3.0]]], **SIGN, weight_decay=0.5))
    assert [r["param"] for r in records] == [[3.5], [4.0]]
    with pytest.raises(ZeroDivisionError):
        run([[4.0]], [[[-1.0]], [[-3.0]], [[-2.0]]], **SIGN, weight_decay=0.5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Norms: 5, 12 and (absent), together 13.
        ({}, [[3, -4], [12], None]),
        ({"clipnorm": 2.5}, [[1.5, -2], [2.5], None]),
        ({"clipnorm": 10.0}, [[3, -4], [10], None]),
        ({"clipnorm": 12.0}, [[3, -4], [12], None]),
        ({"global_clipnorm": 3.25}, [[0.75, -1], [3], None]),
        ({"global_clipnorm": 13.0}, [[3, -4], [12], None]),
        ({"global_clipnorm": 12.5}, [[37.5 / 13, -50 / 13], [150 / 13], None]),
        ({"clipvalue": 3.5}, [[3, -3.5], [3.5], None]),
        ({"clipvalue": 2.0}, [[2, -2], [2], None]),
        ({"clipnorm": 2.5, "clipvalue": 1.0}, [[1.5, -2], [2.5], None]),
        ({"clipnorm": 100.0, "clipvalue": 1.0}, [[3, -4], [12], None]),
        ({"global_clipnorm": 3.25, "clipvalue": 2.0}, [[0.75, -1], [3], None]),
        # The decay, 0.5 * 2, is added to what clipping left.
        ({"clipvalue": 2.0, "weight_decay": 0.5, "thetas": 2.0}, [[3, -1], [3], None]),
    ],
)
def test_clipping(options: dict[str, Any], expected: list[Any]) -> None:
    got = seen([[3.0, -4.0], [12.0], None], **options)
    assert [g and [*map(float, g)] for g in got] == expected


def test_clipping_by_a_limit_that_is_no_fraction_of_the_norm() -> None:
    (got,) = seen([[3.0, -4.0]], clipnorm=0.1)
    assert [*map(first50, got)] == [first50(Fraction(0.1) * x / 5) for x in (3, -4)]
    (got,) = seen([[1.0, -1.0]], clipvalue=0.1)
    assert got == [0.1, -0.1]


def test_clipping_the_norm_keeps_an_empty_and_a_zero_gradient() -> None:
    assert seen([[], [0.0]], clipnorm=1.0) == [[], [0]]
    assert seen([[], [0.0]], global_clipnorm=1.0) == [[], [0]]


@pytest.mark.parametrize(
    ("frequency", "thetas", "averages"),
    [
        # theta falls by 1/2 each step; the average keeps 3/4: 4, then 3.875, (11.625 + 3)/4 ...
        (None, [3.5, 3.0, 2.5, 2.0], [3.875, 3.65625, 3.3671875, 3.025390625]),
        (1, [3.875, 3.75, 3.625, 3.5], [3.875, 3.75, 3.625, 3.5]),
        (2, [3.5, 3.65625, 3.15625, 3.3125], [3.875, 3.65625, 3.53125, 3.3125]),
        (3, [3.5, 3.0, 3.3671875, 2.8671875], [3.875, 3.65625, 3.3671875, 3.2421875]),
    ],
)
def test_average_of_the_parameters(
    frequency: int | None, thetas: list[float], averages: list[float]
) -> None:
    ema = {"ema_momentum": 0.75, "ema_overwrite_frequency": frequency}
    records = sole(run([[4.0]], [[[9.0]]] * 4, **SIGN | ema, use_ema=True))
    assert [r["param"] for r in records] == [[x] for x in thetas]
    assert [r["average"] for r in records] == [[x] for x in averages]
    off = sole(run([[4.0]], [[[9.0]]] * 4, **SIGN | ema))
    assert [r["param"] for r in off] == [[3.5], [3.0], [2.5], [2.0]]
    assert "average" not in off[0]


def test_overwriting_keeps_the_other_quantities() -> None:
    options = {"rho": 0.75, "momentum": 0.5, "centered": True, "lr": 0.1}
    grads = [[[g]] for g in GRADS]
    plain = sole(run([[1.0]], grads, **options))
    ema = sole(run([[1.0]], grads, **options, use_ema=True, ema_overwrite_frequency=2))
    for name in ("t", "lr", "v", "a", "buffer"):
        assert [r[name] for r in ema] == [r[name] for r in plain]


def test_default_average_keeps_099() -> None:
    (record,) = sole(run([[4.0]], [[[1.0]]], **SIGN, use_ema=True))
    assert first50(record["average"][0]) == first50(Fraction(3.5) + Fraction(0.99) / 2)


def test_absent_gradients() -> None:
    # The third step is none: it neither counts, nor averages, nor asks for a learning rate.
    grads = [[[1.0], None], [None, [1.0]], [None, None], [None, [-1.0]]]
    rates = schedules("PiecewiseConstantDecay", {"boundaries": [0, 1], "values": [1, 0.5, 2]})
    ema = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3}
    both = run([[4.0], [8.0]], grads, **SIGN | ema | {"lr": rates})
    assert [[r["t"] for r in records] for records in both] == [[1, 1], [2, 2], [2, 2], [3, 3]]
    assert [r["lr"] for _, r in both] == [1, 0.5, 0.5, 2]
    assert [r["v"] for r, _ in both] == [[1]] * 4
    assert [r["v"] for _, r in both] == [[0], [1], [1], [1]]
    assert [r["average"] for r, _ in both] == [[3.5], [3.25], [3.25], [3.125]]
    assert [r["param"] for r, _ in both] == [[3], [3], [3], [3.125]]
    assert [r["average"] for _, r in both] == [[8], [7.75], [7.75], [8.625]]
    assert [r["param"] for _, r in both] == [[8], [7.5], [7.5], [8.625]]
    nothing = {"t": 0, "lr": None, "param": [4], "v": [0], "a": [0], "buffer": [0]}
    assert run([[4.0]], [[None]], **SIGN, momentum=0.5, centered=True) == [[nothing]]


def test_parameters_do_not_mix() -> None:
    a, b = [1.0, -2.0], [0.25]
    grads = [([0.3 * k, -0.1], [0.7 - k]) for k in range(1, 5)]
    options = {"lr": 0.01, "momentum": 0.9, "centered": True, "clipnorm": 0.5, "use_ema": True}
    both = run([a, b], [[*pair] for pair in grads], **options)
    assert [r for r, _ in both] == sole(run([a], [[g] for g, _ in grads], **options))
    assert [r for _, r in both] == sole(run([b], [[h] for _, h in grads], **options))


@pytest.mark.parametrize("centered", [False, True])
def test_doubling_the_digits_keeps_the_first_50(centered: bool) -> None:
    grads = [[[0.1 * k - 1.3, 1e-3 / k]] for k in range(1, 31)]
    options = {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.01, "clipnorm": 0.7}
    options |= {"centered": centered, "use_ema": True, "ema_overwrite_frequency": 7}
    coarse, fine = (sole(run([[0.3, -7.1]], grads, **options, digits=d)) for d in (100, 200))
    assert coarse != fine
    for low, high in zip(coarse, fine, strict=True):
        for name in low.keys() - {"t", "lr"}:
            assert [*map(first50, low[name])] == [*map(first50, high[name])]


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("ExponentialDecay", {"decay_rate": 0.25}, {0: 8, 2: 4, 4: 2, 8: 0.5}),
        (
            "ExponentialDecay",
            {"decay_rate": 0.25, "staircase": True},
            {0: 8, 3: 8, 4: 2, 7: 2, 8: 0.5},
        ),
        ("InverseTimeDecay", {"decay_rate": 3}, {0: 8, 2: Fraction(16, 5), 4: 2, 20: 0.5}),
        ("InverseTimeDecay", {"decay_rate": 3, "staircase": True}, {3: 8, 4: 2, 7: 2, 20: 0.5}),
        # By default a straight line to 1e-4, whose float64 value counts.
        ("PolynomialDecay", {}, {0: 8, 2: (8 + Fraction(1e-4)) / 2, 4: 1e-4, 9: 1e-4}),
        (
            "PolynomialDecay",
            {"end_learning_rate": 4, "power": 2},
            {0: 8, 2: 5, 3: 4.25, 4: 4, 5: 4},
        ),
        # Cycles: the end at 4 and 8, and on a line of length 8, then 12, between them.
        (
            "PolynomialDecay",
            {"end_learning_rate": 0, "cycle": True},
            {0: 8, 3: 2, 4: 0, 6: 2, 8: 0},
        ),
        ("PolynomialDecay", {"end_learning_rate": 0, "cycle": "1"}, {5: 3, 9: 2, 12: 0}),
        ("PolynomialDecay", {"end_learning_rate": 0, "cycle": "0"}, {3: 2, 5: 0}),
        ("CosineDecay", {}, {0: 8, 2: 4, 4: 0, 7: 0}),
        ("CosineDecay", {"alpha": 0.25}, {0: 8, 2: 5, 4: 2, 7: 2}),
        # Periods of 4, 8 and 16 steps; the wave is at its middle halfway through each.
        ("CosineDecayRestarts", {}, {0: 8, 2: 4, 4: 8, 8: 4, 12: 8, 20: 4, 28: 8}),
        (
            "CosineDecayRestarts",
            {"t_mul": 1, "m_mul": 0.5, "alpha": 0.25},
            {0: 8, 2: 5, 4: 5, 6: 3.5, 8: 3.5, 10: 2.75},
        ),
        ("CosineDecayRestarts", {"t_mul": 1.5, "m_mul": 2}, {4: 16, 7: 8, 10: 32, 19: 64}),
    ],
)
def test_schedules(name: str, config: dict[str, Any], expected: dict[int, Any]) -> None:
    length = "first_decay_steps" if name == "CosineDecayRestarts" else "decay_steps"
    rate = schedules(name, {"initial_learning_rate": 8, length: 4} | config)
    with mp.workdps(100):
        for count, value in expected.items():
            assert first50(rate(count)) == first50(value), count


@pytest.mark.parametrize("name", ["CosineDecay", "CosineDecayRestarts"])
def test_cosine_at_an_eighth_of_the_circle(name: str) -> None:
    # 8 (1 + cos(pi/4))/2 = 4 + sqrt(8), and 4 - sqrt(8) at three eighths.
    length = "decay_steps" if name == "CosineDecay" else "first_decay_steps"
    rate = schedules(name, {"initial_learning_rate": 8, length: 4})
    with mp.workdps(100):
        assert first50((rate(1) - 4) ** 2) == first50((rate(3) - 4) ** 2) == "8.0"
        assert rate(1) > 4 > rate(3)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, 0.1), (2, 0.1), (3, 0.3), (5, 0.3), (6, 0.7), (999, 0.7)]
)
def test_piecewise_constant_schedule_changes_after_its_boundaries(
    count: int, expected: float
) -> None:
    config = {"boundaries": ["2", "5"], "values": ["0.1", "0.3", "0.7"]}
    with mp.workdps(100):  # a decimal stands for its float64 value at any precision
        assert schedules("PiecewiseConstantDecay", config)(count) == expected


def test_schedule_in_a_run_starts_at_count_zero_with_all_digits() -> None:
    config = {"initial_learning_rate": "0.1", "decay_steps": "3", "decay_rate": "0.5"}
    records = sole(
        run([[0.0]], [[[-2.0]]] * 4, **SIGN | {"lr": schedules("ExponentialDecay", config)})
    )
    assert records[0]["lr"] == 0.1
    assert records[3]["lr"] == 0.05
    # lr_1 = 0.1 / 2**(1/3)
    with mp.workdps(100):
        assert first50(records[1]["lr"] ** 3) == first50(Fraction(0.1) ** 3 / 2)
        assert first50(records[1]["param"][0]) == first50(mpf(0.1) + records[1]["lr"])


def test_empty_parameter_still_counts_its_steps() -> None:
    (record,) = sole(run([[]], [[[]]], lr=0.1))
    assert (record["t"], record["v"], record["param"]) == (1, [], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 16}, r"digits must be at least 17 .* got 16"),
        ({"clipnorm": 0.0}, r"clipnorm must be positive or None, got 0\.0"),
        ({"clipvalue": -1.0}, r"clipvalue must be positive or None, got -1\.0"),
        ({"global_clipnorm": 0.0}, r"global_clipnorm must be positive or None, got 0\.0"),
        ({"clipnorm": 1.0, "global_clipnorm": 2.0}, r"clipnorm excludes .* got 1\.0 and 2\.0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run([[1.0]], [[[1.0]]], **{"lr": 0.1} | options)


def test_variance_lost_to_rounding_is_reported() -> None:
    # 0.1 has no short square: at 17 digits v - a**2 is a rounding error, soon a negative one.
    options: dict[str, Any] = {"lr": 0.1, "rho": 0.1, "centered": True}
    grads = [[[0.1 + 0.01 * k]] for k in range(9) for _ in range(40)]
    with pytest.raises(ValueError, match=r"digits must be more .* got 17"):
        run([[1.0]], grads, **options, digits=17)
    assert len(run([[1.0]], grads, **options)) == len(grads)


@pytest.mark.parametrize("grads", [[[[1.0, 2.0]]], [[[1.0], [1.0]]], [[]], [[None, None]]])
def test_lists_of_unequal_length_are_refused(grads: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        run([[1.0]], grads, lr=0.1)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("PiecewiseConstantDecay", {"boundaries": [1], "values": [1]}, r"one more .* got 1, 1"),
        (
            "CosineDecayRestarts",
            {"initial_learning_rate": 1, "first_decay_steps": 4, "t_mul": 0.5},
            r"t_mul must be at least 1 .* got 0\.5 and 4",
        ),
        (
            "CosineDecayRestarts",
            {"initial_learning_rate": 1, "first_decay_steps": 0},
            r"first_decay_steps positive, got 2 and 0",
        ),
    ],
)
def test_bad_schedules_are_refused(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedules(name, config)(0)


def test_abstract_base_of_the_schedules_has_no_formula() -> None:
    with pytest.raises(KeyError, match="LearningRateSchedule"):
        schedules("LearningRateSchedule", {})


def test_zero_denominator_is_reported() -> None:
    with pytest.raises(ZeroDivisionError):
        run([[1.0]], [[[0.0]]], lr=0.1, epsilon=0.0)
