"""Run mlx.optimizers.RMSprop on MLX's CPU device on recorded cases (protocol: _adapter.py).

The step count, a uint64, is recorded as an int64 of the same bits.
"""

import importlib.metadata

import mlx.core as mx
import numpy as np
from _adapter import Inexpressible, allow, only, serve
from mlx import optimizers


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, "lr rho momentum epsilon global_clipnorm")
        self.limit = hyper.get("global_clipnorm")
        if hyper["momentum"]:
            raise Inexpressible("momentum")
        self.params = {"p%d" % i: array(p) for i, p in enumerate(params)}
        self.optimizer = optimizers.RMSprop(hyper["lr"], hyper["rho"], hyper["epsilon"])
        self.optimizer.init(self.params)

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads):
        given = {k: array(g) for k, g in zip(self.params, grads) if g is not None}
        if self.limit is not None:
            given, _ = optimizers.clip_grad_norm(given, self.limit)
        self.params.update(self.optimizer.apply_gradients(given, self.params))
        mx.eval(self.params, self.optimizer.state)

    def observe(self):
        return {
            "param": [np.array(p) for p in self.params.values()],
            "v": [np.array(self.optimizer.state[k]["v"]) for k in self.params],
            "t": [np.int64(self.optimizer.step.item())] * len(self.params),
        }


def array(values):
    """Of the same dtype; by itself MLX makes float32 of float64."""
    return mx.array(values, getattr(mx, str(values.dtype)))


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    version = importlib.metadata.version("mlx")
    serve("mlx", version, {}, ["mlx-0.32"], RMSprop)
