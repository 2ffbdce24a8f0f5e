"""CUDA text without a GPU: g++ runs it, NVRTC compiles it, and the bits are those of NumPy."""

import ctypes
import re
from functools import cache, partial

import cupy_standin
import numpy as np
import pytest
from backends import numpy_dtype, same_bits
from cupy_standin import LAUNCH, SHIM, compiled
from nvrtc import ptx

import refopt
from refopt.interp import cuda, fused
from refopt.rules import nadam, rmsprop

RULES = {"nadam": nadam, "rmsprop": rmsprop}
DTYPES = ("float64", "float32", "float16", "bfloat16")


def asked(rule, profile):
    """Choices that use all that a profile has."""
    wanted = {"weight_decay": 0.1, "momentum": 0.9, "momentum_decay": 0.004}
    hyper = profile.hyper._replace(**{k: v for k, v in wanted.items() if k in rule.Hyper._fields})
    options = {"centered": True} if rule is rmsprop else {}
    for some in (options, {}):
        try:
            return rule.configured(profile.choices, hyper, some), hyper
        except (KeyError, TypeError, ValueError):
            continue
    raise AssertionError(profile.name)


@cache
def programs():
    """(program, dtype in memory) of every profile and dtype, each once."""
    found = {}
    for optimizer, rule in RULES.items():
        for profile in rule.PROFILES.values():
            choices, hyper = asked(rule, profile)
            for dtype in DTYPES:
                kept = [f for f in rule.State._fields if f != "average"]
                program = fused.program(rule, profile._replace(choices=choices), hyper, dtype, kept)
                found[program, dtype] = f"{optimizer}-{profile.name}-{dtype}"
    return {name: key for key, name in found.items()}


def values(rng, n, dtype):
    """Numbers over many decades, and those that are special."""
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-9, 4, n)
    x[rng.random(n) < 0.2] = rng.choice([0.0, -0.0, 1e-40, 6e-8, np.inf, -np.inf, np.nan, 6e4])
    with np.errstate(all="ignore"):
        return x.astype(numpy_dtype(dtype))


def lines(program, dtype, seed, n, offset):
    """The arrays of a program, not aligned to 16 bytes where there is an offset."""
    rng = np.random.default_rng(seed)
    made = {name: values(rng, n + offset, dtype)[offset:] for name in fused.names(program)}
    for name in {"v"} & {*made}:
        made[name] = np.abs(made[name])
    return made


@pytest.fixture(scope="module")
def launchers():
    """Every kernel, compiled by g++ into one library."""
    text = SHIM
    for k, (program, dtype) in enumerate(programs().values()):
        own = cuda.source(program, dtype).replace('extern "C" __global__', "__global__")
        body = own + LAUNCH.replace("launch(", f"launch_{k}(")
        text += f"namespace kernel_{k} {{\n{body}}}\n"
    library = compiled(text)
    return {name: getattr(library, f"launch_{k}") for k, name in enumerate(programs())}


@pytest.mark.parametrize("name", programs())
def test_the_kernel_gives_the_bits_of_numpy_for_many_arrays_at_once(launchers, name):
    program, dtype = programs()[name]
    sizes = [(0, 0), (1, 0), (7, 1), (64, 0), (1000, 3), (3001, 0)]
    numbers = np.random.default_rng(1).uniform(0.01, 0.99, (2, len(program.scalars)))
    numbers = numbers.astype(program.dtype)
    ours = [lines(program, dtype, i, n, offset) for i, (n, offset) in enumerate(sizes)]
    theirs = [{name: x.copy() for name, x in arrays.items()} for arrays in ours]

    grads = [arrays.pop("grad") for arrays in theirs]
    plain = fused.Pass([(program, arrays) for arrays in theirs])
    assert plain.takes(grads)
    plain.ready()
    plain.run(grads, [numbers[i % 2] for i in range(len(sizes))])

    table = [
        [*(x.__array_interface__["data"][0] for x in arrays.values()), arrays["grad"].size, i % 2]
        for i, arrays in enumerate(ours)
    ]
    table = np.array(table, np.int64)
    address = ctypes.c_void_p(table.ctypes.data), ctypes.c_void_p(numbers.ctypes.data)
    launchers[name](len(table), 32, *address)
    for mine, other in zip(ours, theirs, strict=True):
        for array, x in other.items():
            assert same_bits(mine[array], x), array


@pytest.mark.slow
@pytest.mark.parametrize("name", programs())
def test_the_compiler_contracts_nothing_and_divides_and_takes_roots_exactly(name):
    program, dtype = programs()[name]
    text = ptx(cuda.source(program, dtype), [*cuda.OPTIONS, "--gpu-architecture=compute_90"])
    found = set(re.findall(r"\b(?:fma|mad|div|rcp|sqrt|rsqrt|ex2|lg2)\.[\w.]*f(?:32|64)", text))
    number = "f64" if program.dtype == "float64" else "f32"
    used = {op for op, _, _ in program.instructions}
    assert found == {f"{op}.rn.{number}" for op in used & {"div", "sqrt"}}
    assert ".ftz" not in text  # subnormal numbers are kept
    assert re.search(r"\bld(\.global)?\.v[24]\.", text)  # 16 bytes at a time
    assert not re.search(r"\b(ld|st)\.local\b", text)  # everything stays in registers


@pytest.mark.slow
def test_the_compiler_would_contract_if_it_were_let():
    program, dtype = next(iter(programs().values()))
    text = ptx(cuda.source(program, dtype), ["--gpu-architecture=compute_90"])
    assert "fma.rn" in text


def test_a_step_of_many_tensors_is_one_launch_without_a_wait_and_has_the_bits_of_numpy():
    cupy = cupy_standin.install()
    rng = np.random.default_rng(3)
    shapes = [(), (3,), (4, 5), (2, 3, 4), (9000,)]
    starts = [rng.standard_normal(shape, np.float32) for shape in shapes]
    ours = [refopt.Parameter(x.copy()) for x in starts]
    theirs = [refopt.Parameter(cupy.asarray(x)) for x in starts]
    plain, launched = refopt.NAdam(ours, lr=0.1), refopt.NAdam(theirs, lr=0.1)
    for step in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = rng.standard_normal(mine.data.shape, np.float32)
            other.grad = cupy.asarray(mine.grad)
        before = cupy_standin.RawModule.launches, cupy_standin.ndarray.syncs
        plain.step()
        launched.step()
        after = cupy_standin.RawModule.launches, cupy_standin.ndarray.syncs
        assert (after[0] - before[0], after[1] - before[1]) == (1, 0), step
    for mine, other in zip(ours, theirs, strict=True):
        assert same_bits(other.data.get(), mine.data)
        assert same_bits(launched.state[other]["exp_avg_sq"].get(), plain.state[mine]["exp_avg_sq"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
@pytest.mark.parametrize("profile", ["documented", "torch-2.13"])
def test_a_capturable_step_is_a_kernel_beside_its_counters_without_a_wait(profile, dtype):
    cupy = cupy_standin.install()
    rng = np.random.default_rng(5)
    starts = [rng.standard_normal(shape).astype(dtype) for shape in [(), (3, 4), (20_000,)]]
    sides = []
    for foreach in (None, False):
        params = [refopt.Parameter(cupy.asarray(x)) for x in starts]
        kept = [p.data for p in params]
        options = {"capturable": True, "foreach": foreach, "weight_decay": 0.1}
        optimizer = refopt.NAdam(params, lr=0.1, profile=profile, **options)
        noise = np.random.default_rng(6)
        before = cupy_standin.RawModule.launches, cupy_standin.ndarray.syncs
        for _ in range(3):
            for param in params:
                grad = noise.standard_normal(param.data.shape).astype(dtype)
                param.grad = cupy.asarray(grad)
            optimizer.step()
        launches = cupy_standin.RawModule.launches - before[0]
        assert launches == (9 if foreach is None else 0)
        assert cupy_standin.ndarray.syncs == before[1]
        assert all(p.data is x for p, x in zip(params, kept, strict=True))
        state = [x for p in params for x in optimizer.state[p].values()]
        sides.append([x.get() for x in (*kept, *state)])
    assert all(same_bits(x, y) for x, y in zip(*sides, strict=True))


def test_nothing_that_a_graph_would_read_again_is_sent_to_the_device(monkeypatch):
    cupy = cupy_standin.install()
    param = refopt.Parameter(cupy.asarray(np.ones(5, "float32")))
    param.grad = cupy.asarray(np.ones(5, "float32"))
    optimizer = refopt.NAdam([param], capturable=True)
    optimizer.step()  # makes the state

    def of_the_device(make, x, *args, **options):
        assert isinstance(x, cupy.ndarray)
        return make(x, *args, **options)

    for name in ("array", "asarray"):
        monkeypatch.setattr(cupy, name, partial(of_the_device, getattr(cupy, name)))
    before = param.data.get()
    optimizer.step()
    assert not same_bits(param.data.get(), before)


@pytest.mark.parametrize("case", ["gap", "shared"])
def test_what_a_kernel_cannot_take_runs_as_plain_operations(case):
    cupy = cupy_standin.install()
    start, grad = np.arange(1, 7, dtype="float32"), np.arange(6, dtype="float32") - 2.5
    ours, theirs = refopt.Parameter(start.copy()), refopt.Parameter(cupy.asarray(start))
    ours.grad = grad
    if case == "gap":
        theirs.grad = cupy.asarray(np.repeat(grad, 2))[::2]
    else:
        ours.grad, theirs.grad = ours.data, theirs.data
    before = cupy_standin.RawModule.launches
    refopt.NAdam([ours]).step()
    refopt.NAdam([theirs]).step()
    assert cupy_standin.RawModule.launches == before
    assert same_bits(theirs.data.get(), ours.data)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centered": True, "momentum": 0.9},
        {"clipnorm": 0.5},
        {"use_ema": True, "momentum": 0.9},
    ],
)
def test_rmsprop_on_cupy_is_launched_and_has_the_bits_of_numpy(options):
    cupy = cupy_standin.install()
    rng = np.random.default_rng(4)
    starts = [rng.standard_normal(shape, np.float32) for shape in [(3,), (4, 5), ()]]
    ours = [refopt.Variable(x.copy()) for x in starts]
    theirs = [refopt.Variable(cupy.asarray(x)) for x in starts]
    plain, launched = refopt.RMSprop(0.1, **options), refopt.RMSprop(0.1, **options)
    before = cupy_standin.RawModule.launches
    for _ in range(3):
        grads = [rng.standard_normal(x.shape, np.float32) for x in starts]
        plain.apply_gradients(zip(grads, ours, strict=True))
        launched.apply_gradients(zip(map(cupy.asarray, grads), theirs, strict=True))
    assert cupy_standin.RawModule.launches >= before + 3
    for mine, other in zip(ours, theirs, strict=True):
        assert same_bits(other.data.get(), mine.data)
