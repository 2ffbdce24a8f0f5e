"""Run the four RMSprops of TensorFlow 2.9 on recorded cases (protocol: _adapter.py).

With the argument `legacy` only that of tf.keras.optimizers.legacy, where later releases keep it.
Optimizers build themselves on their first call, as in use. No argument is given that a case does
not name, but an EMA overwrites nothing unless the case says so (the release: every 100 steps).
"""

import importlib.metadata
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from _adapter import Inexpressible, Rows, Schedule, allow, only, serve
from tensorflow.experimental import dtensor

MOVED = sys.argv[1:] == ["legacy"]
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
KNOWN = "lr rho momentum epsilon ema_momentum ema_overwrite_frequency centered use_ema "
DEVICES = 4


def learning_rate(given):
    if not isinstance(given, Schedule):
        return given
    return getattr(tf.keras.optimizers.schedules, given.name)(**given.config)


def tensor(grad):
    if isinstance(grad, Rows):
        return tf.IndexedSlices(tf.constant(grad.values), tf.constant(grad.indices, tf.int64))
    return None if grad is None else tf.constant(grad)


def common(hyper):
    """The arguments that all Keras classes take."""
    return {
        "learning_rate": learning_rate(hyper["lr"]),
        "rho": hyper["rho"],
        "momentum": hyper["momentum"],
        "epsilon": hyper["epsilon"],
    }


class Keras:
    """What the classes share."""

    counts, scheduled = True, False

    def step(self, grads, order=None):
        pairs = list(zip([tensor(g) for g in grads], self.variables))
        self.optimizer.apply_gradients([pairs[i] for i in order or range(len(pairs))])

    def observe(self):
        count = len(self.variables)
        seen = {"param": [self.read(v) for v in self.variables]}
        if self.counts:
            seen["t"] = [self.read(self.optimizer.iterations)] * count
        if self.scheduled:
            seen["lr"] = [self.used_lr()] * count
        for name, slots in self.slots().items():
            if any(slot is not None for slot in slots):
                seen[name] = slots
        return seen

    def read(self, variable):
        return variable.numpy()


class Experimental(Keras):
    """tf.keras.optimizers.experimental.RMSprop."""

    def __init__(self, hyper, options, params):
        self.variables = [tf.Variable(p) for p in params]
        self.scheduled = isinstance(hyper["lr"], Schedule)
        clips = {name: hyper[name] for name in CLIPS if name in hyper}
        frequency = hyper.get("ema_overwrite_frequency")
        average = {"use_ema": True} if options.get("use_ema") else {}
        if "ema_momentum" in hyper:
            average["ema_momentum"] = hyper["ema_momentum"]
        self.optimizer = tf.keras.optimizers.experimental.RMSprop(
            centered=bool(options.get("centered")),
            ema_overwrite_frequency=None if frequency is None else int(frequency),
            **common(hyper),
            **clips,
            **average,
        )

    def change(self, hyper):
        only(hyper, ("lr", "rho", "momentum", "epsilon"))
        for name, value in hyper.items():
            setattr(self.optimizer, "learning_rate" if name == "lr" else name, value)

    def finalize(self):
        self.optimizer.finalize_variable_values(self.variables)
        return [v.numpy() for v in self.variables]

    def slots(self):
        lists = {
            "v": self.optimizer._velocities,
            "buffer": self.optimizer._momentums,
            "a": self.optimizer._average_gradients,
            "average": getattr(self.optimizer, "_model_variables_moving_average", []),
        }
        return {
            name: [self.slot(v, slots) for v in self.variables] for name, slots in lists.items()
        }

    def slot(self, variable, slots):
        """The slot of a variable; one without a gradient in the first step has none."""
        place = self.optimizer._index_dict.get(self.optimizer._var_key(variable))
        return self.read(slots[place]) if slots and place is not None else None

    def used_lr(self):
        return self.read(self.optimizer.learning_rate)


class DTensor(Experimental):
    """tf.keras.dtensor.experimental.optimizers.RMSprop, without a mesh."""

    def __init__(self, hyper, options, params):
        self.variables = [tf.Variable(p) for p in params]
        self.make(hyper, options)

    def make(self, hyper, options, mesh=None):
        if options.get("use_ema") or any(name in hyper for name in CLIPS):
            raise Inexpressible("clipping and averaging, whose arguments the class lacks")
        self.scheduled = isinstance(hyper["lr"], Schedule)
        self.optimizer = tf.keras.dtensor.experimental.optimizers.RMSprop(
            centered=bool(options.get("centered")), mesh=mesh, **common(hyper)
        )


class Sharded(DTensor):
    """The same class on a real mesh: variables and gradients are split over its devices."""

    def __init__(self, hyper, options, params, mesh, sharding):
        devices = ["CPU:%d" % i for i in range(DEVICES)]
        self.sizes = mesh
        self.mesh = dtensor.create_mesh(list(mesh.items()), devices=devices)
        self.layouts = [
            dtensor.Layout([axis or dtensor.UNSHARDED for axis in axes], self.mesh)
            for axes in sharding
        ]
        self.variables = [
            dtensor.DVariable(self.split(p, layout)) for p, layout in zip(params, self.layouts)
        ]
        self.make(hyper, options, self.mesh)

    def split(self, array, layout):
        everywhere = dtensor.Layout.replicated(self.mesh, rank=array.ndim)
        return dtensor.relayout(dtensor.copy_to_mesh(tf.constant(array), everywhere), layout)

    def step(self, grads):
        given = [self.split(g, layout) for g, layout in zip(grads, self.layouts)]
        self.optimizer.apply_gradients(zip(given, self.variables))

    def read(self, variable):
        """The whole value, put together here: the release gathers no float64."""
        whole = np.empty(variable.shape, variable.dtype.as_numpy_dtype)
        parts = dtensor.unpack(variable.read_value())
        for place, part in zip(np.ndindex(*self.sizes.values()), parts):
            place = dict(zip(self.sizes, place))
            whole[
                tuple(
                    slice(place[axis] * n, (place[axis] + 1) * n) if axis in place else slice(None)
                    for axis, n in zip(variable.layout.sharding_specs, part.shape)
                )
            ] = part.numpy()
        return whole

    def slot(self, variable, slots):
        place = self.optimizer._index_dict[self.optimizer._var_key(variable)]
        assert not slots or slots[place].layout == variable.layout
        return super().slot(variable, slots)


class Legacy(Keras):
    """tf.keras.optimizers.RMSprop, an OptimizerV2."""

    def __init__(self, hyper, options, params):
        if options.get("use_ema"):
            raise Inexpressible("averaging")
        self.variables = [tf.Variable(p) for p in params]
        self.scheduled = isinstance(hyper["lr"], Schedule)
        clips = {name: hyper[name] for name in CLIPS if name in hyper}
        optimizers = tf.keras.optimizers.legacy if MOVED else tf.keras.optimizers
        self.optimizer = optimizers.RMSprop(
            centered=bool(options.get("centered")), **common(hyper), **clips
        )

    def change(self, hyper):
        only(hyper, ("lr", "rho", "momentum", "epsilon"))
        for name, value in hyper.items():
            setattr(self.optimizer, "learning_rate" if name == "lr" else name, value)

    def slots(self):
        return named_slots(self.optimizer, self.variables)

    def used_lr(self):
        """The rate of the last step, which the class does not keep: as its _decayed_lr computes."""
        dtype = self.variables[0].dtype
        before = tf.cast(self.optimizer.iterations - 1, dtype)
        return tf.cast(self.optimizer.learning_rate(before), dtype).numpy()


def named_slots(optimizer, variables):
    """The slots of the older classes; a variable without a gradient so far has none."""
    found = {}
    for quantity, name in (("v", "rms"), ("buffer", "momentum"), ("a", "mg")):
        found[quantity] = []
        for variable in variables:
            try:
                slot = optimizer.get_slot(variable, name)
            except KeyError:
                slot = None
            found[quantity].append(None if slot is None else slot.numpy())
    return found


class V1(Keras):
    """tf.compat.v1.train.RMSPropOptimizer, eager, which counts no steps."""

    counts = False

    def __init__(self, hyper, options, params):
        if options.get("use_ema") or any(name in hyper for name in CLIPS):
            raise Inexpressible("clipping and averaging")
        if isinstance(hyper["lr"], Schedule):
            raise Inexpressible("schedule")
        self.variables = [tf.Variable(p) for p in params]
        self.hyper = hyper  # read at every step, by callables
        self.optimizer = tf.compat.v1.train.RMSPropOptimizer(
            lambda: self.hyper["lr"],
            decay=lambda: self.hyper["rho"],
            momentum=lambda: self.hyper["momentum"],
            epsilon=lambda: self.hyper["epsilon"],
            centered=bool(options.get("centered")),
        )

    def change(self, hyper):
        self.hyper.update(hyper)

    def slots(self):
        return named_slots(self.optimizer, self.variables)


CLASSES = {
    "tf-2.9-dtensor": DTensor,
    "tf-2.9-experimental": Experimental,
    "keras-legacy-2.9": Legacy,
    "tf1": V1,
}


class RMSprop:
    """The class of a profile; only the DTensor class knows a mesh, the others run without it."""

    can = frozenset(("schedule", "sparse", "order", "finalize", "mesh"))

    def __new__(cls, profile, hyper, options, params, mesh=None, sharding=None):
        allow(hyper, options, KNOWN + " ".join(CLIPS))
        if mesh and profile == "tf-2.9-dtensor":
            return Sharded(hyper, options, params, mesh, sharding)
        return CLASSES[profile](hyper, options, params)


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one order of summation
    tf.config.threading.set_inter_op_parallelism_threads(DEVICES)  # a mesh's devices run at once
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * DEVICES,
    )
    tf.get_logger().setLevel("ERROR")  # a gradient is None on purpose
    packages = {"keras": importlib.metadata.version("keras")}
    profiles = ["keras-legacy-2.9"] if MOVED else list(CLASSES)
    serve("tensorflow-cpu", tf.__version__, packages, profiles, RMSprop)
