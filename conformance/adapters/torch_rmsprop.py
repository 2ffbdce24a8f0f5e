"""Run the installed torch.optim.RMSprop on recorded cases (protocol: conformance/make.py).

Needs PyTorch and the standard library. Profiles are named after torch 2.13, the release they
describe; hello states the version that really ran. With the argument `differentiable` the loop
runs so that gradients flow through it, on plain tensors.
"""

import json
import sys

import torch
import torch_nadam as shared  # first: it silences torch's remark on NumPy
from torch_nadam import from_bits, number, say, to_bits

MODES = {"torch-2.13": {"foreach": False}, "torch-2.13-foreach": {"foreach": True}}
if sys.argv[1:] == ["differentiable"]:
    MODES = {"torch-2.13": {"foreach": False, "differentiable": True}}
NAMES = {"rho": "alpha", "epsilon": "eps"}
LIMITS = ("global_clipnorm", "clipvalue")  # functions beside the optimizer
STATE = {"v": "square_avg", "buffer": "momentum_buffer", "a": "grad_avg", "t": "step"}


def settings(hyper):
    """Our names to torch's."""
    return {NAMES.get(n, n): number(value) for n, value in hyper.items() if n not in LIMITS}


def clip(params, hyper, foreach):
    """Limit the gradients as torch's own functions do."""
    if "clipvalue" in hyper:
        torch.nn.utils.clip_grad_value_(params, number(hyper["clipvalue"]), foreach)
    if "global_clipnorm" in hyper:
        limit = number(hyper["global_clipnorm"])
        torch.nn.utils.clip_grad_norm_(params, limit, foreach=foreach)


def run(case, mode, made=torch.optim.RMSprop):
    """One run of one case: {"dtypes", "steps"}, or {"error"} if torch refused."""
    params = [from_bits(p["bits"], getattr(torch, p["dtype"]), p["shape"]) for p in case["params"]]
    if "differentiable" not in mode:
        params = [torch.nn.Parameter(p) for p in params]
    grads = [
        [None if b is None else from_bits(b, p.dtype, p.shape) for b, p in zip(row, params)]
        for row in case["grads"]
    ]
    wanted = case.get("record") or range(1, case["steps"] + 1)
    try:
        groups = [
            dict(settings(group["hyper"]), params=[params[i] for i in group["params"]])
            for group in case.get("groups", [{"params": range(len(params)), "hyper": {}}])
        ]
        options = {name: bool(value) for name, value in case["options"].items()}
        optimizer = made(groups, **dict(settings(case["hyper"]), **options), **mode)
        steps, dtypes = {}, {}
        for t in range(1, case["steps"] + 1):
            for group in optimizer.param_groups:
                group.update(settings(case.get("changes", {}).get(str(t), {})))
            for param, grad in zip(params, grads[(t - 1) % len(grads)]):
                param.grad = None if grad is None else grad.clone()
            clip(params, case["hyper"], mode["foreach"])
            optimizer.step()
            if t in wanted:
                steps[str(t)] = observe(params, optimizer, dtypes)
    except Exception as error:
        return {"error": {"type": type(error).__name__, "message": str(error)}}
    return {"dtypes": dtypes, "steps": steps}


def observe(params, optimizer, dtypes):
    """All quantities after a step; `dtypes` gathers those that are not the parameter's."""
    states = [optimizer.state.get(param, {}) for param in params]
    seen = {"param": [to_bits(p) for p in params]}
    for name, key in STATE.items():
        if any(key in state for state in states):
            seen[name] = [to_bits(state[key]) if key in state else None for state in states]
    if "t" in seen:
        dtypes["t"] = "float32"
    return seen


def main():
    torch.set_num_threads(1)
    say({"hello": shared.hello(list(MODES))})
    for line in sys.stdin:
        say(shared.answer(json.loads(line), MODES, run))


if __name__ == "__main__":
    main()
