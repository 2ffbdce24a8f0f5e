"""The rule of THOR: what its factors, inverses and steps are, whatever library computes them."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from backends import LIBRARIES

from refopt.interp.arrays import Floats, namespace_of, passage
from refopt.rules import thor
from refopt.rules.thor import Choices, Factors, Hyper, Layer, Statistics

UNIT = 2.0**-53
HYPER = Hyper(
    **{"lr": 0.125, "damping": 0.25, "momentum": 0.75, "weight_decay": 0.125, "loss_scale": 4.0},
    **{"batch_size": 8, "split_dim": 4, "clip_norm": 0.0625, "frequency": 2},
)
ON = {"enable_clip_grad": True, "use_nesterov": True}
REST = Choices._fields


def integers(*shape, seed=0, least=-3, most=4):
    return np.random.default_rng([seed, *shape]).integers(least, most, shape).astype(float)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param()


@pytest.fixture
def session(library):
    with library.session():
        yield library


def ids(*shape, size):
    return np.random.default_rng(shape).integers(0, size, shape)


# -- a net with a layer of every kind --------------------------------------------------------------
NET = [
    Layer("dense", (0, 1), (5, 6)),
    Layer("dense", (2,), (2, 10)),
    Layer("embedding", (3,), (7, 10)),
    Layer("embedding_lookup", (4,), (3, 2)),
    Layer("norm", (5, 6), (6,)),
    Layer("conv2d", (7, 8), (3, 2, 2, 3), (2, 1), "valid", (1, 2)),
    Layer("other", (9,), (2,)),
]
NAMES = ["a.weight", "a.bias", "b.weight", "c.table", "d.table", "ln.gamma", "ln.beta"]
NAMES += ["e.weight", "e.bias", "f"]
SHAPES = [(5, 6), (5,), (2, 10), (7, 10), (3, 2), (6,), (6,), (3, 2, 2, 3), (3,), (2,)]


def statistics(seed):
    return [
        Statistics(integers(8, 6, seed=seed), integers(8, 5, seed=seed)),
        Statistics(integers(8, 10, seed=seed), integers(8, 2, seed=seed)),
        Statistics(ids(8, 2, size=7), integers(8, 2, 10, seed=seed)),
        Statistics(ids(8, 2, size=3), integers(8, 2, 2, seed=seed)),
        None,
        Statistics(integers(8, 2, 5, 6, seed=seed), integers(8, 3, 2, 2, seed=seed)),
        None,
    ]


def trained(choices, hyper=HYPER, options=ON, steps=3, net=NET, workers=1):
    """Every quantity of each of a few steps of the net, on NumPy."""
    params = [integers(*shape, seed=9) / 8 for shape in SHAPES]
    xp, num = namespace_of(params[0]), Floats()
    decays = [choices.decayed(name) for name in NAMES]
    hypers = [hyper if yes else hyper._replace(weight_decay=0.0) for yes in decays]
    choices = thor.configured(choices, hyper, options)
    states, clocks = zip(*(thor.init(p, choices, xp=xp, num=num) for p in params), strict=True)
    seen = []
    for t in range(steps):
        grads = [integers(*shape, seed=t) / 4 for shape in SHAPES]
        quantities, states, clocks = thor.update(
            params,
            grads,
            states,
            clocks,
            hypers,
            choices,
            **{"xp": xp, "num": num, "net": net, "given": statistics(t), "workers": workers},
            # the others saw twice what this one did
            total=None if workers == 1 else partial(times, 1 + 2 * (workers - 1)),
        )
        params = [q.param for q in quantities]
        seen.append([q._asdict() for q in quantities])
    return seen


def times(n, arrays):
    return [tuple(n * x for x in own) for own in arrays]


def differ(runs, others):
    pairs = ((a, b) for s, t in zip(runs, others, strict=True) for a, b in zip(s, t, strict=True))
    return any(
        (a[q] is None) != (b[q] is None)
        or (a[q] is not None and (a[q].shape != b[q].shape or (a[q] != b[q]).any()))
        for a, b in pairs
        for q in a
    )


# A record under which every axis matters: blocks, positions, weights, a scale that can be lost.
SENSITIVE = Choices(
    decay=thor.penalty,
    clip=thor.by_norm,
    damping=thor.rooted,
    block=thor.split,
    weighting=thor.in_scale,
)


@pytest.mark.parametrize(
    ("axis", "name"),
    [
        (axis, name)
        for axis, options in thor.AXES.items()
        for name, choice in options.items()
        if choice is not getattr(SENSITIVE, axis) and axis not in ("scalars", "past_end")
    ],
)
def test_every_alternative_changes_a_quantity(axis, name):
    other = SENSITIVE._replace(**{axis: thor.AXES[axis][name]})
    workers = 2 if axis == "reduction" else 1
    options = {**ON, "use_nesterov": axis == "nesterov"}
    runs = [trained(c, options=options, workers=workers) for c in (SENSITIVE, other)]
    assert differ(*runs)


def test_every_alternative_of_an_ended_schedule_changes_a_quantity():
    assert [thor.the_last((0.5, 0.25), t) for t in range(4)] == [0.5, 0.25, 0.25, 0.25]
    assert [thor.zero((0.5, 0.25), t) for t in range(4)] == [0.5, 0.25, 0.0, 0.0]
    rates = HYPER._replace(lr=(0.5, 0.25))
    zero, last = (
        trained(SENSITIVE._replace(past_end=end), rates) for end in (thor.zero, thor.the_last)
    )
    assert differ(zero, last)
    assert all((a["param"] == b["param"]).all() for a, b in zip(zero[1], zero[2], strict=True))
    with pytest.raises(IndexError):
        trained(SENSITIVE, rates)


def test_numbers_in_float32_change_a_quantity():
    odd = HYPER._replace(lr=0.1, damping=0.3)
    runs = [trained(SENSITIVE._replace(scalars=s), odd) for s in thor.AXES["scalars"].values()]
    assert differ(*runs)


@pytest.mark.parametrize("name", thor.PROFILES)
def test_every_hyperparameter_changes_a_quantity_of_every_profile(name):
    choices = thor.PROFILES[name].choices
    plain = trained(choices)
    for field, value in HYPER._asdict().items():
        if field in ("split_dim", "factor_decay", "grad_centralization"):
            continue
        other = trained(choices, HYPER._replace(**{field: 2 * value}))
        assert differ(plain, other), field
    split, averaged = choices.block is thor.split, choices.averaging is thor.moving
    assert differ(plain, trained(choices, HYPER._replace(split_dim=5))) == split
    assert differ(plain, trained(choices, HYPER._replace(factor_decay=0.5))) == averaged


def test_statistics_between_refreshes_are_not_read():
    first, second, third = trained(SENSITIVE)
    assert first[0]["A"] is not None
    assert third[0]["A"] is not None
    assert second[0]["A"] is second[0]["a_inverse"] is None


# -- defects, each by itself -----------------------------------------------------------------------
def factors_of(choices, layer=NET[0], given=None):
    given = statistics(0)[0] if given is None else given
    return thor.statistics(layer, *given, choices, xp=namespace_of(given.a))


def test_a_divisor_of_features_scales_a_by_rows_over_features():
    right = factors_of(Choices())
    wrong = factors_of(Choices(dense=thor.by_features))
    assert (6 * wrong.A == 8 * right.A).all()
    assert (wrong.G == right.G).all()


def test_a_lookup_on_the_host_only_divides_by_the_damping():
    choices = Choices(lookup=thor.by_target, damping=thor.rooted)
    # the root of its root is exact
    seen = trained(choices, HYPER._replace(damping=2.0**-4), options={}, steps=1)[0][4]
    assert (seen["preconditioned"] == 16 * seen["g"]).all()


def test_a_lost_scale_multiplies_stale_steps_by_the_positions():
    choices = Choices(weighting=thor.in_scale, positions=thor.rows_of_a_sample)
    right, wrong = (
        trained(choices._replace(stale=stale), options={}, steps=2)
        for stale in (thor.same_scale, thor.unweighted_scale)
    )
    positions = 2 * 2
    assert (wrong[0][7]["preconditioned"] == right[0][7]["preconditioned"]).all()
    ratio = wrong[1][7]["preconditioned"] / right[1][7]["preconditioned"]
    # g differs no more than the parameter did: not at all
    assert (ratio == positions).all()


def test_the_wrong_scale_is_off_by_the_largest_of_g_over_that_of_a():
    right, wrong = (
        trained(Choices(extremes=extremes), options={}, steps=1)[0][0]["preconditioned"]
        for extremes in (thor.both_largest, thor.g_largest_twice)
    )
    plain = trained(Choices(), options={}, steps=1)[0][0]
    a, g = (np.abs(plain[q]).max() for q in ("a_inverse", "g_inverse"))
    error = 6 * UNIT * np.abs(right) * (g / a)  # one a product or quotient
    assert (np.abs(wrong - right * (g / a)) <= error).all()


def test_the_ones_that_fill_a_block_are_not_the_largest_element():
    layer = Layer("dense", (0,), (3, 5), beside_conv=True)
    given = Factors(64.0 * np.eye(5), 64.0 * np.eye(3))
    choices = Choices(block=thor.split, extremes=thor.both_largest, scaling=thor.as_given)
    xp = namespace_of(given.A)
    inverse = thor.invert(layer, given, 0.0, HYPER, choices, xp=xp)
    assert float(inverse.scale) == 2.0**-12
    assert float(inverse.A[0, 0, 0]) == float(inverse.A[1, 0, 0]) == 1.0


# -- small formulas, in numbers that no operation rounds -------------------------------------------
P, M, U = (np.array([x]) for x in (2.0, 4.0, 8.0))
SCALARS = thor.Scalars(lr=0.25, damping=0.25, refresh=True)


@pytest.mark.parametrize(
    ("move", "m", "param"),
    [
        (thor.heavy_ball, 11.0, -0.75),
        (thor.average, 5.0, 0.75),
        (thor.lr_inside, 5.0, -3.0),
        (thor.look_ahead, 11.0, -2.0625),
        (thor.no_look_ahead, 11.0, -0.75),
    ],
)
def test_a_move_is_its_formula(move, m, param):
    assert move(P, M, U, SCALARS, HYPER) == (m, param)


@pytest.mark.parametrize(
    ("decay", "before", "after", "param"),
    [
        (thor.no_decay, 8.0, 8.0, 2.0),
        (thor.penalty, 8.25, 8.0, 2.0),
        (thor.unconditioned, 8.0, 8.25, 2.0),
        (thor.decoupled, 8.0, 8.0, 1.9375),
    ],
)
def test_weight_decay_enters_where_it_says(decay, before, after, param):
    assert decay.before(U, P, HYPER) == before
    assert decay.after(U, P, HYPER) == after
    assert decay.param(P, SCALARS, HYPER) == param
    state = thor.State(M, *[None] * 5)
    m, moved = thor.step(P, U, state, SCALARS, HYPER, Choices(decay=decay))
    assert (m, moved) == (11.0, param - 2.75)


def test_a_layer_norm_divides_by_its_square_over_the_batch_and_the_damping():
    g = np.array([2.0, -2.0, 0.0])
    expected = np.array([8 / 3, -8 / 3, 0.0])
    assert (thor.diagonal(g, 0.25, HYPER, Choices()) == expected).all()
    rooted = Choices(damping=thor.rooted)
    assert (thor.diagonal(g, 0.25, HYPER, rooted) == np.array([2.0, -2.0, 0.0])).all()


def test_a_centralized_gradient_has_no_mean_and_keeps_its_differences():
    layer = NET[5]
    g, hyper = integers(*layer.shape), HYPER._replace(grad_centralization=True)
    g[0] = 3.0
    found = thor.centralized(g, layer, namespace_of(g))
    assert found.shape == g.shape
    assert (found[0] == 0).all()
    assert (found == g - g.mean((1, 2, 3), keepdims=True)).all()
    plain, seen = (trained(Choices(), h, options={}, steps=1)[0] for h in (HYPER, hyper))
    assert (seen[7]["g"] == thor.centralized(plain[7]["g"], layer, namespace_of(g))).all()
    assert (seen[8]["g"] == plain[8]["g"]).all()


def test_damping_is_shared_in_proportion_to_the_mean_diagonals():
    layer = Layer("dense", (0,), (1, 2))
    factors = Factors(np.diag([3.0, 3.0]), np.array([[12.0]]))
    choices = Choices(damping=thor.by_means, scaling=thor.as_given)
    inverse = thor.invert(layer, factors, 4.0, HYPER, choices, xp=namespace_of(factors.A))
    pi = 0.5  # the root of 3 over 12; 3 + 2 pi and 12 + 2 / pi have exact roots
    assert (inverse.A[0] == np.eye(2) / (3 + 2 * pi)).all()
    assert (inverse.G[0] == np.eye(1) / (12 + 2 / pi)).all()
    table = Layer("embedding", (0,), (2, 1))
    counts = factors._replace(A=np.array([3.0, 3.0]))
    inverse = thor.invert(table, counts, 4.0, HYPER, choices, xp=namespace_of(factors.A))
    assert (np.ones(2) / (3 + 2 * pi) == inverse.A).all()
    assert (inverse.G[0] == np.eye(1) / (12 + 2 / pi)).all()


@pytest.mark.parametrize(
    ("positions", "a", "g", "s"),
    [(thor.all_rows, 3.5, 3.0, 16), (thor.rows_of_a_sample, 3.0, 2.0, 4)],
)
def test_a_convolution_is_damped_and_weighted_by_its_positions(positions, a, g, s):
    layer = Layer("conv2d", (0,), (1, 1, 1, 1))
    factors = Factors(np.array([[a]]), np.array([[g]]), 16, 4)
    found = {}
    for name, weighting in thor.AXES["weighting"].items():
        choices = Choices(positions=positions, damping=thor.rooted, scaling=thor.as_given)
        arguments = (layer, factors, 4.0, HYPER._replace(batch_size=4))
        xp = namespace_of(factors.A)
        found[name] = thor.invert(*arguments, choices._replace(weighting=weighting), xp=xp)
    plain = found["none"]
    assert (plain.A, plain.G, plain.scale) == (0.25, 0.25, None)
    assert (0.25 / s**0.5, 0.25 / s**0.5) == (found["half-each"].A, found["half-each"].G)
    assert (found["in-scale"].A, found["in-scale"].scale) == (0.25, 1 / s)


def test_counts_are_over_the_ids_or_over_the_batch_size():
    assert thor.over_rows(P, 16, HYPER) == 0.125
    assert thor.over_batch_size(P, 16, HYPER) == 0.25


def test_beside_a_convolution_only_dense_layers_and_convolutions_are_conditioned():
    alone = {layer.kind: thor.left_alone(layer) for layer in thor.placed(NET[:5])}
    assert all(alone.values())
    beside = {layer.kind: thor.left_alone(layer) for layer in thor.placed(NET)}
    assert {kind for kind, conditioned in beside.items() if conditioned} == {"dense", "conv2d"}


@pytest.mark.parametrize("seed", range(8))
def test_half_precision_rounds_operands_and_both_products(seed):
    y, g, x = (np.array([[v]], "f4") for v in np.random.default_rng(seed).random(3))
    layer, xp = Layer("dense", (0,), (1, 1)), namespace_of(g)
    inverse = thor.Inverse(x[None], y[None])
    found = thor.precondition(layer, inverse, g, Choices(precision=thor.half), xp=xp)
    y, g, x = (v.astype("f2") for v in (y, g, x))
    assert found == (y * g) * x  # NumPy rounds each operation of float16


def test_factors_are_averaged_over_refreshes_from_the_first_one():
    choices = Choices(averaging=thor.moving)
    plain, seen = (trained(c, options={}) for c in (Choices(), choices))
    for q in ("A", "G"):
        first, third = (plain[t][0][q] for t in (0, 2))
        assert (seen[0][0][q] == first).all()
        assert (seen[2][0][q] == 0.95 * first + (1 - 0.95) * third).all()


def test_a_lookup_on_the_device_is_in_half_precision_and_divides_by_samples():
    layer, ds = NET[3]._replace(target="DEVICE"), integers(8, 2, 2) + 2.0**-9
    given = Statistics(ids(8, 2, size=3), ds)
    right = factors_of(Choices(), layer, given)
    wrong = factors_of(Choices(lookup=thor.by_target), layer, given)
    assert ((2 * right.G).astype("float16") == wrong.G).all()
    assert (wrong.G != 2 * right.G).any()


@pytest.mark.parametrize(
    ("params", "lost"), [([(0, 1), (2, 3)], True), ([(0, 1), (2,)], False), ([(2,), (0, 1)], False)]
)
def test_only_a_last_convolution_that_parameters_follow_loses_its_scale(params, lost):
    kinds = ["dense", "conv2d"] if params[0] != (2,) else ["conv2d", "dense"]
    net = thor.placed([Layer(kind, own, (2, 2)) for kind, own in zip(kinds, params, strict=True)])
    conv = next(layer for layer in net if layer.kind == "conv2d")
    assert all(layer.beside_conv for layer in net)
    assert (thor.unweighted_scale(conv, 0.25, 4) == 1.0) == lost


# -- workers ---------------------------------------------------------------------------------------
def together(choices, workers=2):
    """The inverses of a dense layer from rows that workers share, and from all of them."""
    layer, xp = Layer("dense", (0,), (2, 3)), namespace_of(P)
    shares = [Statistics(integers(4, 3, seed=k), integers(4, 2, seed=k)) for k in range(workers)]
    state = thor.State(np.zeros((2, 3)), *[None] * 5)

    def fresh(given, **more):
        found = thor.refresh([layer], [given], [state], [SCALARS], [HYPER], choices, xp=xp, **more)
        return found[0]

    sent = []
    for share in shares:  # what each would send
        fresh(share, total=lambda arrays: sent.append(arrays) or arrays, workers=workers)

    return shares, sent, fresh


def test_the_mean_of_factors_is_that_of_all_rows():
    shares, sent, fresh = together(Choices())
    sums = [tuple(map(sum, zip(*(own[0] for own in sent), strict=True)))]
    found = fresh(shares[0], total=lambda arrays: sums, workers=2)
    whole = fresh(Statistics(*(np.concatenate(x) for x in zip(*shares, strict=True))))
    for x, y in zip(
        (*found.factors[:2], *found.inverse[:2]),
        (*whole.factors[:2], *whole.inverse[:2]),
        strict=True,
    ):
        assert (x == y).all()


@pytest.mark.parametrize(
    ("reduction", "divisor"), [(thor.mean_of_inverses, 2), (thor.sum_of_inverses, 1)]
)
def test_inverses_are_added_up_or_averaged(reduction, divisor):
    choices = Choices(reduction=reduction)
    shares, sent, fresh = together(choices)
    (a, g), (b, h) = (own[0] for own in sent)
    alone = [fresh(share).inverse for share in shares]
    assert (a == alone[0].A).all()
    assert (h == alone[1].G).all()
    found = fresh(shares[0], total=lambda arrays: [(a + b, g + h)], workers=2).inverse
    assert ((a + b) / divisor == found.A).all()
    assert ((g + h) / divisor == found.G).all()


# -- the page's formula ----------------------------------------------------------------------------
def bound(factors, gradient):
    """How far (A+λI) ⊗ (G+λI) times a computed step may be from the gradient, in the 1-norm.

    Each inverse X of S has ‖S X - I‖ ≤ 8 n u ‖S‖ ‖X‖ (`refopt.interp.linalg`), and each of the two
    products adds n u of the norms of its operands; what is left out is of the order of u².
    """
    norms = [np.abs(s).sum(0).max() * np.abs(x).sum(0).max() for s, x in factors]
    sizes = [len(s) for s, _ in factors]
    return 9 * UNIT * sum(sizes) * np.prod(norms) * np.abs(gradient).sum()


def test_a_dense_step_solves_with_the_kronecker_product(session):
    outputs, inputs, rows = 5, 7, 16
    layer = Layer("dense", (0,), (outputs, inputs))
    a, ds = integers(rows, inputs, seed=1), integers(rows, outputs, seed=2)
    g = integers(outputs, inputs, seed=3)
    hyper = HYPER._replace(momentum=0.0, weight_decay=0.0, lr=1.0)

    def step(param, grad, a, ds):
        xp, num = namespace_of(param), Floats()
        state, clock = thor.init(param, Choices(), xp=xp, num=num)
        more = {"xp": xp, "num": num, "net": [layer], "given": [Statistics(a, ds)]}
        (q,), _, _ = thor.update([param], [grad], [state], [clock], [hyper], Choices(), **more)
        return q.param, q.a_inverse, q.g_inverse

    put = partial(session.array, dtype="float64")
    run = jitted(step) if session.jitted else step
    moved, x, y = map(session.get, run(put(0 * g), put(g), put(a), put(ds)))
    big_d = ds * (hyper.batch_size / hyper.loss_scale)
    left = big_d.T @ big_d / rows + hyper.damping * np.eye(outputs)
    right = a.T @ a / rows + hyper.damping * np.eye(inputs)
    solved = np.kron(left, right) @ -moved.ravel()
    gradient = g.ravel() / hyper.loss_scale
    assert np.abs(solved - gradient).sum() <= bound([(left, y[0]), (right, x[0])], gradient)


def jitted(function):
    import jax

    return jax.jit(function)


def test_with_independent_inputs_and_derivatives_the_factors_give_the_fisher_matrix():
    inputs, derivatives = integers(4, 3, seed=5), integers(8, 2, seed=6)
    pairs = list(product(inputs, derivatives))  # each input with each derivative
    a, d = (np.array(column) for column in zip(*pairs, strict=True))
    hyper = HYPER._replace(batch_size=32, loss_scale=2.0)
    ds = d * (hyper.loss_scale / hyper.batch_size)
    layer = Layer("dense", (0,), (2, 3))
    factors = factors_of(Choices(), layer, Statistics(a, ds))
    gradients = [np.outer(y, x).ravel() for x, y in pairs]  # of one sample's loss each
    fisher = sum(np.outer(g, g) for g in gradients) / len(pairs)
    # small integers over powers of two: no operation rounds
    assert (np.kron(thor.of_each_loss(factors.G, hyper), factors.A) == fisher).all()


# -- convolutions ----------------------------------------------------------------------------------
GEOMETRIES = [
    ((3, 3), (1, 1), "same", (1, 1)),
    ((3, 3), (1, 1), "valid", (1, 1)),
    ((2, 3), (2, 1), "same", (1, 1)),
    ((3, 2), (2, 3), "valid", (2, 1)),
    ((2, 2), (1, 2), ((1, 1), (2, 2)), (1, 2)),
    ((1, 1), (1, 1), "valid", (1, 1)),
]
geometries = pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), GEOMETRIES)
IMAGES = integers(4, 3, 7, 6)


def conv(kernel, stride, padding, dilation, outputs=5):
    return Layer("conv2d", (0,), (outputs, 3, *kernel), stride, padding, dilation)


def patched(layer, images, choices=Choices()):  # noqa: B008
    return thor.patches(images, layer, choices, namespace_of(images))


def zeros(layer, size, axis):
    return thor.of_the_layer(layer, axis, size).zeros


@pytest.mark.torch
@geometries
def test_patches_are_those_of_torch(kernel, stride, padding, dilation):
    import torch

    layer = conv(kernel, stride, padding, dilation)
    (top, bottom), (left, right) = (zeros(layer, n, i) for i, n in enumerate((7, 6)))
    padded = torch.nn.functional.pad(torch.tensor(IMAGES), (left, right, top, bottom))
    unfolded = torch.nn.functional.unfold(padded, kernel, dilation, 0, stride).numpy()
    assert patched(layer, IMAGES).shape == unfolded.shape
    assert (patched(layer, IMAGES) == unfolded).all()


@pytest.mark.jax
@geometries
def test_patches_are_those_of_jax(kernel, stride, padding, dilation):
    import jax

    layer = conv(kernel, stride, padding, dilation)
    given = padding if isinstance(padding, tuple) else padding.upper()
    found = jax.lax.conv_general_dilated_patches(
        IMAGES.astype("float32"), kernel, stride, given, rhs_dilation=dilation
    )
    ours = patched(layer, IMAGES)
    assert ours.shape == (*found.shape[:2], np.prod(found.shape[2:]))
    assert (ours == np.asarray(found).reshape(ours.shape)).all()


@pytest.mark.torch
@geometries
def test_a_weight_as_a_matrix_is_in_the_order_of_patches(kernel, stride, padding, dilation):
    import torch

    layer = conv(kernel, stride, padding, dilation)
    weight = integers(*layer.shape, seed=1)
    (top, bottom), (left, right) = (zeros(layer, n, i) for i, n in enumerate((7, 6)))
    padded = torch.nn.functional.pad(torch.tensor(IMAGES), (left, right, top, bottom))
    outputs = torch.nn.functional.conv2d(
        padded, torch.tensor(weight), stride=stride, dilation=dilation
    ).numpy()
    ours = weight.reshape(thor.matrix_of(layer)) @ patched(layer, IMAGES)
    assert (ours.reshape(outputs.shape) == outputs).all()


def test_patches_that_are_always_same_have_the_default_dilation_and_one_stride():
    layer = conv((3, 3), (2, 1), "valid", (2, 2))
    same = conv((3, 3), (2, 1), "same", (1, 1))
    square = conv((3, 3), (2, 2), "same", (1, 1))
    gpu, ascend = (
        patched(layer, IMAGES, Choices(patches=choice))
        for choice in (thor.always_same, thor.same_and_square)
    )
    assert (gpu == patched(same, IMAGES)).all()
    assert (ascend == patched(square, IMAGES)).all()


def test_a_convolution_averages_over_positions_of_all_samples_or_of_the_mean_sample():
    layer = conv((3, 3), (1, 1), "valid", (1, 1), outputs=2)
    ds = integers(4, 2, 5, 4, seed=2)
    p, d = patched(layer, IMAGES), ds.reshape(4, 2, 20)
    every, mean = (
        factors_of(Choices(conv=choice), layer, Statistics(IMAGES, ds))
        for choice in (thor.every_sample, thor.mean_sample)
    )
    assert every[2:] == (80, 80)
    assert mean[2:] == (20, 20)
    assert (sum(x @ x.T for x in p) / 80 == every.A).all()
    assert (sum(x @ x.T for x in d) / 80 == every.G).all()
    assert (p.mean(0) @ p.mean(0).T / 20 == mean.A).all()
    assert (d.mean(0) @ d.mean(0).T / 20 == mean.G).all()


# -- embeddings ------------------------------------------------------------------------------------
def test_an_embedding_is_a_dense_layer_of_rows_with_one_one():
    table, given = (
        Layer("embedding", (0,), (7, 4)),
        Statistics(ids(8, 2, size=7), integers(8, 2, 4)),
    )
    dense = Layer("dense", (0,), (4, 7))
    one_hot = np.eye(7)[given.a.ravel()]
    rows = Statistics(one_hot, given.ds.reshape(16, 4))
    ours, theirs = factors_of(Choices(), table, given), factors_of(Choices(), dense, rows)
    assert (np.diag(ours.A / ours.a_normalizer) == theirs.A).all()
    assert (ours.G == theirs.G).all()
    g, xp = integers(7, 4, seed=1), namespace_of(one_hot)
    steps = []
    for layer, factors, gradient in ((table, ours, g), (dense, theirs, g.T)):
        inverse = thor.invert(layer, factors, 0.25, HYPER, Choices(), xp=xp)
        steps.append((inverse, thor.precondition(layer, inverse, gradient, Choices(), xp=xp)))
    (x, u), (_, v) = steps
    full = 4 * theirs.G + 0.25 * np.eye(4)
    solved = np.kron(theirs.A + 0.25 * np.eye(7), full)
    for step in (u, v.T):
        error = np.abs(solved @ step.ravel() - g.ravel()).sum()
        pairs = [(full, x.G[0]), (theirs.A + 0.25 * np.eye(7), np.diag(x.A))]
        assert error <= bound(pairs, g)


# -- blocks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 4, 5, 8, 10])
@pytest.mark.parametrize("m", [2, 4, 9])
def test_blocks_are_a_block_diagonal_inverse(m, n):
    layer = Layer("dense", (0,), (m, n))
    factors = factors_of(Choices(), layer, Statistics(integers(16, n), integers(16, m)))
    choices = Choices(block=thor.split)
    g, xp = integers(m, n, seed=1), namespace_of(factors.A)
    inverse = thor.invert(layer, factors, 0.25, HYPER, choices, xp=xp)
    step = thor.precondition(layer, inverse, g, choices, xp=xp)
    parts = []
    for factor, blocks, scale in ((factors.G, inverse.G, 4.0), (factors.A, inverse.A, 1.0)):
        size = min(4, len(factor))
        assert blocks.shape == (-(-len(factor) // 4), size, size)
        damped = scale * factor + 0.25 * np.eye(len(factor))
        place = np.arange(len(factor)) // 4
        damped[place[:, None] != place] = 0.0
        whole = np.zeros((len(blocks) * size, len(blocks) * size))
        for k, block in enumerate(blocks):
            whole[k * size : (k + 1) * size, k * size : (k + 1) * size] = block
        parts.append((damped, whole[: len(factor), : len(factor)]))
    (left, y), (right, x) = parts
    assert np.abs(left @ step @ right - g).sum() <= bound(parts, g)
    assert (y != 0).any()
    assert (x != 0).any()


def test_the_wrong_products_are_no_inverses():
    f = np.array([[[4.0, 2.0], [2.0, 2.0]]])
    xp = namespace_of(f)
    w = np.array([[0.5, 0.0], [-0.5, 1.0]])
    assert (thor.exact_where_listed(f, 3, xp)[0] == w @ w.T).all()
    assert (thor.exact_where_listed(f, 2, xp)[0] == w.T @ w).all()
    assert (thor.untransposed(f[0], 2, HYPER, Choices(), xp)[0] == w @ w).all()


# -- any library -----------------------------------------------------------------------------------
@pytest.fixture(params=thor.PROFILES)
def profile(request, session):
    if session.name == "jax":
        pytest.skip("slow: it compiles each operation by itself; jax-jit runs the same")
    if session.slow and request.param not in ("mindspore-gpu", "mindspore-ascend"):
        pytest.skip("slow: the two profiles with the most operations do")
    return thor.PROFILES[request.param]


def test_a_step_of_every_profile_stays_where_its_arrays_are(session, profile):
    choices = thor.configured(profile.choices, HYPER, ON)
    put = partial(session.array, dtype="float32")
    params = [put(integers(*shape, seed=9) / 8) for shape in SHAPES]
    grads = [put(integers(*shape) / 4) for shape in SHAPES]
    given = [x and Statistics(given_to(session, x.a), put(x.ds)) for x in statistics(0)]
    xp, num, (enter, leave) = namespace_of(params[0]), Floats(), passage(params[0], profile.half)

    def step(params, grads, given):
        params, grads = (list(map(enter, xs)) for xs in (params, grads))
        given = [x and Statistics(x.a if is_ids(x.a) else enter(x.a), enter(x.ds)) for x in given]
        return [leave(q.param, True) for q in stepped(params, grads, given, choices, xp, num)]

    if choices.precision is thor.half and not hasattr(xp.xp, "float16") and session.name != "dask":
        with pytest.raises(TypeError, match="float16: the array library must have it"):
            step(params, grads, given)
        return
    after = (jitted(step) if session.jitted else step)(params, grads, given)
    for old, new, wanted in zip(params, after, on_numpy(choices), strict=True):
        assert type(new) is type(old)
        assert new.dtype == old.dtype
        assert tuple(new.shape) == tuple(old.shape)
        start, end = session.get(old), session.get(new)
        assert (np.sign(end - start) == np.sign(wanted.param - start)).all()


def is_ids(x):
    return "int" in str(x.dtype)


def given_to(library, x):
    return library.put(x) if is_ids(x) else library.array(x, "float32")


def stepped(params, grads, given, choices, xp, num):
    states, clocks = zip(*(thor.init(p, choices, xp=xp, num=num) for p in params), strict=True)
    more = {"xp": xp, "num": num, "net": NET, "given": given}
    return thor.update(params, grads, states, clocks, [HYPER] * len(params), choices, **more)[0]


def on_numpy(choices):
    params = [integers(*shape, seed=9) / 8 for shape in SHAPES]
    grads = [integers(*shape) / 4 for shape in SHAPES]
    return stepped(params, grads, statistics(0), choices, namespace_of(params[0]), Floats())


def test_factors_of_integers_are_exact_on_every_library(session):
    put = partial(session.array, dtype="float64")
    xp = None
    for layer, x in zip(NET, statistics(0), strict=True):
        if x is None:
            continue
        a, ds = (put(x.a) if x.a.dtype.kind == "f" else session.put(x.a)), put(x.ds)
        xp = namespace_of(ds)
        ours = thor.statistics(layer, a, ds, Choices(), xp=xp)
        plain = thor.statistics(layer, x.a, x.ds, Choices(), xp=namespace_of(x.ds))
        assert ours[2:] == plain[2:]
        for found, wanted in zip(ours[:2], plain[:2], strict=True):
            assert (session.get(found) == wanted).all()
    assert xp is not None
