"""Run optax.nadam and optax.nadamw on recorded cases (protocol: _adapter.py).

Outside jit, in JAX's default precision: 64-bit only where a parameter is float64.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import optax
from _adapter import Inexpressible, only, refuse, serve


class Nadam:
    """momentum_decay has no counterpart here and is not read: the momentum is constant."""

    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "decoupled")
        jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        self.hyper = hyper
        self.params = [jax.numpy.asarray(p) for p in params]
        self.state = self.transformation().init(self.params)

    def transformation(self):
        """Made anew for each step; all that lasts is in the state."""
        h = self.hyper
        if h["weight_decay"]:
            decay = h["weight_decay"]
            return optax.nadamw(h["lr"], h["beta1"], h["beta2"], h["epsilon"], weight_decay=decay)
        return optax.nadam(h["lr"], h["beta1"], h["beta2"], h["epsilon"])

    def change(self, hyper):
        """As optax.inject_hyperparams does it."""
        only(hyper, ["lr", "beta1", "beta2"])
        self.hyper = dict(self.hyper, **hyper)

    def step(self, grads):
        if any(g is None for g in grads):
            raise Inexpressible("a gradient that is None")
        given = [jax.numpy.asarray(g) for g in grads]
        updates, self.state = self.transformation().update(given, self.state, self.params)
        self.params = optax.apply_updates(self.params, updates)

    def observe(self):
        adam = self.state[0]
        return {
            "param": self.params,
            "m": adam.mu,
            "v": adam.nu,
            "t": [adam.count] * len(self.params),
        }


if __name__ == "__main__":
    packages = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
    serve("optax", optax.__version__, packages, ["optax-0.2"], Nadam)
