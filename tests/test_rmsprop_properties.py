"""RMSprop: what holds for every array library, profile, dtype, shape and layout alike."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from backends import LAYOUTS, LIBRARIES, _numpy, _standin, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refopt
from refopt.interp.arrays import Device, Floats, dtype_name, init, run
from refopt.interp.formats import COMPLEX
from refopt.oracle import golden
from refopt.oracle.verdict import judge
from refopt.rules import rmsprop as rule

SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 3, 2)]
FEW = [(), (2, 3)]  # where a library compiles or plans for each anew
PROFILES = tuple(rule.PROFILES)
NORMS = ("clipnorm", "global_clipnorm")
FORMS = ("norm", "global_norm", "value", "clip", "overwrite", "overwrite_count")
"""Axes whose alternatives any profile may have here."""

quick = settings(max_examples=6, suppress_health_check=list(HealthCheck))
library_rows = pytest.mark.parametrize("make", LIBRARIES)


class Rows(NamedTuple):
    """A sparse gradient on the host."""

    values: np.ndarray
    indices: tuple[int, ...]


class Case(NamedTuple):
    profile: Any
    hyper: Any
    options: dict[str, int]
    params: Sequence[np.ndarray]
    grads: Sequence[Sequence[Any]]  # for each step, for each parameter: array, Rows or None
    orders: Sequence[Sequence[int]]  # for each step
    dtype: str
    layout: str


@st.composite
def cases(draw, library, steps=3, special=False, profiles=PROFILES, exact=False):
    profile = rule.PROFILES[draw(st.sampled_from(profiles))]
    dtype = draw(st.sampled_from(library.dtypes[:: 2 if library.slow else 1]))
    drawn = st.sampled_from(FEW if library.slow else SHAPES)
    shapes = draw(st.lists(drawn, min_size=1, max_size=2 if library.slow else 3))
    if profile.choices.average is rule.by_position:  # which fails where shapes differ
        shapes = shapes[:1] * len(shapes)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def values(shape):
        x = random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape)
        if special:
            odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, 1e-30])
            x = np.where(random.random(shape) < 0.2, random.choice(odd, shape), x)
        if dtype.startswith("complex"):
            # Standard operations alone cannot join an infinite part to a finite one.
            x = np.nan_to_num(x) + 1j * random.standard_normal(shape)
        return np.asarray(x).astype("c16" if dtype.startswith("complex") else "f8")

    def gradient(shape):
        if random.random() < 0.2:
            return None
        if not shape or not shape[0] or library.jitted or random.random() < 0.7:
            return values(shape)
        rows = tuple(int(i) for i in random.integers(0, shape[0], random.integers(0, 5)))
        return Rows(values((len(rows), *shape[1:])), rows)

    # a jitted step has its clock inside, where the host cannot read the count that EMA needs
    options = {
        "centered": draw(st.integers(0, 1)),
        "use_ema": 0 if library.jitted else draw(st.integers(0, 1)),
    }
    limit = draw(st.sampled_from([None, "clipvalue", *(() if exact else NORMS)]))
    hyper = profile.hyper._replace(
        lr=draw(st.sampled_from([0.5, 1e-2])),
        rho=draw(st.sampled_from([0.9, 0.5])),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        epsilon=draw(st.sampled_from([1e-8, 0.25])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        ema_momentum=0.75,
        ema_overwrite_frequency=draw(st.sampled_from([None, 2])),
        **({limit: 1.5} if limit else {}),
    )
    forms = {axis: draw(st.sampled_from([*rule.AXES[axis].values()])) for axis in FORMS}
    choices = rule.configured(profile.choices, hyper, options)
    if profile.name != "documented":  # an object may have made the case
        choices = choices._replace(**forms)
    return Case(
        profile._replace(choices=choices),
        hyper,
        options,
        [values(shape) for shape in shapes],
        [[gradient(shape) for shape in shapes] for _ in range(steps)],
        [list(random.permutation(len(shapes)).tolist()) for _ in range(steps)],
        dtype,
        draw(st.sampled_from(LAYOUTS)),
    )


class Run(NamedTuple):
    """Everything that goes into the next step."""

    params: list
    states: list
    clocks: list


def number_system(library):
    return Device() if library.jitted else Floats()


def started(library, case):
    with np.errstate(over="ignore"):  # 1e30 in 16 bits
        params = [library.array(x, case.dtype, case.layout) for x in case.params]
    pairs = [init(rule, case.profile, param, number_system(library)) for param in params]
    return Run(params, [state for state, _ in pairs], [clock for _, clock in pairs])


def put(library, case, grads):
    def one(g, param):
        if isinstance(g, Rows):
            return rule.Rows(library.array(g.values, case.dtype), g.indices, param.shape[0])
        return None if g is None else library.array(g, case.dtype, case.layout)

    with np.errstate(over="ignore"):
        return [one(g, param) for g, param in zip(grads, case.params, strict=True)]


@cache
def jitted(profile, hyper, order):
    import jax

    return jax.jit(
        lambda params, grads, states, clocks: run(
            rule, profile, params, grads, states, clocks, hyper, Device(), order=list(order)
        )
    )


def stepped(library, case, now, t, grads):
    """Step `t`, from 0, where any gradient is given: (what follows, quantities)."""
    if all(g is None for g in grads):
        return now, [None for _ in grads]
    order = case.orders[t]
    if library.jitted:
        step = jitted(case.profile, case.hyper, tuple(order))
        quantities, states, clocks = step(now.params, grads, now.states, now.clocks)
    else:
        quantities, states, clocks = run(
            rule, case.profile, now.params, grads, now.states, now.clocks, case.hyper, order=order
        )
    params = [p if q is None else q.param for p, q in zip(now.params, quantities, strict=True)]
    return Run(params, states, clocks), quantities


def arrays_of(now):
    return [*now.params, *(x for state in now.states for x in state if x is not None)]


def values_of(grads):
    return [g.values if isinstance(g, rule.Rows) else g for g in grads if g is not None]


def trajectory(library, case):
    """Host copies of parameters and states after each step."""
    now, seen = started(library, case), []
    for t, grads in enumerate(case.grads):
        now, _ = stepped(library, case, now, t, put(library, case, grads))
        seen += [np.array(library.get(x)) for x in arrays_of(now)]
    return seen


def examples(library, n=6):
    return settings(quick, max_examples=2 if library.slow else n)


@library_rows
def test_dtype_shape_place_and_layout_are_kept(make):
    library = make()

    def kept(case):
        with library.session():
            before = started(library, case)
            grads = put(library, case, case.grads[0])
            after, quantities = stepped(library, case, before, 0, grads)
            for param, q, old, new in zip(
                before.params, quantities, before.states, after.states, strict=True
            ):
                assert [x is None for x in new] == [x is None for x in old]
                assert (old.a is None) == (not case.options["centered"])
                averages = case.profile.choices.average is not rule.no_average
                assert (old.average is None) == (not averages)
                for x in (*old, *new, None if q is None else q.param):
                    if x is None:
                        continue
                    assert type(x) is type(param)
                    assert dtype_name(x) == case.dtype
                    assert tuple(x.shape) == tuple(param.shape)
                    assert library.place(x) == library.place(param)
                if library.strides:
                    both = [(x, y) for x, y in zip(old, new, strict=True) if x is not None]
                    assert all(library.strides(x) == library.strides(y) for x, y in both)
            return after, before

    @examples(library)
    @given(cases(library, steps=1))
    def holds(case):
        kept(case)

    holds()
    # Every dtype and every profile has its turn on every library, whatever hypothesis draws; where
    # a step is compiled as a whole, every third profile.
    turns = [("documented", dtype) for dtype in library.dtypes]
    turns += [(name, library.dtypes[-1]) for name in PROFILES[:: 3 if library.jitted else 1]]
    for name, dtype in turns:
        after, before = kept(once(library, name, dtype))
        with library.session():
            assert not same_bits(library.get(after.states[0].v), library.get(before.states[0].v))


def once(library, name, dtype):
    profile, ema = rule.PROFILES[name], int(not library.jitted)
    hyper = profile.hyper._replace(lr=0.5, momentum=0.9)
    options = {"centered": 1, "use_ema": ema}
    choices = rule.configured(profile.choices, hyper, options)
    return Case(
        profile._replace(choices=choices),
        hyper,
        options,
        [np.ones((2, 3))],
        [[np.full((2, 3), 0.5)]],
        [[0]],
        dtype,
        "C",
    )


@library_rows
def test_arguments_are_not_written(make):
    library = make()

    @examples(library)
    @given(cases(library, steps=2, special=True))
    def holds(case):
        with library.session():
            now = started(library, case)
            for t, host in enumerate(case.grads):
                grads = put(library, case, host)
                given_arrays = [*arrays_of(now), *values_of(grads)]
                before = [np.array(library.get(x)) for x in given_arrays]
                lists = [list(part) for part in (*now, grads)]
                after, _ = stepped(library, case, now, t, grads)
                for x, old in zip(given_arrays, before, strict=True):
                    assert same_bits(library.get(x), old)
                for mine, old in zip((*now, grads), lists, strict=True):
                    assert all(a is b for a, b in zip(mine, old, strict=True))
                now = after

    holds()


@library_rows
def test_an_average_is_no_alias_of_its_parameter(make):
    library = make()
    if library.jitted:
        pytest.skip("a jitted step keeps no average")
    with library.session():
        for name in PROFILES:
            case = once(library, name, "float32")
            if case.profile.choices.average is rule.no_average:
                continue
            now = started(library, case)
            before = np.array(library.get(now.states[0].average))
            now.params[0] = refopt.interp.arrays.write(now.params[0], 7 * now.params[0])
            assert same_bits(library.get(now.states[0].average), before)
            assert same_bits(before, np.ones((2, 3), "f4"))


@pytest.mark.parametrize("make", [row for row in LIBRARIES if not row.marks])
def test_exact_libraries_agree_with_numpy_to_the_bit(make):
    library, reference = make(), _numpy()

    # dask adds up a norm chunk by chunk
    @examples(library, 25)
    @given(cases(library, special=True, exact=library.name == "dask"))
    def holds(case):
        with library.session():
            ours = trajectory(library, case)
        for a, b in zip(ours, trajectory(reference, case), strict=True):
            assert same_bits(a, b), (a, b)

    assert library.exact
    holds()


@library_rows
def test_results_lie_inside_the_envelope_of_the_profile(make):
    library = make()

    @examples(library, 25)
    @given(cases(library, special=True))
    def holds(case):
        if sum(x.size for x in case.params) == 0:
            return
        with library.session():
            recorded, observed = recording(library, case)
        verdict = judge(rule, recorded, observed, case.profile, axes=False, flush=library.flushes)
        assert verdict.checks > 0
        assert verdict.first is None

    holds()


def recording(library, case):
    """A run as the oracle reads it: exact values, complex as pairs."""

    def values(x):
        x = np.asarray(library.get(x)).ravel()
        x = x.view(x.real.dtype) if x.dtype.kind == "c" else x
        return [float(y) for y in x]

    def taken(g):
        if isinstance(g, rule.Rows):
            return golden.Sparse(values(g.values), g.indices)
        return None if g is None else values(g)

    now, n = started(library, case), len(case.params)
    params, grads, steps = [values(x) for x in now.params], [], {}
    for t, host in enumerate(case.grads):
        given_grads = put(library, case, host)
        grads.append([taken(g) for g in given_grads])
        now, _ = stepped(library, case, now, t, given_grads)
        steps[t + 1] = {"param": [values(x) for x in now.params]} | {
            field: [values(getattr(state, field)) for state in now.states]
            for field in rule.State._fields
            if getattr(now.states[0], field) is not None
        }
    dtypes = [COMPLEX.get(case.dtype, case.dtype)] * n
    recorded = golden.Case(
        id="rmsprop.drawn",
        comment="",
        tags=[],
        hyper=case.hyper._asdict(),
        options=case.options,
        groups=[(list(range(n)), {})],
        changes={},
        dtypes=dtypes,
        shapes=[list(x.shape) for x in case.params],
        params=params,
        steps=len(grads),
        grads=grads,
        source={},
        orders={t: list(order) for t, order in enumerate(case.orders, 1)},
    )
    kinds = dict.fromkeys(("param", *rule.State._fields), dtypes)
    return recorded, golden.Run(case.profile.name, steps, kinds)


def test_the_host_never_waits_for_the_device():
    library = _standin()

    @settings(quick, max_examples=20)
    @given(cases(library))
    def holds(case):
        from cupy_standin import ndarray

        now = started(library, case)
        ndarray.syncs = 0
        for t, host in enumerate(case.grads):
            now, _ = stepped(library, case, now, t, put(library, case, host))
        assert ndarray.syncs == 0
        float(library.array(np.ones(())))
        assert ndarray.syncs == 1, "the counter counts"

    holds()


@library_rows
def test_a_run_resumed_from_copies_goes_on_to_the_bit(make):
    library = make()

    @examples(library)
    @given(cases(library, steps=4), st.integers(0, 3))
    def holds(case, k):
        with library.session():
            whole = trajectory(library, case)
            now, seen = started(library, case), []
            for t, host in enumerate(case.grads):
                if t == k:
                    now = copy.deepcopy(now)
                now, _ = stepped(library, case, now, t, put(library, case, host))
                seen += [np.array(library.get(x)) for x in arrays_of(now)]
        assert all(same_bits(a, b) for a, b in zip(whole, seen, strict=True))

    holds()


@pytest.mark.parametrize("make", [row for row in LIBRARIES if row.id != "jax-jit"])
def test_an_optimizer_saved_and_loaded_goes_on_to_the_bit(make, tmp_path):
    """N steps are k steps, a file, and N - k steps; under the documented rule, through objects."""
    library = make()

    def optimizer(case):
        h = case.hyper
        variables = [
            refopt.Variable(library.array(x, case.dtype, case.layout), name=str(i))
            for i, x in enumerate(case.params)
        ]
        opt = refopt.RMSprop(
            refopt.schedules.InverseTimeDecay(h.lr, 2, 0.5),
            h.rho,
            h.momentum,
            h.epsilon,
            bool(case.options["centered"]),
            clipnorm=h.clipnorm,
            clipvalue=h.clipvalue,
            global_clipnorm=h.global_clipnorm,
            use_ema=bool(case.options["use_ema"]),
            ema_momentum=h.ema_momentum,
            ema_overwrite_frequency=h.ema_overwrite_frequency,
        )
        opt.build(variables)
        return opt, variables

    def step(opt, variables, case, t):
        grads = put(library, case, case.grads[t])
        slices = [
            refopt.IndexedSlices(g.values, g.indices) if isinstance(g, rule.Rows) else g
            for g in grads
        ]
        pairs = [(slices[i], variables[i]) for i in case.orders[t] if slices[i] is not None]
        if pairs:
            opt.apply_gradients(pairs)

    @examples(library)
    @given(cases(library, steps=4, profiles=("documented",)), st.integers(0, 3))
    def holds(case, k):
        with library.session():
            opt, variables = optimizer(case)
            again, others = optimizer(case)
            for t in range(4):
                if t == k:
                    refopt.save(opt.state_dict(), tmp_path / "state")
                    again.load_state_dict(refopt.load(tmp_path / "state"))
                    for mine, theirs in zip(others, variables, strict=True):
                        mine.assign(library.get(theirs.data))
                step(opt, variables, case, t)
                if t >= k:
                    step(again, others, case, t)
            pairs = zip([*variables, *opt.variables], [*others, *again.variables], strict=True)
            for x, y in pairs:
                assert same_bits(np.asarray(x.numpy()), np.asarray(y.numpy())), x.name

    holds()
