"""The fused run gives the bits of the plain one, in place, as a whole or not at all."""

import collections
import copy
import inspect
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest
from backends import same_bits

import refopt
from refopt.interp import arrays, fused
from refopt.oracle import own, suite
from refopt.rules import nadam, rmsprop

RULES = {"nadam": nadam, "rmsprop": rmsprop}
DTYPES = ("float32", "float64", "float16", "complex64")
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38, 1e-320, 6e-8, 1.0, -1.0]


@pytest.fixture
def tape(monkeypatch):
    monkeypatch.setattr(fused, "engine", lambda: "tape")


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    pytest.importorskip("numba", reason="refopt[fast]")
    monkeypatch.setenv("REFOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(fused, "engine", lambda: "numba")
    for cached in (fused._kernel, fused._writable_folder):
        cached.cache_clear()
    yield tmp_path
    for cached in (fused._kernel, fused._writable_folder):
        cached.cache_clear()


def numbers(shape, dtype, seed):
    """Numbers of many sizes, and those at which arithmetic is special."""
    rng = np.random.default_rng(seed)
    real = rng.standard_normal((2, np.prod(shape, dtype=int)))
    real *= 10.0 ** rng.integers(-6, 6, real.shape)
    k = min(len(EDGES), real.shape[1])
    real[:, :k] = EDGES[:k]
    with np.errstate(all="ignore"):
        x = real.astype("f4" if dtype in ("complex64", "float16") else dtype)
        x = np.stack(list(x), -1).view("c8")[:, 0] if dtype == "complex64" else x[0].astype(dtype)
    return x.reshape(shape)


def same(x, y):
    """Equal bits; any NaN equals any NaN."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    real = x.real.dtype
    bits = np.dtype(f"u{real.itemsize}")
    x, y = x.reshape(-1).view(real), y.reshape(-1).view(real)
    equal = (x.view(bits) == y.view(bits)) | (np.isnan(x) & np.isnan(y))
    return x.shape == y.shape and bool(equal.all())


def configured(rule, profile, **options):
    hyper = profile.hyper._replace(weight_decay=options.pop("decay", 0.0))
    if rule is rmsprop:
        hyper = hyper._replace(momentum=options.pop("momentum", 0.0))
    return profile._replace(choices=rule.configured(profile.choices, hyper, options)), hyper


def variants():
    """Every profile with and without what can be off, and every choice on every axis."""
    for name, rule in RULES.items():
        for profile, on in itertools.product(rule.PROFILES.values(), (False, True)):
            extra = {"momentum": 0.9 * on, "centered": on} if rule is rmsprop else {}
            yield name, (profile.name, on), configured(rule, profile, decay=0.1 * on, **extra)
        extra = {"momentum": 0.9, "centered": True, "use_ema": True} if rule is rmsprop else {}
        profile, hyper = configured(rule, rule.PROFILES["documented"], decay=0.1, **extra)
        for axis, alternatives in rule.AXES.items():
            for alternative, choice in alternatives.items():
                changed = profile._replace(choices=profile.choices._replace(**{axis: choice}))
                yield name, (axis, alternative), (changed, hyper)


def differences(rule, profile, hyper, dtype, steps=2, shape=(3, 101)):
    """Where the fused run of a rule differs from the plain one."""
    runs = []
    for ran in (rule, fused.fused(rule, profile.half)):
        param = numbers(shape, dtype, 0)
        state, clock = arrays.init(rule, profile, param)
        for t in range(steps):
            grad = numbers(shape, dtype, t + 1)
            (q,), (state,), (clock,) = arrays.run(
                ran, profile, [param], [grad], [state], [clock], hyper
            )
            param = q.param
        runs.append({"param": param, **state._asdict(), "clock": np.array(clock)})
    plain, other = runs
    assert [x is None for x in plain.values()] == [x is None for x in other.values()]
    return [k for k, x in plain.items() if x is not None and not same(x, other[k])]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tape_has_the_bits_of_the_plain_run_for_every_profile_and_choice(tape, dtype):
    found = {
        (name, variant): wrong
        for name, variant, (profile, hyper) in variants()
        if (wrong := differences(RULES[name], profile, hyper, dtype))
    }
    assert found == {}


def some():
    """Programs that have every operation, one for each rule."""
    profile, hyper = configured(nadam, nadam.PROFILES["torch-2.13"], decay=0.1, maximize=True)
    choices = profile.choices._replace(reading=nadam.read_in_float32)
    yield nadam, (profile._replace(choices=choices), hyper)
    options = {"decay": 0.1, "momentum": 0.9, "centered": True}
    profile, hyper = configured(rmsprop, rmsprop.PROFILES["documented"], **options)
    choices = profile.choices._replace(variance=rmsprop.clamped)
    yield rmsprop, (profile._replace(choices=choices), hyper)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compiled_loop_has_the_bits_of_the_plain_run(compiled, dtype):
    for rule, (profile, hyper) in some():
        assert differences(rule, profile, hyper, dtype, shape=(7001,)) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compiled_loop_has_the_bits_of_the_plain_run_for_every_profile_and_choice(
    compiled, dtype
):
    found = {
        (name, variant): wrong
        for name, variant, (profile, hyper) in variants()
        if (wrong := differences(RULES[name], profile, hyper, dtype))
    }
    assert found == {}


def test_the_compiled_loop_divides_many_numbers_at_once_and_contracts_nothing(compiled):
    for rule, (profile, hyper) in some():
        kept = [f for f in rule.State._fields if f != "average"]
        program = fused.program(rule, profile, hyper, "float32", kept)
        (asm,) = fused._kernel(program, False).inspect_asm().values()
        assert not re.search(r"vfn?m(add|sub)", asm)
        if platform.machine() in ("x86_64", "AMD64"):
            assert re.search(r"divps", asm)


def test_threads_that_share_the_work_give_the_same_bits(compiled, monkeypatch):
    monkeypatch.setattr(fused, "PARALLEL", 1)
    monkeypatch.setattr(fused, "threads", lambda: 2)
    rule, (profile, hyper) = next(some())
    assert differences(rule, profile, hyper, "float32", shape=(fused.PIECE * 2 + 17,)) == []


def test_a_second_process_loads_what_a_first_one_compiled_or_left_half_done(compiled):
    code = (
        "from refopt.interp import fused; from refopt.rules import nadam;"
        "p = nadam.PROFILES['documented'];"
        "x = fused.program(nadam, p, p.hyper, 'float32', ('m', 'v'));"
        "k = fused._kernel(x, False); print(sum(k.stats.cache_hits.values()), k.__module__)"
    )

    def ran():
        env = {**os.environ, "REFOPT_CACHE": str(compiled)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    hits, name = ran()
    assert hits == "0"
    assert ran() == ["1", name]
    source = compiled / f"{name}.py"
    whole = source.read_text(encoding="utf-8")
    source.write_text(whole[: len(whole) // 2], encoding="utf-8")  # one that died
    (compiled / "__pycache__" / "left.tmp").write_bytes(b"half")
    assert ran()[1] == name
    assert source.read_text(encoding="utf-8") == whole
    assert [*compiled.glob("*.py")] == [source]


def test_the_engine_is_named_by_the_environment(monkeypatch):
    fused.engine.cache_clear()
    monkeypatch.setenv("REFOPT_ENGINE", "abacus")
    with pytest.raises(ValueError, match="REFOPT_ENGINE: numba or tape is required, got 'abacus'"):
        fused.engine()
    monkeypatch.setenv("REFOPT_ENGINE", "tape")
    assert fused.engine() == "tape"


def test_option_sets_are_compiled_under_names_of_their_own():
    rule, (profile, hyper) = next(some())
    sources = {
        fused.numba_source(fused.program(rule, profile, hyper, dtype, ("m", "v")), parallel)
        for dtype, parallel in itertools.product(("float32", "float64"), (False, True))
    }
    assert len(sources) == 4


def test_importing_refopt_and_stepping_on_tape_never_imports_numba():
    code = (
        "import sys, numpy, refopt; from refopt.interp import fused;"
        "fused.engine = lambda: 'tape';"
        "p = refopt.Parameter(numpy.ones(3)); p.grad = numpy.ones(3);"
        "refopt.NAdam([p]).step(); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_program_of_nadam_is_the_page_and_needs_two_rows_of_scratch():
    profile, hyper = configured(nadam, nadam.PROFILES["documented"])
    program = fused.program(nadam, profile, hyper, "float32", ("m", "v"))
    assert sorted(program.arrays) == ["grad", "m", "param", "v"]
    assert [name for name, _ in program.outputs] == ["m", "v", "param"]
    assert len(program.instructions) == 16
    assert fused.tape(program).rows == 2
    assert program is fused.program(nadam, profile, hyper._replace(lr=0.7), "float32", ("m", "v"))


def test_a_step_that_is_not_element_wise_is_refused():
    norm = nadam.Choices(objective=lambda g: fused.trace.NAMESPACE.sum(g))
    profile = nadam.PROFILES["documented"]._replace(choices=norm)
    with pytest.raises(TypeError, match="element-wise operation is required, got sum"):
        fused.program(nadam, profile, nadam.Hyper(), "float32", ("m", "v"))


# -- an update in place ---------------------------------------------------------------------------
UPDATES = [
    *(("nadam", name, {}) for name in nadam.PROFILES),
    *(
        ("rmsprop", name, {"use_ema": ema is not None, "every": ema, "clip": clip})
        for name in rmsprop.PROFILES
        for ema, clip in [(None, None), (2, None), (1, "clipnorm"), (0, "global_clipnorm")]
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_an_update_in_place_has_the_bits_of_the_plain_one(tape, dtype):
    taken = 0
    for name, profile, options in UPDATES:
        rule = RULES[name]
        options = dict(options)
        every, clip = options.pop("every", None), options.pop("clip", None)
        if options.get("use_ema") and "average" not in _axes(rule, profile):
            options["use_ema"] = False
        profile, hyper = configured(rule, rule.PROFILES[profile], **options)
        if rule is rmsprop:
            limit = {clip: 0.5} if clip else {}
            hyper = hyper._replace(ema_overwrite_frequency=every, **limit)
        params = [numbers((5, 7), dtype, seed) for seed in range(3)]
        begun = [arrays.init(rule, profile, p) for p in params]
        states, clocks = [s for s, _ in begun], [c for _, c in begun]
        mine = [p.copy() for p in params]
        kept = [type(s)(*(x if x is None else x.copy() for x in s)) for s in states]
        counts = clocks
        for t in range(3):
            grads = [numbers((5, 7), dtype, 10 * t + i) for i in range(3)]
            grads[1] = None if t == 1 else grads[1]
            ready = fused.prepared(fused, rule, profile, mine, grads, kept, counts, hyper)
            qs, states, clocks = arrays.run(rule, profile, params, grads, states, clocks, hyper)
            params = [p if q is None else q.param for p, q in zip(params, qs, strict=True)]
            if ready is None:
                break
            taken += 1
            take, counts = ready
            take()
            assert counts == clocks
            pairs = [*zip(params, mine, strict=True)]
            pairs += [
                xy for a, b in zip(states, kept, strict=True) for xy in zip(a, b, strict=True)
            ]
            assert all(same(x, y) for x, y in pairs if x is not None), (name, profile.name, options)
    assert taken > len(UPDATES)


def _axes(rule, profile):
    free = rule.PROFILES[profile].choices.average is not rule.no_average
    return {"average"} if free else set()


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed", ()])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
@pytest.mark.parametrize("engine", ["tape", "numba"])
def test_the_object_steps_in_place_with_the_bits_of_the_plain_run(
    monkeypatch, request, engine, dtype, layout
):
    request.getfixturevalue("tape" if engine == "tape" else "compiled")
    if engine == "numba" and layout not in ("C", ()):
        pytest.skip("the compiled loop is for arrays without gaps; others take the tape")
    shape = layout or (4, 6) if isinstance(layout, tuple) else (4, 6)

    def laid(x):
        if layout == "strided":
            return np.repeat(x, 2, axis=-1)[..., ::2]
        if layout == "reversed":
            return x[::-1].copy()[::-1]
        return np.asarray(x, order="F" if layout == "F" else "C").copy(order="K")

    found = []
    for foreach in (None, False):
        params = [refopt.Parameter(laid(numbers(shape, dtype, k))) for k in range(2)]
        held = [p.data for p in params]
        optimizer = refopt.NAdam(params, foreach=foreach, weight_decay=0.1)
        for t in range(3):
            for k, p in enumerate(params):
                p.grad = numbers(shape, dtype, 10 * t + k)
            optimizer.step()
            assert (optimizer._last is not None) == (foreach is None)
        assert all(p.data is x for p, x in zip(params, held, strict=True))
        found.append([x for p in params for x in (p.data, *optimizer.state[p].values())])
    assert all(same(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("which", ["NAdam", "RMSprop"])
@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_real_and_complex_parameters_that_share_a_program_step_side_by_side(request, engine, which):
    request.getfixturevalue(engine)
    dtypes = ["complex64", "float32", "complex64", "float32"]

    def after(dtypes):
        params = [refopt.Parameter(numbers((20,), dtype, 1)) for dtype in dtypes]
        grads = [numbers((20,), dtype, 2) for dtype in dtypes]
        optimizer = refopt.NAdam(params) if which == "NAdam" else refopt.RMSprop()
        for _ in range(2):
            if which == "NAdam":
                for param, grad in zip(params, grads, strict=True):
                    param.grad = grad
                optimizer.step()
            else:
                optimizer.apply_gradients([*zip(grads, params, strict=True)])
        return [param.data for param in params]

    for order in (dtypes, dtypes[::-1]):
        alone = [after([dtype])[0] for dtype in order]
        assert all(same(x, y) for x, y in zip(after(order), alone, strict=True))


def test_a_gradient_that_shares_memory_with_what_is_written_steps_as_the_page_says(tape):
    found = []
    for foreach in (None, False):
        whole = np.arange(1.0, 9.0)
        params = [refopt.Parameter(whole[:4]), refopt.Parameter(whole[4:])]
        optimizer = refopt.NAdam(params, foreach=foreach, lr=0.5)
        params[0].grad, params[1].grad = whole[4:], whole[2:6]
        optimizer.step()
        optimizer.step()
        found.append(whole)
    assert same(*found)


@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_a_gradient_that_came_to_share_memory_in_place_steps_as_the_page_says(request, engine):
    request.getfixturevalue(engine)
    found = []
    for foreach in (None, False):
        whole = np.arange(24.0)
        param = refopt.Parameter(whole[12:15])
        optimizer = refopt.NAdam([param], foreach=foreach, lr=0.5)
        param.grad = whole[0:6:2]
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            param.grad.strides = (56,)  # its last element is one of the parameter
        optimizer.step()
        assert optimizer._last is None
        found.append(whole)
    assert same(*found)


def test_a_changed_option_state_or_array_is_seen_by_the_next_step(tape):
    found = []
    for foreach in (None, False):
        a, b = (refopt.Parameter(np.ones(3)) for _ in range(2))
        optimizer = refopt.NAdam([a, b], foreach=foreach)

        def step(optimizer=optimizer, a=a, b=b):
            a.grad, b.grad = np.full(3, 0.5), np.full(3, -2.0)
            optimizer.step()

        step()
        optimizer.param_groups[0]["lr"] = 0.25
        step()
        optimizer.state[a]["step"] += 3
        step()
        optimizer.state[b]["exp_avg"] = np.zeros(3)
        step()
        a.data = np.full(3, 7.0)
        step()
        optimizer.load_state_dict(optimizer.state_dict())
        step()
        b.grad = None
        optimizer.step()
        found.append([x for p in (a, b) for x in (p.data, *optimizer.state[p].values())])
    assert all(same(x, y) for x, y in zip(*found, strict=True))


def test_compiled_loops_take_gradients_that_had_gaps_before(compiled):
    param = refopt.Parameter(np.ones(6, "f4"))
    optimizer = refopt.NAdam([param], lr=0.5)
    twin = refopt.Parameter(np.ones(6, "f4"))
    other = refopt.NAdam([twin], lr=0.5, foreach=False)
    for grad in (np.ones(12, "f4")[::2], np.full(6, 2.0, "f4"), np.ones(12, "f4")[::2]):
        param.grad = twin.grad = grad
        optimizer.step()
        other.step()
        assert same(param.data, twin.data)


def test_a_repeated_step_of_rmsprop_sees_what_has_changed(tape):
    found = []
    for plain in (False, True):
        a, b = refopt.Variable(np.ones(3)), refopt.Variable(np.ones(2, "f4"))
        rate = refopt.schedules.ExponentialDecay(0.5, 1, 0.5)
        optimizer = refopt.RMSprop(rate, momentum=0.5)

        def step(x, optimizer=optimizer, a=a, b=b, plain=plain):
            optimizer.apply_gradients([(np.full(3, x), a), (np.full(2, -x, "f4"), b)])
            assert optimizer._repeat is not None
            if plain:
                optimizer._repeat = None

        step(0.5)
        step(2.0)
        step(-1.0)
        optimizer.rho = 0.5
        step(1.0)
        optimizer.clipnorm = 0.25
        optimizer.apply_gradients([(np.full(3, 9.0), a), (np.full(2, 9.0, "f4"), b)])
        optimizer.clipnorm = None
        optimizer.apply_gradients([(np.ones(3), a)])
        optimizer.apply_gradients([(np.ones(2, "f4"), b), (np.ones(3), a)])
        step(3.0)
        a.assign(np.zeros(3))
        step(3.0)
        found.append([np.asarray(x.numpy()) for x in (a, b, *optimizer.variables)])
    assert all(same(x, y) for x, y in zip(*found, strict=True))


# -- flat storage ---------------------------------------------------------------------------------
SHAPES = [(3,), (2, 2), (), (5,), (7, 1)]


def many(foreach, dtype="f4"):
    params = [refopt.Parameter(np.full(s, k + 0.5, dtype)) for k, s in enumerate(SHAPES)]
    return params, refopt.NAdam(params, foreach=foreach, weight_decay=0.1)


def give(params, t, none=()):
    for k, p in enumerate(params):
        rng = np.random.default_rng(100 * t + k)
        grad = np.asarray(rng.standard_normal(p.shape), p.dtype)
        p.grad = None if k in none else grad


def test_flat_storage_changes_no_bit_with_groups_missing_gradients_and_loaded_states(tape):
    found = []
    for foreach in (True, None, False):
        params, optimizer = many(foreach)
        for t in range(6):
            if t == 4:
                optimizer.load_state_dict(optimizer.state_dict())
            if t == 5:
                params.append(refopt.Parameter(np.ones(3)))
                optimizer.add_param_group({"params": params[-1:]})
            give(params, t, none=(1,) if t == 2 else ())
            optimizer.step()
        found.append([x for p in params for x in (p.data, *optimizer.state[p].values())])
    for one, other, plain in zip(*found, strict=True):
        assert same(one, plain)
        assert same(other, plain)


def test_flat_storage_runs_all_tensors_as_one_line_and_hands_out_views_that_stay(tape):
    params, optimizer = many(True)
    give(params, 0)
    optimizer.step()
    views = [(p.data, p.grad) for p in params]
    assert len({id(x.base) for x, _ in views}) == len({id(g.base) for _, g in views}) == 1
    for t in (1, 2):
        give(params, t)
        optimizer.step()
    assert all(p.data is x and p.grad is g for p, (x, g) in zip(params, views, strict=True))
    optimizer.load_state_dict(optimizer.state_dict())
    give(params, 3)
    optimizer.step()
    assert all(p.data is x and p.grad is g for p, (x, g) in zip(params, views, strict=True))
    (group,) = optimizer._last.step._groups
    assert group.lines == [[0, 1, 2, 3, 4]]
    optimizer.state[params[2]]["step"] += 1
    give(params, 4)
    optimizer.step()
    assert group.lines == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize("held", ["nothing", "an array", "a view", "weakly"])
def test_small_arrays_that_nobody_else_holds_move_into_one_buffer(tape, held):
    params = [refopt.Parameter(np.full(s, 0.5, "f4")) for s in SHAPES * 2]
    optimizer = refopt.NAdam(params)
    kept = {
        "nothing": lambda: None,
        "an array": lambda: params[3].data,
        "a view": lambda: params[3].data[1:],
        "weakly": lambda: weakref.ref(params[3].data),
    }[held]()
    give(params, 0)
    grads = [p.grad for p in params]
    optimizer.step()
    assert all(p.grad is x for p, x in zip(params, grads, strict=True))
    bases = {id(p.data.base) for p in params if p.data.base is not None}
    assert len(bases) == (held == "nothing")
    (group,) = optimizer._last.step._groups
    assert len(group.lines) == (1 if held == "nothing" else len(params))
    del kept


def test_compiled_loops_leave_arrays_where_they_are(compiled):
    params = [refopt.Parameter(np.full(s, 0.5, "f4")) for s in SHAPES * 2]
    give(params, 0)
    refopt.NAdam(params).step()
    assert all(p.data.base is None for p in params)


def test_a_copy_of_a_parameter_has_its_gradient_to_itself(tape):
    params, optimizer = many(True)
    give(params, 0)
    optimizer.step()
    before = params[0].grad.copy()
    copy.copy(params[0]).grad = np.full(3, 7.0, "f4")
    assert same(params[0].grad, before)


@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_a_gradient_that_was_laid_out_anew_in_place_is_seen(request, engine):
    request.getfixturevalue(engine)
    found = []
    for foreach in (None, False):
        param = refopt.Parameter(np.arange(6.0).reshape(2, 3))
        optimizer = refopt.NAdam([param], foreach=foreach, lr=0.5)
        param.grad = np.arange(12.0)[::2].reshape(2, 3)
        for strides in ((48, 16), (24, 8), (8, 16), (0, 8)):
            param.grad = np.lib.stride_tricks.as_strided(param.grad, strides=(48, 16))
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                param.grad.strides = strides
            optimizer.step()
        found.append(param.data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            param.grad = np.ones((2, 3))
            optimizer.step()
            param.grad.shape = (3, 2)
        with pytest.raises(ValueError, match=r"gradient: shape \(2, 3\) is required"):
            optimizer.step()
    assert same(*found)


@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_a_schedule_of_the_learning_rate_prepares_nothing_anew(request, engine):
    request.getfixturevalue(engine)
    found = []
    for foreach in (None, False):
        params, optimizer = many(foreach)
        give(params, 0)
        optimizer.step()
        last = optimizer._last
        for t in range(1, 5):
            optimizer.param_groups[0]["lr"] *= 0.5
            give(params, t)
            optimizer.step()
            assert optimizer._last is last
        found.append([x for p in params for x in (p.data, *optimizer.state[p].values())])
    assert all(same(x, y) for x, y in zip(*found, strict=True))


def test_the_traced_scalars_are_those_of_the_rule():
    ran = 0
    for profile in nadam.PROFILES.values():
        choices = profile.choices
        if choices.factor is not nadam.same_factor:
            continue
        for dtype in ("float32", "float64"):
            num = arrays.Floats(dtype)
            hyper = nadam.settle(profile.hyper, choices, num=num)
            program = fused.program(nadam, profile, hyper, dtype, ("m", "v"))
            traced = fused.clockwork(nadam, choices, program, num)
            clock = nadam.Clock(0.0, 1.0)
            for _ in range(20):
                scalars, after = nadam.tick(clock, profile.hyper, choices, num=num)
                row, then = traced(clock, hyper)
                assert same(row, fused.numbers(program)(scalars, hyper)), profile.name
                clock = nadam.Clock(*map(float, after))
                assert same(np.array([*map(float, then)]), np.array(clock)), profile.name
                ran += 1
    assert ran >= 400


def test_between_the_writes_of_a_compiled_step_there_is_no_line_of_python(compiled, monkeypatch):
    params, optimizer = many(None)
    variables, rms = [refopt.Variable(np.ones(s, "f4")) for s in SHAPES], refopt.RMSprop(0.1)
    calls = []

    def watched(*args):
        sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame))
        try:
            return collections.deque(*args)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(fused, "deque", watched)
    for t in range(3):
        give(params, t)
        give(variables, t)
        if t == 2:  # counters of their own
            optimizer.state[params[0]]["step"] += 1
        optimizer.step()
        rms.apply_gradients([(v.grad, v) for v in variables])
        assert optimizer._last.step.compiled
    # numba names its loop to a profiler
    assert {frame.f_code.co_name for frame in calls} <= {"kernel", "watched"}


def test_gradients_are_not_kept_alive_by_the_optimizer(tape):
    param = refopt.Parameter(np.ones(3))
    optimizer = refopt.NAdam([param])
    for _ in range(2):
        param.grad = np.ones(3)
        optimizer.step()
    gone = weakref.ref(param.grad)
    optimizer.zero_grad()
    assert gone() is None


def test_who_handles_a_signal_is_asked_without_a_line_of_python():
    assert inspect.isbuiltin(fused._handler)
    assert fused._handler(signal.SIGINT) is signal.getsignal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_an_interrupt_waits_until_the_step_is_whole(monkeypatch, request, engine, number):
    request.getfixturevalue(engine)

    def handler(number, frame):
        raise KeyboardInterrupt

    old = signal.signal(number, handler)
    request.addfinalizer(lambda: signal.signal(number, old))
    start, grad = np.ones(5), np.full(5, 0.5)
    after = refopt.Parameter(start.copy())
    after.grad = grad
    other = refopt.NAdam([after])
    for _ in range(2):
        other.step()
    param = refopt.Parameter(start.copy())
    param.grad = grad
    optimizer = refopt.NAdam([param])
    optimizer.step()
    calls = fused._Group.calls

    def interrupted(self, *args):
        yield lambda: signal.raise_signal(number)
        yield from calls(self, *args)

    monkeypatch.setattr(fused._Group, "calls", interrupted)
    optimizer._last.step.compiled = False
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert signal.getsignal(number) is handler
    assert same(param.data, after.data)
    for key, value in other.state[after].items():
        assert same(optimizer.state[param][key], value)


@pytest.mark.parametrize("engine", ["tape", "compiled"])
@pytest.mark.parametrize("which", ["NAdam", "RMSprop"])
def test_a_step_takes_at_most_a_megabyte_beyond_parameters_gradients_and_state(
    request, engine, which
):
    request.getfixturevalue(engine)
    n = 3_000_000
    param = refopt.Variable(np.ones(n, "f4"))
    grad = param.grad = np.full(n, 0.1, "f4")
    if which == "NAdam":
        step = refopt.NAdam([param]).step
    else:
        optimizer = refopt.RMSprop(momentum=0.9, centered=True, use_ema=True)

        def step():
            optimizer.apply_gradients([(grad, param)])

    step()
    step()
    tracemalloc.start()
    try:
        step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1_000_000


# -- conformance ----------------------------------------------------------------------------------
def test_the_fused_run_of_the_suite_is_the_plain_one(tape):
    cases = [
        recording
        for recording in suite.recordings()
        if suite.optimizer(recording.case.id) in RULES and recording.case.steps <= 5
    ]
    ran = 0
    for recording in cases[::7]:
        for name in {"documented", *recording.runs} & suite.profiles(recording.case).keys():
            profile = suite.profiles(recording.case)[name]
            plain, other = (
                own.numpy_run(recording.case, profile, execution=how) for how in ("plain", "fused")
            )
            assert repr(plain) == repr(other), (recording.case.id, name)
            ran += 1
    assert ran > 100


@pytest.mark.parametrize("engine", ["tape", "compiled"])
def test_a_gradient_that_was_refused_leaves_no_address_behind(request, engine):
    request.getfixturevalue(engine)
    a, b = refopt.Variable(np.ones(3, "f4")), refopt.Variable(np.ones(3, "f4"))
    other_a, other_b = refopt.Variable(np.ones(3, "f4")), refopt.Variable(np.ones(3, "f4"))
    mine, plain = refopt.RMSprop(0.1), refopt.RMSprop(0.1)
    grad, refused = np.ones(3, "f4"), np.full(3, -100, "f4")
    mine.apply_gradients([(grad, a), (grad, b)])
    plain.apply_gradients([(grad, other_a), (grad, other_b)])
    mine.apply_gradients([(refused, a), (b.data, b)])  # which is written: no step in place
    plain.apply_gradients([(refused.copy(), other_a), (other_b.data.copy(), other_b)])
    refused[:] = -1e6
    mine.apply_gradients([(grad, a), (np.ones(3, "f4"), b)])
    plain.apply_gradients([(grad.copy(), other_a), (np.ones(3, "f4"), other_b)])
    assert same_bits(a.data, other_a.data)
    assert same_bits(b.data, other_b.data)


@pytest.mark.parametrize("engine", ["tape", "compiled"])
@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_a_moment_that_became_read_only_is_not_written(request, engine, key):
    request.getfixturevalue(engine)
    param = refopt.Parameter(np.ones(3, "f4"))
    optimizer = refopt.NAdam([param])
    param.grad = np.ones(3, "f4")
    optimizer.step()
    optimizer.step()
    frozen = optimizer.state[param][key]
    frozen.flags.writeable = False
    before, start = frozen.copy(), param.data.copy()
    optimizer.step()
    assert same_bits(frozen, before)
    assert (param.data < start).all()
    assert optimizer.state[param][key] is not frozen


def test_a_counter_that_cannot_be_written_is_replaced():
    variable, optimizer = refopt.Variable(np.ones(3, "f4")), refopt.RMSprop(0.1)
    optimizer.build([variable])
    for done in (1, 2, 3):
        optimizer.iterations.data.flags.writeable = False
        optimizer.apply_gradients([(np.ones(3, "f4"), variable)])
        assert int(optimizer.iterations.numpy()) == done


def test_the_profile_of_a_step_is_the_one_that_the_optimizer_has_now():
    params = [refopt.Parameter(np.ones(3)) for _ in range(2)]
    optimizers = [refopt.NAdam([param], lr=0.1) for param in params]
    for profile in ("documented", "documented", "keras-3"):
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = np.full(3, 0.3)
            optimizer.profile = profile
        optimizers[1]._last = None  # nothing is remembered
        for optimizer in optimizers:
            optimizer.step()
    assert same_bits(params[0].data, params[1].data)
