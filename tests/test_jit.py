"""A step under the compilers of JAX and torch has the bits of NumPy."""

import importlib.util
from functools import partial

import numpy as np
import pytest
from test_fused import configured, same, some
from typer.testing import CliRunner

import refopt
from refopt.cli.base import app
from refopt.interp import arrays, fused, jit
from refopt.rules import nadam

# torch's own, on the versions of what it is built on
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LIBRARIES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in jit.LIBRARIES]


def numbers(shape, dtype, seed):
    """Numbers of many sizes, none subnormal, nor what a step makes of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)
    x.flat[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]
    return x.astype(dtype)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_compiled_step_has_the_bits_of_the_plain_one(library, dtype):
    rules = dict(some()) if dtype == "float32" else {nadam: configured(nadam, DOCUMENTED)}
    for rule, (profile, hyper) in rules.items():
        after = []
        for ran in (rule, jit.through(library, rule, profile.half)):
            param = numbers((3, 101), dtype, 0)
            state, clock = arrays.init(rule, profile, param)
            for seed in (1, 2):
                grad = numbers((3, 101), dtype, seed)
                (q,), (state,), (clock,) = arrays.run(
                    ran, profile, [param], [grad], [state], [clock], hyper
                )
                param = q.param
            after.append([param, *(x for x in state if x is not None)])
        assert all(same(x, y) for x, y in zip(*after, strict=True))


DOCUMENTED = nadam.PROFILES["documented"]


@pytest.mark.jax
def test_a_compiler_that_is_not_guarded_contracts_and_multiplies_by_reciprocals(monkeypatch):
    import jax

    program = fused.program(nadam, DOCUMENTED, DOCUMENTED.hyper, "float32", ("m", "v"))
    given = {name: numbers(4096, "float32", k) for k, name in enumerate(program.arrays)}
    given["v"] = np.abs(given["v"])
    s = nadam.Scalars._make(np.linspace(0.3, 0.9, len(nadam.Scalars._fields)).tolist())
    plain = fused.on_copies(program, given, s, DOCUMENTED.hyper)
    there = {name: jax.numpy.asarray(x) for name, x in given.items()}
    guarded = jit.computed(program, there, s, DOCUMENTED.hyper)
    assert all(same(np.asarray(guarded[name]), x) for name, x in plain.items())
    monkeypatch.setattr(jit, "_guarded", lambda *args: lambda zero, *more: bare(*more))
    bare = jit._plain(program, jit.namespace_of(*there.values()).xp)
    jit._compiled.cache_clear()
    found = jit.computed(program, there, s, DOCUMENTED.hyper)
    jit._compiled.cache_clear()
    assert not all(same(np.asarray(found[name]), x) for name, x in plain.items())


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_object_compiles_where_it_is_asked_to_and_keeps_the_bits_of_numpy(library):
    put_there = partial(jit._put, library)
    found = []
    for put in (np.copy, put_there):
        params = [
            refopt.Parameter(put(numbers(s, "float32", k))) for k, s in enumerate([8, (2, 4)])
        ]
        optimizer = refopt.NAdam(params, lr=0.1)
        optimizer.jit_compile = True
        for t in range(1, 4):
            optimizer.param_groups[0]["lr"] = 0.1 / t  # which is not compiled in
            for k, param in enumerate(params):
                param.grad = put(numbers(param.shape, "float32", 10 * t + k))
            optimizer.step()
        states = [optimizer.state[param][key] for param in params for key in ("exp_avg", "step")]
        found.append([np.asarray(x) for x in (*(p.data for p in params), *states)])
    assert all(same(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_suite_runs_compiled(library):
    from refopt.oracle import suite

    cases = suite.selected(suite.recordings(), "nadam.torch.sharp-*.f32")
    tasks = suite.tasks(cases, numpy=True, as_recorded=False, execution=library)
    found = [r for task in tasks for r in suite.work(task) if r.item.execution == library]
    assert found
    assert {r.status for r in found} == {"conforms"}


@pytest.mark.parametrize("library", jit.LIBRARIES)
def test_a_library_that_is_missing_is_named_by_its_extra(library, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == library else found(x))
    done = CliRunner().invoke(app, ["check", "--execution", library], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"--execution {library} needs refopt[{library}]" in done.output


def test_an_execution_is_one_of_those_that_there_are():
    done = CliRunner().invoke(app, ["check", "--execution", "abacus"], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "--execution must be one of plain, fused, jax, torch; got 'abacus'" in done.output
