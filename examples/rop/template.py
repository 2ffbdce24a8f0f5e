"""A program that refopt can check (docs/protocol.md): put your own optimizer into `step`."""

import json
import sys

import numpy as np


def step(param, grad, v, h):  # your optimizer: here RMSprop, without momentum
    v = h["rho"] * v + (1 - h["rho"]) * grad**2
    return param - h["lr"] * grad / (np.sqrt(v) + h["epsilon"]), v


for line in sys.stdin:
    q, a = json.loads(line), {}
    if q["op"] == "hello":
        a = {"rop": 1, "optimizer": "rmsprop", "suite": q["suite"], "name": "mine", "version": "1"}
        a["takes"] = ["float32", "float64", "several", "missing", "lr", "rho", "epsilon"]
    elif q["op"] == "case":  # bits are big-endian
        big, hyper = np.dtype(q["dtype"]).newbyteorder(">"), q["hyper"]
        params = [np.frombuffer(bytes.fromhex(bits), big) for bits in q["params"]]
        states = [np.zeros_like(param) for param in params]
    elif q["op"] == "step":
        hyper = {name: float(x) for name, x in {**hyper, **q.get("hyper", {})}.items()}
        for i, bits in enumerate(q["grads"]):
            if bits is not None:
                grad = np.frombuffer(bytes.fromhex(bits), big)
                params[i], states[i] = step(params[i], grad, states[i], hyper)
        a = {"param": [param.astype(big).tobytes().hex() for param in params]}
    print(json.dumps({"seq": q["seq"], **a}), flush=True)
