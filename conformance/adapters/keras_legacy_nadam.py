"""Run the Nadam of TensorFlow 2.9 on recorded cases (protocol: _adapter.py).

It is tf.keras.optimizers.Nadam there, and tf.keras.optimizers.legacy.Nadam from 2.11 on.
"""

import importlib.metadata
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from _adapter import Inexpressible, only, refuse, serve

MOVED = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 11)
optimizers = tf.keras.optimizers.legacy if MOVED else tf.keras.optimizers


class Nadam:
    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "none")
        if hyper["epsilon"] == 0:
            raise Inexpressible("an epsilon of 0, which is read as the default")
        self.variables = [tf.Variable(p) for p in params]
        self.optimizer = optimizers.Nadam(
            hyper["lr"],
            hyper["beta1"],
            hyper["beta2"],
            hyper["epsilon"],
            schedule_decay=hyper["momentum_decay"],
        )

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads):
        given = [None if g is None else tf.constant(g) for g in grads]
        self.optimizer.apply_gradients(zip(given, self.variables))

    def observe(self):
        count = len(self.variables)
        return {
            "param": [v.numpy() for v in self.variables],
            "m": [self.slot(v, "m") for v in self.variables],
            "v": [self.slot(v, "v") for v in self.variables],
            "product": [self.optimizer._m_cache.numpy()] * count,
            "t": [self.optimizer.iterations.numpy()] * count,
        }

    def slot(self, variable, name):
        """A variable that never had a gradient has no slots."""
        try:
            return self.optimizer.get_slot(variable, name).numpy()
        except KeyError:
            return None


if __name__ == "__main__":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # a gradient is None on purpose
    packages = {"keras": importlib.metadata.version("keras")}
    serve("tensorflow-cpu", tf.__version__, packages, ["keras-legacy-2.9"], Nadam)
