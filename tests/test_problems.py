"""The problems: exact gradients, alike on every library, and minima that are minima."""

import math
import subprocess
import sys
from typing import Any

import backends
import flint
import numpy as np
import pytest
from array_api_compat import array_namespace

from refopt.errors import MissingExtra
from refopt.interp.balls import precision
from refopt.interp.formats import FORMATS
from refopt.problems import PROBLEMS, Landscape, Network, digits, noise, shuffled

LANDSCAPES = [p for p in PROBLEMS.values() if isinstance(p, Landscape)]
landscapes = pytest.mark.parametrize("problem", LANDSCAPES, ids=lambda p: p.name)

NAMES = ("numpy", "strict-CPU_DEVICE", "strict-device1", "cupy-standin", "torch")
LIBRARIES = [row for row in backends.LIBRARIES if row.id in NAMES]


class Dual:
    """x + x'·h with h² = 0, over balls: a value and its derivative, as exact as they are."""

    def __init__(self, x: Any, d: Any = 0) -> None:
        self.x, self.d = flint.arb(x), flint.arb(d)

    def __add__(self, other: Any) -> "Dual":
        y = dual(other)
        return Dual(self.x + y.x, self.d + y.d)

    def __mul__(self, other: Any) -> "Dual":
        y = dual(other)
        return Dual(self.x * y.x, self.d * y.x + self.x * y.d)

    def __neg__(self) -> "Dual":
        return Dual(-self.x, -self.d)

    def __sub__(self, other: Any) -> "Dual":
        return self + -dual(other)

    def __rsub__(self, other: Any) -> "Dual":
        return -self + other

    def __truediv__(self, other: Any) -> "Dual":
        y = dual(other)
        return Dual(self.x / y.x, (self.d * y.x - self.x * y.d) / (y.x * y.x))

    def __gt__(self, other: Any) -> bool:
        return bool(self.x > dual(other).x)

    def __lt__(self, other: Any) -> bool:
        return bool(self.x < dual(other).x)

    def __ge__(self, other: Any) -> bool:
        return bool(self.x >= dual(other).x)

    def __abs__(self) -> "Dual":
        return -self if self.x < 0 else self

    def cos(self) -> "Dual":
        return Dual(self.x.cos(), -self.x.sin() * self.d)

    def sin(self) -> "Dual":
        return Dual(self.x.sin(), self.x.cos() * self.d)

    def exp(self) -> "Dual":
        return Dual(self.x.exp(), self.x.exp() * self.d)

    def log(self) -> "Dual":
        return Dual(self.x.log(), self.d / self.x)

    def log1p(self) -> "Dual":
        return Dual(self.x.log1p(), self.d / (1 + self.x))

    def tanh(self) -> "Dual":
        return Dual(self.x.tanh(), self.d / self.x.cosh() ** 2)

    __radd__, __rmul__ = __add__, __mul__


def dual(x: Any) -> Dual:
    return x if isinstance(x, Dual) else Dual(float(x))


def duals(values: Any, direction: Any) -> Any:
    pairs = zip(np.ravel(values), np.ravel(direction), strict=True)
    return objects([Dual(float(x), float(d)) for x, d in pairs], values)


def objects(elements: Any, like: Any) -> Any:
    """An array of objects; one more axis for a point, since NumPy unwraps a result of shape ()."""
    shape = np.shape(like) if np.ndim(like) > 1 else (len(like), 1)
    result = np.empty(shape, dtype=object)
    result.ravel()[:] = elements
    return result


def points(problem: Landscape) -> Any:
    """Drawn from the domain, and where to start; none of them at a kink of a formula: (2, 25)."""
    low, high = np.array(problem.domain).T
    drawn = np.random.default_rng(1).uniform(low, high, size=(24, 2))
    return np.concatenate([drawn, [problem.first]]).T


def true(problem: Landscape, point: Any, step: int = 0) -> tuple[Any, list[Any]]:
    """(value, gradient as the derivatives of the value) at a point, as balls."""
    along = [problem.value(duals(point, e), step) for e in np.eye(2)]
    return along[0][0].x, [value[0].d for value in along]


# -- gradients ------------------------------------------------------------------------------------
@landscapes
@pytest.mark.parametrize("step", [0, 3])
def test_a_gradient_is_the_derivative_of_the_value_in_ball_arithmetic(
    problem: Landscape, step: int
) -> None:
    with precision():
        for point in points(problem).T:
            _, expected = true(problem, point, step)
            found = problem.gradient(duals(point, (0, 0)), step)
            for a, b in zip(found.ravel(), expected, strict=True):
                assert a.x.overlaps(b)
                assert a.x.rad() < flint.arb(2) ** -200 > b.rad()


def balls(values: Any, radius: float = 0.0) -> Any:
    """Balls around numbers, whose radius is a share of each."""
    return objects([flint.arb(float(x), abs(float(x)) * radius) for x in np.ravel(values)], values)


@landscapes
@pytest.mark.parametrize("make", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_are_alike_on_every_library(
    problem: Landscape, make: Any, dtype: str
) -> None:
    library = make()
    host = points(problem).astype(dtype)
    # Two bits less: a ball's rounding is four of the format's, so that its operands' cover the one
    # of a sum which happens to be exact in it.
    with precision(FORMATS[dtype].precision - 2):
        expected = problem.value(balls(host)), problem.gradient(balls(host))
    with library.session():
        array = library.array(host, dtype)
        results = problem.value(array), problem.gradient(array)
        for result, ball in zip(results, expected, strict=True):
            assert array_namespace(result) is array_namespace(array)
            assert result.dtype == array.dtype
            assert tuple(result.shape) == ball.shape
            found = library.get(result)
            for x, y in zip(ball.ravel(), found.ravel(), strict=True):
                assert x.contains(float(y))


@landscapes
def test_strict_computes_the_bits_of_numpy(problem: Landscape) -> None:
    (make,) = (row.values[0] for row in backends.LIBRARIES if row.id == "strict-CPU_DEVICE")
    strict, host = make(), points(problem)
    with strict.session():
        gradient = strict.get(problem.gradient(strict.array(host, "float64")))
    assert backends.same_bits(gradient, problem.gradient(host))


def small(network: Network, *direction: Any) -> Any:
    """(parameters, images, one-hot labels) of a net of duals; a direction for each parameter."""
    source = np.random.default_rng(5)
    start = network.start()
    params = [
        duals(x, d).reshape(x.shape)
        for x, d in zip(start, direction or map(np.zeros_like, start), strict=True)
    ]
    images = duals(source.normal(size=(4, network.sizes[0])), np.zeros((4, network.sizes[0])))
    one_hot = np.eye(network.sizes[-1])[source.integers(0, network.sizes[-1], size=4)]
    return params, images, duals(one_hot, np.zeros(one_hot.shape))


@pytest.mark.parametrize("sizes", [(3, 4, 2), (2, 3, 3, 2)])
def test_the_gradients_of_a_network_are_the_derivatives_of_its_value(
    sizes: tuple[int, ...],
) -> None:
    network = Network(sizes=sizes)
    with precision():
        params, images, one_hot = small(network)
        found = network.backward(params, *network.forward(params, images), one_hot)
        start = network.start()
        for i, parameter in enumerate(start):
            for j in range(parameter.size):
                direction = [np.zeros(x.shape) for x in start]
                direction[i].ravel()[j] = 1.0
                moved, images, one_hot = small(network, *direction)
                value = network.backward(moved, *network.forward(moved, images), one_hot).value
                assert found.gradients[i].ravel()[j].x.overlaps(value.d)
                assert value.d.rad() < flint.arb(2) ** -200


def test_activations_and_output_gradients_give_the_gradient_of_each_layer() -> None:
    digits = PROBLEMS["digits"]
    seen = digits.at(digits.start(), 1)
    assert [x.shape for x in seen.activations] == [(64, 64), (64, 32)]
    assert [x.shape for x in seen.output_gradients] == [(64, 32), (64, 10)]
    for i, (a, ds) in enumerate(zip(seen.activations, seen.output_gradients, strict=True)):
        assert (seen.gradients[2 * i] == ds.T @ a).all()
        assert (seen.gradients[2 * i + 1] == ds.sum(axis=0)).all()


# -- minima ---------------------------------------------------------------------------------------
@landscapes
def test_a_minimum_is_one_and_lies_in_the_domain(problem: Landscape) -> None:
    with precision():
        for minimum in problem.minima:
            around = balls(minimum, 2.0**-52)  # what the nearest float64 may stand for
            gradient, value = problem.gradient(around), problem.value(around)
            assert all(d.contains(0) and d.rad() < 2.0**-40 for d in gradient.ravel())
            domain = zip(minimum, problem.domain, strict=True)
            assert all(low <= x <= high for x, (low, high) in domain)
            for other in points(problem).T:
                assert not problem.value(balls(other))[0] < value[0].lower()


def test_only_the_saddle_has_no_minimum_and_it_has_no_bound() -> None:
    assert [p.name for p in LANDSCAPES if not p.minima] == ["saddle"]
    saddle = PROBLEMS["saddle"]
    assert [float(saddle.value(np.array([0.0, y]))) for y in (0.0, 4.0, 1e9)] == [0.0, -8.0, -5e17]


# -- steps ----------------------------------------------------------------------------------------
def test_noise_moves_the_quadratic_the_same_way_every_time_and_is_gone_at_step_0() -> None:
    problem, point = PROBLEMS["noisy-quadratic"], np.array([1.0, 1.0])
    assert noise(0) == (0.0, 0.0)
    assert noise(1) == noise(1) != noise(2)
    assert (problem.gradient(point) == PROBLEMS["quadratic"].gradient(point)).all()
    at = np.array(noise(7))
    assert problem.value(at, 7) == 0.0
    shifts = np.array([noise(step) for step in range(1, 10_001)]) * [1.0, 10.0]
    # mean and variance of as many normal numbers, within five standard deviations of each
    assert (abs(shifts.mean(axis=0)) < 5 * 0.5 / 100).all()
    assert (abs(shifts.var(axis=0) - 0.25) < 5 * 0.25 * math.sqrt(2 / 10_000)).all()


def test_an_epoch_of_digits_takes_each_image_at_most_once() -> None:
    digits = PROBLEMS["digits"]
    steps = (1797 - digits.test) // digits.batch
    rows = [int(i) for step in range(1, steps + 1) for i in digits.rows(step)]
    assert len(rows) == len(set(rows)) == steps * digits.batch
    assert list(digits.rows(1)) != list(digits.rows(steps + 1))


def test_plain_descent_learns_the_digits() -> None:
    digits = PROBLEMS["digits"]
    params = digits.start()
    _, _, *test = digits.data()
    before = digits.accuracy(params, *test)
    for step in range(1, 201):
        seen = digits.at(params, step)
        params = [p - 0.5 * g for p, g in zip(params, seen.gradients, strict=True)]
    assert before < 0.2 < 0.9 < digits.accuracy(params, *test)


# -- the table ------------------------------------------------------------------------------------
def test_every_problem_says_what_it_is_and_where_it_comes_from() -> None:
    assert list(PROBLEMS) == [p.name for p in PROBLEMS.values()]
    assert {p.name for p in PROBLEMS.values()} == {
        *("quadratic", "rosenbrock", "beale", "himmelblau", "rastrigin", "saddle"),
        *("noisy-quadratic", "logistic", "digits"),
    }
    for problem in PROBLEMS.values():
        assert problem.title
        assert problem.source


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_start_has_the_dtype_asked_for_and_one_gradient_each(name: str) -> None:
    params = PROBLEMS[name].start(np, "float32")
    seen = PROBLEMS[name].at(params, 1)
    assert seen.value.dtype == np.float32
    assert [(g.shape, g.dtype) for g in seen.gradients] == [(p.shape, p.dtype) for p in params]
    assert len(seen.activations) == len(PROBLEMS[name].layers)


def test_the_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn for the digits")
    images, labels = datasets.load_digits(return_X_y=True)
    order = shuffled(len(images), 0)
    given, one_hot, numbers = digits(np, "float64")
    assert (given == images[order] / 16).all()
    assert (numbers == labels[order]).all()
    assert (one_hot.argmax(1) == numbers).all()


def test_without_scikit_learn_the_digits_say_what_to_install() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from refopt.problems import PROBLEMS\n"
        "PROBLEMS['rosenbrock'].at(PROBLEMS['rosenbrock'].start())\n"
        "PROBLEMS['digits'].at(PROBLEMS['digits'].start())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        f"{MissingExtra.__module__}.MissingExtra: the digits must have scikit-learn: "
        "pip install 'refopt[teach]'"
    )
