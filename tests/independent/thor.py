"""THOR, transcribed from its documentation at arbitrary precision.

Source: mindspore.nn.thor, MindSpore documentation of 2022, where it gives a formula, and the prose
of spec/thor.md where it gives none. Nothing here imports, or was written from, another
implementation: it checks them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from mpmath import fdot, fsum, mp, mpf, sqrt

Matrix = list[list[mpf]]
Schedule = float | Sequence[float] | Callable[[int], Any]


class Array(NamedTuple):
    """Elements in C order."""

    shape: Sequence[int]
    values: Sequence[Any]


class Layer(NamedTuple):
    """A layer: its parameters by number, the weight (table, gamma) first.

    padding: "same" (ceil(size / stride) positions, an odd zero behind), "valid", or zeros: one
    number for every side, (down, across), or (top, bottom, left, right).
    """

    kind: str  # dense, conv2d, embedding, embedding_lookup, norm or other
    params: Sequence[int]
    stride: tuple[int, int] = (1, 1)
    padding: str | int | Sequence[int] = "same"
    dilation: tuple[int, int] = (1, 1)


TABLES = ("embedding", "embedding_lookup")
FACTORED = ("dense", "conv2d", *TABLES)


def run(
    net: Mapping[str, Layer],
    params: Mapping[str, Array],
    grads: Sequence[Sequence[Sequence[float]]],
    statistics: Mapping[int, Mapping[str, Mapping[str, Array]]],
    *,
    learning_rate: Schedule,
    damping: Schedule,
    momentum: float,
    weight_decay: float = 0.0,
    loss_scale: float = 1.0,
    batch_size: int = 32,
    use_nesterov: bool = False,
    decay_filter: Callable[[str], bool] | None = None,
    enable_clip_grad: bool = False,
    clip_norm: float = 1.0,
    frequency: int = 100,
    groups: Sequence[tuple[Sequence[int], Mapping[str, Any]]] | None = None,
    digits: int = 100,
) -> list[list[dict[str, Any]]]:
    """Run THOR from m = 0 and report every quantity of every step.

    Every number passed in is finite and stands for its exact float64 value.

    Args:
        net: the layers by name; together they hold every parameter once.
        params: theta by name, in the order of the parameters' numbers.
        grads: per step and per parameter, the elements of the gradient of the scaled loss.
        statistics: per step that refreshes and per factored layer, its input "a" and the gradients
            "ds" of the scaled loss for its outputs before the bias; or ready factors "A" (of a
            table the counts of the ids) and "G".
        learning_rate: gamma: a number, one value a step, or a function of the steps done before.
        damping: lambda, likewise; the one of a refresh acts on both factors until the next.
        momentum: mu, the factor of the old momentum.
        weight_decay: w, adds w theta to the gradient before it is preconditioned.
        loss_scale: s, what the loss was multiplied by.
        batch_size: b, what the loss was divided by.
        use_nesterov: move by the gradient and mu times the new momentum.
        decay_filter: which names decay where there are no groups: those without beta and gamma.
        enable_clip_grad: scale each preconditioned gradient whose norm exceeds clip_norm to it.
        clip_norm: that norm, which is 1 for users.
        frequency: steps 1, 1 + frequency, ... renew factors and inverses (the page allows 2 and
            more; 1 has the obvious meaning).
        groups: members by number, each with an lr, weight_decay or grad_centralization of its own;
            the decay of a group applies to all of its members.
        digits: decimal digits of the arithmetic, at least 17 so that float64 values are exact.

    Returns:
        Per step and per parameter, a dict of lists of elements: gradient (as it enters m), m and
        param, and of the weight of a factored layer A, G, a_inverse and g_inverse of the last
        refresh. G is that of the gradients as given; A and a_inverse of a table are a diagonal.

    Raises:
        ValueError: `digits` is below 17, a gradient is to be centralized that
            is no convolution's, inputs and output gradients differ in their number of rows, or a
            damped factor is not positive definite.
        IndexError: a schedule has no value for a step.
        KeyError: a refresh lacks the statistics of a layer.
        ZeroDivisionError: an element that is divided by has neither size nor damping.
    """
    if digits < 17:
        message = f"digits must be at least 17 to hold a float64 exactly, got {digits}"
        raise ValueError(message)
    names = [*params]
    shapes = [p.shape for p in params.values()]
    layer_of = {i: name for name, layer in net.items() for i in layer.params}
    group_of = {i: own for members, own in groups or () for i in members}
    for i, own in group_of.items():
        layer = net[layer_of[i]]
        if own.get("grad_centralization") and (layer.kind, i) != ("conv2d", layer.params[0]):
            message = f"grad_centralization must be off but for convolutions, got {names[i]}"
            raise ValueError(message)
    decays = decay_filter or (lambda name: "beta" not in name and "gamma" not in name)

    with mp.workdps(digits):
        s, b, mu, limit = mpf(loss_scale), mpf(batch_size), mpf(momentum), mpf(clip_norm)
        thetas = [[*map(mpf, p.values)] for p in params.values()]
        momenta = [[mpf(0)] * len(theta) for theta in thetas]
        last: dict[str, dict[str, Any]] = {}

        def update(i: int, given: Sequence[float], t: int) -> dict[str, Any]:
            own, theta, layer = group_of.get(i, {}), thetas[i], net[layer_of[i]]
            gamma = value_at(own.get("lr", learning_rate), t)
            w = mpf(own.get("weight_decay", weight_decay))
            if groups is None and not decays(names[i]):
                w = mpf(0)
            g = [mpf(x) / s for x in given]
            if own.get("grad_centralization"):
                rows = chunks(g, prod(shapes[i][1:]))
                g = [x - fsum(row) / len(row) for row in rows for x in row]
            g = [x + w * p for x, p in zip(g, theta, strict=True)]
            if layer.kind in FACTORED and i == layer.params[0]:
                g = preconditioned(g, last[layer_of[i]])
            elif layer.kind == "norm":
                g = [x / (x**2 / b + value_at(damping, t)) for x in g]
            norm = sqrt(fsum(x**2 for x in g))
            if enable_clip_grad and norm > limit:
                g = [x * limit / norm for x in g]
            m = [mu * old + x for old, x in zip(momenta[i], g, strict=True)]
            move = [x + mu * y for x, y in zip(g, m, strict=True)] if use_nesterov else m
            theta = [p - gamma * x for p, x in zip(theta, move, strict=True)]
            return {"gradient": g, "m": m, "param": theta}

        steps = []
        for t, gradients in enumerate(grads, 1):
            if (t - 1) % frequency == 0:
                for name, layer in net.items():
                    if layer.kind in FACTORED:
                        shape = shapes[layer.params[0]]
                        last[name] = factors(layer, shape, statistics[t][name])
                        last[name] |= inverses(last[name], (b / s) ** 2, value_at(damping, t))
            records = [update(i, g, t) for i, g in enumerate(gradients)]
            thetas, momenta = ([r[q] for r in records] for q in ("param", "m"))
            for name, quantities in last.items():
                records[net[name].params[0]] |= {q: [*flattened(x)] for q, x in quantities.items()}
            steps.append(records)
        return steps


def value_at(schedule: Schedule, t: int) -> mpf:
    """The value of step t, from 1."""
    if callable(schedule):
        return mpf(schedule(t - 1))
    return mpf(schedule[t - 1] if isinstance(schedule, Sequence) else schedule)


def chunks(values: Iterable[Any], size: int) -> Matrix:
    """The elements as rows of that size."""
    elements = [*values]
    return [elements[i : i + size] for i in range(0, len(elements), size)]


def flattened(x: Any) -> Iterator[mpf]:
    """The elements of nested lists, row by row."""
    for y in x if isinstance(x, list) else ():
        yield from flattened(y) if isinstance(y, list) else (y,)


def factors(layer: Layer, shape: Sequence[int], given: Mapping[str, Array]) -> dict[str, Any]:
    """A = E[a a^T] (of a table the counts of the ids) and G = E[d d^T], d as given."""
    if "A" in given:
        counts = [*map(mpf, given["A"].values)]
        return {"A": counts if layer.kind in TABLES else split(given["A"]), "G": split(given["G"])}
    a, ds = given["a"], given["ds"]
    if layer.kind == "conv2d":
        inputs, outputs = patches(layer, shape, a), positions(ds)
    elif layer.kind == "dense":
        inputs, outputs = split(a), split(ds)
    else:
        inputs, outputs = [[x] for x in a.values], split(ds)
    if len(inputs) != len(outputs):
        message = f"a and ds must have as many rows, got {len(inputs)} and {len(outputs)}"
        raise ValueError(message)
    if layer.kind in TABLES:
        ids = [int(x) for x in a.values]
        return {"A": [mpf(ids.count(row)) for row in range(shape[0])], "G": moment(outputs)}
    return {"A": moment(inputs), "G": moment(outputs)}


def split(x: Array) -> Matrix:
    """A row for each position of all axes but the last."""
    return chunks(map(mpf, x.values), x.shape[-1])


def positions(x: Array) -> Matrix:
    """A row of channels for each position of each sample of (samples, channels, down, across)."""
    _, channels, down, across = x.shape
    samples = chunks(map(mpf, x.values), channels * down * across)
    return [[*row] for s in samples for row in zip(*chunks(s, down * across), strict=True)]


def patches(layer: Layer, shape: Sequence[int], x: Array) -> Matrix:
    """What the kernel saw at each position of each sample, by channel, row and column."""
    samples, channels, *sizes = x.shape
    kernel = shape[2:]
    offsets = [range(0, k * d, d) for k, d in zip(kernel, layer.dilation, strict=True)]
    starts = [
        range(-before, sizes[axis] + behind - offsets[axis][-1], layer.stride[axis])
        for axis, (before, behind) in enumerate(padding_of(layer, sizes, kernel))
    ]

    def seen(n: int, c: int, y: int, z: int) -> mpf:
        if not (0 <= y < sizes[0] and 0 <= z < sizes[1]):
            return mpf(0)
        return mpf(x.values[((n * channels + c) * sizes[0] + y) * sizes[1] + z])

    return [
        [seen(n, c, y + i, z + j) for c, i, j in product(range(channels), *offsets)]
        for n, y, z in product(range(samples), *starts)
    ]


def padding_of(
    layer: Layer, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Zeros before and behind, down and across."""
    match layer.padding:
        case "valid":
            return (0, 0), (0, 0)
        case int(every):
            return (every, every), (every, every)
        case "same":
            totals = (
                max((-(-size // stride) - 1) * stride + (k - 1) * d + 1 - size, 0)
                for size, k, stride, d in zip(
                    sizes, kernel, layer.stride, layer.dilation, strict=True
                )
            )
            down, across = ((total // 2, total - total // 2) for total in totals)
            return down, across
        case (down, across):
            return (down, down), (across, across)
        case (top, bottom, left, right):
            return (top, bottom), (left, right)
    message = f'padding must be "same", "valid" or 1, 2 or 4 numbers, got {layer.padding!r}'
    raise ValueError(message)


def moment(rows: Matrix) -> Matrix:
    """The mean over rows of the products of a row with itself."""
    columns = [*zip(*rows, strict=True)]
    return [[fdot(x, y) / len(rows) for y in columns] for x in columns]


def inverses(given: Mapping[str, Any], scale: mpf, lambda_: mpf) -> dict[str, Any]:
    """(A + lambda I)^-1 and (G + lambda I)^-1, G that of a sample's own loss."""
    a, g = given["A"], [[scale * x for x in row] for row in given["G"]]
    if isinstance(a[0], list):
        a_inverse = inverse(damped(a, lambda_))
    else:
        a_inverse = [1 / (count / fsum(a) + lambda_) for count in a]
    return {"a_inverse": a_inverse, "g_inverse": inverse(damped(g, lambda_))}


def damped(matrix: Matrix, lambda_: mpf) -> Matrix:
    """The matrix with lambda added to its diagonal."""
    return [[x + lambda_ * (i == j) for j, x in enumerate(r)] for i, r in enumerate(matrix)]


def inverse(matrix: Matrix) -> Matrix:
    """The inverse of a symmetric matrix S = L L^T, from the columns of L^-1."""
    lower: Matrix = []
    for i, entries in enumerate(matrix):
        row: list[mpf] = []
        for j, above in enumerate(lower):
            row.append((entries[j] - fdot(row, above[:j])) / above[j])
        pivot = entries[i] - fdot(row, row)
        if not pivot > 0:
            message = f"a damped factor must be positive definite, got a pivot {pivot} at {i}"
            raise ValueError(message)
        lower.append([*row, sqrt(pivot)])
    columns = []
    for j, top in enumerate(lower):
        column = [1 / top[j]]
        for row in lower[j + 1 :]:
            column.append(-fdot(row[j:-1], column) / row[-1])
        columns.append(column)
    upper = [
        [fdot(x[j:], y) for j, y in enumerate(columns[i:])]  # of row i, from its diagonal on
        for i, x in enumerate(columns)
    ]
    n = range(len(matrix))
    return [[upper[min(i, j)][abs(i - j)] for j in n] for i in n]


def preconditioned(g: list[mpf], given: Mapping[str, Any]) -> list[mpf]:
    """Y g X of a weight as a matrix of outputs and inputs; X g Y of a table, X diagonal."""
    x, y = given["a_inverse"], given["g_inverse"]
    if isinstance(x[0], list):
        return [*flattened(multiplied(multiplied(y, chunks(g, len(x))), x))]
    rows = multiplied(chunks(g, len(y)), y)
    return [scale * z for scale, row in zip(x, rows, strict=True) for z in row]


def multiplied(x: Matrix, y: Matrix) -> Matrix:
    """The product of two matrices."""
    columns = [*zip(*y, strict=True)]
    return [[fdot(row, column) for column in columns] for row in x]
