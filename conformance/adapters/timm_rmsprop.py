"""Run timm.optim.RMSpropTF on recorded cases (protocol: _adapter.py)."""

import importlib
import importlib.metadata

import timm_nadam  # makes timm.optim importable without torchvision
import torch
from _adapter import allow, serve

RMSpropTF = importlib.import_module("timm.optim.rmsprop_tf").RMSpropTF

KNOWN = "lr rho momentum epsilon weight_decay centered decoupled_weight_decay lr_in_momentum"
NAMES = {"rho": "alpha", "epsilon": "eps", "decoupled_weight_decay": "decoupled_decay"}
STATE = {"v": "square_avg", "buffer": "momentum_buffer", "a": "grad_avg", "t": "step"}


class RMSprop:
    def __init__(self, profile, hyper, options, params):
        allow(hyper, options, KNOWN)
        self.params = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in params]
        switches = {NAMES.get(name, name): bool(value) for name, value in options.items()}
        self.optimizer = RMSpropTF(self.params, foreach=False, **dict(named(hyper), **switches))

    def change(self, hyper):
        for group in self.optimizer.param_groups:
            group.update(named(hyper))

    def step(self, grads):
        for param, grad in zip(self.params, grads):
            param.grad = None if grad is None else torch.from_numpy(grad.copy())
        self.optimizer.step()

    def observe(self):
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        seen = {
            name: [s[key].numpy() if s else None for s in states]
            for name, key in STATE.items()
            if any(key in s for s in states)
        }
        return dict(seen, param=[p.detach().numpy() for p in self.params])


def named(hyper):
    return {NAMES.get(name, name): value for name, value in hyper.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    version, packages = importlib.metadata.version("timm"), {"torch": torch.__version__}
    serve("timm", version, packages, ["timm-rmsprop-tf"], RMSprop, [timm_nadam.PATCHED])
