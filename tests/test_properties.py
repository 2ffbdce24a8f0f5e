"""What holds for every array library, profile, dtype, shape and layout alike."""

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
from refopt.interp.arrays import Device, Floats, dtype_name, init, namespace_of, run
from refopt.interp.formats import COMPLEX
from refopt.oracle import golden
from refopt.oracle.verdict import judge
from refopt.rules import nadam

SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 3, 2)]
NUMBERS = {"host": Floats(), "device": Device()}
# A counter that skips turns must know its count: it cannot stay on the device.
ON_DEVICE = sorted(
    name for name, p in nadam.PROFILES.items() if p.choices.counter is not nadam.traced_variable
)

quick = settings(max_examples=6, suppress_health_check=list(HealthCheck))
library_rows = pytest.mark.parametrize("make", LIBRARIES)


class Case(NamedTuple):
    profile: Any
    hyper: Any
    params: Sequence[np.ndarray]
    grads: Sequence[Sequence[np.ndarray | None]]  # for each step, for each parameter
    dtype: str
    layout: str
    maximizes: bool = False


@st.composite
def cases(draw, dtypes, steps=3, special=False, profiles=tuple(nadam.PROFILES), shapes=SHAPES):
    profile = nadam.PROFILES[draw(st.sampled_from(profiles))]
    dtype = draw(st.sampled_from(dtypes))
    shapes = draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def values(shape):
        x = random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape)
        if special:
            odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, 1e-30])
            x = np.where(random.random(shape) < 0.3, random.choice(odd, shape), x)
        if dtype.startswith("complex"):
            # Standard operations alone cannot join an infinite part to a finite one.
            x = np.nan_to_num(x) + 1j * random.standard_normal(shape)
        with np.errstate(over="ignore"):
            return np.asarray(x).astype("c16" if dtype.startswith("complex") else "f8")

    grads = [[values(s) if random.random() < 0.8 else None for s in shapes] for _ in range(steps)]
    hyper = profile.hyper._replace(
        lr=draw(st.sampled_from([0.5, 1e-2])),
        epsilon=draw(st.sampled_from([1e-8, 0.25])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        momentum_decay=draw(st.sampled_from([4e-3, 1.0])),
    )
    maximizes = draw(st.booleans())
    choices = nadam.configured(profile.choices, hyper, {"maximize": maximizes})
    layout = draw(st.sampled_from(LAYOUTS))
    params = [values(s) for s in shapes]
    return Case(profile._replace(choices=choices), hyper, params, grads, dtype, layout, maximizes)


class Run(NamedTuple):
    """Everything that goes into the next step."""

    params: list
    states: list
    clocks: list


def started(library, case, num):
    with np.errstate(over="ignore"):  # 1e30 in 16 bits
        params = [library.array(x, case.dtype, case.layout) for x in case.params]
    pairs = [init(nadam, case.profile, param, num) for param in params]
    return Run(params, [state for state, _ in pairs], [clock for _, clock in pairs])


def put(library, case, grads):
    with np.errstate(over="ignore"):
        return [None if g is None else library.array(g, case.dtype, case.layout) for g in grads]


@cache
def stepper(profile, hyper, num, jitted):
    def step(params, grads, states, clocks):
        return run(nadam, profile, params, grads, states, clocks, hyper, num)

    if not jitted:
        return step
    import jax

    return jax.jit(step)


def stepped(library, case, now, grads, num):
    """One step: (what follows, quantities)."""
    step = stepper(case.profile, case.hyper, num, library.jitted)
    quantities, states, clocks = step(now.params, grads, now.states, now.clocks)
    params = [p if q is None else q.param for p, q in zip(now.params, quantities, strict=True)]
    return Run(params, states, clocks), quantities


def trajectory(library, case, num):
    """Host copies of parameters and moments after each step."""
    now, seen = started(library, case, num), []
    for grads in case.grads:
        if any(g is not None for g in grads):
            now, _ = stepped(library, case, now, put(library, case, grads), num)
        seen += [np.array(library.get(x)) for x in arrays_of(now)]
    return seen


def arrays_of(now):
    return [*now.params, *(x for state in now.states for x in state)]


def examples(library, n=6):
    return settings(quick, max_examples=2 if library.slow else n)


def numbers_for(library):
    return [Device()] if library.jitted else [Floats(), Device()]


@library_rows
def test_dtype_shape_place_and_layout_are_kept(make):
    library = make()

    @examples(library)
    @given(st.data())
    def holds(data):
        num = data.draw(st.sampled_from(numbers_for(library)))
        profiles = list(nadam.PROFILES) if num == Floats() else ON_DEVICE
        case = data.draw(cases(library.dtypes, steps=1, profiles=profiles))
        with library.session():
            before = started(library, case, num)
            grads = put(library, case, case.grads[0])
            if all(g is None for g in grads):
                return
            after, quantities = stepped(library, case, before, grads, num)
            for param, grad, q, old, new in zip(
                before.params, grads, quantities, before.states, after.states, strict=True
            ):
                assert (q is None) == (grad is None)
                kept = [*old, *new] if q is None else [*old, *new, q.param, q.m, q.v]
                for x in kept:
                    assert type(x) is type(param)
                    assert dtype_name(x) == case.dtype
                    assert tuple(x.shape) == tuple(param.shape)
                    assert library.place(x) == library.place(param)
                if library.strides:
                    assert [library.strides(x) for x in new] == [library.strides(x) for x in old]
                    if case.layout != "strided":
                        assert library.strides(old.m) == library.strides(param)

    holds()
    # Every dtype and every profile has its turn on every library, whatever hypothesis draws.
    for dtype in library.dtypes:
        once(library, "documented", dtype)
    for name in nadam.PROFILES if not library.jitted else ["torch-2.13-capturable"]:
        once(library, name, library.dtypes[-1])


def once(library, name, dtype):
    profile = nadam.PROFILES[name]
    case = Case(
        profile,
        profile.hyper._replace(lr=0.5),
        [np.ones((2, 3))],
        [[np.full((2, 3), 0.5)]],
        dtype,
        "C",
    )
    with library.session():
        now = started(library, case, numbers_for(library)[0])
        grads = put(library, case, case.grads[0])
        after, _ = stepped(library, case, now, grads, numbers_for(library)[0])
        for x in arrays_of(after):
            assert dtype_name(x) == dtype
        assert not same_bits(library.get(after.states[0].m), library.get(now.states[0].m))


@library_rows
def test_arguments_are_not_written(make):
    library = make()

    @examples(library)
    @given(st.data())
    def holds(data):
        num = data.draw(st.sampled_from(numbers_for(library)))
        profiles = ["documented", "torch-2.13", "torch-2.13-capturable"]
        case = data.draw(cases(library.dtypes, steps=2, special=True, profiles=profiles))
        with library.session():
            now = started(library, case, num)
            for host in case.grads:
                grads = put(library, case, host)
                if all(g is None for g in grads):
                    continue
                given_arrays = [*arrays_of(now), *(g for g in grads if g is not None)]
                before = [np.array(library.get(x)) for x in given_arrays]
                clocks = copy.copy(now.clocks)
                lists = [list(now.params), list(now.states), list(grads)]
                after, _ = stepped(library, case, now, grads, num)
                for x, old in zip(given_arrays, before, strict=True):
                    assert same_bits(library.get(x), old)
                assert all(a is b for a, b in zip(now.clocks, clocks, strict=True))
                for mine, old in zip([now.params, now.states, grads], lists, strict=True):
                    assert all(a is b for a, b in zip(mine, old, strict=True))
                now = after

    holds()


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("make", [row for row in LIBRARIES if not row.marks])
def test_exact_libraries_agree_with_numpy_to_the_bit(make, numbers):
    library, reference, num = make(), _numpy(), NUMBERS[numbers]
    profiles = ON_DEVICE if num == Device() else tuple(nadam.PROFILES)

    @examples(library, 15)
    @given(cases(library.dtypes, special=True, profiles=profiles))
    def holds(case):
        with library.session():
            ours = trajectory(library, case, num)
        theirs = trajectory(reference, case, num)
        for a, b in zip(ours, theirs, strict=True):
            assert same_bits(a, b), (a, b)

    assert library.exact
    holds()


@library_rows
def test_results_lie_inside_the_envelope_of_the_profile(make):
    library = make()
    num = numbers_for(library)[0]
    profiles = ["torch-2.13-capturable"] if library.jitted else tuple(nadam.PROFILES)

    @examples(library, 25)
    @given(cases(library.dtypes, special=True, profiles=profiles))
    def holds(case):
        with library.session():
            recorded, observed = recording(library, case, num)
        verdict = judge(nadam, recorded, observed, case.profile, axes=False, flush=library.flushes)
        assert verdict.checks > 0
        assert verdict.first is None

    holds()


def recording(library, case, num):
    """A run as the oracle reads it: exact values, complex as pairs."""

    def values(x):
        x = np.asarray(library.get(x)).ravel()
        x = x.view(x.real.dtype) if x.dtype.kind == "c" else x
        return [float(y) for y in x]

    def number_dtype(x):
        return str(getattr(x, "dtype", "float64")).rpartition(".")[2]

    now, n = started(library, case, num), len(case.params)
    params, grads, steps = [values(x) for x in now.params], [], {}
    for t, host in enumerate(case.grads, 1):
        given_grads = put(library, case, host)
        grads.append([None if g is None else values(g) for g in given_grads])
        if any(g is not None for g in given_grads):
            now, _ = stepped(library, case, now, given_grads, num)
        steps[t] = {
            "param": [values(x) for x in now.params],
            "m": [values(state.m) for state in now.states],
            "v": [values(state.v) for state in now.states],
            "product": [[float(clock.product)] for clock in now.clocks],
        }
    dtypes = [COMPLEX.get(case.dtype, case.dtype)] * n
    recorded = golden.Case(
        id="drawn",
        comment="",
        tags=[],
        hyper=case.hyper._asdict(),
        options={"maximize": int(case.maximizes)},
        groups=[(list(range(n)), {})],
        changes={},
        dtypes=dtypes,
        shapes=[list(x.shape) for x in case.params],
        params=params,
        steps=len(grads),
        grads=grads,
        source={},
    )
    product = [number_dtype(clock.product) for clock in now.clocks]
    kinds = {"param": dtypes, "m": dtypes, "v": dtypes, "product": product}
    return recorded, golden.Run(case.profile.name, steps, kinds)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_host_never_waits_for_the_device(numbers):
    library, num = _standin(), NUMBERS[numbers]

    @settings(quick, max_examples=20)
    @given(cases(library.dtypes, profiles=ON_DEVICE))
    def holds(case):
        from cupy_standin import ndarray

        now = started(library, case, num)
        ndarray.syncs = 0
        for host in case.grads:
            grads = put(library, case, host)
            if any(g is not None for g in grads):
                now, _ = stepped(library, case, now, grads, num)
        assert ndarray.syncs == 0
        if numbers == "device":
            assert all(isinstance(clock.product, ndarray) for clock in now.clocks)
            float(now.clocks[0].product)
            assert ndarray.syncs == 1, "the counter counts"

    holds()


@library_rows
def test_a_run_resumed_from_copies_goes_on_to_the_bit(make):
    library = make()

    @examples(library)
    @given(st.data())
    def holds(data):
        num = data.draw(st.sampled_from(numbers_for(library)))
        profiles = ["documented", "torch-2.13", "torch-2.13-capturable", "keras-3", "paddle-3.3"]
        case = data.draw(cases(library.dtypes, steps=4, profiles=profiles))
        k = data.draw(st.integers(0, 3))
        with library.session():
            whole = trajectory(library, case, num)
            now, seen = started(library, case, num), []
            for t, host in enumerate(case.grads):
                if t == k:
                    now = copy.deepcopy(now)
                grads = put(library, case, host)
                if any(g is not None for g in grads):
                    now, _ = stepped(library, case, now, grads, num)
                seen += [np.array(library.get(x)) for x in arrays_of(now)]
        assert all(same_bits(a, b) for a, b in zip(whole, seen, strict=True))

    holds()


@library_rows
def test_an_object_resumed_from_a_file_goes_on_to_the_bit(make, tmp_path):
    library = make()

    def made(case, params):
        h = case.hyper
        return refopt.NAdam(
            [refopt.Parameter(x) for x in params],
            h.lr,
            (h.beta1, h.beta2),
            h.epsilon,
            h.weight_decay,
            h.momentum_decay,
            maximize=case.maximizes,
            capturable=library.jitted,
            profile=case.profile.name,
        )

    def trained(case, resumed_before):
        optimizer, seen = made(case, started(library, case, Floats()).params), []
        for t, host in enumerate(case.grads):
            params = optimizer.param_groups[0]["params"]
            if t == resumed_before:
                refopt.save(optimizer.state_dict(), tmp_path / "state")
                optimizer = made(case, [copy.deepcopy(p.data) for p in params])
                optimizer.load_state_dict(refopt.load(tmp_path / "state"))
                params = optimizer.param_groups[0]["params"]
            for param, grad in zip(params, put(library, case, host), strict=True):
                param.grad = grad
            optimizer.step()
            moments = [
                optimizer.state[p][key]
                for p in params
                if p in optimizer.state
                for key in ("exp_avg", "exp_avg_sq")
            ]
            seen += [np.array(library.get(x)) for x in (*(p.data for p in params), *moments)]
        return seen

    @examples(library)
    @given(st.data())
    def holds(data):
        # torch's cast of the product on load is exact for float32 parameters alone
        profile = data.draw(st.sampled_from(["documented", "keras-3", "torch-2.13"]))
        dtypes = ["float32"] if profile == "torch-2.13" else library.dtypes
        case = data.draw(cases(dtypes, steps=4, profiles=[profile]))
        k = data.draw(st.integers(1, 3))
        with library.session():
            whole, resumed = trained(case, None), trained(case, k)
        assert len(whole) == len(resumed)
        assert all(same_bits(a, b) for a, b in zip(whole, resumed, strict=True))

    holds()


@pytest.mark.jax
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_sharded_parameter_keeps_its_sharding(dtype, numbers):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices()[:4])
    assert devices.size == 4, "JAX was started before tests/backends.py set its flags"
    mesh = Mesh(devices.reshape(2, 2), ("x", "y"))
    num = NUMBERS[numbers]
    for spec in (PartitionSpec("x", "y"), PartitionSpec("x", None), PartitionSpec(None, None)):
        sharding = NamedSharding(mesh, spec)
        host = np.arange(32, dtype="f4").reshape(4, 8)
        param = jax.device_put(jax.numpy.asarray(host).astype(dtype), sharding)
        grad = jax.device_put(0.5 * param + 1, sharding)
        for name in ON_DEVICE:
            profile = nadam.PROFILES[name]
            state, clock = init(nadam, profile, param, num)
            (q,), (new,), _ = run(
                nadam, profile, [param], [grad], [state], [clock], profile.hyper, num
            )
            for x in (*state, *new, q.param):
                assert x.sharding.is_equivalent_to(sharding, x.ndim), (name, spec, x.sharding)


@pytest.mark.jax
@pytest.mark.parametrize("name", ["documented", "torch-2.13", "torch-2.13-capturable", "keras-3"])
def test_jit_traces_once_in_twenty_steps_with_the_clock_outside(name):
    import jax

    profile, traces = nadam.PROFILES[name], []
    choices = nadam.configured(profile.choices, nadam.Hyper(weight_decay=0.1), {})
    param = jax.numpy.asarray([1.0, -2.0, 3.0], dtype="float32")
    num = Floats().of(param)
    settled = nadam.settle(profile.hyper, choices, num=num)

    @jax.jit
    def step(param, grad, state, scalars):
        traces.append(name)
        space = namespace_of(param)
        return nadam.step(param, grad, state, scalars, settled, choices, xp=space)

    state, clock = init(nadam, profile, param)
    for t in range(20):
        hyper = profile.hyper._replace(lr=0.1 / (t + 1), weight_decay=0.1)
        scalars, clock = nadam.tick(clock, hyper, choices, num=num)
        q, state = step(param, 2 * param, state, scalars)
        assert bool((q.param != param).all())
        param = q.param
    assert param.dtype == "float32"
    assert len(traces) == 1


@pytest.mark.jax
def test_jit_traces_once_in_twenty_steps_with_the_clock_inside():
    import jax

    profile, traces = nadam.PROFILES["torch-2.13-capturable"], []
    param = jax.numpy.asarray([1.0, -2.0, 3.0], dtype="float32")

    @jax.jit
    def step(param, state, clock):
        traces.append(1)
        (q,), (state,), (clock,) = run(
            nadam, profile, [param], [2 * param], [state], [clock], profile.hyper, Device()
        )
        return q.param, state, clock

    state, clock = init(nadam, profile, param, Device())
    for _ in range(20):
        param, state, clock = step(param, state, clock)
    assert float(clock.t) == 20
    assert len(traces) == 1
