"""NAdam, transcribed from its documentation at arbitrary precision.

Source: torch.optim.NAdam, PyTorch 2.2 documentation, the algorithm block (after Dozat 2016,
"Incorporating Nesterov Momentum into Adam"). The lines below keep the order and the letters of that
block. Nothing here imports, or was written from, another implementation: it checks them.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from mpmath import fprod, mp, mpf, sqrt


def run(
    params: Sequence[Sequence[float]],
    grads: Sequence[Sequence[Sequence[float] | None]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    momentum_decay: float,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
    digits: int = 100,
) -> list[list[dict[str, Any]]]:
    """Run NAdam from m_0 = v_0 = 0 and report every quantity of every step.

    Every number passed in stands for its exact float64 value, and so does the constant of the
    formula: 0.96 is the float64 nearest to 0.96 (1/2 is exact).

    Args:
        params: theta_0, one list of elements per parameter.
        grads: per step and per parameter, the gradient's elements, or None. The block does not
            treat an absent gradient; here it leaves that parameter, its own t included, as it was.
        lr: gamma.
        betas: (beta_1, beta_2).
        eps: epsilon, added to the root of v_hat.
        weight_decay: lambda.
        momentum_decay: psi.
        decoupled_weight_decay: shrink theta instead of adding lambda theta to the gradient.
        maximize: negate the gradient before anything else (an option newer than the source).
        digits: decimal digits of the arithmetic, at least 17 so that float64 values are exact.

    Returns:
        Per step and per parameter, a dict: t (int), the scalars mu = mu_t, mu_next = mu_(t+1) and
        product = mu_1 ... mu_t, and the element lists m, v, m_hat, v_hat and param = theta_t.
        Before its first gradient a parameter has t = 0, product = 1, m = v = 0, and None for mu,
        mu_next, m_hat, v_hat. A skipped step repeats the record before it.
        The values keep `digits` digits; arithmetic on them needs `mpmath.workdps` as well.

    Raises:
        ValueError: `digits` is below 17, or lists that belong together differ in length.
        ZeroDivisionError: a denominator is zero, for example g = eps = 0 at the first step.
    """
    if digits < 17:
        message = f"digits must be at least 17 to hold a float64 exactly, got {digits}"
        raise ValueError(message)
    with mp.workdps(digits):
        gamma, epsilon, lambda_, psi = map(mpf, (lr, eps, weight_decay, momentum_decay))
        beta_1, beta_2 = map(mpf, betas)

        @cache
        def mu(t: int) -> mpf:
            return beta_1 * (1 - mpf(0.96) ** (t * psi) / 2)

        def element(t: int, g_t: mpf, theta_before: mpf, m: mpf, v: mpf) -> tuple[mpf, ...]:
            if maximize:
                g_t = -g_t
            theta_t = theta_before
            if lambda_ != 0:
                if decoupled_weight_decay:
                    theta_t = theta_before - gamma * lambda_ * theta_before
                else:
                    g_t = g_t + lambda_ * theta_before
            m_t = beta_1 * m + (1 - beta_1) * g_t
            v_t = beta_2 * v + (1 - beta_2) * g_t**2
            m_hat = mu(t + 1) * m_t / (1 - fprod(mu(i) for i in range(1, t + 2)))
            m_hat += (1 - mu(t)) * g_t / (1 - fprod(mu(i) for i in range(1, t + 1)))
            v_hat = v_t / (1 - beta_2**t)
            theta_t = theta_t - gamma * m_hat / (sqrt(v_hat) + epsilon)
            return theta_t, m_t, v_t, m_hat, v_hat

        def step(before: dict[str, Any], g: Sequence[float]) -> dict[str, Any]:
            t = before["t"] + 1
            inputs = zip(map(mpf, g), before["param"], before["m"], before["v"], strict=True)
            rows = [element(t, *row) for row in inputs]
            names = enumerate(("param", "m", "v", "m_hat", "v_hat"))
            scalars = {
                "mu": mu(t),
                "mu_next": mu(t + 1),
                "product": fprod(map(mu, range(1, t + 1))),
            }
            return {"t": t, **scalars, **{name: [row[k] for row in rows] for k, name in names}}

        nothing = dict.fromkeys(("mu", "mu_next", "m_hat", "v_hat"))
        state = [
            {"t": 0, "product": mpf(1), "param": [*map(mpf, p)], "m": zeros, "v": zeros, **nothing}
            for p in params
            for zeros in [[mpf(0)] * len(p)]
        ]
        steps = []
        for gradients in grads:
            pairs = zip(state, gradients, strict=True)
            state = [before if g is None else step(before, g) for before, g in pairs]
            steps.append(state)
        return steps
