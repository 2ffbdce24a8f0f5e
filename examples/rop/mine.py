"""NAdam as a plain function, with one mistake that training would not show.

refopt check py:examples.rop.mine:nadam --optimizer nadam
"""

import numpy as np


def nadam(param, grad, state, *, lr, betas, eps, weight_decay, momentum_decay):
    m, v, t, product = state or (0 * param, 0 * param, 0, 1.0)
    t += 1
    grad = grad + weight_decay * param
    mu, mu_next = (betas[0] * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
    product *= mu
    m = betas[0] * m + (1 - betas[0]) * grad
    v = betas[1] * v + (1 - betas[1]) * grad**2
    m_hat = mu_next / (1 - product * mu_next) * m + (1 - mu) / (1 - product) * grad
    v_hat = v / (1 - betas[1] ** t)
    return param - lr * m_hat / np.sqrt(v_hat + eps), (m, v, t, product)
