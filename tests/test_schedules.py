"""Learning-rate schedules: their values by hand, their configs, and how an optimizer uses them."""

import inspect
import json
import math

import numpy as np
import pytest
from backends import same_bits

import refopt
from refopt import RMSprop, Variable, schedules
from refopt.interp.balls import precision
from refopt.interp.envelope import Reals
from refopt.oracle import golden
from refopt.rules import rmsprop as rule
from refopt.rules.schedules import SCHEDULES

ALL = [
    schedules.ExponentialDecay(0.5, 5, 0.25),
    schedules.ExponentialDecay(0.5, 5, 0.25, staircase=True),
    schedules.PiecewiseConstantDecay([2, 4], [0.5, 0.25, 0.125]),
    schedules.PolynomialDecay(0.5, 5, 0.0625, power=2.0),
    schedules.PolynomialDecay(0.5, 5, 0.0625, cycle=True),
    schedules.InverseTimeDecay(0.5, 5, 0.5),
    schedules.InverseTimeDecay(0.5, 5, 0.5, staircase=True),
    schedules.CosineDecay(0.5, 5, alpha=0.25),
    schedules.CosineDecayRestarts(0.5, 3, t_mul=2.0, m_mul=0.5, alpha=0.25),
    schedules.CosineDecayRestarts(0.5, 3, t_mul=1.0),
]
ids = [f"{type(s).__name__}-{i}" for i, s in enumerate(ALL)]


@pytest.mark.parametrize(
    ("schedule", "step", "value"),  # binary fractions: at these steps nothing is rounded
    [
        (ALL[0], 0, 0.5),
        (ALL[0], 5, 0.125),
        (ALL[0], 10, 0.03125),
        (ALL[1], 9, 0.125),
        (ALL[2], 2, 0.5),
        (ALL[2], 3, 0.25),
        (ALL[2], 4, 0.25),
        (ALL[2], 5, 0.125),
        (ALL[3], 0, 0.5),
        (ALL[3], 5, 0.0625),
        (ALL[3], 99, 0.0625),
        (ALL[4], 5, 0.0625),
        (ALL[4], 10, 0.0625),
        (ALL[5], 5, 1 / 3),  # rounded once
        (ALL[5], 10, 0.25),
        (ALL[6], 4, 0.5),
        (ALL[7], 0, 0.5),
        (ALL[7], 5, 0.125),
        (ALL[7], 50, 0.125),
        (ALL[8], 0, 0.5),
        (ALL[8], 3, 0.5 * (0.75 * 0.5 + 0.25)),
        (ALL[9], 3, 0.5),
        (ALL[9], 6, 0.5),
    ],
)
def test_values_that_are_known_by_hand(schedule, step, value):
    assert schedule(step) == value
    assert type(schedule(step)) is float
    assert schedule(np.int64(step)) == schedule(Variable(float(step))) == schedule(step)


def test_a_schedule_that_divides_by_nothing_is_nan_and_not_an_error():
    assert math.isnan(schedules.ExponentialDecay(0.1, 0, 0.5)(0))
    assert schedules.ExponentialDecay(1.0, 1, 10.0)(400) == math.inf


@pytest.mark.parametrize("schedule", ALL, ids=ids)
def test_no_step_has_no_rate(schedule):
    assert math.isnan(schedule(float("nan")))
    with pytest.raises(TypeError, match="step: a number is required, got '5'"):
        schedule("5")


def test_boundaries_and_values_may_come_one_by_one():
    schedule = schedules.PiecewiseConstantDecay(iter([2, 4]), iter([0.5, 0.25, 0.125]))
    assert [schedule(t) for t in (2, 3, 5)] == [0.5, 0.25, 0.125]


def test_every_schedule_of_the_rule_has_its_name_and_its_arguments():
    for name, function in SCHEDULES.items():
        ours = inspect.signature(getattr(schedules, name)).parameters
        theirs = inspect.signature(function).parameters
        expected = [n for n, p in theirs.items() if p.kind is p.KEYWORD_ONLY]
        assert list(ours) == [*expected, "name"]
        for key in expected:
            assert ours[key].default == theirs[key].default
    exported = [n for n in schedules.__all__ if inspect.isclass(getattr(schedules, n))]
    assert len(exported) == 7
    assert set(exported) == {*SCHEDULES, "LearningRateSchedule"}


@pytest.mark.parametrize("schedule", ALL, ids=ids)
def test_a_schedule_goes_through_json(schedule):
    config = json.loads(json.dumps(schedules.serialize(schedule)))
    again = schedules.deserialize(config)
    assert type(again) is type(schedule)
    assert [again(t) for t in range(12)] == [schedule(t) for t in range(12)]
    assert again.get_config() == schedule.get_config()


def test_arguments_of_numpy_go_through_json():
    schedule = schedules.PiecewiseConstantDecay(np.array([2, 4]), np.array([3.0, 2.0, 1.0]))
    assert json.loads(json.dumps(schedule.get_config()))["values"] == [3.0, 2.0, 1.0]
    assert schedules.CosineDecay(np.float32(0.5), np.int64(3), name="c").get_config() == {
        "initial_learning_rate": 0.5,
        "decay_steps": 3.0,
        "alpha": 0.0,
        "name": "c",
    }


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="values: one more than boundaries is required, got 2"):
        schedules.PiecewiseConstantDecay([1, 2], [0.1, 0.2])
    with pytest.raises(TypeError, match="decay_steps: a number is required, got '5'"):
        schedules.ExponentialDecay(0.1, "5", 0.5)
    with pytest.raises(TypeError, match=r"values\[1\]: a number is required"):
        schedules.PiecewiseConstantDecay([1], [0.1, None])


def test_the_base_says_what_a_subclass_defines():
    class Half(schedules.LearningRateSchedule):
        pass

    with pytest.raises(NotImplementedError, match=r"required to define __call__\(step\)"):
        Half()(0)
    with pytest.raises(NotImplementedError, match=r"required to define get_config\(\)"):
        Half().get_config()


class Warm(schedules.CosineDecay):
    """A user's schedule on top of one that is there."""

    def __call__(self, step):
        return super().__call__(step) if step > 1 else 0.0


def test_a_subclass_of_a_schedule_keeps_its_class():
    config = json.loads(json.dumps(schedules.serialize(Warm(0.1, 5))))
    assert config["module"] == __name__
    again = schedules.deserialize(config)
    assert type(again) is Warm
    assert [again(t) for t in (0, 1)] == [0.0, 0.0]
    assert again(2) == schedules.CosineDecay(0.1, 5)(2)


@pytest.mark.parametrize("schedule", [*ALL, Warm(0.1, 5), lambda step: 0.5 / (1 + step)])
def test_an_optimizer_takes_the_count_before_its_step(schedule):
    v, w = (Variable(np.array([1.0, -2.0])) for _ in range(2))
    opt, by_hand = RMSprop(schedule, momentum=0.9), RMSprop(momentum=0.9)
    assert float(opt.learning_rate) == schedule(0)
    for t in range(6):
        opt.apply_gradients([(np.array([0.5, 3.0]), v)])
        assert float(opt.learning_rate) == schedule(t), "that of the last step"
        by_hand.learning_rate = schedule(t)
        by_hand.apply_gradients([(np.array([0.5, 3.0]), w)])
    assert same_bits(v.numpy(), w.numpy())
    with pytest.raises(TypeError, match="learning_rate: it follows a schedule and cannot be set"):
        opt.learning_rate = 0.1


def test_a_function_that_gives_no_number_changes_nothing():
    v = Variable(np.array([1.0]))
    rates = iter([0.1, "a lot"])
    opt = RMSprop(lambda step: next(rates))
    with pytest.raises(TypeError, match="learning_rate: a number is required, got 'a lot'"):
        opt.apply_gradients([(np.array([0.5]), v)])
    assert (v.numpy(), int(opt.iterations)) == (1.0, 0)


LIBRARY = {"ExponentialDecay", "CosineDecay", "CosineDecayRestarts"}
"""Those that call a function of the C library; the others are operations of IEEE 754."""


def recorded():
    """(schedule, profile, recorded rates by step, dtype) of the releases that showed them."""
    for recording in golden.recordings("rmsprop"):
        given = recording.case.hyper.get("lr")
        for profile, run in recording.runs.items():
            rates = {t: step["lr"][0][0] for t, step in run.steps.items() if "lr" in step}
            if isinstance(given, golden.Schedule) and rates:
                dtype = recording.case.dtypes[0].replace("bfloat16", "float32")
                name = f"{recording.case.id}-{profile}"
                yield pytest.param(given, profile, rates, dtype, id=name)


@pytest.mark.parametrize(("given", "profile", "rates", "dtype"), list(recorded()))
def test_rates_are_those_that_releases_showed(given, profile, rates, dtype):
    schedule = getattr(schedules, given.name)(**given.config)
    opt = RMSprop(schedule, profile=profile)
    v = Variable(np.array([1.0], dtype))
    choices = rule.PROFILES[profile].choices
    for t in range(1, max(rates) + 1):
        opt.apply_gradients([(np.array([0.5], dtype), v)])
        if t not in rates:
            continue
        ours, shown = float(opt.learning_rate), rates[t]
        if given.name not in LIBRARY and given.config.get("power", 1) == 1:
            assert ours == shown or (math.isnan(ours) and math.isnan(shown))
        with precision():
            num = Reals(dtype)
            possible = num(rule.scheduled(given.name, given.config, t, choices, num=num)).x
            assert possible.holds(ours)
            assert possible.holds(shown)


def test_profiles_compute_schedules_in_their_own_dtype():
    late = schedules.PiecewiseConstantDecay([2.0**24], [0.5, 0.25])
    for profile, value in [("documented", 0.25), ("tf-2.9-experimental", 0.5)]:
        opt = RMSprop(late, profile=profile)
        opt.iterations = 2**24 + 1  # no number of float32
        opt.apply_gradients([(np.array([0.5]), Variable(np.array([1.0])))])
        assert float(opt.learning_rate) == value
    schedule = schedules.ExponentialDecay(0.1, 3, 0.7)
    assert float(RMSprop(schedule).learning_rate) == 0.1
    released = RMSprop(schedule, profile="tf-2.9-experimental")
    assert float(released.learning_rate) == float(np.float32(0.1))
    assert rule.PROFILES["tf-2.9-experimental"].choices.schedule is rule.schedule_float32
    assert refopt.schedules is schedules
