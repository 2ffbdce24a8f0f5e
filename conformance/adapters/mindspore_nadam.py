"""Run mindspore.experimental.optim.NAdam on recorded cases (protocol: _adapter.py)."""

import mindspore
from _adapter import Inexpressible, only, refuse, serve
from mindspore import Parameter, Tensor, ops
from mindspore.experimental.optim import NAdam


class Nadam:
    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "l2")
        self.params = [Parameter(Tensor(p), name="p%d" % i) for i, p in enumerate(params)]
        self.optimizer = NAdam(
            self.params,
            lr=hyper["lr"],
            betas=(hyper["beta1"], hyper["beta2"]),
            eps=hyper["epsilon"],
            weight_decay=hyper["weight_decay"],
            momentum_decay=hyper["momentum_decay"],
        )

    def change(self, hyper):
        only(hyper, ["lr"])
        ops.assign(self.optimizer.lrs[0], Tensor(hyper["lr"], mindspore.float32))

    def step(self, grads):
        if any(g is None for g in grads):
            raise Inexpressible("a gradient that is None")
        self.optimizer(tuple(Tensor(g) for g in grads))

    def observe(self):
        optimizer = self.optimizer
        return {
            "param": [p.asnumpy() for p in self.params],
            "m": [m.asnumpy() for m in optimizer.exp_avg],
            "v": [v.asnumpy() for v in optimizer.exp_avg_sq],
            "product": [p.asnumpy() for p in optimizer.mu_product],
            "t": [optimizer.step_t.asnumpy()] * len(self.params),
        }


if __name__ == "__main__":
    mindspore.set_device("CPU")
    serve("mindspore", mindspore.__version__, {}, ["mindspore-2.10"], Nadam)
