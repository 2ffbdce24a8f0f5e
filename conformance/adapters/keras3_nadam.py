"""Run keras.optimizers.Nadam of Keras 3 on recorded cases (protocol: _adapter.py).

On JAX, or on the backend that the argument names.
"""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = (sys.argv[1:] or ["jax"])[0]
os.environ["JAX_ENABLE_X64"] = "1"  # else a float64 variable is float32
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib.metadata

import keras
from _adapter import only, refuse, serve

BACKEND = keras.backend.backend()
PACKAGES = {"jax": ("jax", "jaxlib"), "torch": ("torch",), "tensorflow": ("tensorflow-cpu",)}
PROFILES = {"jax": "keras-3", "torch": "keras-3-torch", "tensorflow": "keras-3-tensorflow"}


class Nadam:
    """momentum_decay has no counterpart here and is not read: Keras 3 fixes it at 1."""

    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "decoupled")
        self.variables = [keras.Variable(p, dtype=str(p.dtype)) for p in params]
        self.optimizer = keras.optimizers.Nadam(
            hyper["lr"],
            hyper["beta1"],
            hyper["beta2"],
            hyper["epsilon"],
            weight_decay=hyper["weight_decay"] or None,
        )

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads):
        given = [None if g is None else keras.ops.convert_to_tensor(g, str(g.dtype)) for g in grads]
        self.optimizer.apply_gradients(zip(given, self.variables))

    def observe(self):
        count = len(self.variables)
        return {
            "param": [v.numpy() for v in self.variables],
            "m": [m.numpy() for m in self.optimizer._momentums],
            "v": [v.numpy() for v in self.optimizer._velocities],
            "product": [self.optimizer._u_product.numpy()] * count,
            "t": [self.optimizer.iterations.numpy()] * count,
        }


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")  # a None on purpose
    packages = {name: importlib.metadata.version(name) for name in PACKAGES[BACKEND]}
    serve("keras", keras.__version__, packages, [PROFILES[BACKEND]], Nadam)
