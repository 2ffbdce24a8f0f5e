"""What the adapters of RMSprop in Keras 2.15 and Keras 3 share (neither framework is imported)."""

from _adapter import Schedule, allow, only, refuse

KNOWN = (
    "lr rho momentum epsilon weight_decay clipnorm clipvalue global_clipnorm ema_momentum "
    "ema_overwrite_frequency centered use_ema decoupled_weight_decay"
)
SLOTS = {
    "v": "_velocities",
    "buffer": "_momentums",
    "a": "_average_gradients",
    "average": "_model_variables_moving_average",
}


class Keras:
    """One optimizer on its variables; a subclass says how to make both, and a gradient."""

    can = frozenset({"schedule", "order", "finalize"})

    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, KNOWN)
        refuse(options, hyper, "decoupled")
        given = dict(hyper)
        rate = given.pop("lr")
        self.scheduled = isinstance(rate, Schedule)
        if self.scheduled:
            rate = getattr(self.optimizers.schedules, rate.name)(**rate.config)
        every = given.pop("ema_overwrite_frequency", None)
        self.variables = [self.variable(p) for p in params]
        self.optimizer = self.optimizers.RMSprop(
            rate,
            centered=bool(options.get("centered")),
            use_ema=bool(options.get("use_ema")),
            ema_overwrite_frequency=every and int(every),
            **given,
        )
        self.optimizer.build(self.variables)

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.learning_rate = hyper["lr"]

    def step(self, grads, order=None):
        pairs = [
            (None if g is None else self.gradient(g, v), v) for g, v in zip(grads, self.variables)
        ]
        self.rate = self.optimizer.learning_rate
        self.optimizer.apply_gradients([pairs[i] for i in order or range(len(pairs))])

    def observe(self):
        """A list of slots is absent or empty where it is not used."""
        count = len(self.variables)
        slots = {name: getattr(self.optimizer, slot, None) for name, slot in SLOTS.items()}
        seen = {name: [x.numpy() for x in values] for name, values in slots.items() if values}
        seen["param"] = [v.numpy() for v in self.variables]
        seen["t"] = [self.optimizer.iterations.numpy()] * count
        if self.scheduled:
            seen["lr"] = [self.rate] * count
        return seen

    def finalize(self):
        self.optimizer.finalize_variable_values(self.variables)
        return [v.numpy() for v in self.variables]
