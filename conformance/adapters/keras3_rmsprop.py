"""Run keras.optimizers.RMSprop of Keras 3 on JAX on recorded cases (protocol: _adapter.py)."""

import os
import warnings

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_ENABLE_X64"] = "1"  # else a float64 variable is float32
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib.metadata

import keras
from _adapter import serve
from _keras_rmsprop import Keras


class RMSprop(Keras):
    optimizers = keras.optimizers

    def variable(self, value):
        return keras.Variable(value, dtype=str(value.dtype))

    def gradient(self, grad, variable):
        return keras.ops.convert_to_tensor(grad, str(grad.dtype))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")  # a None on purpose
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    serve("keras", keras.__version__, packages, ["keras-3"], RMSprop)
