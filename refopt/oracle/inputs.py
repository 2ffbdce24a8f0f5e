"""The inputs that are made: THOR's, drawn from their names, and those that must be refused.

THOR's are small nets, what their layers saw, and gradients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from refopt.interp.formats import FORMATS, from_bits, to_bits
from refopt.oracle import golden, spec

BASE = {
    "lr": "0.1",
    "damping": "0.05",
    "momentum": "0.75",
    "weight_decay": "0.0",
    "loss_scale": "1.0",
    "batch_size": "8",
    "frequency": "2",
    "split_dim": "4",
}
"""Rows, batch size, sizes of layers and blocks, and the damping and its root all differ."""

STEPS = 3
"""Two refreshes, and a step between them."""


class Given(NamedTuple):
    """A layer, and the shapes of what it has and sees."""

    layer: dict[str, Any]
    params: dict[str, tuple[int, ...]]  # the weight first
    a: tuple[int, ...] = ()  # of a table's ids
    ds: tuple[int, ...] = ()  # none: it has no factors


def dense(name: str, out: int, width: int, *rows: int) -> Given:
    """A dense layer that sees rows, over one axis or more."""
    params = {"weight": (out, width), "bias": (out,)}
    return Given({"kind": "dense", "name": name}, params, (*rows, width), (*rows, out))


def conv(
    weight: tuple[int, ...], images: tuple[int, ...], positions: tuple[int, int], **how: Any
) -> Given:
    """A convolution of images (n, height, width)."""
    (out, channels, *_), (n, *size) = weight, images
    layer = {"kind": "conv2d", "name": "conv", "stride": [1, 1], "padding": "same"} | how
    return Given(layer, {"weight": weight}, (n, channels, *size), (n, out, *positions))


def table(ids: int, width: int, *rows: int, **rest: Any) -> Given:
    """An embedding, which sees ids; with a target a lookup."""
    layer = {"kind": "embedding_lookup" if rest else "embedding", "name": "emb"} | rest
    return Given(layer, {"weight": (ids, width)}, rows, (*rows, width))


def norm(width: int) -> Given:
    """A LayerNorm."""
    return Given({"kind": "norm", "name": "ln"}, {"gamma": (width,), "beta": (width,)})


FC = dense("fc", 3, 5, 4)
EMBEDDING = table(5, 3, 2, 3)
REST = Given({"kind": "other", "name": "rest"}, {"scale": (2, 3)})
RATES, DAMPINGS = ["0.2", "0.05", "0.1"], ["0.05", "2.0", "0.3"]
EVERYTHING = {"weight_decay": "0.25", "use_nesterov": 1, "enable_clip_grad": 1, "loss_scale": "16"}

ROWS: tuple[tuple[str, str, str, list[Given], dict[str, Any]], ...] = (
    ("dense", "Fewer rows than the batch size; the bias keeps its gradient.", "plain", [FC], {}),
    (
        *("loss-scale", "The scale is taken out of gradients once and out of G twice."),
        *("loss-scale", [FC], {"loss_scale": "16", "batch_size": "4"}),
    ),
    (
        *("positions", "Samples and positions of a dense layer are rows alike.", "plain"),
        *([dense("fc", 2, 3, 2, 3)], {"batch_size": "2"}),
    ),
    (
        *("whole", "Factors larger than a block are inverted whole.", "blocks"),
        *([dense("fc", 5, 6, 8)], {"damping": "0.01"}),
    ),
    ("two-outputs", "Two outputs are like any other.", "two-outputs", [dense("fc", 2, 3, 5)], {}),
    (
        *("conv-valid", "No padding, and strides that differ.", "conv"),
        [conv((2, 2, 2, 2), (2, 4, 3), (2, 2), padding="valid", stride=[2, 1])],
        {"loss_scale": "16"},
    ),
    (
        *("conv-dilated", "Dilation, and an odd zero behind.", "conv"),
        *([conv((2, 1, 2, 2), (2, 4, 3), (4, 3), dilation=[2, 1])], {}),
    ),
    (
        *("conv-beside", "A table and LayerNorm beside a convolution are as anywhere.", "conv"),
        *([conv((2, 1, 2, 1), (2, 2, 2), (2, 2)), norm(3), EMBEDDING, REST], {}),
    ),
    ("embedding", "Ids are rows of zeros and a one, some of them twice.", "embedding",
        [EMBEDDING], {}),
    ("lookup-cpu", "An embedding lookup with target CPU is one.", "embedding",
        [table(5, 3, 2, 3, target="CPU")], {}),
    ("norm", "Squares over the batch size; other parameters keep theirs.", "norm",
        [norm(4), REST], {"loss_scale": "16"}),
    ("decay", "Decay before the inverses; not of beta and gamma.", "decay",
        [FC, norm(3), REST], {"weight_decay": "0.25"}),
    ("clip", "Each gradient by itself to norm 1, some of them shorter.", "clip",
        [FC, norm(3), REST], {"enable_clip_grad": 1, "damping": "2.0"}),
    ("nesterov", "The gradient and the new momentum.", "nesterov", [FC], {"use_nesterov": 1}),
    ("schedules", "One learning rate and damping a step, between refreshes too.", "schedules",
        [FC, norm(3)], {"lr": RATES, "damping": DAMPINGS}),
    ("stale", "What is seen between refreshes changes nothing.", "frequency",
        [FC, EMBEDDING], {"frequency": "3"}),
    ("everything", "Decay, inverses, clipping, Nesterov, in this order.", "decay",
        [FC, EMBEDDING, norm(3)], EVERYTHING),
)  # fmt: skip
"""(slug, comment, tag, net, hyperparameters and options) of each vector."""


def sources(optimizer: str) -> Iterator[dict[str, Any]]:
    """The inputs as JSON objects, each in float32 and in float64, the same numbers in both.

    Those of an optimizer without layers stand in its specification, under `vectors`, which may
    name the dtypes.
    """
    both, gone = ("float32", "float64"), golden.retired()
    if optimizer == "thor":
        made = (_source(*row, dtype) for row in ROWS for dtype in both)
        yield from (source for source in made if source["id"] not in gone)
    for edge in EDGES:
        if edge.optimizer == optimizer:
            yield from (_of_numbers(edge, dtype) for dtype in edge.dtypes)
    for row in spec.load(optimizer).get("vectors", []):
        yield from (_stated(optimizer, row, dtype) for dtype in row.get("dtypes", both))


class Edge(NamedTuple):
    """An input of numbers that no recording has."""

    optimizer: str
    slug: str
    comment: str
    tag: str
    hyper: str  # name=value …
    shapes: tuple[tuple[int, ...], ...]
    steps: int
    special: tuple[float, ...] = ()  # one element in three is one of these
    dtypes: tuple[str, ...] = ("float32", "float64")
    options: tuple[str, ...] = ()
    nothing: tuple[tuple[int, int, float | None], ...] = ()  # (step, parameter, its gradient)


SHAPES = ((), (2, 3), (17,))
ZEROS = (0.0, -0.0, 1e-12, -1e-15, 2e4)
NOT_FINITE = (math.nan, math.inf, -math.inf)
NAD, RMS = "lr=0.05 beta1=0.9 beta2=0.99 momentum_decay=0.3", "lr=0.05 rho=0.9"
NOTHING = ((1, 0, 0.0), (2, 1, 0.0), (3, 2, None))
STILL = ((1, 0, 0.0), (2, 0, 0.0), (3, 0, 0.0))
HALF = ("float16", "bfloat16")
EDGES = (
    Edge("nadam", "zeros", "A gradient of zeros is one, and none is none.",
        "zero", f"{NAD} epsilon=0.01 weight_decay=0.0", SHAPES, 4, ZEROS, nothing=NOTHING),
    Edge("nadam", "zero-by-zero", "Zero over zero is NaN; what moves is divided by its root alone.",
        "epsilon", f"{NAD} epsilon=0.0 weight_decay=0.0", ((), (4,)), 1, nothing=NOTHING[:1]),
    Edge("nadam", "long", "More steps than any other has.",
        "long", f"{NAD} epsilon=0.01 weight_decay=0.1", ((2, 1),), 30, dtypes=("float32",),
        options=("decoupled_weight_decay",)),
    Edge("nadam", "not-finite", "NaN and infinities go their way through the moments.",
        "nan", f"{NAD} epsilon=0.01 weight_decay=0.0", ((7,),), 2, NOT_FINITE, ("float32",)),
    Edge("nadam", "half-epsilon", "In 16 bits the usual epsilon is not seen.",
        "half", f"{NAD} epsilon=1e-8 weight_decay=0.1", ((5,),), 4, dtypes=HALF),
    Edge("rmsprop", "zeros", "A gradient of zeros is one, and none is none.",
        "zero", f"{RMS} momentum=0.5 epsilon=0.01", SHAPES, 4, ZEROS, nothing=NOTHING),
    Edge("rmsprop", "zero-by-zero", "Zero over zero is NaN; what moves has its root alone.",
        "epsilon", f"{RMS} momentum=0.0 epsilon=0.0", ((), (4,)), 3, nothing=STILL),
    Edge("rmsprop", "not-finite", "NaN stays whatever is clipped, and infinities do not.",
        "nan", f"{RMS} momentum=0.5 epsilon=0.01 clipvalue=0.5", ((7,),), 2, NOT_FINITE,
        ("float32",)),
    Edge("rmsprop", "global-infinite", "A norm without end makes every element NaN.",
        "nan", f"{RMS} momentum=0.0 epsilon=0.01 global_clipnorm=0.5", ((3,), (2,)), 2,
        dtypes=("float32",), nothing=((2, 1, math.inf),)),
    Edge("rmsprop", "half-epsilon", "In 16 bits the usual epsilon is not seen.",
        "half", f"{RMS} momentum=0.9 epsilon=1e-8", ((5,),), 4, dtypes=HALF),
)  # fmt: skip
"""Shapes, zeros, what is not finite, the usual epsilon in 16 bits, and more steps."""

OPTIONS = {"nadam": ("maximize", "decoupled_weight_decay"), "rmsprop": ("centered",)}


def _of_numbers(edge: Edge, dtype: str) -> dict[str, Any]:
    """The JSON object of such an input, the same numbers in each dtype."""
    source, single, f = random.Random(edge.slug), FORMATS["float32"], FORMATS[dtype]

    def drawn(shape: tuple[int, ...], special: tuple[float, ...]) -> str:
        values = [
            source.choice(special)
            if special and source.random() < 1 / 3
            else source.choice((-1, 1)) * 10 ** source.uniform(-1.5, 0.5)
            for _ in range(math.prod(shape))
        ]
        return to_bits(from_bits(to_bits(values, single), single), f)

    params = [
        {"dtype": dtype, "shape": [*shape], "bits": drawn(shape, (0.0, -0.0))}
        for shape in edge.shapes
    ]
    grads: list[list[str | None]] = [
        [drawn(shape, edge.special) for shape in edge.shapes] for _ in range(edge.steps)
    ]
    for t, i, x in edge.nothing:
        grads[t - 1][i] = None if x is None else to_bits([x] * math.prod(edge.shapes[i]), f)
    ending = "bf16" if dtype == "bfloat16" else f"f{dtype[-2:]}"
    return {
        **{"id": f"{edge.optimizer}.vector.{edge.slug}.{ending}", "comment": edge.comment},
        **{"tags": [edge.tag], "params": params, "grads": grads, "steps": edge.steps},
        "record": [*range(1, edge.steps + 1)],
        "hyper": dict(pair.split("=") for pair in edge.hyper.split()),
        "options": {name: int(name in edge.options) for name in OPTIONS[edge.optimizer]},
    }


def _stated(optimizer: str, row: dict[str, Any], dtype: str) -> dict[str, Any]:
    """An input of a specification; numbers from a seed, over three decades."""
    source, f = random.Random(row["slug"]), FORMATS["float32"]

    def drawn() -> str:
        values = [
            source.choice((-1, 1)) * 10 ** source.uniform(-1.5, 0.5) for _ in range(row["size"])
        ]
        return to_bits(from_bits(to_bits(values, f), f), FORMATS[dtype])

    params = [
        {"dtype": dtype, "shape": [row["size"]], "bits": drawn()} for _ in range(row["params"])
    ]
    absent = [tuple(pair) for pair in row.get("missing", ())]  # (step, parameter)
    grads = [
        [None if (t, i) in absent else drawn() for i in range(row["params"])]
        for t in range(1, row["steps"] + 1)
    ]
    asked = {key: row[key] for key in ("comment", "tags", "hyper", "steps")}
    return {
        **{"id": f"{optimizer}.vector.{row['slug']}.f{dtype[-2:]}", **asked},
        **{"options": row.get("options", {}), "changes": row.get("changes", {})},
        **{"params": params, "record": [*range(1, row["steps"] + 1)], "grads": grads},
    }


def net(slug: str, dtype: str, seed: str) -> dict[str, Any]:
    """The net of a slug, its numbers drawn from a seed."""
    (row,) = (row for row in ROWS if row[0] == slug)
    return _source(*row, dtype, seed)


def _source(
    slug: str,
    comment: str,
    tag: str,
    net: list[Given],
    asked: dict[str, Any],
    dtype: str,
    seed: str = "",
) -> dict[str, Any]:
    source = random.Random(seed or slug)
    layers: list[dict[str, Any]] = []
    params: list[dict[str, Any]] = []

    def drawn(shape: tuple[int, ...]) -> str:
        values = [source.randrange(-(2**20), 2**20) / 2**20 for _ in range(math.prod(shape))]
        return to_bits(values, FORMATS[dtype])

    def seen(given: Given) -> dict[str, Any]:
        a: dict[str, Any] = {"dtype": dtype, "shape": [*given.a]}
        if given.layer["kind"].startswith("embedding"):
            ids = source.choices(range(given.params["weight"][0]), k=math.prod(given.a))
            a |= {"dtype": "int32", "bits": "".join(f"{i:08x}" for i in ids)}
        else:
            a |= {"bits": drawn(given.a)}
        return {"a": a, "ds": {"dtype": dtype, "shape": [*given.ds], "bits": drawn(given.ds)}}

    for given in net:
        first = len(params)
        for part, shape in given.params.items():
            name = f"{given.layer['name']}.{part}"
            params.append({"name": name, "dtype": dtype, "shape": [*shape], "bits": drawn(shape)})
        layers.append(given.layer | {"params": [*range(first, len(params))]})
    steps = [*range(1, STEPS + 1)]
    options = {k: asked.get(k, 0) for k in ("use_nesterov", "enable_clip_grad")}
    hyper = BASE | {k: x for k, x in asked.items() if k not in options}
    refreshes = steps if slug == "stale" else steps[:: int(hyper["frequency"])]
    statistics = {
        str(t): {given.layer["name"]: seen(given) for given in net if given.ds} for t in refreshes
    }
    return {
        "id": f"thor.vector.{slug}.f{dtype[-2:]}",
        "comment": comment,
        "tags": [tag],
        "hyper": hyper,
        "options": options,
        "layers": layers,
        "params": params,
        "steps": STEPS,
        "record": steps,
        "grads": [[drawn(tuple(p["shape"])) for p in params] for _ in steps],
        **({"statistics": statistics} if any(statistics.values()) else {}),
    }


# -- what must be refused -------------------------------------------------------------------------

ONE = {"dtype": "float32", "shape": [2], "bits": to_bits([0.5, -0.25], FORMATS["float32"])}
"""A parameter; its gradient has the same numbers."""

RIGHT: dict[str, dict[str, Any]] = {
    "nadam": {
        "hyper": {
            **{"lr": "0.05", "beta1": "0.9", "beta2": "0.99", "epsilon": "0.25"},
            **{"weight_decay": "0.1", "momentum_decay": "0.3"},
        },
        "options": {"maximize": 0, "decoupled_weight_decay": 0},
    },
    "rmsprop": {
        "hyper": {"lr": "0.05", "rho": "0.9", "momentum": "0.5", "epsilon": "0.25"},
        "options": {"centered": 0},
    },
    "thor": {},
}
"""What a faulty input has beside its fault."""

AVERAGED = {"options": {"centered": 0, "use_ema": 1}}
HYPER, SHAPE, GRADIENT, STATISTICS = (
    *("invalid-hyperparameter", "shape-mismatch", "missing-gradient", "missing-statistics"),
)

FAULTS: dict[str, tuple[tuple[str, str, str, dict[str, Any], dict[str, Any]], ...]] = {
    "nadam": (
        ("lr-negative", "No learning rate is below 0.", HYPER, {"lr": "-0.05"}, {}),
        ("lr-nan", "NaN lies in no range.", HYPER, {"lr": "nan"}, {}),
        ("beta1-one", "beta1 is below 1: no moment forgets nothing.", HYPER, {"beta1": "1.0"}, {}),
        ("beta2-one", "beta2 is below 1: its divisor would be 0.", HYPER, {"beta2": "1.0"}, {}),
        ("epsilon-negative", "No epsilon is below 0.", HYPER, {"epsilon": "-0.25"}, {}),
        ("decay-negative", "Negative decay is growth.", HYPER, {"weight_decay": "-0.1"}, {}),
        ("psi-negative", "A schedule that grows.", HYPER, {"momentum_decay": "-0.3"}, {}),
        ("shape", "A gradient has one element for each of its parameter.", SHAPE, {}, {}),
    ),
    "rmsprop": (
        ("rho-above-one", "rho is a weight, from 0 to 1.", HYPER, {"rho": "1.5"}, {}),
        ("momentum-negative", "No momentum is below 0.", HYPER, {"momentum": "-0.5"}, {}),
        ("epsilon-negative", "No epsilon is below 0.", HYPER, {"epsilon": "-0.25"}, {}),
        ("ema-momentum", "The weight of an average is from 0 to 1.", HYPER,
            {"ema_momentum": "1.5"}, AVERAGED),
        ("ema-frequency", "A number of steps is whole.", HYPER,
            {"ema_momentum": "0.5", "ema_overwrite_frequency": "1.5"}, AVERAGED),
        ("two-norms", "Gradients have one limit: of each norm or of all together.", HYPER,
            {"clipnorm": "1.0", "global_clipnorm": "1.0"}, {}),
        ("shape", "A gradient has one element for each of its parameter.", SHAPE, {}, {}),
        ("no-gradient", "A step with no gradient at all is a mistake.", GRADIENT, {}, {}),
    ),
    "thor": (
        ("damping-negative", "Damping moves eigenvalues away from 0.", HYPER,
            {"damping": "-0.05"}, {}),
        ("momentum-negative", "No momentum is below 0.", HYPER, {"momentum": "-0.75"}, {}),
        ("loss-scale-zero", "What gradients are divided by is above 0.", HYPER,
            {"loss_scale": "0.0"}, {}),
        ("frequency-one", "The documented least frequency is 2.", HYPER, {"frequency": "1"}, {}),
        ("past-the-end", "A schedule has a value a step.", HYPER, {"lr": ["0.2", "0.1"]}, {}),
        ("shape", "A gradient has one element for each of its parameter.", SHAPE, {}, {}),
        ("no-statistics", "A refresh takes what each layer saw.", STATISTICS, {}, {}),
    ),
}  # fmt: skip
"""By optimizer: (slug, comment, kind, hyperparameters of the fault, what else it is beside)."""

REPAIRS = {"ema_momentum": "0.5", "ema_overwrite_frequency": "2"}
"""What stands in the place of a fault that the input would otherwise not have at all."""


def faulty(optimizer: str) -> Iterator[dict[str, Any]]:
    """The inputs that must be refused, as JSON objects, each with its repair."""
    for slug, comment, kind, hyper, beside in FAULTS.get(optimizer, ()):
        if optimizer == "thor":
            source = _source(slug, comment, "error", [FC], {}, "float32")
        else:
            right = RIGHT[optimizer] | beside
            steps = {"params": [ONE], "steps": 1, "record": [1], "grads": [[ONE["bits"]]]}
            source = {"comment": comment, "tags": ["error"], **right, **steps}
        source |= {"id": f"{optimizer}.vector.reject-{slug}.f32", "kind": kind}
        rows = source["grads"]
        if hyper:
            right = source["hyper"]
            repaired = right | {k: REPAIRS[k] for k in hyper if k in REPAIRS and k not in right}
            fault = {"hyper": right | hyper}
            source["repair"] = {"hyper": repaired}
        elif kind == STATISTICS:
            fault = {"statistics": {t: {} for t in source["statistics"]}}
            source["repair"] = {"statistics": source["statistics"]}
        else:
            given = None if kind == GRADIENT else rows[0][0][:8]
            fault = {"grads": [[given, *rows[0][1:]], *rows[1:]]}
            source["repair"] = {"grads": rows}
        yield source | fault
