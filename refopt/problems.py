"""Small problems with exact gradients, in operations of the array API.

Tests, tables and plots use the same ones. A `Landscape` is a function of two coordinates; a
`Network` has layers, so that it also gives what THOR asks for: the input of each layer and the
gradient of its output.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from refopt.errors import MissingExtra
from refopt.typing import Array

Point = tuple[float, float]


class Pass(NamedTuple):
    """What one evaluation of a problem gives."""

    value: Array  # of the objective, shape ()
    gradients: list[Array]  # for each parameter
    activations: list[Array] = []  # noqa: RUF012  # input of each layer, (rows, in)
    output_gradients: list[Array] = []  # noqa: RUF012  # for the output of each layer, (rows, out)


def _still(step: int) -> Point:
    return 0.0, 0.0


@dataclass(frozen=True)
class Landscape:
    """A function of two coordinates and its gradient, both written out.

    Attributes
    ----------
    name, title, source
        What it is called, what it shows, and where it comes from.
    f
        Its value from the arrays (x, y).
    df
        Its two derivatives from the arrays (x, y).
    domain
        The part of the plane to look at: ((least x, most x), (least y, most y)).
    first
        Where to start.
    minima
        Every global minimum; none where it has no lower bound.
    shift
        How far the landscape is moved at a step, from 1; at step 0 it stands at its mean.
    """

    name: str
    title: str
    source: str
    f: Callable[[Array, Array], Array]
    df: Callable[[Array, Array], tuple[Array, Array]]
    domain: tuple[Point, Point]
    first: Point
    minima: tuple[Point, ...]
    shift: Callable[[int], Point] = _still
    layers: tuple[tuple[int, int], ...] = ()
    batch: int = 1

    def start(self, xp: Any = np, dtype: str = "float64") -> list[Array]:
        """The one parameter, shape (2,), in a namespace of the array API."""
        return [xp.asarray(self.first, dtype=getattr(xp, dtype))]

    def value(self, point: Array, step: int = 0) -> Array:
        """The value at points of shape (2, …); shape (…)."""
        return self.f(*self._moved(point, step))

    def gradient(self, point: Array, step: int = 0) -> Array:
        """The gradient at points of shape (2, …), of that shape."""
        return array_namespace(point).stack(self.df(*self._moved(point, step)))

    def at(self, params: Sequence[Array], step: int = 0) -> Pass:
        """Value and gradient for the parameter."""
        (point,) = params
        return Pass(self.value(point, step), [self.gradient(point, step)])

    def _moved(self, point: Array, step: int) -> tuple[Array, Array]:
        x, y = self.shift(step)
        p: Any = point
        return p[0, ...] - x, p[1, ...] - y


# -- functions of two coordinates, each before its derivatives ------------------------------------
CURVATURES = 1.0, 100.0


def quadratic(x: Array, y: Array) -> Array:
    a, b = CURVATURES
    return 0.5 * (a * (x * x) + b * (y * y))


def quadratic_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    a, b = CURVATURES
    return a * x, b * y


def saddle(x: Array, y: Array) -> Array:
    return 0.5 * (x * x - y * y)


def saddle_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    return x * 1.0, -y


def rosenbrock(x: Array, y: Array) -> Array:
    d, e = y - x * x, 1.0 - x
    return 100.0 * (d * d) + e * e


def rosenbrock_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    d = y - x * x
    return -400.0 * (x * d) - 2.0 * (1.0 - x), 200.0 * d


def beale(x: Array, y: Array) -> Array:
    a, b, c = _beale(x, y)
    return a * a + b * b + c * c


def beale_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    a, b, c = _beale(x, y)
    dx = a * (y - 1.0) + b * (y * y - 1.0) + c * (y * y * y - 1.0)
    return 2.0 * dx, 2.0 * (x * (a + 2.0 * (b * y) + 3.0 * (c * (y * y))))


def _beale(x: Array, y: Array) -> tuple[Array, Array, Array]:
    return 1.5 - x + x * y, 2.25 - x + x * (y * y), 2.625 - x + x * (y * y * y)


def himmelblau(x: Array, y: Array) -> Array:
    a, b = x * x + y - 11.0, x + y * y - 7.0
    return a * a + b * b


def himmelblau_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    a, b = x * x + y - 11.0, x + y * y - 7.0
    return 4.0 * (x * a) + 2.0 * b, 2.0 * a + 4.0 * (y * b)


def rastrigin(x: Array, y: Array) -> Array:
    cos = array_namespace(x).cos
    return 20.0 + (x * x - 10.0 * cos(2 * math.pi * x)) + (y * y - 10.0 * cos(2 * math.pi * y))


def rastrigin_gradient(x: Array, y: Array) -> tuple[Array, Array]:
    sin, w = array_namespace(x).sin, 2 * math.pi
    return 2.0 * x + (10.0 * w) * sin(w * x), 2.0 * y + (10.0 * w) * sin(w * y)


HOURS = (
    *(0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 1.75, 2.0, 2.25, 2.5),
    *(2.75, 3.0, 3.25, 3.5, 4.0, 4.25, 4.5, 4.75, 5.0, 5.5),
)
PASSED = (*(0, 0, 0, 0, 0, 0, 1, 0, 1, 0), *(1, 0, 1, 0, 1, 1, 1, 1, 1, 1))


def logistic(intercept: Array, slope: Array) -> Array:
    xp = array_namespace(intercept)
    z, sign, _ = _logistic(intercept, slope)
    margin = sign * z  # of log(1 + exp(-margin)), written so that no exponential overflows
    below = xp.maximum(-margin, margin * 0.0)
    return xp.mean(below + xp.log1p(xp.exp(-xp.abs(margin))), axis=-1)


def logistic_gradient(intercept: Array, slope: Array) -> tuple[Array, Array]:
    xp = array_namespace(intercept)
    z, sign, hours = _logistic(intercept, slope)
    error = 0.5 * (xp.tanh(0.5 * z) - sign)  # probability less label
    return xp.mean(error, axis=-1), xp.mean(error * hours, axis=-1)


def _logistic(intercept: Any, slope: Any) -> tuple[Any, Any, Array]:
    """(what the sigmoid is taken of, labels as ±1, hours), students along a last axis."""
    xp, like = array_namespace(intercept), {"dtype": intercept.dtype, "device": device(intercept)}
    hours = xp.asarray(HOURS, **like)
    sign = xp.asarray([1.0 if passed else -1.0 for passed in PASSED], **like)
    return intercept[..., None] + slope[..., None] * hours, sign, hours


NOISE = 0.5


def noise(step: int) -> Point:
    """Where the minimum of a step lies: normal around 0, the same for a step on every machine."""
    source = random.Random(step)
    normal = NormalDist(0.0, NOISE)
    x, y = (normal.inv_cdf(1.0 - source.random()) for _ in range(2)) if step else (0.0, 0.0)
    return x, y / CURVATURES[1] ** 0.5


# -- a network ------------------------------------------------------------------------------------
@cache
def digits(xp: Any, dtype: str) -> tuple[Any, Any, Any]:
    """(images (n, 64) with grey values up to 1, one-hot labels, labels), in a fixed random order.

    Raises `refopt.errors.MissingExtra` without scikit-learn.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise MissingExtra(use="the digits", package="scikit-learn", extra="teach")
    # read in place: to import scikit-learn takes a second
    rows = np.loadtxt(
        Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=","
    )
    images, labels = rows[:, :-1], rows[:, -1].astype(int)
    order = shuffled(len(images), 0)
    arrays = (images / 16)[order], np.eye(10)[labels[order]]
    kept = (xp.asarray(np.asarray(x, dtype), dtype=getattr(xp, dtype)) for x in arrays)
    return *kept, xp.asarray(labels[order], dtype=xp.int64)


@cache
def shuffled(count: int, *seed: int) -> Any:
    """The numbers below `count` in an order that the seed decides."""
    return np.random.default_rng(seed[0] if len(seed) == 1 else seed).permutation(count)


@dataclass(frozen=True)
class Network:
    """Dense layers with rectified units between them, and the mean cross-entropy of a softmax.

    Parameters are weight (out, in) and bias (out,) of each layer, in turn.

    Attributes
    ----------
    sizes
        Of the input, of each layer between, and of the output.
    batch
        Images of a step; step 0 is all images to train on.
    test
        Images kept for testing.
    seed
        Of the first weights and of the batches.
    """

    name: str = "digits"
    title: str = "two dense layers on handwritten digits"
    source: str = (
        "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine "
        "Learning Repository, 1998; scikit-learn, datasets.load_digits"
    )
    sizes: tuple[int, ...] = (64, 32, 10)
    batch: int = 64
    test: int = 500
    seed: int = 0
    domain: None = None
    minima: tuple[Point, ...] = ()

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """The shape (out, in) of each weight."""
        return tuple((m, n) for n, m in pairwise(self.sizes))

    def start(self, xp: Any = np, dtype: str = "float64") -> list[Array]:
        """First weights, as He et al. (2015) draw them for rectified units; biases of 0."""
        source, params = np.random.default_rng(self.seed), []
        for m, n in self.layers:
            weight = source.normal(size=(m, n)) * (2 / n) ** 0.5
            params += [weight, np.zeros(m)]
        return [xp.asarray(np.asarray(x, dtype), dtype=getattr(xp, dtype)) for x in params]

    def data(self, xp: Any = np, dtype: str = "float64") -> tuple[Any, Any, Any, Any]:
        """(images, one-hot labels) to train on, (images, labels) to test on.

        Raises `refopt.errors.MissingExtra` without scikit-learn.
        """
        images, one_hot, labels = digits(xp, dtype)
        n = self.test
        return images[n:, ...], one_hot[n:, ...], images[:n, ...], labels[:n]

    def rows(self, step: int) -> Any:
        """The numbers of the images of a step: each image at most once an epoch, in a new order."""
        count = len(digits(np, "float64")[2]) - self.test
        epoch, place = divmod(step - 1, count // self.batch)
        return shuffled(count, self.seed, epoch)[place * self.batch : (place + 1) * self.batch]

    def at(self, params: Sequence[Array], step: int = 0) -> Pass:
        """The pass of the images of a step; of all, at step 0."""
        first: Any = params[0]
        xp = array_namespace(first)
        images, one_hot, *_ = self.data(xp, str(first.dtype).rpartition(".")[2])
        if step:
            rows = xp.asarray(self.rows(step), dtype=xp.int64)
            images, one_hot = (xp.take(x, rows, axis=0) for x in (images, one_hot))
        return self.backward(params, *self.forward(params, images), one_hot)

    @staticmethod
    def forward(params: Sequence[Any], images: Any) -> tuple[list[Any], Any]:
        """(input of each layer, output of the last) for images (rows, in)."""
        xp, x, inputs = array_namespace(images), images, []
        for weight, bias in zip(params[::2], params[1::2], strict=True):
            inputs.append(x)
            y = xp.matmul(x, weight.T) + bias
            x = xp.maximum(y, xp.zeros_like(y))
        return inputs, y

    @staticmethod
    def backward(params: Sequence[Any], inputs: list[Any], outputs: Any, one_hot: Any) -> Pass:
        """Value and gradients of the mean cross-entropy, from what `forward` gave."""
        xp = array_namespace(outputs)
        shifted = outputs - xp.max(outputs, axis=1, keepdims=True)
        odds = xp.exp(shifted)
        total = xp.sum(odds, axis=1, keepdims=True)
        likelihoods = xp.sum(one_hot * (xp.log(total) - shifted), axis=1)
        ds = (odds / total - one_hot) / outputs.shape[0]
        gradients: list[Any] = []
        output_gradients: list[Any] = []
        for weight, x in zip(params[-2::-2], reversed(inputs), strict=True):
            output_gradients = [ds, *output_gradients]
            gradients = [xp.matmul(ds.T, x), xp.sum(ds, axis=0), *gradients]
            ds = xp.matmul(ds, weight) * xp.astype(x > 0, x.dtype)
        return Pass(xp.mean(likelihoods), gradients, inputs, output_gradients)

    @staticmethod
    def accuracy(params: Sequence[Any], images: Any, labels: Any) -> float:
        """The share of images that are told right."""
        xp = array_namespace(images)
        _, outputs = Network.forward(params, images)
        return float(xp.mean(xp.astype(xp.argmax(outputs, axis=1) == labels, outputs.dtype)))


Problem = Landscape | Network

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Landscape(
            "quadratic",
            "a quadratic a hundred times steeper along one axis",
            "B. T. Polyak, Introduction to Optimization, 1987, section 1.4",
            quadratic,
            quadratic_gradient,
            ((-4.0, 4.0), (-2.0, 2.0)),
            (3.5, 1.5),
            ((0.0, 0.0),),
        ),
        Landscape(
            "rosenbrock",
            "a narrow, curved valley",
            "H. H. Rosenbrock, An automatic method for finding the greatest or least value of a "
            "function, The Computer Journal 3, 1960",
            rosenbrock,
            rosenbrock_gradient,
            ((-2.0, 2.0), (-1.0, 3.0)),
            (-1.25, 1.0),
            ((1.0, 1.0),),
        ),
        Landscape(
            "beale",
            "a flat valley between steep corners",
            "J. J. Moré, B. S. Garbow and K. E. Hillstrom, Testing Unconstrained Optimization "
            "Software, ACM Transactions on Mathematical Software 7, 1981, problem 5",
            beale,
            beale_gradient,
            ((-1.0, 4.5), (-2.0, 2.0)),
            (0.5, 1.25),
            ((3.0, 0.5),),
        ),
        Landscape(
            "himmelblau",
            "four minima, all of them 0",
            "D. M. Himmelblau, Applied Nonlinear Programming, 1972",
            himmelblau,
            himmelblau_gradient,
            ((-5.0, 5.0), (-5.0, 5.0)),
            (0.0, -1.0),
            (
                (3.0, 2.0),
                (-2.805118086952745, 3.131312518250573),
                (-3.779310253377747, -3.2831859912861696),
                (3.5844283403304917, -1.8481265269644036),
            ),
        ),
        Landscape(
            "rastrigin",
            "a bowl with a local minimum at each whole number",
            "L. A. Rastrigin, Systems of Extremal Control, 1974; H. Mühlenbein, M. Schomisch and "
            "J. Born, The parallel genetic algorithm as function optimizer, Parallel Computing 17, "
            "1991",
            rastrigin,
            rastrigin_gradient,
            ((-5.12, 5.12), (-5.12, 5.12)),
            (3.5, -2.75),
            ((0.0, 0.0),),
        ),
        Landscape(
            "saddle",
            "a saddle, without lower bound",
            "Y. Dauphin et al., Identifying and attacking the saddle point problem in "
            "high-dimensional non-convex optimization, NeurIPS 2014",
            saddle,
            saddle_gradient,
            ((-2.0, 2.0), (-2.0, 2.0)),
            (1.5, 2.0**-10),
            (),
        ),
        Landscape(
            "noisy-quadratic",
            "the quadratic, whose minimum is elsewhere at each step",
            "G. Zhang et al., Which Algorithmic Choices Matter at Which Batch Sizes? Insights From "
            "a Noisy Quadratic Model, NeurIPS 2019",
            quadratic,
            quadratic_gradient,
            ((-4.0, 4.0), (-2.0, 2.0)),
            (3.5, 1.5),
            ((0.0, 0.0),),
            noise,
        ),
        Landscape(
            "logistic",
            "logistic regression: who passed an examination, by hours of study",
            "D. R. Cox, The regression analysis of binary sequences, Journal of the Royal "
            "Statistical Society B 20, 1958; data: the example of Wikipedia, Logistic regression",
            logistic,
            logistic_gradient,
            ((-9.0, 3.0), (-1.0, 4.0)),
            (1.0, -0.75),
            ((-4.077713431087631, 1.5046454283733335),),
        ),
        Network(),
    )
}
"""Every problem by its name."""
