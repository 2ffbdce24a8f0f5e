"""Run paddle.optimizer.NAdam on recorded cases (protocol: _adapter.py)."""

import paddle
from _adapter import only, refuse, serve


class Nadam:
    def __init__(self, profile, hyper, options, params):
        refuse(options, hyper, "l2")
        self.params = [paddle.to_tensor(p, stop_gradient=False) for p in params]
        self.optimizer = paddle.optimizer.NAdam(
            learning_rate=hyper["lr"],
            beta1=hyper["beta1"],
            beta2=hyper["beta2"],
            epsilon=hyper["epsilon"],
            momentum_decay=hyper["momentum_decay"],
            parameters=self.params,
            weight_decay=hyper["weight_decay"] or None,
        )

    def change(self, hyper):
        only(hyper, ["lr"])
        self.optimizer.set_lr(hyper["lr"])

    def step(self, grads):
        for param, grad in zip(self.params, grads):
            param.clear_gradient(False)
            if grad is not None:
                param.grad = paddle.to_tensor(grad)
        self.optimizer.step()

    def observe(self):
        """The step count is not stored."""
        return {
            "param": [p.numpy() for p in self.params],
            "m": [self.state(p, "moment1") for p in self.params],
            "v": [self.state(p, "moment2") for p in self.params],
            "product": [self.number(p, "mu_product") for p in self.params],
        }

    def state(self, param, name):
        tensor = self.optimizer._accumulators[name].get(param.name)
        return None if tensor is None else tensor.numpy()

    def number(self, param, name):
        """A scalar that Paddle keeps as an array of equal elements, of the parameter's shape."""
        array = self.state(param, name)
        if array is None or array.size == 0:
            return None
        (value,) = set(array.flat)
        return value


if __name__ == "__main__":
    paddle.set_device("cpu")
    serve("paddlepaddle", paddle.__version__, {}, ["paddle-3.3"], Nadam)
