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


def embedding(name: str, vocabulary: int, width: int, kind: str = "embedding") -> Layer:
    return {"kind": kind, "name": name, "shapes": [[vocabulary, width]]}


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
IMAGES = {"shape": [3, 2, 6, 6], "classes": 3}


def mindspore_2_10() -> list[Case]:
    return [
        case("2-10", "mlp", "Two refreshes, two stale steps after each.", "plain", MLP, BATCH),
        case(
            "2-10",
            "conv-valid",
            'Patches are padded as "same" although the layer is "valid": a_norm is not g_norm.',
            "conv padding",
            [conv("conv", 3, 2, 3, padding="valid", bias=True), dense("fc", 3, 48)],
            IMAGES,
        ),
        case(
            "2-10",
            "embedding-norm",
            "Occurrence counts, the product of two inverse Cholesky factors, LayerNorm's rule.",
            "embedding norm",
            [embedding("emb", 7, 4), norm("ln", 4), dense("fc", 3, 4)],
            {"shape": [3, 5], "vocabulary": 7, "classes": 3},
        ),
    ]


def mindspore_2_0() -> list[Case]:
    return [case("2-0", c["id"].split(".")[-1], "x", "x", [], {}) for c in []]
