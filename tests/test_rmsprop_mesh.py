"""RMSprop on a mesh of devices, and under the compiler of a library."""

import copy
import pickle
import warnings

import backends
import numpy as np
import pytest
from backends import same_bits

import refopt
from refopt import RMSprop, Variable
from refopt.oracle import golden
from refopt.oracle.verdict import judge
from refopt.rules import rmsprop as rule

START = np.linspace(-2, 2, 32, dtype="f4").reshape(4, 8)
GRADIENT = np.cos(np.arange(32, dtype="f4")).reshape(4, 8)
SPECS = [("x", "y"), ("x", None), (None, "y"), (None, ("x", "y")), (None, None)]


@pytest.fixture
def mesh():
    import jax

    assert len(jax.devices()) >= 8, "JAX was started before tests/backends.py set its flags"
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))


def sharded(host, mesh, spec):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.device_put(host, NamedSharding(mesh, PartitionSpec(*spec)))


def everything(opt, *variables):
    return [np.asarray(x.numpy()) for x in (*variables, *opt.variables)]


ARGUMENTS = [
    {},
    {"momentum": 0.9, "centered": True},
    {"clipvalue": 0.5, "use_ema": True, "ema_overwrite_frequency": 2},
    {"learning_rate": refopt.schedules.ExponentialDecay(0.1, 2, 0.5), "momentum": 0.5},
    {"profile": "tf-2.9-dtensor", "centered": True, "momentum": 0.9},
]
# each layout with two, and each of them on two layouts
PAIRS = [(spec, ARGUMENTS[(i + j) % 5]) for i, spec in enumerate(SPECS) for j in (0, 1)]


@pytest.mark.jax
@pytest.mark.parametrize(("spec", "arguments"), PAIRS)
def test_a_sharded_run_is_the_unsharded_one_to_the_bit(mesh, spec, arguments):
    import jax

    v, w = Variable(sharded(START, mesh, spec), name="w"), Variable(jax.numpy.asarray(START))
    w.name = "w"
    one, other = RMSprop(mesh=mesh, **arguments), RMSprop(**arguments)
    layout = v.data.sharding
    for t in range(4):
        one.apply_gradients([(sharded(GRADIENT * (t + 1), mesh, spec), v)])
        other.apply_gradients([(jax.numpy.asarray(GRADIENT * (t + 1)), w)])
        counters, slots = one.variables[:2], one.variables[2:]
        assert slots
        for x in (v, *slots):
            assert x.data.sharding == layout, x.name
        for x in counters:
            assert x.data.sharding.is_fully_replicated
            assert x.data.sharding.device_set == set(mesh.devices.flat)
    pairs = zip(everything(one, v), everything(other, w), strict=True)
    for ours, theirs in pairs:
        assert same_bits(ours, theirs.astype(ours.dtype))
    assert int(one.iterations) == 4


@pytest.mark.jax
@pytest.mark.parametrize("limit", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}])
def test_norms_over_shards_lie_in_their_envelope(mesh, limit):
    specs = SPECS[:2]
    hosts = [START, START[:, :4] * 2]
    variables = [
        Variable(sharded(h, mesh, s), name=str(i))
        for i, (h, s) in enumerate(zip(hosts, specs, strict=True))
    ]
    opt = RMSprop(0.1, momentum=0.9, mesh=mesh, **limit)
    grads = [GRADIENT, GRADIENT[:, :4]]
    steps = {}
    for t in range(1, 4):
        opt.apply_gradients(
            [(sharded(g, mesh, s), v) for g, s, v in zip(grads, specs, variables, strict=True)]
        )
        steps[t] = {
            "param": [flat(v.numpy()) for v in variables],
            "v": [flat(opt._slots[v]["v"].numpy()) for v in variables],
            "buffer": [flat(opt._slots[v]["buffer"].numpy()) for v in variables],
        }
    verdict = judged(
        hosts, grads, steps, {"lr": 0.1, "momentum": 0.9, **limit}, rule.PROFILES["documented"]
    )
    assert verdict.checks > 0
    assert verdict.first is None


def judged(hosts, grads, steps, hyper, profile, options=None):
    n = len(hosts)
    case = golden.Case(
        id="rmsprop.drawn",
        comment="",
        tags=[],
        hyper=hyper,
        options=options or {},
        groups=[(list(range(n)), {})],
        changes={},
        dtypes=["float32"] * n,
        shapes=[list(h.shape) for h in hosts],
        params=[flat(h) for h in hosts],
        steps=len(steps),
        grads=[[flat(g) for g in grads]],
        source={},
    )
    kinds = dict.fromkeys(("param", "v", "buffer", "a", "average"), ["float32"] * n)
    run = golden.Run(profile.name, steps, kinds)
    return judge(rule, case, run, profile, axes=False, flush=True)


def flat(x):
    return [float(y) for y in np.asarray(x).ravel()]


@pytest.mark.jax
def test_a_gradient_of_another_layout_is_moved_to_that_of_its_variable(mesh):
    v = Variable(sharded(START, mesh, ("x", "y")))
    w = Variable(sharded(START, mesh, ("x", "y")))
    RMSprop(0.1, mesh=mesh).apply_gradients([(sharded(GRADIENT, mesh, (None, "y")), v)])
    RMSprop(0.1, mesh=mesh).apply_gradients([(sharded(GRADIENT, mesh, ("x", "y")), w)])
    assert v.data.sharding == w.data.sharding
    assert same_bits(v.numpy(), w.numpy())


@pytest.mark.jax
@pytest.mark.parametrize("layout", [None, ("x", "y")])
def test_a_gradient_on_other_devices_is_refused(mesh, layout):
    import jax

    # device 0 is one of the mesh too, but not all of it
    data = jax.device_put(START, jax.devices()[0]) if layout is None else START
    data = data if layout is None else sharded(data, mesh, layout)
    v = Variable(data, name="w")
    opt = RMSprop(0.1, mesh=None if layout is None else mesh)
    elsewhere = jax.device_put(GRADIENT, jax.devices()[1])
    with pytest.raises(ValueError, match=r"variable 0 \(w\): gradient: device .* is required"):
        opt.apply_gradients([(elsewhere, v)])
    assert int(opt.iterations) == 0
    assert same_bits(v.numpy(), START)


@pytest.mark.jax
def test_variables_outside_the_mesh_are_refused(mesh):
    import jax

    opt = RMSprop(mesh=mesh)
    for data in (jax.numpy.asarray(START), START.copy()):
        with pytest.raises(ValueError, match="a JAX array on the devices of the mesh is required"):
            opt.build([Variable(data)])
        with pytest.raises(ValueError, match="a JAX array on the devices of the mesh is required"):
            opt.apply_gradients([(data, Variable(data))])
    assert len(opt.variables) == 2


@pytest.mark.jax
def test_what_is_added_by_hand_lives_on_the_mesh(mesh):
    v = Variable(sharded(START, mesh, ("x", "y")), name="w")
    opt = RMSprop(mesh=mesh)
    like = opt.add_variable_from_reference(v, "like", START * 2)
    free = opt.add_variable((3,), initializer="ones")
    assert like.data.sharding == v.data.sharding
    assert same_bits(like.numpy(), START * 2)
    assert free.data.sharding.is_fully_replicated
    assert free.data.sharding.device_set == set(mesh.devices.flat)
    assert same_bits(free.numpy(), np.ones(3, "f4"))


@pytest.mark.jax
def test_gradients_of_sharded_variables_train(mesh):
    v = Variable(sharded(START, mesh, ("x", "y")))
    opt = RMSprop(0.1, mesh=mesh)
    before = float((START**2).sum())
    for _ in range(5):
        opt.minimize(lambda: (v * v).sum(), [v])
    assert float((v.numpy() ** 2).sum()) < before
    assert tuple(v.data.sharding.spec) == ("x", "y")


@pytest.mark.jax
def test_a_config_leaves_the_mesh_to_the_caller(mesh):
    opt = RMSprop(0.1, mesh=mesh)
    config = opt.get_config()
    assert "mesh" not in config
    assert RMSprop.from_config({**config, "mesh": mesh}).mesh is mesh


# -- jit_compile ----------------------------------------------------------------------------------
COMPILED = [
    {},
    {"momentum": 0.9, "centered": True, "clipnorm": 1.0},
    {"global_clipnorm": 1.0, "use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    {"profile": "keras-3", "momentum": 0.5},
]


def compiled_steps(library, arguments, n=4):
    opt = RMSprop(refopt.schedules.ExponentialDecay(0.1, 2, 0.5), jit_compile=True, **arguments)
    hosts = [START, START[0]]
    variables = [Variable(library.array(h)) for h in hosts]
    steps, rates = {}, {}
    for t in range(1, n + 1):
        grads = [library.array(GRADIENT), library.array(GRADIENT[0])]
        opt.apply_gradients(zip(grads, variables, strict=True))
        rates[t] = {"lr": float(opt.learning_rate)}
        steps[t] = {"param": [flat(v.numpy()) for v in variables]}
        for field in opt._slots[variables[0]]:
            steps[t][field] = [flat(opt._slots[v][field].numpy()) for v in variables]
        if opt.use_ema:
            steps[t]["average"] = [flat(opt._averages[v].numpy()) for v in variables]
    return opt, hosts, steps, rates


def inside(arguments, hosts, steps, rates):
    names = set(rule.Hyper._fields)
    hyper = {k: x for k, x in arguments.items() if k in names} | {"lr": 0.1}
    options = {k: int(x) for k, x in arguments.items() if k in ("centered", "use_ema")}
    profile = rule.PROFILES[arguments.get("profile", "documented")]
    n = len(hosts)
    case = golden.Case(
        id="rmsprop.drawn",
        comment="",
        tags=[],
        hyper=hyper,
        options=options,
        groups=[(list(range(n)), {})],
        changes=rates,
        dtypes=["float32"] * n,
        shapes=[list(h.shape) for h in hosts],
        params=[flat(h) for h in hosts],
        steps=len(steps),
        grads=[[flat(GRADIENT), flat(GRADIENT[0])]],
        source={},
    )
    kinds = dict.fromkeys(("param", "v", "buffer", "a", "average"), ["float32"] * n)
    verdict = judge(
        rule, case, golden.Run(profile.name, steps, kinds), profile, axes=False, flush=True
    )
    assert verdict.checks > 0
    return verdict.first is None


@pytest.mark.jax
@pytest.mark.parametrize("arguments", COMPILED)
def test_a_step_compiled_by_jax_lies_in_the_envelope(arguments, monkeypatch):
    import jax

    library, traced = backends._jax(), []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda f: traced.append(f) or jit(f))
    _, hosts, steps, rates = compiled_steps(library, arguments)
    assert inside(arguments, hosts, steps, rates)
    # one program for steps that overwrite and one for those that do not
    assert len(traced) == (2 if arguments.get("use_ema") else 1)
    assert len({rate["lr"] for rate in rates.values()}) == 4, "the learning rate is no part of it"


@pytest.mark.torch
def test_a_step_compiled_by_torch_lies_in_the_envelope(monkeypatch):
    import torch

    library, calls = backends._torch(), []
    compile_ = torch.compile

    def counted(function, **options):
        calls.append(options)
        return compile_(function, **options)

    monkeypatch.setattr(torch, "compile", counted)
    arguments = {"momentum": 0.9, "centered": True, "clipnorm": 1.0}
    with warnings.catch_warnings():
        # torch's own, on the versions of what it is built on
        warnings.simplefilter("ignore", DeprecationWarning)
        _, hosts, steps, rates = compiled_steps(library, arguments)
    assert inside(arguments, hosts, steps, rates)
    assert calls == [{"fullgraph": True}], "one program, and nothing left to Python"


@pytest.mark.torch
def test_every_pattern_of_absent_gradients_is_compiled_by_torch(monkeypatch):
    import torch

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **more: compile_(f, backend="eager", **more))
    variables = [Variable(torch.asarray(START[i])) for i in range(2)]
    twins = [Variable(torch.asarray(START[i])) for i in range(2)]
    opt, plain = RMSprop(0.1, jit_compile=True), RMSprop(0.1)
    for o, vs in ((opt, variables), (plain, twins)):
        o.build(vs)
    # torch gives up on a piece of code after so many
    with torch._dynamo.config.patch(recompile_limit=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in (0, 1):
            for o, vs in ((opt, variables), (plain, twins)):
                g = [torch.asarray(GRADIENT[j]) if i == j else None for j in range(2)]
                o.apply_gradients(zip(g, vs, strict=True))
    assert all(same_bits(v.numpy(), w.numpy()) for v, w in zip(variables, twins, strict=True))


@pytest.mark.parametrize("make", [row for row in backends.LIBRARIES if not row.marks])
def test_without_a_compiler_the_step_is_the_same_to_the_bit(make):
    library = make()
    with library.session():
        results = []
        for jit in (True, False):
            v = Variable(library.array(START))
            opt = RMSprop(0.1, momentum=0.9, clipnorm=1.0, use_ema=True, jit_compile=jit)
            for _ in range(3):
                opt.apply_gradients([(library.array(GRADIENT), v)])
            results.append(v.numpy())
        assert same_bits(*results)


@pytest.mark.jax
def test_an_optimizer_that_compiled_its_step_is_pickled():
    import jax.numpy as jnp

    v = Variable(jnp.asarray(START))
    opt = RMSprop(0.1, momentum=0.9, jit_compile=True)
    opt.apply_gradients([(jnp.asarray(GRADIENT), v)])
    runs = [(opt, v), pickle.loads(pickle.dumps((opt, v))), copy.deepcopy((opt, v))]
    for o, x in runs:
        o.apply_gradients([(jnp.asarray(GRADIENT), x)])
    first, *others = (everything(o, x) for o, x in runs)
    for other in others:
        assert all(same_bits(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.jax
def test_a_sparse_gradient_steps_without_compiling():
    import jax.numpy as jnp

    v, w = Variable(jnp.asarray(START)), Variable(jnp.asarray(START))
    rows = refopt.IndexedSlices(jnp.asarray(GRADIENT[:2]), [3, 3])
    RMSprop(0.1, jit_compile=True).apply_gradients([(rows, v)])
    RMSprop(0.1).apply_gradients([(rows, w)])
    assert same_bits(v.numpy(), w.numpy())


@pytest.mark.jax
def test_a_compiled_step_follows_the_order_of_the_pairs():
    import jax.numpy as jnp

    def averages(turn, **how):
        variables = [Variable(jnp.asarray(START[0]) + i) for i in range(2)]
        opt = RMSprop(0.1, use_ema=True, profile="tf-2.9-experimental", **how)
        pairs = [(jnp.ones_like(v.data), v) for v in variables]
        opt.apply_gradients(pairs)
        opt.apply_gradients(pairs[::turn])  # the release pairs averages by position
        opt.finalize_variable_values(variables)
        return np.stack([np.asarray(v.data) for v in variables])

    ours, turned, kept = averages(-1, jit_compile=True), averages(-1), averages(1)
    assert np.max(np.abs(ours - turned)) < np.min(np.abs(ours - kept))
