"""THOR by ROP/1 (docs/protocol.md), from spec/thor.md and numpy.linalg alone: no convolutions.

refopt check 'cmd:python3 thor.py' --optimizer thor
"""

import json
import sys

import numpy as np

TAKES = ["float32", "float64", "several", "schedule", "lr", "damping", "momentum", "weight_decay"]
TAKES += ["loss_scale", "batch_size", "frequency", "clip_norm", "use_nesterov", "enable_clip_grad"]
TAKES += ["dense", "embedding", "embedding_lookup", "norm", "other"]
BIG = {"float32": ">f4", "float64": ">f8", "int32": ">i4", "int64": ">i8"}


def read(bits, dtype, shape):
    return np.frombuffer(bytes.fromhex(bits), BIG[dtype]).astype(dtype).reshape(shape)


def written(x):
    return np.ascontiguousarray(x).astype(BIG[str(x.dtype)]).tobytes().hex()


def inverse(factor, damping):
    """Taken in float64, and rounded once."""
    wide = np.linalg.inv(factor.astype(np.float64) + damping * np.eye(len(factor)))
    return wide.astype(factor.dtype)


class Dense:
    """Weight of m outputs and n inputs, and perhaps a bias."""

    def refresh(self, weight, seen, scale, damping):
        a, d = (seen[q].reshape(-1, seen[q].shape[-1]) for q in ("a", "ds"))
        self.A, self.G = a.T @ a / len(a), d.T @ d / len(d)  # THO-3.1
        self.X = inverse(self.A, damping)  # THO-4.4
        self.Y = inverse(scale**2 * self.G, damping)  # THO-4.1

    def precondition(self, i, g, h):
        return self.Y @ g @ self.X if i == 0 else g  # THO-6.1, THO-6.5


class Embedding:
    """A table: one row an id."""

    def refresh(self, weight, seen, scale, damping):
        ids, d = seen["a"].reshape(-1), seen["ds"].reshape(-1, weight.shape[1])
        self.A = np.bincount(ids, minlength=len(weight)).astype(weight.dtype)  # THO-3.5
        self.G = d.T @ d / len(d)
        self.X = 1 / (self.A / len(ids) + damping)  # THO-4.2
        self.Y = inverse(scale**2 * self.G, damping)

    def precondition(self, i, g, h):
        return (self.X[:, None] * g) @ self.Y


class Norm:
    """Gamma and beta."""

    def precondition(self, i, g, h):
        return g / (g**2 / h["batch_size"] + h["damping"])  # THO-6.3


class Other:
    """Whatever else has parameters."""

    def precondition(self, i, g, h):
        return g


KINDS = {"dense": Dense, "embedding": Embedding, "embedding_lookup": Embedding, "norm": Norm}


class Net:
    """A case."""

    def __init__(self, q):
        self.hyper, self.options, self.names = q["hyper"], q["options"], q["names"]
        pairs = zip(q["params"], q["shapes"], strict=True)
        self.params = [read(bits, q["dtype"], shape) for bits, shape in pairs]
        self.m = [np.zeros_like(p) for p in self.params]
        self.layers = [(x, KINDS.get(x["kind"], Other)()) for x in q["layers"]]

    def step(self, q):
        t = q["t"]
        h = {k: float(x[t - 1] if isinstance(x, list) else x) for k, x in self.hyper.items()}
        refreshes = (t - 1) % int(h["frequency"]) == 0  # THO-2.4
        gradients = list(self.params)
        for x, layer in self.layers:
            if refreshes and hasattr(layer, "refresh"):
                given = q["statistics"][x["name"]]
                seen = {k: read(y["bits"], y["dtype"], y["shape"]) for k, y in given.items()}
                scale = h["batch_size"] / h["loss_scale"]
                layer.refresh(self.params[x["params"][0]], seen, scale, h["damping"])
            for place, i in enumerate(x["params"]):
                p = self.params[i]
                g = read(q["grads"][i], str(p.dtype), p.shape) / h["loss_scale"]  # THO-7.5
                if not any(word in self.names[i] for word in ("beta", "gamma")):  # THO-7.2
                    g = g + h["weight_decay"] * p  # THO-7.1
                u = layer.precondition(place, g, h)
                if self.options.get("enable_clip_grad"):  # THO-7.3
                    c = h.get("clip_norm", 1.0)
                    u = u * c / max(np.sqrt(np.sum(u**2)), c)
                gradients[i] = u.astype(p.dtype)
        for i, u in enumerate(gradients):
            self.m[i] = h["momentum"] * self.m[i] + u  # THO-8.1
            ahead = u + h["momentum"] * self.m[i]  # THO-8.2
            move = ahead if self.options.get("use_nesterov") else self.m[i]
            self.params[i] = self.params[i] - h["lr"] * move
        shown = {"param": self.params, "m": self.m, "gradient": gradients}
        return {name: [written(x) for x in arrays] for name, arrays in shown.items()} | (
            self.factors() if refreshes else {}
        )

    def factors(self):
        layers = [layer for _, layer in self.layers if hasattr(layer, "refresh")]
        names = {"A": "A", "G": "G", "a_inverse": "X", "g_inverse": "Y"}
        return {
            shown: [
                {"bits": written(x), "dtype": str(x.dtype), "shape": list(x.shape)}
                for x in (getattr(layer, name) for layer in layers)
            ]
            for shown, name in names.items()
        }


for line in sys.stdin:
    q, answer = json.loads(line), {}
    if q["op"] == "hello":
        answer = {"rop": 1, "name": "thor", "version": "1", "takes": TAKES}
        answer |= {"optimizer": q["optimizer"], "suite": q["suite"]}
    elif q["op"] == "case":
        net = Net(q)
    elif q["op"] == "step":
        answer = net.step(q)
    print(json.dumps({"seq": q["seq"], **answer}), flush=True)
