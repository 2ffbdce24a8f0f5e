"""Run timm.optim.NAdamW on recorded cases (protocol: _adapter.py)."""

import importlib.metadata
import importlib.util
import sys
import types

import torch
from _adapter import only, refuse, serve

PATCHED = "timm and timm.optim are empty packages: theirs import every model, and torchvision"
for name in ("timm", "timm.optim"):
    package = types.ModuleType(name)
    package.__path__ = importlib.util.find_spec(name).submodule_search_locations
    sys.modules[name] = package
NAdamW = importlib.import_module("timm.optim.nadamw").NAdamW

NAMES = {"lr": "lr", "epsilon": "eps", "weight_decay": "weight_decay"}


class Nadam:
    """momentum_decay has no counterpart here and is not read: the momentum is constant."""

    def __init__(self, profile, hyper, options, params):
        refuse(dict(options, maximize=0), hyper, "decoupled")
        self.params = [torch.nn.Parameter(torch.from_numpy(p)) for p in params]
        maximize = bool(options.get("maximize"))
        betas = hyper["beta1"], hyper["beta2"]
        given = {NAMES[name]: x for name, x in hyper.items() if name in NAMES}
        self.optimizer = NAdamW(self.params, betas=betas, maximize=maximize, foreach=False, **given)

    def change(self, hyper):
        only(hyper, ["lr", "beta1", "beta2"])
        for group in self.optimizer.param_groups:
            betas = zip(("beta1", "beta2"), group["betas"])
            group["betas"] = tuple(hyper.get(name, old) for name, old in betas)
            group.update({name: x for name, x in hyper.items() if name in NAMES})

    def step(self, grads):
        for param, grad in zip(self.params, grads):
            param.grad = None if grad is None else torch.from_numpy(grad)
        self.optimizer.step()

    def observe(self):
        names = {"m": "exp_avg", "v": "exp_avg_sq", "t": "step"}
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        seen = {
            name: [s[key].numpy() if s else None for s in states] for name, key in names.items()
        }
        return dict(seen, param=[p.detach().numpy() for p in self.params])


if __name__ == "__main__":
    torch.set_num_threads(1)
    version, packages = importlib.metadata.version("timm"), {"torch": torch.__version__}
    serve("timm", version, packages, ["timm-nadamw"], Nadam, [PATCHED])
