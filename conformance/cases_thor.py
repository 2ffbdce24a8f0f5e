"""The cases on which MindSpore's THOR is recorded: inputs only, deterministic.

A case of mindspore-gpu is a network that is trained on batches drawn from a seed; one of
mindspore-ascend is given factors and gradients drawn from it. What the optimizer was handed is
recorded with what it did. Rows of a batch, batch_size, dimensions and loss scale all differ unless
a case is about one of them, and damping is far from its square root and from 1.
"""

import math
import random
import zlib
from typing import Any

from cases_nadam import Case, bits

Layer = dict[str, Any]
BASE = {
    "lr": "0.1",
    "damping": "0.05",
    "momentum": "0.75",
    "weight_decay": "0.0",
    "loss_scale": "1.0",
    "batch_size": "8",
    "frequency": "3",
}
PARTS = {"dense": ["weight", "bias"], "norm": ["gamma", "beta"], "embedding": ["embedding_table"]}
PARTS |= {"conv2d": PARTS["dense"], "batch_norm": PARTS["norm"]}
PARTS |= {"embedding_lookup": PARTS["embedding"]}


def dense(name: str, out: int, width: int, bias: bool = True, kind: str = "dense") -> Layer:
    cell = {} if kind == "dense" else {"cell": "dense"}
    return {"kind": kind, "name": name, "shapes": [[out, width], [out]][: 1 + bias]} | cell


def conv(
    name: str,
    out: int,
    channels: int,
    kernel: int,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: str = "same",
    bias: bool = False,
    **rest: Any,
) -> Layer:
    shapes = [[out, channels, kernel, kernel], [out]][: 1 + bias]
    head = {"kind": "conv2d", "name": name, "shapes": shapes}
    return head | {"stride": list(stride), "padding": padding} | rest


def norm(name: str, width: int, cell: str = "") -> Layer:
    head = {"kind": "other" if cell else "norm", "name": name, "shapes": [[width], [width]]}
    return head | ({"cell": cell} if cell else {})


def embedding(name: str, vocabulary: int, width: int, **rest: Any) -> Layer:
    return {"kind": "embedding", "name": name, "shapes": [[vocabulary, width]]} | rest


def case(
    release: str,
    slug: str,
    comment: str,
    tags: str,
    layers: list[Layer],
    data: dict[str, Any],
    *,
    profile: str = "mindspore-gpu",
    steps: int = 6,
    undecayed: tuple[str, ...] = (),
    use_nesterov: int = 0,
    enable_clip_grad: int = 0,
    **hyper: Any,
) -> Case:
    """One case, its parameters drawn from its slug."""
    source = random.Random(slug)
    params: list[dict[str, Any]] = []
    described = []
    for layer in layers:
        own = {key: value for key, value in layer.items() if key != "shapes"}
        cell = layer.get("cell", layer["kind"])
        own["params"] = []
        for part, shape in zip(PARTS[cell], layer["shapes"], strict=False):
            own["params"].append(len(params))
            spread = 1.5 / math.sqrt(math.prod(shape[1:]))
            values = [
                (part == "gamma") + source.uniform(-spread, spread) for _ in range(math.prod(shape))
            ]
            name = f"{layer['name']}.{part}"
            params.append(
                {
                    "name": name,
                    "dtype": "float32",
                    "shape": shape,
                    "bits": bits(values, "float32"),
                }
            )
        described.append(own)
    kept = [i for i, p in enumerate(params) if p["name"].split(".")[1] in undecayed]
    rest = [i for i in range(len(params)) if i not in kept]
    groups = [{"params": rest, "hyper": {}}, {"params": kept, "hyper": {"weight_decay": "0.0"}}]
    return {
        "id": f"thor.mindspore-{release}.{slug}",
        "comment": comment,
        "tags": tags.split(),
        "profiles": [profile],
        "hyper": BASE | hyper,
        "options": {"use_nesterov": use_nesterov, "enable_clip_grad": enable_clip_grad},
        "layers": described,
        "data": {"seed": zlib.crc32(slug.encode()) % 10000} | data,
        "params": params,
        "steps": steps,
        "record": list(range(1, steps + 1)),
    } | ({"groups": groups} if kept else {})


MLP = [dense("fc1", 5, 4), dense("fc2", 3, 5)]
BATCH = {"shape": [6, 4], "classes": 3}
WIDE = [dense("fc1", 5, 130), dense("fc2", 3, 5, bias=False)]
IMAGES = {"shape": [3, 2, 6, 6], "classes": 3}
CONVOLUTION = [conv("conv", 4, 2, 3), norm("bn", 4, "batch_norm"), dense("fc", 3, 64)]
VALID = [conv("conv", 3, 2, 3, padding="valid", bias=True), dense("fc", 3, 48)]
WORDS = [embedding("emb", 7, 4), norm("ln", 4), dense("fc", 3, 4)]
IDS = {"shape": [3, 5], "vocabulary": 7, "classes": 3}
RATES = ["0.2", "0.1", "0.15", "0.05", "0.1", "0.025"]
DAMPINGS = ["0.05", "0.3", "0.02", "2.0", "0.01", "0.5"]
PAST = {"steps": 7, "frequency": "4", "lr": RATES, "damping": DAMPINGS}


def both(release: str) -> list[Case]:
    """The cases of both releases, on the same parameters and batches."""
    return [
        case(release, "mlp", "Two refreshes, each before two stale steps.", "plain", MLP, BATCH),
        case(
            release,
            "mlp-wide",
            "A factor of 130 rows: a block of 128 and one of 2, the rest of A left out; no bias.",
            "blocks",
            WIDE,
            {"shape": [6, 130], "classes": 3},
        ),
        case(
            release,
            "mlp-nesterov",
            "Nesterov's momentum under the loss scale and decay.",
            "nesterov decay loss-scale",
            MLP,
            BATCH,
            use_nesterov=1,
            weight_decay="0.125",
            loss_scale="128.0",
            frequency="2",
        ),
        case(
            release,
            "mlp-schedules",
            "Damping goes by the step, not by the refresh; so does the learning rate.",
            "schedules",
            MLP,
            BATCH,
            lr=RATES,
            damping=DAMPINGS,
            frequency="2",
        ),
        case(
            release,
            "conv-norm-dense",
            "Conv factors of the mean over the batch; BatchNorm's parameters are left as they are.",
            "conv loss-scale",
            CONVOLUTION,
            {"shape": [3, 2, 4, 4], "classes": 3},
            loss_scale="128.0",
            frequency="2",
        ),
        case(
            release,
            "conv-valid",
            'Patches are padded as "same" although the layer is "valid": a_norm is not g_norm.',
            "conv padding",
            VALID,
            IMAGES,
        ),
        case(
            release,
            "embedding-norm",
            "Occurrence counts, the product of two inverse Cholesky factors, LayerNorm's rule.",
            "embedding norm",
            WORDS,
            IDS,
        ),
    ]


def mindspore_2_10() -> list[Case]:
    release = "2-10"
    return [
        *both(release),
        case(
            release,
            "mlp-every-step",
            "Outside data sinking the release refreshes at every step, whatever frequency is.",
            "frequency",
            MLP,
            BATCH,
            frequency="1",
        ),
        case(
            release,
            "mlp-decay",
            "Decay comes after preconditioning, and biases decay too.",
            "decay",
            MLP,
            BATCH,
            weight_decay="0.25",
            frequency="2",
        ),
        case(
            release,
            "mlp-clip",
            "Each gradient is clipped to norm 1 by itself, after decay; some are shorter.",
            "clip decay",
            MLP,
            BATCH,
            enable_clip_grad=1,
            weight_decay="0.25",
            damping=["0.5", "0.5", "0.5", "0.0004", "0.0004", "0.0004"],
        ),
        case(
            release,
            "mlp-loss-scale",
            "The loss scale is taken out of gradients once and out of G twice.",
            "loss-scale",
            MLP,
            BATCH,
            loss_scale="128.0",
        ),
        case(
            release,
            "mlp-batch",
            "batch_size is the number of rows, as the release assumes; no momentum.",
            "batch-size",
            MLP,
            BATCH,
            batch_size="6",
            momentum="0.0",
            damping="2.0",
        ),
        case(
            release,
            "mlp-small-damping",
            "Damping far below the factors' own size: A has more columns than rows were seen.",
            "damping",
            [dense("fc1", 5, 9), dense("fc2", 3, 5)],
            {"shape": [4, 9], "classes": 3},
            damping="0.0004",
            lr="0.01",
        ),
        case(
            release,
            "mlp-two-classes",
            "A layer of two outputs is like any other on a GPU.",
            "two-outputs",
            [dense("fc1", 5, 4), dense("fc2", 2, 5)],
            {"shape": [6, 4], "classes": 2},
        ),
        case(
            release,
            "mlp-named-wide",
            "A layer with wide in its name is not converted: its gradient is left as it is.",
            "conversion",
            [dense("fc1", 5, 4), dense("wide", 5, 5, kind="other"), dense("fc2", 3, 5)],
            BATCH,
        ),
        case(
            release,
            "conv-stride",
            "An even kernel, a stride and a bias: the padding is not symmetric.",
            "conv stride",
            [conv("conv", 3, 2, 2, stride=(2, 2), bias=True), dense("fc", 3, 27)],
            {"shape": [3, 2, 5, 5], "classes": 3},
            frequency="2",
            weight_decay="0.0625",
        ),
        case(
            release,
            "conv-strides",
            "Different strides along the two axes.",
            "conv stride",
            [conv("conv", 3, 2, 3, stride=(2, 1)), dense("fc", 3, 45)],
            {"shape": [3, 2, 6, 5], "classes": 3},
        ),
        case(
            release,
            "conv-conv-clip",
            "Two convolutions, clipped.",
            "conv clip",
            [
                conv("conv1", 3, 2, 3),
                norm("bn1", 3, "batch_norm"),
                conv("conv2", 4, 3, 1),
                norm("bn2", 4, "batch_norm"),
                dense("fc", 3, 64),
            ],
            {"shape": [3, 2, 4, 4], "classes": 3},
            enable_clip_grad=1,
            damping="0.005",
        ),
        case(
            release,
            "embedding-norm-scaled",
            "A filter spares gamma and beta the decay; Nesterov and the loss scale.",
            "embedding norm decay nesterov loss-scale",
            WORDS,
            IDS,
            undecayed=("gamma", "beta"),
            use_nesterov=1,
            weight_decay="0.125",
            loss_scale="128.0",
            frequency="2",
        ),
        case(
            release,
            "past-the-end",
            "More steps than values of the learning rate and of damping: an error.",
            "error schedules",
            MLP,
            BATCH,
            **PAST,
        ),
        *ascend(release),
    ]


def mindspore_2_0() -> list[Case]:
    release = "2-0"
    return [
        *both(release),
        case(
            release,
            "embedding-lookup",
            "The lookup on the device: factors in float16, G over the samples and not the ids.",
            "embedding",
            [
                embedding("emb", 7, 4, kind="embedding_lookup", target="DEVICE"),
                norm("ln", 4),
                dense("fc", 3, 4),
            ],
            IDS,
        ),
        case(
            release,
            "past-the-end",
            "More steps than values of the learning rate and of damping: they are 0.",
            "past-the-end schedules",
            MLP,
            BATCH,
            **PAST,
        ),
    ]


def ascend(release: str) -> list[Case]:
    """The cases of ThorAscend, which are given factors."""

    def given(slug: str, comment: str, tags: str, layers: list[Layer], **rest: Any) -> Case:
        rows = {"rows": rest.pop("rows", 7)}
        return case(release, slug, comment, tags, layers, rows, profile="mindspore-ascend", **rest)

    return [
        given("ascend-mlp", "Half-precision products of a dense network.", "plain", MLP),
        given(
            "ascend-mlp-scaled",
            "Loss scale, decay, clipping and schedules of a dense network.",
            "loss-scale decay clip schedules",
            MLP,
            loss_scale="128.0",
            weight_decay="0.125",
            enable_clip_grad=1,
            frequency="2",
            lr=RATES,
            damping=DAMPINGS,
        ),
        given(
            "ascend-three-blocks",
            "Three blocks of 128 are multiplied the wrong way round.",
            "blocks",
            [dense("fc1", 4, 257), dense("fc2", 3, 4)],
            frequency="6",
            rows=40,
        ),
        given(
            "ascend-two-outputs",
            "A layer of two outputs has the identity for G's inverse; 64 columns are not padded.",
            "two-outputs",
            [dense("fc1", 64, 4), dense("fc2", 2, 64)],
            frequency="2",
        ),
        given(
            "ascend-embedding-norm",
            "A table of width 64, LayerNorm and a layer of 64 columns: no padding.",
            "embedding norm",
            [embedding("emb", 5, 64), norm("ln", 64), dense("fc", 3, 64)],
        ),
        given(
            "ascend-conv",
            "Inverses scaled by their largest elements and back by that of G twice.",
            "conv scale",
            [conv("conv", 4, 2, 3, positions=[36, 36]), dense("fc", 3, 5)],
            frequency="2",
        ),
        given(
            "ascend-conv-last",
            "The last layer with factors is a conv before BatchNorm: stale steps lose its scale.",
            "conv scale alias",
            [
                conv("conv1", 3, 2, 3, positions=[16, 16]),
                norm("bn1", 3, "batch_norm"),
                conv("conv2", 4, 3, 2, padding="valid", positions=[16, 9]),
                norm("bn2", 4, "batch_norm"),
            ],
            loss_scale="128.0",
            weight_decay="0.125",
        ),
        given(
            "ascend-conv-norm",
            "In a network with a conv LayerNorm's parameters are left as they are.",
            "conv norm scale",
            [conv("conv", 4, 2, 1, positions=[9, 9], bias=True), norm("ln", 5), dense("fc", 3, 5)],
        ),
        given(
            "ascend-two-outputs-padded",
            "The inverse of A keeps its padding beside a layer of two outputs: an error.",
            "two-outputs error",
            [dense("fc1", 5, 4), dense("fc2", 2, 5)],
            steps=1,
        ),
        given(
            "ascend-dense-first",
            "A dense layer before the first conv: the inverses of the one meet the other's.",
            "conv error",
            [dense("fc", 3, 5), conv("conv", 4, 2, 3, positions=[36, 36])],
            steps=1,
        ),
        given(
            "ascend-conv-two-outputs",
            "A layer of two outputs in a network with a conv leaves no scale: an error.",
            "conv two-outputs error",
            [conv("conv", 4, 2, 3, positions=[36, 36]), dense("fc", 2, 5)],
            steps=1,
        ),
    ]
