"""Run keras.optimizers.RMSprop of Keras 3 on JAX on recorded cases (protocol: _adapter.py).

In JAX's default precision: 64-bit only where a parameter is float64.
"""

import os
import warnings

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib.metadata

import jax
import keras
from _adapter import serve
from _keras_rmsprop import Keras


class RMSprop(Keras):
    optimizers = keras.optimizers

    def __init__(self, profile, hyper, options, params):
        jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        super().__init__(profile, hyper, options, params)

    def variable(self, value):
        return keras.Variable(value, dtype=str(value.dtype))

    def gradient(self, grad, variable):
        return keras.ops.convert_to_tensor(grad, str(grad.dtype))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")  # a None on purpose
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    serve("keras", keras.__version__, packages, ["keras-3"], RMSprop)
