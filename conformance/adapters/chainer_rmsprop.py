"""Run chainer.optimizers.RMSprop and RMSpropGraves on recorded cases (protocol: _adapter.py).

The buffer of RMSpropGraves holds steps to be added; it is recorded with the other sign, as the
buffer to be subtracted.
"""

import chainer
import numpy as np
from _adapter import Inexpressible, allow, serve
from chainer import optimizer_hooks, optimizers

NAMES = {"lr": "lr", "rho": "alpha", "epsilon": "eps", "momentum": "momentum"}


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        known = "lr rho momentum epsilon weight_decay centered eps_in_sqrt lr_in_momentum "
        allow(hyper, options, known + "global_clipnorm clipvalue")
        inside, graves = bool(options.get("eps_in_sqrt")), bool(options.get("centered"))
        if graves and not (inside and options.get("lr_in_momentum")):
            raise Inexpressible("the centered form with epsilon or learning rate outside")
        self.graves = graves
        self.link = chainer.Link()
        with self.link.init_scope():
            for i, p in enumerate(params):
                setattr(self.link, "p%d" % i, chainer.Parameter(p.copy()))
        self.params = [getattr(self.link, "p%d" % i) for i in range(len(params))]
        self.optimizer = (
            optimizers.RMSpropGraves() if graves else optimizers.RMSprop(eps_inside_sqrt=inside)
        )
        self.change({name: hyper[name] for name in NAMES})
        self.optimizer.setup(self.link)
        if "global_clipnorm" in hyper:
            self.optimizer.add_hook(optimizer_hooks.GradientClipping(hyper["global_clipnorm"]))
        if "clipvalue" in hyper:
            limit = hyper["clipvalue"]
            self.optimizer.add_hook(optimizer_hooks.GradientHardClipping(-limit, limit))
        if hyper.get("weight_decay"):
            self.optimizer.add_hook(optimizer_hooks.WeightDecay(hyper["weight_decay"]))

    def change(self, hyper):
        if not self.graves and hyper.get("momentum"):
            raise Inexpressible("momentum without the centered form")
        for name, value in hyper.items():
            setattr(self.optimizer.hyperparam, NAMES[name], value)

    def step(self, grads):
        for param, grad in zip(self.params, grads):
            param.grad = None if grad is None else grad.copy()
        self.optimizer.update()

    def observe(self):
        states = [p.update_rule.state for p in self.params]
        seen = {
            "param": [p.array for p in self.params],
            "v": [s["n" if self.graves else "ms"] for s in states],
            "t": [np.int64(p.update_rule.t) for p in self.params],
        }
        if self.graves:
            seen["a"] = [s["g"] for s in states]
            seen["buffer"] = [0 - s["delta"] for s in states]
        return seen


if __name__ == "__main__":
    serve("chainer", chainer.__version__, {}, ["chainer-7"], RMSprop)
