"""Run optax.rmsprop on recorded cases (protocol: _adapter.py).

Outside jit, in JAX's default precision: 64-bit only where a parameter is float64. The buffer of
optax holds steps to be added; it is recorded with the other sign, as the buffer to be subtracted.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from _adapter import Inexpressible, allow, serve

KNOWN = (
    "lr rho momentum epsilon initial_scale centered nesterov bias_correction eps_in_sqrt "
    "global_clipnorm clipvalue"
)
LIMITS = {"global_clipnorm": optax.clip_by_global_norm, "clipvalue": optax.clip}


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, KNOWN)
        jax.config.update("jax_enable_x64", any(p.dtype == "float64" for p in params))
        self.hyper, self.options = hyper, options
        self.params = [jax.numpy.asarray(p) for p in params]
        self.state = self.transformation().init(self.params)

    def transformation(self):
        """Made anew for each step; all that lasts is in the state."""
        return optax.rmsprop(
            self.hyper["lr"],
            self.hyper["rho"],
            self.hyper["epsilon"],
            self.hyper.get("initial_scale", 0.0),
            momentum=self.hyper["momentum"] or None,
            **{name: bool(value) for name, value in self.options.items()},
        )

    def change(self, hyper):
        self.hyper = dict(self.hyper, **hyper)

    def step(self, grads):
        if any(g is None for g in grads):
            raise Inexpressible("a gradient that is None")
        given = [jax.numpy.asarray(g) for g in grads]
        for name, clip in LIMITS.items():
            if name in self.hyper:
                given, _ = clip(self.hyper[name]).update(given, optax.EmptyState())
        updates, self.state = self.transformation().update(given, self.state, self.params)
        self.params = optax.apply_updates(self.params, updates)

    def observe(self):
        scale, _, trace = self.state
        seen = {"param": self.params, "v": scale.nu}
        if self.options.get("centered"):
            seen["a"] = scale.mu
        if self.hyper["momentum"]:
            seen["buffer"] = [0 - np.asarray(x) for x in trace.trace]
        if self.options.get("bias_correction"):
            seen["t"] = [scale.count] * len(self.params)
        return seen


if __name__ == "__main__":
    packages = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
    serve("optax", optax.__version__, packages, ["optax-0.2"], RMSprop)
