"""Solutions of the exercises, and what students write instead.

A mistake is a piece of the solution and what stands there; the step, quantity and clause that the
hints must name, and the diagnosis where it has a name.
"""

from typing import NamedTuple


class Mistake(NamedTuple):
    old: str
    new: str
    step: int
    quantity: str
    clause: str


SGD = """
import numpy as np

OPTIMIZER = "sgd"


def step(param, grad, state, *, lr, momentum, dampening, weight_decay):
    g = grad + weight_decay * param
    b = g if state is None else momentum * state["buffer"] + (1 - dampening) * g
    return param - lr * b, {"buffer": b}
"""

RMSPROP = """
import numpy as np

OPTIMIZER = "rmsprop"


def step(param, grad, state, *, learning_rate, rho, momentum, epsilon):
    state = state or {"v": np.zeros_like(param), "buffer": np.zeros_like(param)}
    v = rho * state["v"] + (1 - rho) * grad * grad
    u = grad / (np.sqrt(v) + epsilon)
    b = momentum * state["buffer"] + u
    return param - learning_rate * b, {"v": v, "buffer": b}
"""

NADAM = """
import numpy as np

OPTIMIZER = "nadam"


def step(param, grad, state, *, lr, betas, eps, momentum_decay):
    zero = np.zeros_like(param)
    state = state or {"t": 0, "product": 1.0, "m": zero, "v": zero}
    t = state["t"] + 1
    mu = betas[0] * (1 - 0.5 * 0.96 ** (t * momentum_decay))
    mu_next = betas[0] * (1 - 0.5 * 0.96 ** ((t + 1) * momentum_decay))
    product = state["product"] * mu
    m = betas[0] * state["m"] + (1 - betas[0]) * grad
    v = betas[1] * state["v"] + (1 - betas[1]) * grad * grad
    m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad
    v_hat = v / (1 - betas[1] ** t)
    new = param - lr * m_hat / (np.sqrt(v_hat) + eps)
    return new, {"t": t, "product": product, "m": m, "v": v}
"""

THOR = """
import numpy as np

OPTIMIZER = "thor"


def step(param, grad, state, *, a, ds, learning_rate, damping, momentum, batch_size):
    old = np.zeros_like(param) if state is None else state["m"]
    A = a.T @ a / len(a)
    G = ds.T @ ds / len(ds)
    x = np.linalg.inv(A + damping * np.eye(len(A)))
    y = np.linalg.inv(batch_size**2 * G + damping * np.eye(len(G)))
    m = momentum * old + y @ grad @ x
    new = param - learning_rate * m
    return new, {"A": A, "G": G, "a_inverse": x, "g_inverse": y, "m": m}
"""

SOLUTIONS = {"sgd": SGD, "rmsprop": RMSPROP, "nadam": NADAM, "thor": THOR}

BUFFER = 'b = g if state is None else momentum * state["buffer"] + (1 - dampening) * g'
BUFFERED = "SGD-4.1 SGD-5.1 SGD-5.2"  # all that leads to a buffer
DIRECTION = "RMS-5.2 RMS-5.3 RMS-5.4 RMS-6.1"
MOVE = "NAD-6.3 NAD-9.1 NAD-9.2 NAD-10.1 NAD-11.1 NAD-11.2 NAD-11.3"
NOW = "(t * momentum_decay)"
NEXT = "betas[0] * (1 - 0.5 * 0.96 ** ((t + 1) * momentum_decay))"

MISTAKES = {
    "sgd": {
        "dampening swapped": Mistake("(1 - dampening) * g", "dampening * g", 2, "buffer", BUFFERED),
        "decoupled": Mistake(
            "g = grad + weight_decay * param",
            "g = grad\n    param = param - lr * weight_decay * param",
            *(1, "buffer", "SGD-4.1"),
        ),
        "the rate squared": Mistake("lr * b", "lr * lr * b", 1, "param", "SGD-6.1"),
        "only the first decays": Mistake(
            "(1 - dampening) * g", "(1 - dampening) * grad", 2, "buffer", BUFFERED
        ),
        "the sign in the buffer": Mistake('{"buffer": b}', '{"buffer": -b}', 1, "buffer", BUFFERED),
        "plus": Mistake("param - lr", "param + lr", 1, "param", "SGD-6.1"),
        "no decay": Mistake(" + weight_decay * param", "", 1, "buffer", "SGD-4.1"),
        "negative decay": Mistake("+ weight_decay", "- weight_decay", 1, "buffer", BUFFERED),
        "the first dampened too": Mistake(
            "b = g if", "b = (1 - dampening) * g if", 1, "buffer", "SGD-5.2"
        ),
        "never dampened": Mistake("(1 - dampening) * g", "g", 2, "buffer", "SGD-5.2"),
        "momentum swapped": Mistake(
            "momentum * state", "(1 - momentum) * state", 2, "buffer", "SGD-1.5"
        ),
        "a mean": Mistake(
            BUFFER,
            'b = momentum * (state["buffer"] if state else 0) + (1 - momentum) * g',
            *(1, "buffer", "SGD-5.1"),
        ),
        "the rate inside": Mistake(
            f"{BUFFER}\n    return param - lr * b",
            'b = lr * g + (momentum * state["buffer"] if state else 0)\n    return param - b',
            *(1, "buffer", "SGD-5.1"),
        ),
        "the buffer forgotten": Mistake('{"buffer": b}', '{"buffer": g}', 2, "buffer", BUFFERED),
        "the gradient moves": Mistake("lr * b", "lr * g", 2, "param", "SGD-6.1"),
        "Nesterov": Mistake("lr * b", "lr * (g + momentum * b)", 1, "param", "SGD-5.1"),
        "the buffer before": Mistake(
            "return param - lr * b",
            'return param - lr * (state["buffer"] if state else 0)',
            *(1, "param", "SGD-5.1"),
        ),
    },
    "rmsprop": {
        "no root": Mistake("np.sqrt(v)", "v", 1, "buffer", DIRECTION),
        "the root of v before": Mistake(
            "np.sqrt(v)", 'np.sqrt(state["v"])', 1, "buffer", DIRECTION
        ),
        "v corrected": Mistake("np.sqrt(v)", "np.sqrt(v / (1 - rho))", 1, "buffer", DIRECTION),
        "momentum swapped": Mistake(
            "momentum * state", "(1 - momentum) * state", 2, "buffer", "RMS-1.3"
        ),
        "the sum of squares": Mistake("grad * grad", "np.sum(grad * grad)", 1, "v", "RMS-4.1"),
        "epsilon inside": Mistake(
            "(np.sqrt(v) + epsilon)", "np.sqrt(v + epsilon)", 1, "buffer", "RMS-5.4"
        ),
        "epsilon squared inside": Mistake(
            "(np.sqrt(v) + epsilon)", "np.sqrt(v + epsilon**2)", 1, "buffer", "RMS-5.4"
        ),
        "no epsilon": Mistake("(np.sqrt(v) + epsilon)", "np.sqrt(v)", 1, "buffer", "RMS-5.4"),
        "rho swapped": Mistake(
            'rho * state["v"] + (1 - rho)', '(1 - rho) * state["v"] + rho', 1, "v", "RMS-1.13"
        ),
        "no square": Mistake("grad * grad", "grad", 1, "v", "RMS-4.1"),
        "v from one": Mistake(
            '"v": np.zeros_like(param)', '"v": np.ones_like(param)', 1, "v", "RMS-2.1"
        ),
        "the rate inside": Mistake(
            'state["buffer"] + u\n    return param - learning_rate * b',
            'state["buffer"] + learning_rate * u\n    return param - b',
            *(1, "buffer", "RMS-6.1"),
        ),
        "a mean": Mistake("+ u", "+ (1 - momentum) * u", 1, "buffer", "RMS-6.1"),
        "Nesterov": Mistake(
            "learning_rate * b", "learning_rate * (momentum * b + u)", 1, "param", "RMS-6.1"
        ),
        "plus": Mistake("param - l", "param + l", 1, "param", "RMS-6.2"),
        "the root stored": Mistake('"v": v', '"v": np.sqrt(v)', 1, "v", "RMS-4.1"),
    },
    "nadam": {
        "no move yet": Mistake(
            "new = param - lr * m_hat / (np.sqrt(v_hat) + eps)", "new = param", 1, "param", MOVE
        ),
        "no root": Mistake("np.sqrt(v_hat)", "v_hat", 1, "param", MOVE),
        "v corrected by the next step": Mistake("** t)", "** (t + 1))", 1, "param", MOVE),
        "the coefficients swapped": Mistake(
            "m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu)",
            "m_hat = mu / (1 - product * mu_next) * m + (1 - mu_next)",
            *(1, "param", MOVE),
        ),
        "the product forgotten": Mistake(
            '"product": product', '"product": mu', 2, "product", "NAD-5.3 NAD-6.2"
        ),
        "the count forgotten": Mistake('{"t": t,', '{"t": 0,', 1, "t", "NAD-5.2"),
        "v corrected and stored": Mistake('"v": v}', '"v": v_hat}', 1, "v", "NAD-8.1"),
        "epsilon inside": Mistake(
            "(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)", 1, "param", "NAD-11.2"
        ),
        "epsilon before the correction": Mistake(
            "(np.sqrt(v_hat) + eps)",
            "((np.sqrt(v) + eps) / np.sqrt(1 - betas[1] ** t))",
            *(1, "param", "NAD-11.2"),
        ),
        "v not corrected": Mistake("v / (1 - betas[1] ** t)", "v", 1, "param", "NAD-10.1"),
        "m corrected and stored": Mistake(
            '"m": m,', '"m": m / (1 - betas[0] ** t),', 1, "m", "NAD-7.1"
        ),
        "m corrected and stored as m_hat": Mistake('"m": m,', '"m": m_hat,', 1, "m", "NAD-7.1"),
        "from step 0": Mistake('t = state["t"] + 1', 't = state["t"]', 1, "t", "NAD-5.2"),
        "the schedule from 0": Mistake(
            "(t * momentum_decay))", "((t - 1) * momentum_decay))", 1, "product", "NAD-5.3 NAD-6.2"
        ),
        "betas swapped": Mistake(
            "    zero =", "    betas = betas[::-1]\n    zero =", 1, "product", "NAD-1.2"
        ),
        "beta1 swapped": Mistake(
            'm = betas[0] * state["m"] + (1 - betas[0])',
            'm = (1 - betas[0]) * state["m"] + betas[0]',
            *(1, "m", "NAD-7.1"),
        ),
        "no schedule": Mistake(
            f"mu = betas[0] * (1 - 0.5 * 0.96 ** {NOW})\n    mu_next = {NEXT}",
            "mu = mu_next = betas[0]",
            *(1, "product", "NAD-5.3"),
        ),
        "psi left out": Mistake(
            f"{NOW})\n    mu_next = {NEXT}",
            "t)\n    mu_next = betas[0] * (1 - 0.5 * 0.96 ** (t + 1))",
            *(1, "product", "NAD-5.3"),
        ),
        "one divisor": Mistake("(1 - product * mu_next)", "(1 - product)", 1, "param", "NAD-6.3"),
        "m before the step": Mistake(
            "* m + (1 - mu)", '* state["m"] + (1 - mu)', 1, "param", "NAD-9.1"
        ),
        "plain Adam": Mistake(
            "m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad",
            "m_hat = m / (1 - betas[0] ** t)",
            *(1, "param", "NAD-9.1"),
        ),
    },
    "thor": {
        "no move yet": Mistake("param - learning_rate * m", "param", 1, "param", "THO-8.1"),
        "damping everywhere": Mistake(
            "G + damping * np.eye(len(G))",
            "G + damping",
            *(1, "g_inverse", "THO-4.1 THO-4.4 THO-5.2"),
        ),
        "a covariance": Mistake(
            "a.T @ a / len(a)", "np.cov(a.T, bias=True)", 1, "A", "THO-3.1 THO-3.2"
        ),
        "a diagonal": Mistake(
            "a.T @ a / len(a)", "np.diag(np.mean(a * a, 0))", 1, "A", "THO-3.1 THO-3.2"
        ),
        "no momentum": Mistake("momentum * old", "old", 2, "m", "THO-6.1 THO-8.1"),
        "plus": Mistake("param - l", "param + l", 1, "param", "THO-8.1"),
        "A over the batch size": Mistake("/ len(a)", "/ batch_size", 1, "A", "THO-3.1 THO-3.2"),
        "A over its features": Mistake("/ len(a)", "/ a.shape[1]", 1, "A", "THO-3.2"),
        "G over the batch size": Mistake("/ len(ds)", "/ batch_size", 1, "G", "THO-3.1 THO-3.2"),
        "G of the mean loss": Mistake("batch_size**2 * G", "G", 1, "g_inverse", "THO-4.1"),
        "batch size once": Mistake(
            "batch_size**2", "batch_size", 1, "g_inverse", "THO-4.1 THO-4.4 THO-5.2"
        ),
        "the root of the damping": Mistake(
            "    A = a.T", "    damping = damping**0.5\n    A = a.T", 1, "a_inverse", "THO-4.4"
        ),
        "A not damped": Mistake(
            "A + damping * np.eye(len(A))", "A", 1, "a_inverse", "THO-4.4 THO-5.2"
        ),
        "the inverses swapped": Mistake(
            "x = np.linalg.inv(A + damping * np.eye(len(A)))",
            "x = A + damping * np.eye(len(A))",
            *(1, "a_inverse", "THO-4.4 THO-5.2"),
        ),
        "one side only": Mistake("y @ grad @ x", "grad @ x", 1, "m", "THO-6.1 THO-8.1"),
        "a mean": Mistake(
            "old + y @ grad @ x", "old + (1 - momentum) * (y @ grad @ x)", 1, "m", "THO-8.1"
        ),
        "momentum swapped": Mistake("momentum * old", "(1 - momentum) * old", 2, "m", "THO-1.3"),
        "the rate inside": Mistake(
            "y @ grad @ x\n    new = param - learning_rate * m",
            "learning_rate * (y @ grad @ x)\n    new = param - m",
            *(1, "m", "THO-8.1"),
        ),
        "Nesterov": Mistake(
            "learning_rate * m",
            "learning_rate * (y @ grad @ x + momentum * m)",
            *(1, "param", "THO-8.1"),
        ),
    },
}
