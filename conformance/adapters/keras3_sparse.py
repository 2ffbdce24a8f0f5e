"""As keras3_rmsprop on TensorFlow, where a gradient may be given by rows."""

import importlib.metadata
import sys

sys.argv[1:] = ["tensorflow"]  # the backend, which keras3_rmsprop reads when it is imported

import keras3_rmsprop as dense  # noqa: E402
import tensorflow as tf  # noqa: E402
from _adapter import Rows, serve  # noqa: E402


class RMSprop(dense.RMSprop):
    can = dense.RMSprop.can | {"sparse"}

    def gradient(self, grad, variable):
        if not isinstance(grad, Rows):
            return super().gradient(grad, variable)
        rows = tf.constant(grad.indices, tf.int32)
        return tf.IndexedSlices(tf.constant(grad.values), rows, variable.shape)


if __name__ == "__main__":
    packages = {name: importlib.metadata.version(name) for name in dense.PACKAGES["tensorflow"]}
    serve("keras", dense.keras.__version__, packages, ["keras-3-tensorflow"], RMSprop)
