"""Run optax.sgd on recorded cases (protocol: _adapter.py).

Outside jit, in JAX's default precision: 64-bit only where a parameter is float64. There is no
weight decay, and no dampening.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import optax
from _adapter import Inexpressible, allow, serve


class SGD:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, "lr momentum nesterov")
        jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        self.hyper, self.nesterov = hyper, bool(options.get("nesterov"))
        self.params = [jax.numpy.asarray(p) for p in params]
        self.state = self.transformation().init(self.params)

    def transformation(self):
        """Made anew for each step; all that lasts is in the state."""
        return optax.sgd(self.hyper["lr"], self.hyper["momentum"] or None, self.nesterov)

    def change(self, hyper):
        self.hyper = dict(self.hyper, **hyper)

    def step(self, grads):
        if any(g is None for g in grads):
            raise Inexpressible("a gradient that is None")
        given = [jax.numpy.asarray(g) for g in grads]
        updates, self.state = self.transformation().update(given, self.state, self.params)
        self.params = optax.apply_updates(self.params, updates)

    def observe(self):
        seen = {"param": self.params}
        if self.hyper["momentum"]:
            seen["buffer"] = self.state[0].trace
        return seen


if __name__ == "__main__":
    packages = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
    serve("optax", optax.__version__, packages, ["optax-0.2"], SGD)
