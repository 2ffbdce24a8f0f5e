"""THOR: the gradient between the inverses of two second moments of a layer.

Specification: spec/thor.md. Sources: M. Chen et al., "THOR, Trace-based Hardware-driven
layer-Oriented Natural Gradient Descent Computation" (AAAI 2021); mindspore.nn.thor, 2022 (the
documented optimizer) and its source in MindSpore 2.0 and 2.10; J. Martens and R. Grosse,
"Optimizing Neural Networks with Kronecker-factored Approximate Curvature" (ICML 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refopt.rules import clip
from refopt.typing import Array, Matrices, Number, Numbers, Profile

DENSE, CONV, EMBEDDING, LOOKUP, NORM, OTHER = KINDS = (
    *("dense", "conv2d", "embedding", "embedding_lookup", "norm", "other"),
)
FACTORED = (DENSE, CONV, EMBEDDING, LOOKUP)
TABLES = (EMBEDDING, LOOKUP)


class Hyper(NamedTuple):
    """THO-1: what the user sets, for one parameter; `lr` and `damping` may have a value a step."""

    lr: Any = None  # γ, learning rate
    damping: Any = None  # λ
    momentum: Number = None  # μ
    weight_decay: Number = 0.0  # w
    loss_scale: Number = 1.0  # s, which gradients and output gradients are multiplied by
    batch_size: Number = 32  # b, which the loss is divided by
    split_dim: int = 128  # size of a block, where the inverse is taken by blocks
    clip_norm: Number = 1.0  # limit of a gradient's norm, where gradients are clipped
    frequency: int = 100  # f, steps from one inverse to the next
    factor_decay: Number = 0.95  # ρ, where the factors are averaged over time
    grad_centralization: bool = False  # of this parameter's gradient


class Layer(NamedTuple):
    """A layer of the net: what its weight is, and how its input became its output."""

    kind: str  # one of `KINDS`
    params: tuple[int, ...]  # its parameters by number, the weight first
    shape: tuple[int, ...] = ()  # of the weight: (out, in), (out, in, kh, kw), (ids, width)
    stride: tuple[int, int] = (1, 1)
    padding: Any = "same"  # or "valid", or ((top, bottom), (left, right))
    dilation: tuple[int, int] = (1, 1)
    target: str = "CPU"  # where the table of an embedding lookup lies; or "DEVICE"
    beside_conv: bool = False  # whether the net has a convolution (`placed`)
    last: bool = False  # whether it is the last factored layer, and parameters follow (`placed`)


class Statistics(NamedTuple):
    """What a layer saw in one forward and backward pass."""

    a: Array  # input: (rows, in), (rows, in, height, width), ids of any shape
    ds: Array  # gradient of the scaled loss for its output before the bias


class Factors(NamedTuple):
    """Second moments of the input and of the output gradient of a layer, as given (THO-3)."""

    A: Array  # (n, n), n = in·kh·kw; counts of the ids (n,) for a table
    G: Array  # (m, m), m = outputs
    a_normalizer: Number = 1.0  # rows behind A, for convolutions and tables
    g_normalizer: Number = 1.0  # rows behind G, for convolutions


class Inverse(NamedTuple):
    """The inverse of the damped factors, by blocks (THO-5)."""

    A: Array  # (blocks, size, size); (n,) for a table
    G: Array  # (blocks, size, size)
    scale: Any = None  # what else multiplies the gradient, or None
    stale: Any = None  # the same until the next refresh


class Fresh(NamedTuple):
    """What a refresh gives for one layer."""

    factors: Factors  # averaged and reduced, as the inverse takes them
    inverse: Inverse


class Clock(NamedTuple):
    """What depends on the number of steps alone."""

    t: Number  # steps done


class Scalars(NamedTuple):
    """The coefficients of one step."""

    lr: Number  # γ
    damping: Number  # λ
    refresh: bool  # whether factors and inverses are renewed


class State(NamedTuple):
    """What is kept for one parameter; all but `m` for the weights of factored layers alone."""

    m: Array  # momentum, shaped like the parameter
    A: Any  # average of the factor, where it is averaged
    G: Any  # likewise
    a_inverse: Any  # see `Inverse`
    g_inverse: Any
    scale: Any  # `Inverse.stale`


class Quantities(NamedTuple):
    """Every named array of a step, in the order of the equations; None where there is none."""

    g: Array  # gradient of the loss, after centralization and coupled decay
    A: Any  # factors, on a refresh
    G: Any
    a_inverse: Any  # inverses, on a refresh
    g_inverse: Any
    preconditioned: Array  # gradient between the inverses
    gradient: Array  # the same after decay and clipping
    m: Array
    param: Array


# -- scalars (THO-1.12): the dtype of the numbers --------------------------------------------------
def in_double(x: Number, num: Numbers) -> Number:  # THO-1.12a
    return num(x)


def in_float32(x: Number, num: Numbers) -> Number:  # THO-1.12b
    return num.float32(x)


# -- past_end (THO-2.3): a value of step t from one value a step ----------------------------------
def an_error(values: Sequence[Number], t: int) -> Number:  # THO-2.3a
    if t >= len(values):
        msg = f"a value for step {t + 1} is required, got {len(values)} values"
        raise IndexError(msg)
    return values[t]


def zero(values: Sequence[Number], t: int) -> Number:  # THO-2.3b: MindSpore 2.0 on CPUs
    return values[t] if t < len(values) else 0.0


def the_last(values: Sequence[Number], t: int) -> Number:  # THO-2.3c
    return values[min(t, len(values) - 1)]


# -- frequency (THO-2.4) --------------------------------------------------------------------------
def every_nth(t: int, h: Hyper) -> bool:  # THO-2.4a
    return t % h.frequency == 0


def every_step(t: int, h: Hyper) -> bool:  # THO-2.4b: MindSpore without data sinking
    return True


# -- decayed (THO-7.2): the parameters that decay, by name ----------------------------------------
def but_beta_and_gamma(name: str) -> bool:  # THO-7.2a
    return "beta" not in name and "gamma" not in name


def every_parameter(name: str) -> bool:  # THO-7.2b: MindSpore's default filter
    return True


# -- dense (THO-3.2): the divisor of aᵀa ----------------------------------------------------------
def by_rows(a: Array, layer: Layer, xp: Matrices) -> Number:  # THO-3.2a
    return xp.length(a)


def by_features(a: Array, layer: Layer, xp: Matrices) -> Number:  # THO-3.2b: MindSpore on GPUs
    return layer.shape[1]


# -- patches (THO-3.3): what of its input a convolution saw at each position
class Window(NamedTuple):
    """Stride, zeros (before, after) and dilation along one axis."""

    stride: int
    zeros: tuple[int, int]
    dilation: int


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    positions = -(-size // stride)
    zeros = max(0, (positions - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return zeros // 2, zeros - zeros // 2


def of_the_layer(layer: Layer, axis: int, size: int) -> Window:  # THO-3.3a
    stride, dilation = layer.stride[axis], layer.dilation[axis]
    if layer.padding == "same":
        return Window(stride, _same(size, layer.shape[2 + axis], stride, dilation), dilation)
    return Window(stride, (0, 0) if layer.padding == "valid" else layer.padding[axis], dilation)


def always_same(layer: Layer, axis: int, size: int) -> Window:  # THO-3.3b: MindSpore on GPUs
    stride = layer.stride[axis]
    return Window(stride, _same(size, layer.shape[2 + axis], stride, 1), 1)


def same_and_square(layer: Layer, axis: int, size: int) -> Window:  # THO-3.3c: on Ascend
    return always_same(layer._replace(stride=(layer.stride[0],) * 2), axis, size)


def patches(a: Array, layer: Layer, c: Choices, xp: Matrices) -> Array:
    """Everything a kernel saw, (n, in·kh·kw, positions), of images (n, in, height, width)."""
    n, channels, *sizes = xp.shape(a)
    windows = [c.patches(layer, axis, size) for axis, size in enumerate(sizes)]
    a = xp.pad(a, ((0, 0), (0, 0), *(window.zeros for window in windows)))

    def seen(axis: int) -> list[slice]:
        stride, zeros, dilation = windows[axis]
        starts = [dilation * k for k in range(layer.shape[2 + axis])]
        room = sizes[axis] + sum(zeros) - starts[-1]
        return [slice(start, start + room, stride) for start in starts]

    whole = slice(None)
    parts = [xp.cut(a, (whole, whole, rows, columns)) for rows in seen(0) for columns in seen(1)]
    return xp.reshape(xp.stack(parts, 2), (n, channels * len(parts), -1))


# -- conv (THO-3.4): the rows over which a convolution averages, of (n, features, positions)
def every_sample(x: Array, xp: Matrices) -> Array:  # THO-3.4a
    return xp.reshape(xp.permute(x, (0, 2, 1)), (-1, xp.shape(x)[1]))


def mean_sample(x: Array, xp: Matrices) -> Array:  # THO-3.4b: MindSpore on GPUs
    return xp.transpose(xp.mean(x, 0))


# -- lookup (THO-3.6): the factors of an embedding lookup -----------------------------------------
def as_embedding(factors: Factors, layer: Layer, ds: Array, xp: Matrices) -> Factors:  # THO-3.6a
    return factors


def by_target(  # THO-3.6b: MindSpore
    factors: Factors, layer: Layer, ds: Array, xp: Matrices
) -> Factors:
    if layer.target == "CPU":
        return factors._replace(A=xp.zeros_like(factors.A), G=xp.zeros_like(factors.G))
    n = layer.shape[1]
    d = xp.reshape(ds, (-1, n))
    share = xp.float16(xp.eye(n, ds) / xp.length(ds))  # 1/N is in half precision, too
    moment = xp.matmul(xp.matmul(xp.transpose(d), d), share)
    return factors._replace(A=xp.float16(factors.A), G=xp.float16(moment))


# -- averaging (THO-3.7): factors over time -------------------------------------------------------
def latest(old: Array | None, new: Array, h: Hyper) -> Array:  # THO-3.7a
    return new


def moving(old: Array | None, new: Array, h: Hyper) -> Array:  # THO-3.7b: K-FAC
    return new if old is None else h.factor_decay * old + (1 - h.factor_decay) * new


# -- reduction (THO-10): over workers, of a tuple of arrays for each layer
Arrays = list[tuple[Array, ...]]
Total = Callable[[Arrays], Arrays]


class Reduction(NamedTuple):
    """What workers send each other: factors, or inverses; and whose samples a gradient is of."""

    factors: Callable[[Arrays, Total, int], Arrays]
    inverses: Callable[[Arrays, Total, int], Arrays]
    samples: Callable[[Number, int], Number]


def kept(arrays: Arrays, total: Total, workers: int) -> Arrays:
    return arrays


def summed(arrays: Arrays, total: Total, workers: int) -> Arrays:
    return total(arrays)


def averaged(arrays: Arrays, total: Total, workers: int) -> Arrays:
    return [tuple(x / workers for x in own) for own in total(arrays)]


def of_all(batch_size: Number, workers: int) -> Number:
    return batch_size * workers if workers > 1 else batch_size


def of_one(batch_size: Number, workers: int) -> Number:
    return batch_size


mean_of_factors = Reduction(averaged, kept, of_all)  # THO-10.1a
mean_of_inverses = Reduction(kept, averaged, of_one)  # THO-10.1b: MindSpore with gradients_mean
sum_of_inverses = Reduction(kept, summed, of_one)  # THO-10.1c: MindSpore by default


# -- scaling (THO-4.1): from the moment of ds to that of D ----------------------------------------
def of_each_loss(moment: Array, h: Hyper) -> Array:  # THO-4.1a
    scale = h.batch_size / h.loss_scale
    return (scale * scale) * moment


def of_the_mean_loss(moment: Array, h: Hyper) -> Array:  # THO-4.1b: the batch size forgotten
    return moment / (h.loss_scale * h.loss_scale)


def as_given(moment: Array, h: Hyper) -> Array:  # THO-4.1c
    return moment


# -- counts (THO-4.2): from the counts of the ids to the diagonal of A ----------------------------
def over_rows(counts: Array, rows: Number, h: Hyper) -> Array:  # THO-4.2a
    return counts / rows


def over_batch_size(counts: Array, rows: Number, h: Hyper) -> Array:  # THO-4.2b: MindSpore
    return counts / h.batch_size


# -- positions (THO-4.3): of a convolution, from the rows behind a factor -------------------------
def all_rows(rows: Number, h: Hyper) -> Number:  # THO-4.3a
    return rows


def rows_of_a_sample(rows: Number, h: Hyper) -> Number:  # THO-4.3b: MindSpore on Ascend
    return rows / h.batch_size


# -- damping (THO-4.4): what is added to the diagonals of A and G, and of a single factor ---------
class Damping(NamedTuple):
    """For two factors, given the positions behind each and their mean diagonals; for one."""

    pair: Callable[..., tuple[Number, Number]]
    single: Callable[[Number], Number]


def lambda_each(
    damping: Number, s_a: Number, s_g: Number, means: Any, xp: Matrices
) -> tuple[Number, Number]:
    return damping, damping


def root_each(
    damping: Number, s_a: Number, s_g: Number, means: Any, xp: Matrices
) -> tuple[Number, Number]:
    return root(damping / s_a), root(damping / s_g)


def shared_by_means(
    damping: Number, s_a: Number, s_g: Number, means: Any, xp: Matrices
) -> tuple[Number, Number]:
    a, g = means()
    pi = xp.sqrt(a / g)
    return root(damping / s_a) * pi, root(damping / s_g) / pi


def root(x: Number) -> Number:
    return x**0.5


def itself(x: Number) -> Number:
    return x


each = Damping(lambda_each, itself)  # THO-4.4a
rooted = Damping(root_each, root)  # THO-4.4b: MindSpore
by_means = Damping(shared_by_means, itself)  # THO-4.4c: K-FAC


# -- block (THO-5.1): the size of a block of the inverse ------------------------------------------
def whole(n: int, h: Hyper) -> int:  # THO-5.1a
    return n


def split(n: int, h: Hyper) -> int:  # THO-5.1b: MindSpore
    return min(n, h.split_dim)


# -- product (THO-5.2): from blocks to their inverses ---------------------------------------------
ASCEND_BLOCKS = (1, 2, 4, 5, 6, 8, 9, 16, 18, 24, 32, 36)


def exact(blocks: Array, count: int, xp: Matrices) -> Array:  # THO-5.2a
    return xp.spd_inverse(blocks)


def exact_where_listed(blocks: Array, count: int, xp: Matrices) -> Array:  # THO-5.2b: on Ascend
    if count in ASCEND_BLOCKS:
        return xp.spd_inverse(blocks)
    w = xp.inverse_cholesky(blocks)
    return xp.matmul(w, xp.transpose(w))


def inverse_of(f: Array, n: int, h: Hyper, c: Choices, xp: Matrices) -> Array:
    """The inverses of the diagonal blocks of `f`, (n, n); the last one is filled with ones."""
    size = c.block(n, h)
    blocks = xp.reshape(f, (1, n, n)) if size == n else xp.diagonal_blocks(f, size)
    return c.product(blocks, -(-n // size), xp)


# -- table (THO-5.3): the inverse of G for an embedding -------------------------------------------
def as_others(f: Array, n: int, h: Hyper, c: Choices, xp: Matrices) -> Array:  # THO-5.3a
    return inverse_of(f, n, h, c, xp)


def one_block(f: Array, n: int, h: Hyper, c: Choices, xp: Matrices) -> Array:  # THO-5.3b
    return xp.spd_inverse(xp.reshape(f, (1, n, n)))


def untransposed(  # THO-5.3c: MindSpore on GPUs
    f: Array, n: int, h: Hyper, c: Choices, xp: Matrices
) -> Array:
    w = xp.inverse_cholesky(xp.reshape(f, (1, n, n)))
    return xp.matmul(w, w)


# -- pair (THO-5.4): dense layers with two outputs ------------------------------------------------
def inverted(layer: Layer, inverse: Array, xp: Matrices) -> Array:  # THO-5.4a
    return inverse


def identity(layer: Layer, inverse: Array, xp: Matrices) -> Array:  # THO-5.4b: on Ascend
    if layer.kind == DENSE and layer.shape[0] == 2:
        return xp.reshape(xp.eye(2, inverse), (1, 2, 2))
    return inverse


# -- extremes (THO-5.5): inverses divided by their largest elements, and what undoes it -----------
def undivided(layer: Layer, inverse: Inverse, c: Choices, xp: Matrices) -> Inverse:  # THO-5.5a
    return inverse


def _divided(inverse: Inverse, n: int, m: int, c: Choices, xp: Matrices) -> tuple[Any, Any, Any]:
    """The inverses over their largest elements, and these."""

    def largest(x: Array, n: int) -> Array:
        *_, size, _ = xp.shape(x)
        if size < n:  # the ones that fill the last block are no elements
            x = x - xp.diagonal_blocks(0.0 * xp.eye(n, x), size)
        return xp.max_abs(x)

    a, g = largest(inverse.A, n), largest(inverse.G, m)
    x, y = (c.precision(x, xp) for x in (inverse.A / a, inverse.G / g))
    return inverse._replace(A=x, G=y), a, g


def both_largest(layer: Layer, inverse: Inverse, c: Choices, xp: Matrices) -> Inverse:  # THO-5.5b
    if not layer.beside_conv:
        return inverse
    m, n = matrix_of(layer)
    inverse, a, g = _divided(inverse, n, m, c, xp)
    return inverse._replace(scale=a * g)


def g_largest_twice(  # THO-5.5c: on Ascend
    layer: Layer, inverse: Inverse, c: Choices, xp: Matrices
) -> Inverse:
    if not layer.beside_conv:
        return inverse
    m, n = matrix_of(layer)
    inverse, _, g = _divided(inverse, n, m, c, xp)
    return inverse._replace(scale=g * g)


# -- weighting (THO-5.6): by the number of positions of a convolution -----------------------------
def unweighted(inverse: Inverse, positions: Number) -> Inverse:  # THO-5.6a
    return inverse


def half_each(inverse: Inverse, positions: Number) -> Inverse:  # THO-5.6b: MindSpore on GPUs
    weight = root(1 / positions)
    return inverse._replace(A=weight * inverse.A, G=weight * inverse.G)


def in_scale(inverse: Inverse, positions: Number) -> Inverse:  # THO-5.6c: MindSpore on Ascend
    scale = 1 / positions
    return inverse._replace(scale=scale if inverse.scale is None else scale * inverse.scale)


# -- stale (THO-5.7): the scale until the next refresh --------------------------------------------
def same_scale(layer: Layer, scale: Any, positions: Number) -> Any:  # THO-5.7a
    return scale


def unweighted_scale(layer: Layer, scale: Any, positions: Number) -> Any:  # THO-5.7b: on Ascend
    return scale * positions if layer.kind == CONV and layer.last and scale is not None else scale


# -- precision (THO-6.2): of the products with the inverses ---------------------------------------
def full(x: Array, xp: Matrices) -> Array:  # THO-6.2a
    return x


def half(x: Array, xp: Matrices) -> Array:  # THO-6.2b: MindSpore on Ascend
    return xp.float16(x)


# -- norm (THO-6.3): the gradient of a LayerNorm's parameters -------------------------------------
def diagonal(g: Array, damping: Number, h: Hyper, c: Choices) -> Array:  # THO-6.3a
    return g / ((g * g) / h.batch_size + c.damping.single(damping))


def plain(g: Array, damping: Number, h: Hyper, c: Choices) -> Array:  # THO-6.3b
    return g


# -- beside_conv (THO-6.4): LayerNorm and tables in a net with convolutions -----------------------
def conditioned(layer: Layer) -> bool:  # THO-6.4a
    return True


def left_alone(layer: Layer) -> bool:  # THO-6.4b: MindSpore on Ascend
    return not layer.beside_conv or layer.kind in (DENSE, CONV)


# -- decay (THO-7.1): of the gradient before or after it is preconditioned, or of the parameter ---
class Decay(NamedTuple):
    """Where a parameter's decay enters its step."""

    before: Callable[[Array, Array, Hyper], Array]
    after: Callable[[Array, Array, Hyper], Array]
    param: Callable[[Array, Scalars, Hyper], Array]


def untouched(g: Array, p: Array, h: Hyper) -> Array:
    return g


def penalised(g: Array, p: Array, h: Hyper) -> Array:
    return g + h.weight_decay * p


def unchanged(p: Array, s: Scalars, h: Hyper) -> Array:
    return p


def shrunk(p: Array, s: Scalars, h: Hyper) -> Array:
    return p - (s.lr * h.weight_decay) * p


no_decay = Decay(untouched, untouched, unchanged)  # THO-7.1a
penalty = Decay(penalised, untouched, unchanged)  # THO-7.1b
unconditioned = Decay(untouched, penalised, unchanged)  # THO-7.1c: MindSpore
decoupled = Decay(untouched, untouched, shrunk)  # THO-7.1d


# -- clip (THO-7.3): of what is preconditioned and decayed ----------------------------------------
def unclipped(gradients: list[Array], h: Hyper, xp: Matrices) -> list[Array]:  # THO-7.3a
    return gradients


def by_norm(gradients: list[Array], h: Hyper, xp: Matrices) -> list[Array]:  # THO-7.3b
    return [clip.by_norm(g, h.clip_norm, xp) for g in gradients]


def by_global_norm(gradients: list[Array], h: Hyper, xp: Matrices) -> list[Array]:  # THO-7.3c
    return clip.by_global_norm(gradients, h.clip_norm, xp)


def by_value(gradients: list[Array], h: Hyper, xp: Matrices) -> list[Array]:  # THO-7.3d
    return [clip.by_value(g, h.clip_norm, xp) for g in gradients]


# -- move (THO-8.1) and nesterov (THO-8.2): from momentum and gradient to both after the step -----
Moved = tuple[Array, Array]


def heavy_ball(p: Array, m: Array, u: Array, s: Scalars, h: Hyper) -> Moved:  # THO-8.1a
    m = h.momentum * m + u
    return m, p - s.lr * m


def average(p: Array, m: Array, u: Array, s: Scalars, h: Hyper) -> Moved:  # THO-8.1b
    m = h.momentum * m + (1 - h.momentum) * u
    return m, p - s.lr * m


def lr_inside(p: Array, m: Array, u: Array, s: Scalars, h: Hyper) -> Moved:  # THO-8.1c
    m = h.momentum * m + s.lr * u
    return m, p - m


def look_ahead(p: Array, m: Array, u: Array, s: Scalars, h: Hyper) -> Moved:  # THO-8.2a
    m = h.momentum * m + u
    return m, p - (s.lr * u + (s.lr * h.momentum) * m)


def no_look_ahead(p: Array, m: Array, u: Array, s: Scalars, h: Hyper) -> Moved:  # THO-8.2b
    return heavy_ball(p, m, u, s, h)


class Choices(NamedTuple):
    """One formula for each axis; the defaults are the documented optimizer, plain."""

    scalars: Callable[[Number, Numbers], Number] = in_double
    past_end: Callable[[Sequence[Number], int], Number] = an_error
    frequency: Callable[[int, Hyper], bool] = every_nth
    decayed: Callable[[str], bool] = but_beta_and_gamma
    dense: Callable[[Array, Layer, Matrices], Number] = by_rows
    patches: Callable[[Layer, int, int], Window] = of_the_layer
    conv: Callable[[Array, Matrices], Array] = every_sample
    lookup: Callable[[Factors, Layer, Array, Matrices], Factors] = as_embedding
    averaging: Callable[[Array | None, Array, Hyper], Array] = latest
    reduction: Reduction = mean_of_factors
    scaling: Callable[[Array, Hyper], Array] = of_each_loss
    counts: Callable[[Array, Number, Hyper], Array] = over_rows
    positions: Callable[[Number, Hyper], Number] = all_rows
    damping: Damping = each
    block: Callable[[int, Hyper], int] = whole
    product: Callable[[Array, int, Matrices], Array] = exact
    table: Callable[..., Array] = as_others
    pair: Callable[[Layer, Array, Matrices], Array] = inverted
    extremes: Callable[[Layer, Inverse, Choices, Matrices], Inverse] = undivided
    weighting: Callable[[Inverse, Number], Inverse] = unweighted
    stale: Callable[[Layer, Any, Number], Any] = same_scale
    precision: Callable[[Array, Matrices], Array] = full
    norm: Callable[[Array, Number, Hyper, Choices], Array] = diagonal
    beside_conv: Callable[[Layer], bool] = conditioned
    decay: Decay = no_decay
    clip: Callable[[list[Array], Hyper, Matrices], list[Array]] = unclipped
    move: Callable[[Array, Array, Array, Scalars, Hyper], Moved] = heavy_ball
    nesterov: Callable[[Array, Array, Array, Scalars, Hyper], Moved] = look_ahead


def init(param: Array, choices: Choices, *, xp: Matrices, num: Numbers) -> tuple[State, Clock]:
    """No momentum, no inverse, no step done (THO-2.1)."""
    return State(xp.zeros_like(param), None, None, None, None, None), Clock(num(0))


def settle(hyper: Hyper, choices: Choices, *, num: Numbers) -> Hyper:
    """Hyperparameters as the release holds them (THO-1.12)."""
    return hyper._replace(**{q: choices.scalars(getattr(hyper, q), num) for q in _NUMBERS})


_NUMBERS = ("momentum", "weight_decay", "loss_scale", "batch_size", "clip_norm", "factor_decay")


def tick(clock: Clock, hyper: Hyper, choices: Choices, *, num: Numbers) -> tuple[Scalars, Clock]:
    """Advance the clock by one step and give the coefficients of that step (THO-2)."""
    c, t = choices, int(float(clock.t))

    def now(values: Any) -> Number:  # THO-2.2
        x = c.past_end(values, t) if isinstance(values, tuple) else values
        return c.scalars(x, num)

    scalars = Scalars(now(hyper.lr), now(hyper.damping), c.frequency(t, hyper))
    return scalars, Clock(num(t + 1))


def ticks(
    params: Sequence[Array],
    grads: Sequence[Array],
    clocks: Sequence[Clock],
    hypers: Sequence[Hyper],
    choices: Choices,
    *,
    num: Numbers,
) -> list[tuple[Scalars, Clock]]:
    """The coefficients of the next step and the clock after it, for each parameter."""
    return [tick(clock, h, choices, num=num) for clock, h in zip(clocks, hypers, strict=True)]


def moment(rows: Array, divisor: Number, xp: Matrices) -> Array:
    """E[x xᵀ] over the rows of an array, if the divisor is their number (THO-3.1)."""
    return xp.matmul(xp.transpose(rows), rows) / divisor


def statistics(layer: Layer, a: Array, ds: Array, choices: Choices, *, xp: Matrices) -> Factors:
    """The factors of a layer from one forward and backward pass (THO-3)."""
    c = choices
    if layer.kind in TABLES:
        d = xp.reshape(ds, (-1, layer.shape[1]))
        rows = xp.length(d)
        counts = xp.counts(a, layer.shape[0], ds)  # THO-3.5
        factors = Factors(counts, moment(d, rows, xp), rows)
        return c.lookup(factors, layer, ds, xp) if layer.kind == LOOKUP else factors  # THO-3.6
    if layer.kind == CONV:
        d = xp.reshape(ds, (*xp.shape(ds)[:2], -1))
        a, d = (c.conv(x, xp) for x in (patches(a, layer, c, xp), d))  # THO-3.4
        n_a, n_g = xp.length(a), xp.length(d)
        return Factors(moment(a, n_a, xp), moment(d, n_g, xp), n_a, n_g)
    a, d = (xp.reshape(x, (-1, n)) for x, n in ((a, layer.shape[1]), (ds, layer.shape[0])))
    return Factors(moment(a, c.dense(a, layer, xp), xp), moment(d, xp.length(d), xp))  # THO-3.2


def part_of(layer: Layer, factors: Factors, parts: int, choices: Choices) -> Factors:
    """Factors of one of equal parts of a worker's samples, of which the mean is the worker's.

    What grows with the rows is that of as many such parts.
    """
    grows = layer.kind in TABLES or (layer.kind == DENSE and choices.dense is by_features)
    a = parts * factors.A if grows else factors.A
    return Factors(a, factors.G, parts * factors.a_normalizer, parts * factors.g_normalizer)


def matrix_of(layer: Layer) -> tuple[int, int]:
    """The size of G and A: the weight as a matrix, in the order out, in, kh, kw."""
    outputs, *inputs = layer.shape
    n = 1
    for size in inputs:
        n *= size
    return outputs, n


def damped(
    layer: Layer, factors: Factors, damping: Number, hyper: Hyper, choices: Choices, *, xp: Matrices
) -> tuple[Array, Array, Number]:
    """The damped factors of a layer, A of a table as its diagonal; and its positions (THO-4)."""
    h, c = hyper, choices
    m, n = matrix_of(layer)
    a, g = factors.A, c.scaling(factors.G, h)  # THO-4.1
    table = layer.kind in TABLES
    if table:
        m, n = n, m
        a = c.counts(a, factors.a_normalizer, h)  # THO-4.2
    s_a = s_g = 1.0
    if layer.kind == CONV:
        s_a, s_g = (c.positions(rows, h) for rows in factors[2:])  # THO-4.3

    def means() -> tuple[Array, Array]:
        return (xp.sum(a) if table else xp.trace(a)) / n, xp.trace(g) / m

    d_a, d_g = c.damping.pair(damping, s_a, s_g, means, xp)  # THO-4.4
    g = g + d_g * xp.eye(m, g)
    return a + d_a if table else a + d_a * xp.eye(n, a), g, s_a


def invert(
    layer: Layer, factors: Factors, damping: Number, hyper: Hyper, choices: Choices, *, xp: Matrices
) -> Inverse:
    """The inverses of the damped factors of a layer (THO-4, THO-5)."""
    h, c = hyper, choices
    m, n = matrix_of(layer)
    a, g, positions = damped(layer, factors, damping, h, c, xp=xp)
    if layer.kind in TABLES:
        return Inverse(1.0 / a, c.table(g, n, h, c, xp))  # THO-5.3
    x = inverse_of(a, n, h, c, xp)  # THO-5.1, THO-5.2
    y = c.pair(layer, inverse_of(g, m, h, c, xp), xp)  # THO-5.4
    inverse = c.extremes(layer, Inverse(x, y), c, xp)  # THO-5.5
    if layer.kind == CONV:
        inverse = c.weighting(inverse, positions)  # THO-5.6
    return inverse._replace(stale=c.stale(layer, inverse.scale, positions))  # THO-5.7


def shapes_of(layer: Layer, hyper: Hyper, choices: Choices) -> dict[str, tuple[int, ...]]:
    """The shapes of what a refresh leaves in the state of a weight; `layer` is that of `placed`."""
    h, c = hyper, choices
    m, n = matrix_of(layer)
    table = layer.kind in TABLES

    def blocks(n: int, size: int) -> tuple[int, ...]:
        return -(-n // size), size, size

    a, g = ((m,), (n, n)) if table else ((n, n), (m, m))
    size = g[0] if table and c.table is not as_others else c.block(g[0], h)
    found = {"a_inverse": a if table else blocks(n, c.block(n, h)), "g_inverse": blocks(g[0], size)}
    if c.averaging is not latest:
        found |= {"A": a, "G": g}
    divided = c.extremes is not undivided and layer.beside_conv and not table
    if divided or (c.weighting is in_scale and layer.kind == CONV):
        found["scale"] = ()
    return found


def tiled(g: Array, rows: int, columns: int, xp: Matrices) -> Array:
    """A matrix in tiles, (down, across, rows, columns), the last of them filled with zeros."""
    n, m = xp.shape(g)
    g = xp.pad(g, ((0, -n % rows), (0, -m % columns)))
    return xp.permute(xp.reshape(g, (-(-n // rows), rows, -1, columns)), (0, 2, 1, 3))


def untiled(tiles: Array, n: int, m: int, xp: Matrices) -> Array:
    """A matrix of its tiles."""
    down, across, rows, columns = xp.shape(tiles)
    g = xp.reshape(xp.permute(tiles, (0, 2, 1, 3)), (down * rows, across * columns))
    return xp.cut(g, (slice(n), slice(m)))


def precondition(
    layer: Layer, inverse: Inverse, grad: Array, choices: Choices, *, xp: Matrices
) -> Array:
    """The gradient of a layer's weight between the two inverses (THO-6.1)."""
    r = choices.precision  # THO-6.2
    rows, columns = matrix_of(layer)
    g = xp.reshape(grad, (rows, columns))
    count, size, _ = xp.shape(inverse.G)
    if layer.kind in TABLES:
        g = xp.reshape(inverse.A, (rows, 1)) * g
        u = r(xp.matmul(r(tiled(g, rows, size, xp), xp), r(inverse.G, xp)), xp)
    else:
        y = xp.reshape(inverse.G, (count, 1, size, size))
        g = tiled(g, size, xp.shape(inverse.A)[-1], xp)
        u = r(xp.matmul(r(y, xp), r(g, xp)), xp)
        u = r(xp.matmul(u, r(inverse.A, xp)), xp)
    u = xp.reshape(untiled(u, rows, columns, xp), layer.shape)
    return u if inverse.scale is None else inverse.scale * u


def centralized(g: Array, layer: Layer, xp: Matrices) -> Array:
    """A gradient less its mean over all axes but the first (THO-7.4)."""
    outputs, n = matrix_of(layer)
    g = xp.reshape(g, (outputs, n))
    return xp.reshape(g - xp.reshape(xp.mean(g, 1), (outputs, 1)), layer.shape)


def placed(net: Sequence[Layer]) -> list[Layer]:
    """The layers of a net, each with what it must know of the others."""
    conv = any(layer.kind == CONV for layer in net)
    factored = [i for i, layer in enumerate(net) if layer.kind in FACTORED]
    params = [i for layer in net for i in layer.params]

    def last(i: int, layer: Layer) -> bool:
        return i in factored[-1:] and layer.params[0] != params[-1]

    return [x._replace(beside_conv=conv, last=last(i, x)) for i, x in enumerate(net)]


def refresh(
    net: Sequence[Layer],
    given: Sequence[Statistics | Factors | None],
    states: Sequence[State],
    scalars: Sequence[Scalars],
    hypers: Sequence[Hyper],
    choices: Choices,
    *,
    xp: Matrices,
    total: Total | None = None,
    workers: int = 1,
) -> list[Fresh | None]:
    """New inverses of all factored layers (THO-2.4), None for the others.

    Arguments
    ---------
    net, given: layers, and of each what it saw or its factors; None for what has none.
    states, scalars, hypers: one of each for each parameter; hyperparameters as `settle` gives
        them.
    total: the sums over all workers of a tuple of arrays for each layer; None for one worker.
    workers: their number.
    """
    c, chosen = choices, [(x, y) for x, y in zip(placed(net), given, strict=True) if y is not None]
    weights = [layer.params[0] for layer, _ in chosen]
    factors = [
        statistics(layer, x.a, x.ds, c, xp=xp) if isinstance(x, Statistics) else x
        for layer, x in chosen
    ]
    if total is not None:  # THO-10.1
        factors = [Factors(*x) for x in c.reduction.factors([*factors], total, workers)]
    factors = [  # THO-3.7
        f._replace(
            A=c.averaging(states[w].A, f.A, hypers[w]), G=c.averaging(states[w].G, f.G, hypers[w])
        )
        for f, w in zip(factors, weights, strict=True)
    ]
    inverses = [
        invert(layer, f, scalars[w].damping, hypers[w], c, xp=xp)
        for (layer, _), f, w in zip(chosen, factors, weights, strict=True)
    ]
    if total is not None:  # THO-10.1
        pairs = c.reduction.inverses([(x.A, x.G) for x in inverses], total, workers)
        inverses = [x._replace(A=a, G=g) for x, (a, g) in zip(inverses, pairs, strict=True)]
    new = iter(zip(factors, inverses, strict=True))
    return [None if x is None else Fresh(*next(new)) for x in given]


def step(
    param: Array, gradient: Array, state: State, s: Scalars, h: Hyper, c: Choices
) -> tuple[Array, Array]:
    """Momentum and parameter after a step by a preconditioned gradient (THO-8)."""
    return c.move(c.decay.param(param, s, h), state.m, gradient, s, h)


def update(
    params: Sequence[Array],
    grads: Sequence[Array],
    states: Sequence[State],
    clocks: Sequence[Clock],
    hypers: Sequence[Hyper],
    choices: Choices,
    *,
    xp: Matrices,
    num: Numbers,
    net: Sequence[Layer],
    given: Sequence[Statistics | Factors | None] | None = None,
    fresh: Sequence[Fresh | None] | None = None,
    total: Total | None = None,
    workers: int = 1,
    ticked: Sequence[tuple[Scalars, Clock]] | None = None,
) -> tuple[list[Quantities], list[State], list[Clock]]:
    """One step of all parameters (THO-9.1).

    Arguments
    ---------
    params, grads, states, clocks, hypers: one of each for each parameter; gradients are those of
        the scaled loss.
    net: the layers; each parameter belongs to one.
    given: of each layer what it saw or its factors, None for what has none; read on a refresh.
    fresh: what `refresh` gave, where the caller has asked before; a layer without takes its
        stored inverses.
    total, workers: see `refresh`.
    """
    c, net = choices, placed(net)
    ticked = ticked or ticks(params, grads, clocks, hypers, choices, num=num)
    scalars = [s for s, _ in ticked]
    hypers = [settle(h, c, num=num) for h in hypers]
    every = range(len(params))
    if fresh is None:
        seen = given if given and scalars[0].refresh else [None] * len(net)  # THO-2.4
        fresh = refresh(net, seen, states, scalars, hypers, c, xp=xp, total=total, workers=workers)
    g = [grad / h.loss_scale for grad, h in zip(grads, hypers, strict=True)]  # THO-7.5
    for layer in net:
        i = layer.params[0]
        g[i] = centralized(g[i], layer, xp) if hypers[i].grad_centralization else g[i]  # THO-7.4
    g = [c.decay.before(g[i], params[i], hypers[i]) for i in every]  # THO-7.1
    u, kept = list(g), list(states)  # THO-6.5
    renewed: dict[int, tuple[Any, Any, Any, Any]] = {}
    for layer, new in zip(net, fresh, strict=True):
        if layer.kind in FACTORED:
            i = layer.params[0]
            inverse = Inverse(states[i].a_inverse, states[i].g_inverse, states[i].scale)
            if new is not None:
                inverse = new.inverse
                kept[i] = _renewed(states[i], new, c)
                renewed[i] = (*new.factors[:2], *inverse[:2])
            if c.beside_conv(layer):  # THO-6.4
                u[i] = precondition(layer, inverse, g[i], c, xp=xp)  # THO-6.1
        elif layer.kind == NORM and c.beside_conv(layer):
            for i in layer.params:
                samples = c.reduction.samples(hypers[i].batch_size, workers)  # THO-10.6
                h = hypers[i]._replace(batch_size=samples)
                u[i] = c.norm(g[i], scalars[i].damping, h, c)  # THO-6.3
    gradients = [c.decay.after(u[i], params[i], hypers[i]) for i in every]  # THO-7.1
    gradients = c.clip(gradients, hypers[0], xp)  # THO-7.3
    quantities = []
    for i in every:
        m, param = step(params[i], gradients[i], states[i], scalars[i], hypers[i], c)  # THO-8
        kept[i] = kept[i]._replace(m=m)
        own = renewed.get(i, (None, None, None, None))
        quantities.append(Quantities(g[i], *own, u[i], gradients[i], m, param))
    return quantities, kept, [clock for _, clock in ticked]


def _renewed(state: State, new: Fresh, c: Choices) -> State:
    """A state with the inverses of a refresh, and with factors where they are averaged."""
    inverse, factors = new.inverse, new.factors
    if c.averaging is not latest:
        state = state._replace(A=factors.A, G=factors.G)
    return state._replace(a_inverse=inverse.A, g_inverse=inverse.G, scale=inverse.stale)


AXES: dict[str, dict[str, Any]] = {
    "scalars": {"double": in_double, "float32": in_float32},
    "past_end": {"error": an_error, "zero": zero, "last": the_last},
    "frequency": {"every-nth": every_nth, "every-step": every_step},
    "decayed": {"but-beta-and-gamma": but_beta_and_gamma, "every-parameter": every_parameter},
    "dense": {"rows": by_rows, "features": by_features},
    "patches": {
        "layer": of_the_layer,
        "always-same": always_same,
        "same-and-square": same_and_square,
    },
    "conv": {"every-sample": every_sample, "mean-sample": mean_sample},
    "lookup": {"as-embedding": as_embedding, "by-target": by_target},
    "averaging": {"latest": latest, "moving": moving},
    "reduction": {
        "mean-of-factors": mean_of_factors,
        "mean-of-inverses": mean_of_inverses,
        "sum-of-inverses": sum_of_inverses,
    },
    "scaling": {
        "each-loss": of_each_loss,
        "mean-loss": of_the_mean_loss,
        "as-given": as_given,
    },
    "counts": {"rows": over_rows, "batch-size": over_batch_size},
    "positions": {"all-rows": all_rows, "rows-of-a-sample": rows_of_a_sample},
    "damping": {"each": each, "root": rooted, "by-means": by_means},
    "block": {"whole": whole, "split": split},
    "product": {"exact": exact, "exact-where-listed": exact_where_listed},
    "table": {"as-others": as_others, "one-block": one_block, "untransposed": untransposed},
    "pair": {"inverted": inverted, "identity": identity},
    "extremes": {
        "undivided": undivided,
        "both-largest": both_largest,
        "g-largest-twice": g_largest_twice,
    },
    "weighting": {"none": unweighted, "half-each": half_each, "in-scale": in_scale},
    "stale": {"same": same_scale, "unweighted": unweighted_scale},
    "precision": {"full": full, "half": half},
    "norm": {"diagonal": diagonal, "plain": plain},
    "beside_conv": {"conditioned": conditioned, "left-alone": left_alone},
    "decay": {
        "none": no_decay,
        "penalty": penalty,
        "unconditioned": unconditioned,
        "decoupled": decoupled,
    },
    "clip": {
        "none": unclipped,
        "by-norm": by_norm,
        "by-global-norm": by_global_norm,
        "by-value": by_value,
    },
    "move": {"heavy-ball": heavy_ball, "average": average, "lr-inside": lr_inside},
    "nesterov": {"look-ahead": look_ahead, "ignored": no_look_ahead},
}
"""Every axis and its alternatives, by the names that the specification uses."""

SAME_EXACTLY: dict[str, tuple[frozenset[str], ...]] = {
    "scalars": (frozenset(AXES["scalars"]),),
    "precision": (frozenset(AXES["precision"]),),
}
"""Alternatives that differ in rounding alone: equal over the reals."""

OBSERVABLE = ("t", "A", "G", "a_inverse", "g_inverse", "scale", "gradient", "m", "param")
"""What a release may show after a step, in the order of the flow of data."""

ARRAY_AXES = tuple(
    axis for axis in AXES if axis not in ("scalars", "past_end", "frequency", "decayed")
)
"""Axes that do not enter `tick` or the hyperparameters of a parameter."""


class Asked(NamedTuple):
    """What a run is asked to do, as one worker is handed it."""

    net: Sequence[Layer]
    hypers: Sequence[Hyper]
    steps: int
    statistics: bool  # whether layers give what they saw, and not their factors


def _any_of(*kinds: str) -> Callable[[Asked], bool]:
    return lambda asked: any(layer.kind in kinds for layer in asked.net)


def _seen_by(kind: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.statistics and _any_of(kind)(asked)


def _beyond_a_block(asked: Asked) -> bool:
    sizes = [n for layer in asked.net if layer.kind in FACTORED for n in matrix_of(layer)]
    return max(sizes, default=0) > min(h.split_dim for h in asked.hypers)


def _past_the_end(asked: Asked) -> bool:
    schedules = [x for h in asked.hypers for x in (h.lr, h.damping) if isinstance(x, tuple)]
    return any(len(x) < asked.steps for x in schedules)


MATTERS: dict[str, Callable[[Asked], bool]] = {
    "past_end": _past_the_end,
    "dense": _seen_by(DENSE),
    **dict.fromkeys(("patches", "conv"), _seen_by(CONV)),
    "lookup": _seen_by(LOOKUP),
    "reduction": lambda asked: False,
    **dict.fromkeys(("counts", "table"), _any_of(*TABLES)),
    **dict.fromkeys(("positions", "extremes", "weighting", "stale"), _any_of(CONV)),
    **dict.fromkeys(("block", "product"), _beyond_a_block),
    "pair": lambda asked: any(x.kind == DENSE and x.shape[0] == 2 for x in asked.net),
    "norm": _any_of(NORM),
    "beside_conv": lambda asked: _any_of(CONV)(asked) and _any_of(NORM, *TABLES)(asked),
    **dict.fromkeys(
        ("decay", "decayed"), lambda asked: any(h.weight_decay != 0 for h in asked.hypers)
    ),
}
"""When an axis can make a difference at all."""

REQUIRED = ("lr", "damping", "momentum")
"""Hyperparameters that have no default."""

OPTIONS = ("use_nesterov", "enable_clip_grad")
"""What `configured` reads."""


def counted(c: Choices) -> set[str]:
    """The fields of the clock that a step reads."""
    return {"t"}


def configured(choices: Choices, hyper: Hyper, options: Mapping[str, Any]) -> Choices:
    """A profile's choices for given hyperparameters and options.

    Options: `use_nesterov`, `enable_clip_grad`; what is absent is off.
    """
    c = choices
    return c._replace(
        decay=c.decay if hyper.weight_decay != 0 else no_decay,
        clip=c.clip if options.get("enable_clip_grad") else unclipped,
        move=c.nesterov if options.get("use_nesterov") else c.move,
    )


_documented = Choices(decay=penalty, clip=by_norm)
_corrected = _documented._replace(
    decayed=every_parameter,
    conv=mean_sample,
    reduction=mean_of_inverses,
    counts=over_batch_size,
    damping=rooted,
    block=split,
    table=one_block,
    weighting=half_each,
    decay=unconditioned,
)
_mindspore = _corrected._replace(
    scalars=in_float32,
    past_end=zero,
    lookup=by_target,
    reduction=sum_of_inverses,
)
_gpu = _mindspore._replace(dense=by_features, patches=always_same, table=untransposed)
_ascend = _mindspore._replace(
    patches=same_and_square,
    conv=every_sample,
    positions=rows_of_a_sample,
    product=exact_where_listed,
    table=as_others,
    pair=identity,
    extremes=g_largest_twice,
    weighting=in_scale,
    stale=unweighted_scale,
    precision=half,
    beside_conv=left_alone,
    nesterov=no_look_ahead,
)
_kfac = _documented._replace(
    averaging=moving, positions=rows_of_a_sample, damping=by_means, weighting=in_scale
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "documented", _documented, Hyper(), "stored", "mindspore.nn.thor 2022, as documented"
        ),
        Profile("mindspore-gpu", _gpu, Hyper(), "each", "MindSpore 2.10, nn.thor on a GPU"),
        Profile("mindspore-ascend", _ascend, Hyper(), "each", "MindSpore 2.10, nn.thor on Ascend"),
        Profile("corrected", _corrected, Hyper(), "stored", "mindspore-gpu without its defects"),
        Profile("kfac", _kfac, Hyper(), "stored", "Martens and Grosse 2015"),
    )
}
"""Releases by name; `documented` is the page's algorithm."""
