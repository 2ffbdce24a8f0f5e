"""Run keras.optimizers.RMSprop of Keras 3 on recorded cases (protocol: _adapter.py).

On JAX in its default precision (64-bit only where a parameter is float64), or on the backend that
the argument names.
"""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = (sys.argv[1:] or ["jax"])[0]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib.metadata

import keras
from _adapter import serve
from _keras_rmsprop import Keras

BACKEND = keras.backend.backend()
PACKAGES = {"jax": ("jax", "jaxlib"), "torch": ("torch",), "tensorflow": ("tensorflow-cpu",)}
PROFILES = {"jax": "keras-3", "torch": "keras-3-torch", "tensorflow": "keras-3-tensorflow"}


class RMSprop(Keras):
    optimizers = keras.optimizers

    def __init__(self, profile, hyper, options, params):
        if BACKEND == "jax":
            import jax

            jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        super().__init__(profile, hyper, options, params)

    def variable(self, value):
        return keras.Variable(value, dtype=str(value.dtype))

    def gradient(self, grad, variable):
        return keras.ops.convert_to_tensor(grad, str(grad.dtype))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")  # a None on purpose
    packages = {name: importlib.metadata.version(name) for name in PACKAGES[BACKEND]}
    serve("keras", keras.__version__, packages, [PROFILES[BACKEND]], RMSprop)
