"""Learning-rate schedules under their Keras names, around `refopt.rules.schedules`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from refopt.interp.arrays import Exact
from refopt.optim.groups import number
from refopt.optim.parameter import kind
from refopt.rules.schedules import SCHEDULES
from refopt.typing import Number, Numbers


class LearningRateSchedule:
    """A learning rate that is a function of the step; the base of every schedule.

    A subclass defines `__call__(step)`, step the number of steps done before this one, and
    `get_config()`, the arguments that make it again. Its optimizer's config then holds its name,
    its module and these arguments, and `from_config` finds it where that module was imported.
    """

    _known: ClassVar[dict[tuple[str, str], type[LearningRateSchedule]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        LearningRateSchedule._known[cls.__module__, cls.__name__] = cls

    def __call__(self, step: Any) -> Any:
        """The learning rate of a step, from the number of steps before it."""
        msg = f"{kind(self)}: a schedule is required to define __call__(step)"
        raise NotImplementedError(msg)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make the schedule again, serialisable as JSON."""
        msg = f"{kind(self)}: a schedule is required to define get_config() to be in a config"
        raise NotImplementedError(msg)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LearningRateSchedule:
        """The schedule of a config."""
        return cls(**config)


class _Named(LearningRateSchedule):
    """A schedule of `refopt.rules.schedules`, its arguments kept as given."""

    def __init__(self, **config: Any) -> None:
        self._config = {key: _plain(key, x) for key, x in config.items()}

    def __call__(self, step: Any) -> float:
        """The learning rate of a step, in double precision; NaN has none."""
        num, s = Exact(), number("step", step)
        return s if np.isnan(s) else float(self.value(s, num, num))

    def value(self, step: Number, real: Callable[[Number], Number], num: Numbers) -> Number:
        """The same, in the numbers that `real` makes."""
        arguments = {key: x for key, x in self._config.items() if key != "name"}
        own = next(cls.__name__ for cls in type(self).__mro__ if cls.__module__ == __name__)
        result: Number = SCHEDULES[own](real(step), real, num, **arguments)
        return result

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return copy.deepcopy(self._config)


def _plain(name: str, x: Any) -> Any:
    """An argument as JSON knows it: numbers of NumPy and variables become Python's."""
    if isinstance(x, list):
        return [_plain(f"{name}[{i}]", y) for i, y in enumerate(x)]
    value = x if name == "name" else number(name, x)
    return x if isinstance(x, bool | int) else value


class ExponentialDecay(_Named):
    """i · rᵖ with p = step / decay_steps, rounded down if `staircase` (RMS-9.1)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            initial_learning_rate=initial_learning_rate,
            decay_steps=decay_steps,
            decay_rate=decay_rate,
            staircase=staircase,
            name=name,
        )


class PiecewiseConstantDecay(_Named):
    """values[k] from past boundaries[k - 1] up to boundaries[k] (RMS-9.2)."""

    def __init__(
        self, boundaries: Iterable[float], values: Iterable[float], name: str | None = None
    ) -> None:
        boundaries, values = list(boundaries), list(values)
        if len(values) != len([*boundaries, None]):
            msg = (
                "values: one more than boundaries is required, "
                f"got {len(values)} beside {len(boundaries)}"
            )
            raise ValueError(msg)
        super().__init__(boundaries=boundaries, values=values, name=name)


class PolynomialDecay(_Named):
    """(i - e)(1 - step / d)ᵖ + e until step d; then e, or `cycle` (RMS-9.3)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            initial_learning_rate=initial_learning_rate,
            decay_steps=decay_steps,
            end_learning_rate=end_learning_rate,
            power=power,
            cycle=cycle,
            name=name,
        )


class InverseTimeDecay(_Named):
    """i / (1 + r p) with p = step / decay_steps, rounded down if `staircase` (RMS-9.4)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            initial_learning_rate=initial_learning_rate,
            decay_steps=decay_steps,
            decay_rate=decay_rate,
            staircase=staircase,
            name=name,
        )


class CosineDecay(_Named):
    """From i along half a cosine to i α at step `decay_steps` (RMS-9.5)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            initial_learning_rate=initial_learning_rate,
            decay_steps=decay_steps,
            alpha=alpha,
            name=name,
        )


class CosineDecayRestarts(_Named):
    """A cosine decay that starts again over periods growing by t_mul, lower by m_mul (RMS-9.6)."""

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            initial_learning_rate=initial_learning_rate,
            first_decay_steps=first_decay_steps,
            t_mul=t_mul,
            m_mul=m_mul,
            alpha=alpha,
            name=name,
        )


def serialize(schedule: LearningRateSchedule) -> dict[str, Any]:
    """A schedule as a config: its class, and the arguments that make it again."""
    config = {"class_name": type(schedule).__name__, "config": schedule.get_config()}
    if not isinstance(schedule, _Named) or type(schedule).__module__ != __name__:
        config["module"] = type(schedule).__module__
    return config


def deserialize(config: Mapping[str, Any]) -> LearningRateSchedule:
    """The schedule of a config; see `serialize`.

    Raises
    ------
    ValueError
        No such schedule is defined; a module that was not imported defines none. No config.

    """
    if not {"class_name", "config"} <= set(config):
        msg = f"learning_rate: class_name and config are required, got {dict(config)!r}"
        raise ValueError(msg)
    module, name = config.get("module", __name__), config["class_name"]
    found = LearningRateSchedule._known.get((module, name))
    if found is None:
        msg = f"learning_rate: a schedule that is defined is required, got {name!r} of {module}"
        raise ValueError(msg)
    return found.from_config(config["config"])


def rate(schedule: Any, step: int, real: Callable[[Number, Numbers], Number]) -> float:
    """The learning rate of a schedule, a callable, in the numbers that `real` makes."""
    num = Exact()
    if isinstance(schedule, _Named) and type(schedule).__call__ is _Named.__call__:
        return float(schedule.value(step, lambda x: real(x, num), num))
    return number("learning_rate", schedule(step))


__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]
