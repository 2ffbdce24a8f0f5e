"""Run tf.keras.optimizers.Nadam of TensorFlow 2.15 on recorded cases (protocol: _adapter.py).

Twice: eagerly, and with apply_gradients inside one tf.function on an optimizer that was built
before, so that the graph is traced once. (`fit` builds inside the graph and traces it twice: the
k-th of n variables then leaves the product alone at step n + k instead of k.)
"""

import importlib.metadata
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from _adapter import Inexpressible, only, refuse, serve


class Nadam:
    """momentum_decay has no counterpart here and is not read: Keras 2.11 and later fix it at 1."""

    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "decoupled")
        self.graph = profile.endswith("-graph")
        self.variables = [tf.Variable(p) for p in params]
        self.optimizer = tf.keras.optimizers.Nadam(
            hyper["lr"],
            hyper["beta1"],
            hyper["beta2"],
            hyper["epsilon"],
            weight_decay=hyper["weight_decay"] or None,
            jit_compile=False,
        )
        self.optimizer.build(self.variables)
        self.apply = tf.function(self.eagerly) if self.graph else self.eagerly

    def eagerly(self, grads):
        self.optimizer.apply_gradients(zip(grads, self.variables))

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads):
        if self.graph and any(g is None for g in grads):
            raise Inexpressible("a gradient that is None would trace the graph anew")
        self.apply([None if g is None else tf.constant(g) for g in grads])

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
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    profiles = ["keras-2.15", "keras-2.15-graph"]
    tf.get_logger().setLevel("ERROR")  # a gradient is None on purpose
    packages = {"keras": importlib.metadata.version("keras")}
    serve("tensorflow-cpu", tf.__version__, packages, profiles, Nadam)
