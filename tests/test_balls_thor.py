"""Checks of the THOR transcription: by hand, and of the project's ball arithmetic by it.

By hand: where every intermediate value is dyadic the comparison is exact. Elsewhere the expected
value is an exact `Fraction`, and half of the working digits must agree.
"""

import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf, nstr

import refopt
from refopt.interp.balls import PRECISION, MatrixSpace, precision
from refopt.oracle import golden
from refopt.oracle.golden import Case
from refopt.oracle.layered import Layered
from refopt.rules import thor as rule
from tests.independent.thor import TABLES, Array, Layer, padding_of, run

DIGITS = 60  # that agree with the balls
Exact = list[list[Fraction]]

# With these the step is the formula of the page.
PLAIN: dict[str, Any] = {"learning_rate": 1.0, "damping": 1.0, "momentum": 0.0, "batch_size": 1}


def first50(x: Any) -> str:
    """Return the first 50 significant digits of an mpf or a Fraction."""
    with mp.workdps(100):
        return str(nstr(mp.mpmathify(x), 50))


def sole(
    kind: str, grads: Any, *, shape: Any = None, theta: Any = None, name: str = "p", **options: Any
) -> list[Any]:
    """Return the records of a net of one layer without factors."""
    shape = shape or [len(grads[0])]
    params = {name: Array(shape, theta or [0.0] * prod(shape))}
    steps = run({"l": Layer(kind, [0])}, params, [[g] for g in grads], {}, **PLAIN | options)
    return [record for (record,) in steps]


def weighted(
    layer: Layer, shape: Sequence[int], grads: Any, statistics: Any, **options: Any
) -> list[Any]:
    """Return the records of a net of one layer with factors and a weight of zeros."""
    params = {"w": Array(shape, [0.0] * prod(shape))}
    steps = run(
        {"l": layer},
        params,
        [[g] for g in grads],
        {t: {"l": dict(zip(("a", "ds"), pair, strict=True))} for t, pair in statistics.items()},
        **PLAIN | options,
    )
    return [record for (record,) in steps]


# -- factors --------------------------------------------------------------------------------------

A = Array((3, 2), [1.0, 2.0, 0.5, -1.0, 0.25, 3.0])
DS = Array((3, 3), [1.0, -0.5, 0.25, 0.75, 2.0, -1.0, 0.5, 1.5, -0.125])
GRAD = [1.0, -2.0, 0.5, 3.0, -0.25, 0.75]  # 3 outputs, 2 inputs


def exact_moment(x: Array, scale: Fraction, damping: Fraction) -> Exact:
    """Return E[x x^T] times scale, damped, as fractions."""
    rows, width = x.shape
    f = [Fraction(v) for v in x.values]
    return [
        [
            scale * sum(f[k * width + i] * f[k * width + j] for k in range(rows)) / rows
            + damping * (i == j)
            for j in range(width)
        ]
        for i in range(width)
    ]


def solved(matrix: Exact, right: list[Fraction]) -> list[Fraction]:
    """Return the solution of a linear system by elimination."""
    rows = [[*row, x] for row, x in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        k = next(k for k in range(i, len(rows)) if rows[k][i])
        rows[i], rows[k] = rows[k], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]


def test_formula_of_the_source() -> None:
    # (A + lambda I) (x) (G + lambda I) for a weight as a vector, column after column; D = b/s d.
    s, b, damping, gamma = 4, 3, Fraction(0.1), Fraction(0.3)
    a = exact_moment(A, Fraction(1), damping)
    g = exact_moment(DS, Fraction(b, s) ** 2, damping)
    kronecker = [
        [a[j][q] * g[i][p] for q in range(2) for p in range(3)] for j in range(2) for i in range(3)
    ]
    vector = [Fraction(GRAD[2 * i + j]) / s for j in range(2) for i in range(3)]
    u = solved(kronecker, vector)
    options = {"learning_rate": 0.3, "damping": 0.1, "loss_scale": 4.0, "batch_size": 3}
    (record,) = weighted(Layer("dense", [0]), (3, 2), [GRAD], {1: (A, DS)}, **options)
    for i in range(3):
        for j in range(2):
            assert first50(record["gradient"][2 * i + j]) == first50(u[3 * j + i])
            assert first50(record["param"][2 * i + j]) == first50(-gamma * u[3 * j + i])


def test_reported_factors_and_inverses_are_those_of_the_last_refresh() -> None:
    one, other = (Array((1, 1), [x]) for x in (1.0, 3.0))
    records = weighted(
        Layer("dense", [0]),
        (1, 1),
        [[20.0]] * 4,
        {1: (one, other), 3: (other, other)},
        frequency=2,
    )
    assert [r["A"] for r in records] == [[1], [1], [9], [9]]
    assert [r["G"] for r in records] == [[9]] * 4
    assert [r["a_inverse"] for r in records[:2]] == [[0.5]] * 2
    for record, u in zip(records, (1, 1, Fraction(1, 5), Fraction(1, 5)), strict=True):
        assert first50(record["gradient"][0]) == first50(u)


def test_positions_before_the_last_axis_are_rows_of_a_dense_layer() -> None:
    a, ds = (Array((3, 1, x.shape[1]), x.values) for x in (A, DS))
    flat, nested = (
        weighted(Layer("dense", [0]), (3, 2), [GRAD], {1: pair}) for pair in ((A, DS), (a, ds))
    )
    assert flat == nested


def test_batch_size_and_loss_scale_act_on_g_by_the_square_of_their_ratio() -> None:
    one = Array((1, 1), [1.0])
    options = {"loss_scale": 2.0, "batch_size": 6}
    (record,) = weighted(Layer("dense", [0]), (1, 1), [[80.0]], {1: (one, one)}, **options)
    assert (record["A"], record["G"]) == ([1], [1])
    assert first50(record["g_inverse"][0]) == first50(Fraction(1, 10))
    assert first50(record["gradient"][0]) == first50(40 * Fraction(1, 2) / 10)


def test_scaling_the_loss_changes_nothing() -> None:
    def scaled(s: float) -> Any:
        ds = Array(DS.shape, [s * x for x in DS.values])
        grads = [[s * x for x in GRAD]] * 2
        options = {"loss_scale": s, "momentum": 0.5, "weight_decay": 0.125}
        records = weighted(Layer("dense", [0]), (3, 2), grads, {1: (A, ds)}, **options)
        return [{q: x for q, x in r.items() if q != "G"} for r in records]

    assert scaled(1.0) == scaled(128.0)


def test_a_smaller_batch_averages_over_its_own_rows() -> None:
    rows = (Array((2, 1), [1.0, 3.0]), Array((2, 1), [2.0, 4.0]))
    (record,) = weighted(Layer("dense", [0]), (1, 1), [[1.0]], {1: rows}, batch_size=100)
    assert (record["A"], record["G"]) == ([5], [10])


def image(height: int, width: int) -> Array:
    """Return 1, 10, 100, ... in one channel of one sample."""
    return Array((1, 1, height, width), [10.0**k for k in range(height * width)])


@pytest.mark.parametrize(
    ("fields", "kernel", "size", "rows"),
    [
        # An odd zero is behind; with a stride as few zeros as ceil(size / stride) positions take.
        ({}, (1, 2), (1, 3), [[1, 10], [10, 100], [100, 0]]),
        ({}, (1, 3), (1, 3), [[0, 1, 10], [1, 10, 100], [10, 100, 0]]),
        ({}, (2, 1), (2, 1), [[1, 10], [10, 0]]),
        ({"stride": (1, 2)}, (1, 2), (1, 3), [[1, 10], [100, 0]]),
        ({"stride": (1, 2)}, (1, 3), (1, 4), [[1, 10, 100], [100, 1000, 0]]),
        ({"stride": (1, 3)}, (1, 1), (1, 4), [[1], [1000]]),
        ({"dilation": (1, 2)}, (1, 2), (1, 2), [[0, 10], [1, 0]]),
        ({"padding": "valid"}, (1, 2), (1, 3), [[1, 10], [10, 100]]),
        ({"padding": "valid", "stride": (1, 2)}, (1, 2), (1, 5), [[1, 10], [100, 1000]]),
        ({"padding": "valid", "dilation": (1, 2)}, (1, 2), (1, 3), [[1, 100]]),
        ({"padding": "valid"}, (2, 2), (2, 2), [[1, 10, 100, 1000]]),
        ({"padding": 1, "stride": (2, 2)}, (1, 1), (1, 2), [[0], [0], [0], [0]]),
        ({"padding": (0, 1)}, (1, 3), (1, 2), [[0, 1, 10], [1, 10, 0]]),
        ({"padding": (1, 0)}, (3, 1), (2, 1), [[0, 1, 10], [1, 10, 0]]),
        ({"padding": (0, 1, 0, 0)}, (2, 1), (2, 1), [[1, 10], [10, 0]]),
        ({"padding": (0, 0, 2, 1)}, (1, 4), (1, 2), [[0, 0, 1, 10], [0, 1, 10, 0]]),
    ],
)
def test_patches_of_a_convolution(fields: Any, kernel: Any, size: Any, rows: Any) -> None:
    across = len(rows) if size[0] == 1 or len(rows) == 1 else 1
    ds = Array((1, 1, len(rows) // across, across), [1.0] * len(rows))
    shape = (1, 1, *kernel)
    layer = Layer("conv2d", [0], **fields)
    (record,) = weighted(layer, shape, [[0.0] * prod(shape)], {1: (image(*size), ds)})
    expected = [
        Fraction(sum(r[i] * r[j] for r in rows), len(rows))
        for i in range(len(rows[0]))
        for j in range(len(rows[0]))
    ]
    assert [*map(first50, record["A"])] == [*map(first50, expected)]


def test_patches_follow_the_weight_by_channel_row_and_column() -> None:
    a = Array((1, 2, 2, 2), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7])
    layer = Layer("conv2d", [0], padding="valid")
    ds = Array((1, 1, 1, 1), [1.0])
    (record,) = weighted(layer, (1, 2, 2, 2), [[0.0] * 8], {1: (a, ds)})
    assert record["A"][:8] == a.values  # the row of the first element, which is 1


def test_a_convolution_averages_over_positions_of_samples() -> None:
    # A kernel of one element over 2 samples of 2 channels and 1 x 2 positions, and 1 output.
    a = Array((2, 2, 1, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    ds = Array((2, 1, 1, 2), [1.0, 2.0, 3.0, 4.0])
    (record,) = weighted(Layer("conv2d", [0]), (1, 2, 1, 1), [[0.0] * 2], {1: (a, ds)})
    rows = ((1, 3), (2, 4), (5, 7), (6, 8))
    assert record["A"] == [sum(r[i] * r[j] for r in rows) / 4 for i in (0, 1) for j in (0, 1)]
    assert record["G"] == [7.5]


def test_a_convolution_over_its_whole_input_is_a_dense_layer() -> None:
    a, ds = Array((3, 2, 1, 1), A.values), Array((3, 3, 1, 1), DS.values)
    dense = weighted(Layer("dense", [0]), (3, 2), [GRAD], {1: (A, DS)})
    conv = weighted(Layer("conv2d", [0]), (3, 2, 1, 1), [GRAD], {1: (a, ds)})
    assert dense == conv


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_table_is_a_dense_layer_of_rows_with_a_one(kind: str, nested: bool) -> None:
    ids, size = [3, 0, 3], 4
    ones = Array((3, size), [float(k == i) for i in ids for k in range(size)])
    table = [0.5 * k - 2.25 for k in range(12)]  # 4 ids of width 3
    turned = [table[3 * i + j] for j in range(3) for i in range(size)]
    options = {"damping": 0.1, "momentum": 0.5, "batch_size": 5, "learning_rate": 0.3}
    outputs = Array((1, 3, 3), DS.values) if nested else DS
    (theirs,) = weighted(
        Layer(kind, [0]), (size, 3), [table], {1: (Array((1, 3), ids), outputs)}, **options
    )
    (dense,) = weighted(Layer("dense", [0]), (3, size), [turned], {1: (ones, DS)}, **options)
    assert theirs["A"] == [1, 0, 0, 2]
    for q in ("gradient", "m", "param"):
        for i in range(size):
            for j in range(3):
                assert first50(theirs[q][3 * i + j]) == first50(dense[q][size * j + i])


def test_ready_factors_are_taken_as_statistics_are() -> None:
    for layer, shape, pair in (
        (Layer("dense", [0]), (3, 2), (A, DS)),
        (Layer("embedding", [0]), (2, 3), (Array((3,), [1, 1, 0]), DS)),
    ):
        (record,) = weighted(layer, shape, [GRAD], {1: pair})
        moments = {
            q: Array((width,) if len(record[q]) == width else (width, width), record[q])
            for q, width in (("A", 2), ("G", 3))
        }
        params = {"w": Array(shape, [0.0] * 6)}
        assert run({"l": layer}, params, [[GRAD]], {1: {"l": moments}}, **PLAIN) == [[record]]


def test_a_factor_that_is_not_positive_definite_is_reported() -> None:
    zero = Array((1, 1), [0.0])
    with pytest.raises(ValueError, match="positive definite"):
        weighted(Layer("dense", [0]), (1, 1), [[1.0]], {1: (zero, zero)}, damping=0.0)


def test_zero_damping_leaves_the_factors_themselves() -> None:
    two = Array((1, 1), [2.0])
    (record,) = weighted(Layer("dense", [0]), (1, 1), [[8.0]], {1: (two, two)}, damping=0.0)
    assert (record["a_inverse"], record["g_inverse"], record["gradient"]) == ([0.25], [0.25], [0.5])


# -- gradients ------------------------------------------------------------------------------------


def test_gamma_and_beta_are_divided_by_their_squares_over_the_batch_size() -> None:
    # g = 12 / 2 and 9 / 3 + 0.5; the decay is part of g, and acts because a group has it.
    options = {"loss_scale": 2.0, "batch_size": 4, "damping": 0.1, "weight_decay": 0.5}
    options["groups"] = [([0], {})]
    (record,) = sole("norm", [[12.0, -3.0]], theta=[0.0, 4.0], name="l.gamma", **options)
    for x, g in zip(record["gradient"], (6, Fraction(1, 2)), strict=True):
        assert first50(x) == first50(g / (Fraction(g) ** 2 / 4 + Fraction(0.1)))


def test_norms_are_damped_by_the_step_and_not_by_the_refresh() -> None:
    records = sole("norm", [[2.0]] * 3, damping=[4.0, 12.0, 0.0])
    assert [r["gradient"] for r in records] == [[0.25], [0.125], [0.5]]


@pytest.mark.parametrize("kind", ["other", "dense"])
def test_biases_and_other_parameters_keep_their_gradients(kind: str) -> None:
    net = {"fc": Layer(kind, [0, 1])}
    params = {"fc.weight": Array((3, 2), [0.0] * 6), "fc.bias": Array((3,), [1.0, 2.0, 3.0])}
    statistics = {1: {"fc": {"a": A, "ds": DS}}}
    ((weight, bias),) = run(net, params, [[GRAD, [4.0, 6.0, 8.0]]], statistics, **PLAIN)
    assert (bias["gradient"], bias["param"]) == ([4, 6, 8], [-3, -4, -5])
    assert (weight["gradient"] == GRAD) == (kind == "other")
    assert ("A" in weight) == (kind == "dense")


def test_decay_precedes_the_inverses() -> None:
    one = Array((1, 1), [1.0])
    params = {"w": Array((1, 1), [8.0])}
    statistics = {1: {"l": {"a": one, "ds": one}}}
    ((record,),) = run(
        {"l": Layer("dense", [0])}, params, [[[2.0]]], statistics, **PLAIN, weight_decay=0.25
    )
    assert record["gradient"] == [1]  # (2 + 0.25 x 8) / (2 x 2)


@pytest.mark.parametrize("name", ["l.gamma", "l.beta", "alphabeta", "bn.gamma"])
def test_names_with_beta_or_gamma_do_not_decay(name: str) -> None:
    options = {"theta": [8.0], "name": name, "weight_decay": 0.5}
    (record,) = sole("other", [[1.0]], **options)
    assert record["gradient"] == [1]
    for decay in ({"groups": [([0], {})]}, {"decay_filter": lambda _: True}):
        (record,) = sole("other", [[1.0]], **options, **decay)
        assert record["gradient"] == [5]


def test_a_filter_says_which_names_decay() -> None:
    options = {"theta": [8.0], "weight_decay": 0.5, "decay_filter": lambda name: name == "w"}
    assert [sole("other", [[1.0]], name=n, **options)[0]["gradient"] for n in "wv"] == [[5], [1]]


def test_groups_have_their_own_rate_and_decay() -> None:
    net = {"a": Layer("other", [0]), "b": Layer("other", [1])}
    params = {n: Array((1,), [8.0]) for n in ("a", "b")}
    groups = [([1], {"lr": 0.25, "weight_decay": 0.0}), ([0], {})]
    ((a, b),) = run(net, params, [[[4.0]] * 2], {}, **PLAIN, weight_decay=0.5, groups=groups)
    assert (a["param"], b["param"]) == ([0], [7])


def test_centralization_takes_the_mean_over_all_axes_but_the_first_before_the_decay() -> None:
    a = Array((1, 2, 1, 2), [0.0] * 4)
    ds = Array((1, 2, 1, 1), [0.0] * 2)
    params = {"w": Array((2, 2, 1, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])}
    layer = Layer("conv2d", [0], padding="valid")
    statistics = {1: {"l": {"a": a, "ds": ds}}}
    groups = [([0], {"grad_centralization": True, "weight_decay": 1.0})]
    given = [[[1.0, 3.0, -5.0, 5.0, 2.0, 2.0, 8.0, 0.0]]]
    ((record,),) = run({"l": layer}, params, given, statistics, **PLAIN, groups=groups)
    assert record["gradient"] == [1, 4, -3, 8, 4, 5, 12, 5]


def test_each_gradient_is_clipped_to_norm_one_by_itself_after_its_decay() -> None:
    net = {"a": Layer("other", [0]), "b": Layer("other", [1])}
    params = {n: Array((2,), [0.0, 4.0]) for n in ("a", "b")}
    grads = [[[3.0, 2.0], [0.5, -2.0]]]
    options = {"enable_clip_grad": True, "weight_decay": 0.5, "momentum": 0.5}
    ((a, b),) = run(net, params, grads, {}, **PLAIN | options)
    assert [*map(first50, a["gradient"])] == [*map(first50, (Fraction(3, 5), Fraction(4, 5)))]
    assert (a["m"], b["gradient"]) == (a["gradient"], [0.5, 0])


@pytest.mark.parametrize(("g", "clipped"), [(1.0, 1.0), (-1.0, -1.0), (8.0, 1.0), (0.5, 0.5)])
def test_a_gradient_at_the_limit_is_unchanged(g: float, clipped: float) -> None:
    (record,) = sole("other", [[g]], enable_clip_grad=True)
    assert record["gradient"] == [clipped]


def test_clipping_to_a_norm_follows_the_inverses() -> None:
    one = Array((1, 1), [1.0])
    given, options = {1: (one, one)}, {"enable_clip_grad": True, "clip_norm": 0.5}
    for g, clipped in ((8.0, 0.5), (2.0, 0.5), (1.0, 0.25)):
        (record,) = weighted(Layer("dense", [0]), (1, 1), [[g]], given, **options)
        assert record["gradient"] == [clipped]


# -- moves ----------------------------------------------------------------------------------------


def test_momenta_are_discounted_sums_that_the_rate_multiplies() -> None:
    mu, rates = Fraction(0.9), (0.1, 0.3, 0.2)
    grads = (2.0, -1.0, 0.5)
    records = sole("other", [[g] for g in grads], learning_rate=rates, momentum=0.9)
    m = theta = Fraction(0)
    for record, g, rate in zip(records, grads, rates, strict=True):
        m = mu * m + Fraction(g)
        theta -= Fraction(rate) * m
        assert first50(record["m"][0]) == first50(m)
        assert first50(record["param"][0]) == first50(theta)


def test_nesterov_moves_by_the_gradient_and_the_new_momentum() -> None:
    # m = 4, 6 and moves 0.5 (4 + 0.5 x 4), 0.5 (4 + 0.5 x 6)
    options = {"learning_rate": 0.5, "momentum": 0.5, "use_nesterov": True}
    records = sole("other", [[4.0]] * 2, **options)
    assert [(r["m"], r["param"]) for r in records] == [([4], [-3]), ([6], [-6.5])]


def test_nesterov_moves_by_the_clipped_gradient() -> None:
    options = {"momentum": 0.5, "use_nesterov": True, "enable_clip_grad": True}
    (record,) = sole("other", [[4.0]], **options)
    assert record["param"] == [-1.5]


@pytest.mark.parametrize("rates", [[0.5, 0.25], lambda done: (0.5, 0.25)[done]])
def test_schedules_have_a_value_for_each_step_and_none_past_the_last(rates: Any) -> None:
    records = sole("other", [[1.0]] * 2, learning_rate=rates)
    assert [r["param"] for r in records] == [[-0.5], [-0.75]]
    with pytest.raises(IndexError):
        sole("other", [[1.0]] * 3, learning_rate=rates)


def test_damping_of_stale_inverses_is_that_of_their_refresh() -> None:
    one = Array((1, 1), [1.0])
    options = {"damping": [1.0, 5.0, 7.0], "frequency": 2}
    given = {1: (one, one), 3: (one, one)}
    records = weighted(Layer("dense", [0]), (1, 1), [[64.0]] * 3, given, **options)
    assert [r["gradient"] for r in records] == [[16], [16], [1]]


def test_statistics_are_read_on_refreshes_alone() -> None:
    one, nothing = Array((1, 1), [1.0]), Array((1, 1), [0.0])
    layer, options = Layer("dense", [0]), {"frequency": 3}
    with pytest.raises(KeyError):
        weighted(layer, (1, 1), [[1.0]] * 4, {1: (one, one)}, **options)
    every = {t: (one, one) if t in (1, 4) else (nothing, nothing) for t in range(1, 6)}
    needed = {t: every[t] for t in (1, 4)}
    every_run, needed_run = (
        weighted(layer, (1, 1), [[1.0]] * 5, x, **options) for x in (every, needed)
    )
    assert every_run == needed_run


def test_doubling_the_digits_keeps_the_first_50() -> None:
    options = {"damping": 0.003, "momentum": 0.9, "learning_rate": 0.1, "weight_decay": 0.01}
    coarse, fine = (
        weighted(Layer("dense", [0]), (3, 2), [GRAD] * 5, {1: (A, DS)}, **options, digits=d)
        for d in (100, 200)
    )
    assert coarse != fine
    for low, high in zip(coarse, fine, strict=True):
        for q in low:
            assert [*map(first50, low[q])] == [*map(first50, high[q])], q


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sole("other", [[1.0]], digits=16), "digits must be at least 17 .* got 16"),
        (
            lambda: sole("other", [[1.0]], groups=[([0], {"grad_centralization": True})]),
            "grad_centralization must be off but for convolutions, got p",
        ),
        (
            lambda: weighted(
                Layer("dense", [0]), (3, 2), [GRAD], {1: (A, Array((1, 3), [1.0] * 3))}
            ),
            "a and ds must have as many rows, got 3 and 1",
        ),
        (
            lambda: padding_of(Layer("conv2d", [0], padding="full"), (1, 1), (1, 1)),
            "padding must be .* got 'full'",
        ),
        (lambda: sole("other", [[1.0, 2.0]], theta=[0.0], shape=[1]), r"zip\(\) argument"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# -- the balls ------------------------------------------------------------------------------------


def transcribed(case: Case, steps: int) -> list[list[dict[str, Any]]]:
    """Return what the transcription makes of a case."""
    hyper = {q: x for q, x in case.hyper.items() if q not in ("split_dim", "factor_decay")}
    names = [p["name"] for p in case.source["params"]]
    return run(
        {
            name: Layer(x.kind, x.params, x.stride, unpaired(x.padding), x.dilation)
            for name, x in case.layers.items()
        },
        dict(zip(names, map(Array, case.shapes, case.params), strict=True)),
        [case.gradients(t) for t in range(1, steps + 1)],
        {
            t: {
                name: {q: Array(x.shape, x.values) for q, x in arrays.items()}
                for name, arrays in layers.items()
            }
            for t, layers in case.statistics.items()
        },
        learning_rate=hyper.pop("lr"),
        frequency=int(hyper.pop("frequency", 100)),
        use_nesterov=bool(case.options.get("use_nesterov")),
        enable_clip_grad=bool(case.options.get("enable_clip_grad")),
        groups=case.groups if "groups" in case.source else None,
        digits=160,
        **hyper,
    )


def unpaired(padding: Any) -> Any:
    """Return padding as it is given to the transcription: words, or four numbers."""
    return padding if isinstance(padding, str) else [*chain(*padding)]


def counted(case: Case) -> Case:
    """Return a case whose ready counts of ids have their number beside them.

    A recording has it nowhere: the release divides by the batch size.
    """
    statistics = {
        t: {
            name: arrays
            | (
                {"a_norm": golden.Tensor("float64", (1,), [sum(arrays["A"].values)])}
                if "A" in arrays and case.layers[name].kind in TABLES
                else {}
            )
            for name, arrays in layers.items()
        }
        for t, layers in case.statistics.items()
    }
    return case._replace(statistics=statistics)


def compare(case: Case, theirs: list[list[dict[str, Any]]]) -> int:
    """Assert that the balls' quantities have the digits of the transcription's; return how many."""
    compared = 0
    documented = rule.PROFILES["documented"]
    with precision(2 * PRECISION), mp.workdps(160):
        balls = Layered(rule, counted(case), documented, space=MatrixSpace()).steps()
        for records, (t, quantities, _) in zip(theirs, balls, strict=False):
            for i, record in enumerate(records):
                shown = {q for _, q, k in quantities if k == i} - {"t"}
                assert shown in (record.keys(), {"gradient", "m", "param"})
                for q in shown:
                    size = max(1, *map(abs, record[q]))
                    for ball, value in zip(quantities[t, q, i].flat, record[q], strict=True):
                        assert distance(ball, value) <= unit(value, size), (t, q, i)
                        compared += 1
    return compared


def distance(ball: Any, value: mpf) -> mpf:
    """Return how far a value is from the far end of a ball."""
    middle, radius = (mpf(x._mpf_) for x in (ball.mid(), ball.rad()))
    return abs(middle - value) + radius


def unit(value: mpf, size: mpf) -> mpf:
    """Return a unit in the last digit of a value, which cancels to nothing beside that size."""
    digit = mpf(10) ** -DIGITS
    return digit * (abs(value) if abs(value) > digit * size else size)


def recorded(folder: str) -> dict[str, golden.Recording]:
    """Return the recordings or vectors by name."""
    return {r.case.id: r for r in golden.recordings("thor", golden.root() / folder)}


VECTORS = recorded("vectors")
CASES = {name: r.case for name, r in (recorded("golden") | VECTORS).items()}
WIDE = 60  # rows of a factor whose inverse takes seconds


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (max(chain(*case.shapes)) > WIDE))
        for n, case in sorted(CASES.items())
    ],
)
def test_balls_agree_on_every_recording_and_vector(name: str) -> None:
    case = CASES[name]
    assert compare(case, transcribed(case, case.steps - ("past-the-end" in name)))


@pytest.mark.parametrize("name", sorted(name for name, r in VECTORS.items() if r.runs))
def test_first_step_of_a_vector_is_the_transcribed_one_rounded_once(name: str) -> None:
    case, run = VECTORS[name].case, VECTORS[name].runs["documented"]
    (records,) = transcribed(case, 1)
    stored = {
        (q, case.layers[layer].params[0]): x.values
        for q, arrays in run.factors[1].items()
        for layer, x in arrays.items()
    }
    # What follows an inverse begins with the rounded one that is stored: it is compared by balls.
    following = {i for _, i in stored}
    for q in ("gradient", "m", "param"):
        stored |= {(q, i): x for i, x in enumerate(run.steps[1][q]) if i not in following}
    assert stored
    with mp.workprec({"float32": 24, "float64": 53}[case.dtypes[0]]):
        for (q, i), values in stored.items():
            assert [+x for x in records[i][q]] == values, (q, i)


def test_both_refuse_a_step_past_the_last_value() -> None:
    case = CASES["thor.mindspore-2-10.past-the-end"]
    with pytest.raises(IndexError):
        transcribed(case, case.steps)
    balls = Layered(rule, case, rule.PROFILES["documented"], space=MatrixSpace())
    with pytest.raises(IndexError):
        list(balls.steps())


class Drawn(NamedTuple):
    """A layer of a drawn net: shapes of its parameters, input and output gradient."""

    params: list[tuple[int, ...]]
    a: tuple[int, ...] = ()
    ds: tuple[int, ...] = ()
    window: dict[str, Any] = {}  # noqa: RUF012


def drawn_layer(r: random.Random, kind: str) -> Drawn:
    """Return a layer of a kind, its sizes by chance."""
    m, n, rows = r.randint(1, 4), r.randint(1, 4), r.choice([(3,), (1,), (2, 2)])
    if kind == "dense":
        return Drawn([(m, n), (m,)][: r.randint(1, 2)], (*rows, n), (*rows, m))
    if kind in TABLES:
        return Drawn([(m, n)], rows, (*rows, n))
    if kind != "conv2d":
        return Drawn([(m,), (n,)])
    kernel, stride, dilation, more = ([r.randint(1, 2) for _ in "yx"] for _ in range(4))
    kernel[0] += r.randint(0, 1)
    padding = r.choice(["same", "valid", 1, (0, 2), (1, 0, 0, 2)])
    window = {"stride": stride, "padding": padding, "dilation": dilation}
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    size = [x + y for x, y in zip(reach, more, strict=True)]
    zeros = padding_of(Layer(kind, [0], **window), size, kernel)
    out = [(size[k] + sum(zeros[k]) - reach[k] - 1) // stride[k] + 1 for k in (0, 1)]
    params = [(m, n, *kernel), (m,)][: r.randint(1, 2)]
    return Drawn(params, (rows[0], n, *size), (rows[0], m, *out), window)


def drawn(r: random.Random) -> Case:
    """Return a small case: layers, statistics, options and groups by chance."""

    def array(shape: Sequence[int], below: int | None = None) -> dict[str, Any]:
        of = r.choice((lambda: r.uniform(-3, 3), lambda: r.randint(-8, 8) / 4))
        code, dtype = ("d", "float64") if below is None else ("i", "int32")
        values = [of() if below is None else r.randrange(below) for _ in range(prod(shape))]
        bits = struct.pack(f">{len(values)}{code}", *values).hex()
        return {"bits": bits, "dtype": dtype, "shape": [*shape]}

    frequency, steps = r.randint(2, 4), r.randint(1, 5)
    kinds = r.choices(rule.KINDS, k=r.randint(1, 3))
    net = {f"{kind}{k}": drawn_layer(r, kind) for k, kind in enumerate(kinds)}
    shapes = [shape for x in net.values() for shape in x.params]
    numbers = iter(range(len(shapes)))
    layers = [
        {"kind": kind, "name": name, "params": [next(numbers) for _ in x.params]}
        for kind, (name, x) in zip(kinds, net.items(), strict=True)
    ]
    statistics = {
        name: lambda x=x, kind=kind: {
            "a": array(x.a, x.params[0][0] if kind in TABLES else None),
            "ds": array(x.ds),
        }
        for kind, (name, x) in zip(kinds, net.items(), strict=True)
        if x.ds
    }
    own = [i for i in range(len(shapes)) if r.random() < 0.3]
    apart: dict[str, str] = {"lr": "0.3", "weight_decay": r.choice(["0.0", "0.25"])}
    scale = r.choice(["1.0", "3.0", "1024.0"])
    if own and all(len(shapes[i]) == 4 for i in own):
        # Balls have no root of a norm that is 0 and inexact, as that of thirds less their mean.
        apart["grad_centralization"], scale = "1", "1024.0"
    groups = [
        {"params": [i for i in range(len(shapes)) if i not in own], "hyper": {}},
        {"params": own, "hyper": apart},
    ]
    values = [str(0.125 * r.randint(1, 9)) for _ in range(steps)]
    case = golden.parse(
        {
            "id": "thor.drawn",
            "comment": "drawn",
            "layers": layers,
            "params": [array(shape) | {"name": f"p{i}"} for i, shape in enumerate(shapes)],
            "hyper": {
                "lr": r.choice(["0.1", values]),
                "damping": r.choice(["0.03", "1.7", values]),
                "momentum": r.choice(["0.0", "0.9", "1.25"]),
                "weight_decay": r.choice(["0.0", "0.01"]),
                "loss_scale": scale,
                "batch_size": str(r.randint(1, 9)),
                "frequency": str(frequency),
                "split_dim": "2",  # which a profile without blocks does not read
                "clip_norm": r.choice(["1.0", "0.4"]),
            },
            "options": {name: r.randint(0, 1) for name in rule.OPTIONS},
            "groups": [group for group in groups if group["params"]],
            "steps": steps,
            "grads": [[array(shape)["bits"] for shape in shapes] for _ in range(steps)],
            "statistics": {
                str(t): {name: of() for name, of in statistics.items()}
                for t in range(1, steps + 1, r.choice([1, frequency]))  # more are ignored
            },
        }
    )
    # A case in a file has neither dilation nor padding in numbers.
    described = {
        name: refopt.layers.Conv2d(name, np.zeros(x.params[0]), **x.window).described(
            case.layers[name].params
        )
        for name, x in net.items()
        if x.window
    }
    return case._replace(layers=case.layers | described)


@pytest.mark.parametrize("seed", range(60))
def test_balls_agree_on_drawn_cases(seed: int) -> None:
    case = drawn(random.Random(seed))
    assert compare(case, transcribed(case, case.steps))


@given(st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_balls_agree_wherever_hypothesis_looks(r: random.Random) -> None:
    case = drawn(r)
    assert compare(case, transcribed(case, case.steps))


def test_drawn_cases_cover_what_a_case_may_hold() -> None:
    cases = [drawn(random.Random(seed)) for seed in range(60)]
    layers = [x for case in cases for x in case.layers.values()]
    assert {x.kind for x in layers} == {*rule.KINDS}
    windows = [x for x in layers if x.kind == "conv2d"]
    assert {type(x.padding) for x in windows} == {str, tuple}
    assert {"same", "valid"} < {x.padding for x in windows}
    assert {d for x in windows for d in x.dilation} == {1, 2}
    assert {d for x in windows for d in x.stride} == {1, 2}
    for option in rule.OPTIONS:
        assert {case.options[option] for case in cases} == {0, 1}
    assert {len(case.groups) for case in cases} == {1, 2}
    assert any("grad_centralization" in own for case in cases for _, own in case.groups)
    assert any(isinstance(case.hyper["damping"], list) for case in cases)
    assert any(len(case.statistics) > 1 for case in cases)
    assert any(case.steps > case.hyper["frequency"] for case in cases)


@pytest.mark.parametrize(
    ("name", "value"),
    [("damping", 0.05 * (1 + 1e-15)), ("momentum", 0.5), ("batch_size", 9.0), ("frequency", 2.0)],
)
def test_the_comparison_tells_values_apart(name: str, value: float) -> None:
    case = CASES["thor.mindspore-2-10.mlp-every-step"]
    other = case._replace(hyper=case.hyper | {name: value})
    with pytest.raises(AssertionError):
        compare(case, transcribed(other, case.steps))
