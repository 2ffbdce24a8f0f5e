"""Run mindspore.nn.RMSProp on recorded cases (protocol: _adapter.py)."""

import mindspore
from _adapter import Inexpressible, allow, only, refuse, serve
from mindspore import Parameter, Tensor, nn, ops


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, "lr rho momentum epsilon weight_decay centered")
        refuse(options, hyper, "l2")
        self.momentum = hyper["momentum"]
        self.params = [Parameter(Tensor(p), name="p%d" % i) for i, p in enumerate(params)]
        self.optimizer = nn.RMSProp(
            self.params,
            learning_rate=hyper["lr"],
            decay=hyper["rho"],
            momentum=hyper["momentum"],
            epsilon=hyper["epsilon"],
            centered=bool(options.get("centered")),
            weight_decay=hyper.get("weight_decay", 0.0),
        )

    def change(self, hyper):
        only(hyper, ["lr"])
        ops.assign(self.optimizer.learning_rate, Tensor(hyper["lr"], mindspore.float32))

    def step(self, grads):
        if any(g is None for g in grads):
            raise Inexpressible("a gradient that is None")
        self.optimizer(tuple(Tensor(g) for g in grads))

    def observe(self):
        optimizer, count = self.optimizer, len(self.params)
        seen = {
            "param": [p.asnumpy() for p in self.params],
            "v": [v.asnumpy() for v in optimizer.ms],
            "t": [optimizer.global_step.asnumpy().reshape(())] * count,
        }
        if self.momentum:
            seen["buffer"] = [m.asnumpy() for m in optimizer.moment]
        if optimizer.centered:
            seen["a"] = [a.asnumpy() for a in optimizer.mg]
        return seen


if __name__ == "__main__":
    mindspore.set_device("CPU")
    serve("mindspore", mindspore.__version__, {}, ["mindspore-2.10"], RMSprop)
