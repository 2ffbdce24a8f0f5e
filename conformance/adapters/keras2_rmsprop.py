"""Run tf.keras.optimizers.RMSprop of TensorFlow 2.15 (protocol: _adapter.py).

Twice: eagerly, and with apply_gradients inside one tf.function on an optimizer that was built
before.
"""

import importlib.metadata
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from _adapter import Inexpressible, Rows, serve
from _keras_rmsprop import Keras


class RMSprop(Keras):
    can = Keras.can | {"sparse"}
    optimizers = tf.keras.optimizers
    variable = staticmethod(tf.Variable)

    def gradient(self, grad, variable):
        if isinstance(grad, Rows):
            rows = tf.constant(grad.indices, tf.int32)
            shape = tf.constant(variable.shape, tf.int32)
            return tf.IndexedSlices(tf.constant(grad.values), rows, shape)
        return tf.constant(grad)

    def __init__(self, profile, hyper, options, params):
        super().__init__(profile, hyper, options, params)
        self.traced = tf.function(self.apply) if profile.endswith("-graph") else None

    def apply(self, grads):
        self.optimizer.apply_gradients(zip(grads, self.variables))

    def step(self, grads, order=None):
        if self.traced is None:
            super().step(grads, order)
            return
        if order or any(g is None for g in grads):
            raise Inexpressible("a gradient that is None, or another order, traces the graph anew")
        self.rate = self.optimizer.learning_rate
        self.traced([self.gradient(g, v) for g, v in zip(grads, self.variables)])


if __name__ == "__main__":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # a gradient is None on purpose
    packages = {"keras": importlib.metadata.version("keras")}
    profiles = ["keras-2.15", "keras-2.15-graph"]
    serve("tensorflow-cpu", tf.__version__, packages, profiles, RMSprop)
