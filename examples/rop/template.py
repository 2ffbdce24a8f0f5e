"""A program that refopt can check (docs/protocol.md): put your own optimizer into `step`."""

import json
import sys

import numpy as np

TAKES = ["float32", "float64", "several", "missing", "lr", "rho", "epsilon"]
DTYPES = {"float32": ">f4", "float64": ">f8"}  # bits are big-endian


def step(param, grad, v, h):  # your optimizer: here RMSprop, without momentum
    v = h["rho"] * v + (1 - h["rho"]) * grad**2
    return param - h["lr"] * grad / (np.sqrt(v) + h["epsilon"]), v


for line in sys.stdin:
    q, answer = json.loads(line), {}
    if q["op"] == "hello":
        answer = {"rop": 1, "name": "template", "version": "1", "takes": TAKES}
        answer |= {"optimizer": q["optimizer"], "suite": q["suite"]}
    elif q["op"] == "case":
        big, hyper = DTYPES[q["dtype"]], {name: float(x) for name, x in q["hyper"].items()}
        params = [np.frombuffer(bytes.fromhex(b), big).astype(q["dtype"]) for b in q["params"]]
        states = [np.zeros_like(param) for param in params]
    elif q["op"] == "step":
        hyper.update({name: float(x) for name, x in q.get("hyper", {}).items()})
        for i, bits in enumerate(q["grads"]):
            if bits is not None:
                grad = np.frombuffer(bytes.fromhex(bits), big).astype(params[i].dtype)
                params[i], states[i] = step(params[i], grad, states[i], hyper)
        answer = {"param": [param.astype(big).tobytes().hex() for param in params]}
    print(json.dumps({"seq": q["seq"], **answer}), flush=True)
