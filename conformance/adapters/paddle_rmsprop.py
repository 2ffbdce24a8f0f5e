"""Run paddle.optimizer.RMSProp on recorded cases (protocol: _adapter.py)."""

import paddle
from _adapter import Inexpressible, allow, only, refuse, serve

LIMITS = {
    "clipnorm": paddle.nn.ClipGradByNorm,
    "global_clipnorm": paddle.nn.ClipGradByGlobalNorm,
    "clipvalue": paddle.nn.ClipGradByValue,
}


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        known = "lr rho momentum epsilon weight_decay centered "
        allow(hyper, options, known + " ".join(LIMITS))
        refuse(options, hyper, "l2")
        limits = [(LIMITS[name], hyper[name]) for name in LIMITS if name in hyper]
        if len(limits) > 1:
            raise Inexpressible("more than one limit")
        self.kept = {"v": "mean_square"}
        if hyper["momentum"]:
            self.kept["buffer"] = "momentum"
        if options.get("centered"):
            self.kept["a"] = "mean_grad"
        self.params = [paddle.to_tensor(p, stop_gradient=False) for p in params]
        self.optimizer = paddle.optimizer.RMSProp(
            learning_rate=hyper["lr"],
            rho=hyper["rho"],
            epsilon=hyper["epsilon"],
            momentum=hyper["momentum"],
            centered=bool(options.get("centered")),
            parameters=self.params,
            weight_decay=hyper.get("weight_decay"),
            grad_clip=limits[0][0](limits[0][1]) if limits else None,
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
        """There is no step count."""
        seen = {name: [self.state(p, key) for p in self.params] for name, key in self.kept.items()}
        return dict(seen, param=[p.numpy() for p in self.params])

    def state(self, param, name):
        tensor = self.optimizer._accumulators[name].get(param.name)
        return None if tensor is None else tensor.numpy()


if __name__ == "__main__":
    paddle.set_device("cpu")
    serve("paddlepaddle", paddle.__version__, {}, ["paddle-3.3"], RMSprop)
