"""Run tf.keras.optimizers.RMSprop of TensorFlow 2.15, eagerly (protocol: _adapter.py)."""

import importlib.metadata
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from _adapter import Rows, serve
from _keras_rmsprop import Keras


class RMSprop(Keras):
    can = Keras.can | {"sparse"}
    optimizers = tf.keras.optimizers
    variable = staticmethod(tf.Variable)

    def gradient(self, grad, variable):
        if isinstance(grad, Rows):
            rows = tf.constant(grad.indices, tf.int32)
            return tf.IndexedSlices(tf.constant(grad.values), rows, variable.shape)
        return tf.constant(grad)


if __name__ == "__main__":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # a gradient is None on purpose
    packages = {"keras": importlib.metadata.version("keras")}
    serve("tensorflow-cpu", tf.__version__, packages, ["keras-2.15"], RMSprop)
