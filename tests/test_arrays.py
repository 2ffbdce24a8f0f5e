"""Running a rule on arrays: what the property tests of every library do not see."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from backends import LIBRARIES, same_bits

from refopt.interp.arrays import (
    Device,
    Floats,
    as_complex,
    as_real,
    dtype_name,
    init,
    namespace_of,
    recording,
    run,
    write,
)
from refopt.interp.rounded import Rounded, rounding_to
from refopt.rules import nadam, rmsprop

DOCUMENTED = nadam.PROFILES["documented"]
TORCH = nadam.PROFILES["torch-2.13"]
library_rows = pytest.mark.parametrize("make", LIBRARIES)


def one_step(param, grad, profile=DOCUMENTED, num=None, **hyper):
    state, clock = init(nadam, profile, param, num)
    hyper = profile.hyper._replace(**hyper)
    (q,), (state,), (clock,) = run(nadam, profile, [param], [grad], [state], [clock], hyper, num)
    return q, state, clock


# -- namespace ------------------------------------------------------------------------------------


def test_mixed_libraries_are_named():
    strict = pytest.importorskip("array_api_strict", reason="installed by the extra dev")
    with pytest.raises(TypeError, match="one library; got array_api_strict, numpy"):
        namespace_of(np.ones(2), None, strict.ones(2))
    with pytest.raises(TypeError, match="one library; got no array"):
        namespace_of(None)
    with pytest.raises(TypeError, match="list"):
        namespace_of([1.0])


@library_rows
def test_the_operations_are_those_of_the_equations(make):
    library = make()
    with library.session():
        x, y = (library.array(np.array(v)) for v in ([4.0, 9.0], [8.0, 1.0]))
        space = namespace_of(x, y)
        assert library.get(space.sqrt(x)).tolist() == [2.0, 3.0]
        assert library.get(space.lerp(x, y, 0.25)).tolist() == [5.0, 7.0]
        assert library.get(space.zeros_like(x)).tolist() == [0.0, 0.0]
        wide = library.array(np.array([0.1, -0.3]), "float64")
        narrow = library.get(namespace_of(wide).float32(wide))
        assert same_bits(narrow, np.array([0.1, -0.3]).astype("f4").astype("f8"))


@library_rows
def test_repeated_rows_are_added_one_after_the_other_to_what_is_there(make):
    library, random = make(), np.random.default_rng(5)
    with library.session():
        for shape, indices in [
            *[((5, 2), tuple(random.integers(0, 5, n).tolist())) for n in (0, 1, 3, 40)],
            *[((1, 3), (0,) * 9), ((4,), (3, 0, 3, 3, 0))],
        ]:
            base, values = (
                (random.standard_normal(n) * 10.0 ** random.integers(-3, 4, n)).astype("f4")
                for n in (shape, (len(indices), *shape[1:]))
            )
            base[base < -1] = -0.0  # and rows that nothing is added to keep their sign
            expected = base.copy()
            for row, value in zip(indices, values, strict=True):
                expected[row] += value
            x, rows = library.array(base), library.array(values)
            space = namespace_of(x)
            assert same_bits(library.get(space.scatter_add(x, indices, rows)), expected)
            assert same_bits(library.get(space.take(x, indices, shape[0])), base[list(indices)])
            assert same_bits(library.get(x), base)


def test_in_16_bits_every_addition_of_a_row_is_rounded():
    def enter(x):
        return Rounded(np.array(x, "f4"), "float16", rounding_to(np.float16))

    total = namespace_of(np.ones(1)).scatter_add(enter([2048.0]), (0, 0), enter([1.0, 1.0]))
    assert total.array.tolist() == [2048.0]  # 2050 were they added first


@library_rows
def test_a_dtype_has_one_name_in_every_library(make):
    library = make()
    with library.session():
        for dtype in library.dtypes:
            assert dtype_name(library.array(np.ones(2), dtype)) == dtype


# -- numbers --------------------------------------------------------------------------------------


def test_numbers_of_the_host():
    num = Floats().of(np.ones(2, "complex64"))
    assert type(num(0.1)) is float
    assert type(num(np.float32(0.1))) is float
    assert num(num.float32(0.1)).dtype == "float32"
    assert num.native(0.1).dtype == "float32"
    assert type(num.float64(num.float32(0.1))) is float
    assert Floats().of(np.ones(2, "f2")).native(0.1).dtype == "float16"


def test_numbers_of_the_device_are_float32_arrays_of_shape_nothing():
    param = np.ones((2, 3))
    num = Device().of(param)
    x = num.started(0.1)
    assert (x.shape, x.dtype) == ((), np.float32)
    assert num.float64(x) is x
    assert num.native(x).dtype == np.float64
    _, clock = init(nadam, DOCUMENTED, param, Device())
    assert [a.dtype for a in clock] == [np.float32] * 4


# -- complex --------------------------------------------------------------------------------------


@library_rows
def test_complex_as_pairs_and_back_changes_no_bit(make):
    library = make()
    special = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]
    host = np.empty((6, 6), "complex64")
    host.real, host.imag = np.array(special)[:, None], np.array(special)[None, :]
    with library.session():
        x = library.array(host, "complex64")
        pairs = as_real(x)
        assert tuple(pairs.shape) == (*host.shape, 2)
        assert dtype_name(pairs) == "float32"
        assert same_bits(library.get(as_complex(pairs)), host)


def test_a_complex_step_is_two_real_steps():
    random = np.random.default_rng(1)
    p, g = random.standard_normal((2, 4, 2)).astype("f4")
    q, state, _ = one_step(as_complex(p), as_complex(g))
    pairs, halves, _ = one_step(p, g)
    assert same_bits(as_real(q.param), pairs.param)
    assert same_bits(as_real(state.v), halves.v)


def test_a_state_that_enters_in_float32_raises_nothing_of_its_rounding():
    profile = next(p for p in rmsprop.PROFILES.values() if p.half == "float32")
    ones, clock = np.ones(3), rmsprop.Clock(0)
    state, _ = init(rmsprop, profile, ones)
    tiny = state._replace(v=np.full(3, 1e-60))
    with np.errstate(all="raise"):
        (q,), _, _ = run(rmsprop, profile, [ones], [ones], [tiny], [clock], profile.hyper)
    assert np.isfinite(q.param).all()


# -- 16 bits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@library_rows
def test_the_documented_profile_rounds_each_stored_quantity_once(make, dtype):
    library = make()
    if dtype not in library.dtypes:
        assert library.name == "dask" or library.name.startswith("strict")
        return
    random = np.random.default_rng(2)
    hosts = [random.standard_normal((3, 5)) for _ in range(2)]
    num = Device() if library.jitted else Floats()
    with library.session():
        p, g = (library.array(x, dtype) for x in hosts)
        q, state, _ = one_step(p, g, num=num)
        wide, _, _ = one_step(*(library.array(library.get(x), "float32") for x in (p, g)), num=num)
        for stored, exact in [(q.param, wide.param), (state.m, wide.m), (state.v, wide.v)]:
            expected = library.get(exact).astype(library.get(p).dtype)
            assert same_bits(library.get(stored), expected)
        assert same_bits(library.get(q.m_hat), library.get(wide.m_hat)), "kept in float32"


def test_a_release_that_rounds_each_operation_differs():
    random = np.random.default_rng(3)
    p, g = random.standard_normal((2, 200)).astype("f2")
    each = TORCH._replace(half="each")
    stored = TORCH._replace(half="stored")
    a, b = (one_step(p, g, profile, lr=0.1)[0].param for profile in (each, stored))
    assert a.dtype == b.dtype == np.float16
    assert (a != b).any()
    assert np.abs(a.astype("f4") - b).max() < 0.02


# -- running --------------------------------------------------------------------------------------


def test_a_parameter_without_a_gradient_keeps_its_very_state():
    params = [np.ones(2, "f2"), np.ones(2, "f2")]
    pairs = [init(nadam, DOCUMENTED, p) for p in params]
    states, clocks = [s for s, _ in pairs], [c for _, c in pairs]
    quantities, after, ticked = run(
        nadam, DOCUMENTED, params, [None, params[1]], states, clocks, DOCUMENTED.hyper
    )
    assert quantities[0] is None
    assert after[0] is states[0]
    assert [clock.t for clock in ticked] == [0, 1]


def test_one_group_may_hold_several_dtypes():
    params = [np.ones(3, d) for d in ("f2", "f4", "f8", "complex64")]
    pairs = [init(nadam, TORCH, p) for p in params]
    quantities, states, _ = run(
        nadam, TORCH, params, params, [s for s, _ in pairs], [c for _, c in pairs], TORCH.hyper
    )
    for p, q, s in zip(params, quantities, states, strict=True):
        assert q.param.dtype == s.m.dtype == s.v.dtype == p.dtype


def test_overflow_is_silent_and_the_callers_settings_come_back():
    with np.errstate(all="raise"):
        q, _, _ = one_step(np.ones(2, "f4"), np.array([1e30, np.inf], "f4"))
        assert np.geterr()["over"] == "raise"
    assert np.isinf(q.v).all()
    assert np.isnan(q.param).tolist() == [False, True]


def test_a_parameter_of_shape_nothing_stays_an_array():
    q, state, _ = one_step(np.array(1.0, "f4"), np.array(0.5, "f4"))
    assert type(q.param) is type(state.m) is np.ndarray


def test_states_keep_the_layout_of_the_parameter_whatever_that_of_the_gradient():
    p, g = np.ones((3, 4), "f4", order="F"), np.ones((3, 4), "f4")
    q, state, _ = one_step(p, g, TORCH)
    assert state.m.strides == state.v.strides == p.strides
    assert same_bits(q.m, np.full((3, 4), np.float32(1 - 0.9)))


def test_the_rule_may_be_any_module():
    seen = {}

    def update(params, grads, states, clocks, hyper, choices, *, xp, num):
        seen.update(xp=xp, num=num, choices=choices)
        return [None for _ in params], states, clocks

    rule = SimpleNamespace(update=update)
    assert run(rule, DOCUMENTED, [np.ones(2)], [None], ["state"], [], {}) == ([None], ["state"], [])
    assert seen["num"] == Floats()
    assert seen["choices"] is DOCUMENTED.choices


# -- writing --------------------------------------------------------------------------------------


@library_rows
def test_writing_keeps_the_array_and_its_layout_or_returns_the_new_one(make):
    library = make()
    hosts = [np.array(1.0), np.arange(6.0).reshape(2, 3), np.empty((0, 2))]
    with library.session():
        for host in hosts:
            for layout in ("C", "F", "strided"):
                target = library.array(host, layout=layout)
                value = library.array(host + 1)
                result = write(target, value)
                fixed = library.name in ("numpy-read-only", "jax", "jax-jit")
                assert result is (value if fixed else target)
                assert same_bits(library.get(result), host.astype("f4") + np.float32(1))
                if library.strides and not fixed:
                    assert library.strides(result) == library.strides(
                        library.array(host, layout=layout)
                    )


@pytest.mark.torch
def test_a_leaf_that_requires_gradients_is_written():
    import torch

    leaf = torch.nn.Parameter(torch.ones(3))
    assert write(leaf, torch.zeros(3)) is leaf
    assert leaf.tolist() == [0.0, 0.0, 0.0]
    assert leaf.requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.torch
def test_recording_is_switched_for_torch_and_restored_after_an_error():
    import torch

    x = torch.ones(2, requires_grad=True)
    with recording(False, x):
        assert not torch.is_grad_enabled()
        with recording(True, x):
            assert (2 * x).requires_grad
        assert not one_step(x, x)[0].param.requires_grad
    with pytest.raises(KeyError), recording(False, x):
        raise KeyError
    assert torch.is_grad_enabled()
    with recording(False, np.ones(2)):
        assert torch.is_grad_enabled()


@pytest.mark.torch
def test_torch_gradients_flow_through_a_step():
    import torch

    def loss(lr, g):
        p = torch.tensor([1.0, -2.0], dtype=torch.float64)
        return one_step(p, g, nadam.PROFILES["torch-2.13-differentiable"], lr=lr)[0].param.sum()

    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (lr, g))
    # As pairs of reals a turned array comes back in C order: it is laid out anew.
    turned = torch.ones((2, 3), dtype=torch.complex128).t()
    _, state, _ = one_step(turned, g[0] * turned)
    assert state.m.stride() == turned.stride()
    assert state.m.requires_grad


@pytest.mark.jax
def test_jax_gradients_flow_through_a_step():
    import jax

    p = jax.numpy.asarray([1.0, -2.0])

    def loss(lr):
        profile = nadam.PROFILES["torch-2.13-differentiable"]
        return one_step(p, 0.5 * p, profile, lr=lr)[0].param[0]

    slope = jax.grad(loss)(0.1)
    # The step is linear in lr: its slope is the change of the parameter at lr = 1.
    assert slope.dtype == "float32"
    assert float(slope) != 0
    assert float(jax.grad(loss)(1.0)) == float(slope)


def test_steps_of_several_threads_do_not_meet():
    p, results = np.linspace(-1, 1, 1000), {}

    def work(i):
        results[i] = one_step(p, p * i)[0].param

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(same_bits(results[i], one_step(p, p * i)[0].param) for i in results)
