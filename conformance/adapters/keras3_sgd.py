"""Run keras.optimizers.SGD of Keras 3 on recorded cases (protocol: _adapter.py).

On JAX in its default precision: 64-bit only where a parameter is float64. The buffer of Keras holds
steps to be added; it is recorded with the other sign, as the buffer to be subtracted.
"""

import os
import warnings

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import keras
from _adapter import allow, only, serve


class SGD:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, "lr momentum weight_decay nesterov")
        jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        self.variables = [keras.Variable(p, dtype=str(p.dtype)) for p in params]
        self.optimizer = keras.optimizers.SGD(
            hyper["lr"],
            hyper["momentum"],
            bool(options.get("nesterov")),
            weight_decay=hyper.get("weight_decay") or None,
        )
        self.optimizer.build(self.variables)

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads):
        given = [None if g is None else keras.ops.convert_to_tensor(g, str(g.dtype)) for g in grads]
        self.optimizer.apply_gradients(zip(given, self.variables))

    def observe(self):
        seen = {"param": [v.numpy() for v in self.variables]}
        if self.optimizer.momentum:
            seen["buffer"] = [0 - m.numpy() for m in self.optimizer.momentums]
        return seen


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Gradients do not exist")  # a None on purpose
    packages = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
    serve("keras", keras.__version__, packages, ["keras-3"], SGD)
