"""The rule of an optimizer with every hyperparameter that may have been taken for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from refopt.oracle import spec

DECAYS = ("beta1", "beta2", "rho", "momentum", "ema_momentum", "factor_decay")


def own(named: dict[str, Any], choices: Any, axis: str) -> str:
    """The alternative on an axis that is chosen; of a rule without the axis none is mistaken."""
    return next((n for n, x in named.items() if x is getattr(choices, axis, None)), "as-given")


@cache
def mistaken(optimizer: str) -> ModuleType:
    """The rule of an optimizer, and every hyperparameter that may have been taken for another."""
    rule = spec.RULES[optimizer]
    given = {**rule.AXES.get("given", {"as-given": _as_given}), **dict(_mistakes(optimizer))}
    axes = {**rule.AXES, "given": given}
    return cast(ModuleType, SimpleNamespace(**{**vars(rule), "AXES": axes}))


def _as_given(h: Any) -> Any:
    return h


def _mistakes(optimizer: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """(name, what it makes of the hyperparameters) of each mistake that no axis has.

    A release's default or 0 whatever is given; of a decay its complement, or one in another's
    place.
    """
    rule = spec.RULES[optimizer]
    sample = rule.Hyper(*(1 / (n + 3) for n, _ in enumerate(rule.Hyper._fields)))
    known = [mistake(sample) for mistake in rule.AXES.get("given", {}).values()]
    for name, mistake in _every_mistake(optimizer):
        if mistake(sample) not in known:
            yield name, mistake


def _every_mistake(optimizer: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    rule, described = spec.RULES[optimizer], spec.load(optimizer)["hyperparameters"]
    fields = [q for q in rule.Hyper._fields if q in described]
    decays = [q for q in fields if q in DECAYS]
    for q in fields:
        defaults = {getattr(profile.hyper, q) for profile in rule.PROFILES.values()}
        numbers = {x for x in defaults if isinstance(x, int | float) and not isinstance(x, bool)}
        limits = described[q].get("range", {})
        allowed = limits.get("least", 0) <= 0 and limits.get("above", -1) < 0
        real = q in rule.REQUIRED or any(isinstance(x, float) for x in numbers)
        zero = {0.0} if allowed and real else set()
        for x in sorted(numbers | zero):
            yield f"{q}:{x:g}", partial(_put, q, x)
        if q in decays:
            yield f"{q}:1-{q}", partial(_complement, q)
    for one, other in pairwise(decays):
        yield f"{one}:{other}", partial(_swap, one, other)


def _put(q: str, x: float, h: Any) -> Any:
    return h._replace(**{q: x})


def _complement(q: str, h: Any) -> Any:
    return h._replace(**{q: 1 - getattr(h, q)})


def _swap(one: str, other: str, h: Any) -> Any:
    return h._replace(**{one: getattr(h, other), other: getattr(h, one)})
