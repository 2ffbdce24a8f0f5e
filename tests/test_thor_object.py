"""`refopt.thor` on every array library: arguments, groups, steps, and steps that fail."""

import doctest
import importlib
import inspect
import json
import pickle

import numpy as np
import pytest
from backends import LIBRARIES, numpy_dtype, same_bits

import refopt
from refopt import layers, thor
from refopt.interp.arrays import Floats, dtype_name, namespace_of
from refopt.interp.measures import fault_of
from refopt.rules import thor as rule

NUMPY = LIBRARIES[0].values[0]()
RNG = np.random.default_rng(20210202)
SAMPLES, FREQUENCY = 6, 2
SHAPES = {
    "conv.weight": (2, 2, 3, 2),
    "conv.bias": (2,),
    "fc.weight": (3, 5),
    "fc.bias": (3,),
    "emb.weight": (4, 3),
    "ln.gamma": (3,),
    "ln.beta": (3,),
    "rest.0": (2, 2),
}
START = {name: RNG.normal(size=shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RNG.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(6)]
SEEN = [
    {
        "conv": (RNG.normal(size=(SAMPLES, 2, 5, 4)), RNG.normal(size=(SAMPLES, 2, 3, 4))),
        "fc": (RNG.normal(size=(SAMPLES, 5)), RNG.normal(size=(SAMPLES, 3))),
        "emb": (RNG.integers(0, 4, (SAMPLES, 2)), RNG.normal(size=(SAMPLES, 2, 3))),
    }
    for _ in range(6)
]
ARGUMENTS = {"momentum": 0.9, "batch_size": SAMPLES, "frequency": FREQUENCY}


@pytest.fixture(params=[row for row in LIBRARIES if row.id != "jax-jit"])
def library(request):
    row = request.param()
    with row.session():
        yield row


def net_of(put):
    """A layer of each kind, its parameters those of `START`."""
    p = {name: put(x) for name, x in START.items()}
    return [
        layers.Conv2d("conv", weight=p["conv.weight"], bias=p["conv.bias"], stride=(2, 1)),
        layers.Dense("fc", weight=p["fc.weight"], bias=p["fc.bias"]),
        layers.Embedding("emb", weight=p["emb.weight"]),
        layers.LayerNorm("ln", weight=p["ln.gamma"], bias=p["ln.beta"]),
        layers.Other("rest", p["rest.0"]),
    ]


def made(put=np.array, net=None, **arguments):
    """An optimizer of the net of `net_of`."""
    given = {"learning_rate": 0.1, "damping": 0.3, **ARGUMENTS, **arguments}
    if given.get("profile", "").startswith("mindspore"):
        given["learning_rate"] = np.asarray(given["learning_rate"])
    return thor(net_of(put) if net is None else net, **given)


def arguments_of(optimizer, step, put=np.array):
    """(gradients, keywords) of a step."""
    seen = SEEN[step]
    return tuple(put(GRADIENTS[step][p.name]) for p in optimizer.parameters), {
        "activations": {k: a if k == "emb" else put(a) for k, (a, _) in seen.items()},
        "output_gradients": {k: put(ds) for k, (_, ds) in seen.items()},
    }


def stepped(optimizer, steps, put=np.array, ids=np.array):
    """The optimizer after these steps."""
    for step in steps:
        gradients, seen = arguments_of(optimizer, step, put)
        seen["activations"]["emb"] = ids(SEEN[step]["emb"][0])
        assert optimizer(gradients, **seen) == (True,) * len(gradients)
    return optimizer


def ids_of(library):
    return lambda host: library.put(host.copy())


def values(optimizer):
    return {p.name: np.array(p.data) for p in optimizer.parameters}


def snapshot(optimizer):
    """All that a step may change, as bytes."""
    return pickle.dumps([values(optimizer), optimizer.state_dict(), optimizer.needs_statistics])


def one_norm(x):
    return np.abs(x).sum(axis=0).max()


def dense(w, name="fc"):
    return [layers.Dense(name, weight=w)]


# -- what it computes -----------------------------------------------------------------------------
def test_a_dense_layer_steps_by_a_solve_with_the_kronecker_product_of_its_damped_factors():
    a, ds, w, g = (RNG.normal(size=shape) for shape in ((8, 4), (8, 3), (3, 4), (3, 4)))
    rate, damping, rows, scale = 0.25, 0.5, 8, 128.0
    w[...] = 0.0
    optimizer = thor(dense(w), rate, damping, 0.0, loss_scale=scale, batch_size=rows)
    optimizer((scale * g,), activations={"fc": a}, output_gradients={"fc": scale * ds / rows})
    moments = [(x.T @ x / rows, np.abs(x).T @ np.abs(x) / rows) for x in (ds, a)]
    factors = [x + damping * np.eye(len(x)) for x, _ in moments]
    matrix = np.kron(*factors)  # rows of w one after the other
    own = optimizer.state_dict()["state"]["fc.weight"]
    inverses = own["g_inverse"][0], own["a_inverse"][0]
    u, unit = -w / rate, np.finfo(float).eps / 2  # a power of two: exact
    conditions = [one_norm(x) * one_norm(y) for x, y in zip(factors, inverses, strict=True)]
    # what `spd_inverse` states, 8 n u; the products of the step and of this test, 2 n u; and the
    # moments, of the step and of this test, which differ by no more than 2 (rows + 2) u each
    shares = [
        10 * len(x) * k + 4 * (rows + 2) * one_norm(size) * one_norm(y)
        for x, y, k, (_, size) in zip(factors, inverses, conditions, moments, strict=True)
    ]
    allowed = unit * (shares[0] * conditions[1] + shares[1] * conditions[0]) * np.abs(g).sum()
    assert np.abs(matrix @ u.ravel() - g.ravel()).sum() <= allowed
    assert allowed < np.abs(g).sum()  # that of no step


@pytest.mark.parametrize("profile", rule.PROFILES)
def test_an_object_takes_the_steps_of_its_profiles_rule(profile):
    flags = {"use_nesterov": True, "enable_clip_grad": True}
    numbers = {"weight_decay": 0.125, "loss_scale": 2.0, "split_dim": 2, "clip_norm": 0.5}
    optimizer = made(profile=profile, **numbers, **flags)
    hyper = rule.Hyper(lr=0.1, damping=0.3, factor_decay=0.95, **ARGUMENTS, **numbers)
    record = rule.PROFILES[profile]
    choices = rule.configured(record.choices, hyper, flags)
    net = [
        rule.Layer("conv2d", (0, 1), SHAPES["conv.weight"], stride=(2, 1)),
        rule.Layer("dense", (2, 3), SHAPES["fc.weight"]),
        rule.Layer("embedding", (4,), SHAPES["emb.weight"]),
        rule.Layer("norm", (5, 6), SHAPES["ln.gamma"]),
        rule.Layer("other", (7,), SHAPES["rest.0"]),
    ]
    hypers = [
        hyper if choices.decayed(name) else hyper._replace(weight_decay=0.0) for name in SHAPES
    ]
    params = [x.copy() for x in START.values()]
    xp, num = namespace_of(params[0]), Floats()
    begun = [rule.init(x, choices, xp=xp, num=num) for x in params]
    states, clocks = (list(column) for column in zip(*begun, strict=True))
    for step in range(4):
        stepped(optimizer, [step])
        given = [rule.Statistics(*SEEN[step][k]) for k in ("conv", "fc", "emb")] + [None, None]
        with np.errstate(all="ignore"):
            quantities, states, clocks = rule.update(
                *(params, [*GRADIENTS[step].values()], states, clocks, hypers, choices),
                xp=xp,
                num=num,
                net=net,
                given=given if step % FREQUENCY == 0 else None,
            )
        params = [q.param for q in quantities]
        for own, x in zip(optimizer.parameters, params, strict=True):
            assert same_bits(own.data, np.asarray(x)), (step, own.name)


def test_every_library_takes_the_same_step_where_no_operation_rounds(library):
    # A = 2I and G = 2I, damped by 2: every intermediate number is a power of two
    a = library.array([[2.0, 0.0], [0.0, 2.0]])
    w = refopt.Parameter(library.array([[1.0, 2.0], [3.0, 4.0]]))
    optimizer = thor(dense(w), 0.5, 2.0, 0.0, batch_size=2)
    ds = library.array([[1.0, 0.0], [0.0, 1.0]])
    g = library.array([[8.0, 16.0], [-8.0, 32.0]])
    optimizer((g,), activations={"fc": a}, output_gradients={"fc": ds})
    assert np.array_equal(library.get(w.data), [[0.75, 1.5], [3.25, 3.0]])


# -- libraries ------------------------------------------------------------------------------------
def test_library_dtype_place_and_layout_are_kept_and_arguments_are_not_written(library):
    dtypes = [d for d in library.dtypes if not d.startswith("complex")]
    for dtype in dtypes[:: 3 if library.slow else 1]:
        for layout in ("C",) if library.slow else ("C", "F"):
            kept = []

            def put(host, dtype=dtype, layout=layout, kept=kept):
                x = library.array(host, dtype, layout)
                kept.append((x, np.array(library.get(x))))
                return x

            optimizer = made(put)
            own = list(kept)
            del kept[:]
            places = [(type(x), library.place(x)) for x, _ in own]
            strides = [library.strides(x) for x, _ in own] if library.strides else None
            stepped(optimizer, range(2 if library.slow else 3), put, ids=ids_of(library))
            arrays = [p.data for p in optimizer.parameters]
            assert [(type(x), library.place(x)) for x in arrays] == places
            assert [dtype_name(x) for x in [*arrays, *optimizer.moments]] == [dtype] * 16
            if strides:
                assert [library.strides(x) for x in arrays] == strides
            for x, before in kept:
                assert same_bits(np.array(library.get(x)), before)
            for x, (_, before) in zip(arrays, own, strict=True):
                assert not same_bits(np.array(library.get(x)), before)


@pytest.mark.parametrize("profile", ["documented", "corrected", "kfac", "mindspore-ascend"])
def test_a_run_resumed_from_a_file_continues_bit_for_bit(library, profile, tmp_path):
    if profile == "mindspore-ascend" and library.name.startswith("strict"):
        pytest.skip("array-api-strict has no float16")
    if profile != "documented" and library.slow:
        pytest.skip("plans or compiles at each step: one profile is enough")

    def put(host):
        return library.array(host, "float32")

    def resumed(begin, total):
        optimizer = made(put, profile=profile, split_dim=4)
        stepped(optimizer, range(begin), put, ids=ids_of(library))
        refopt.save(optimizer.state_dict(), tmp_path / "state")
        net = net_of(put)
        for layer in net:
            for p in layer.parameters:
                (same,) = [q for q in optimizer.parameters if q.name == p.name]
                p.assign(same)
        again = made(put, net=net, profile=profile, split_dim=4)
        again.load_state_dict(refopt.load(tmp_path / "state"))
        return stepped(again, range(begin, total), put, ids=ids_of(library))

    total, begins = (3, [1]) if library.slow else (5, [0, 3])
    whole = stepped(made(put, profile=profile, split_dim=4), range(total), put, ids=ids_of(library))
    for begin in begins:
        halves = resumed(begin, total)
        pairs = zip(
            [*whole.moments, *(p.data for p in whole.parameters)],
            [*halves.moments, *(p.data for p in halves.parameters)],
            strict=True,
        )
        assert all(same_bits(np.array(library.get(x)), np.array(library.get(y))) for x, y in pairs)


def indefinite(library):
    """A dense layer with a factor that is not positive definite in the second block of two."""
    w = refopt.Parameter(library.array(np.ones((4, 2))))
    matrix = np.diag([1.0, 2.0, -3.0, 4.0])
    return w, layers.Factors(A=library.array(np.eye(2)), G=library.array(matrix))


def test_a_factor_that_is_not_positive_definite_is_named_and_nothing_changes(library):
    w, factors = indefinite(library)
    optimizer = thor(dense(w), 0.1, 0.25, 0.9, profile="corrected", split_dim=2, batch_size=1)
    g = library.array(np.ones((4, 2)))
    wanted = "layer 'fc', factor G, block 1 of 2: a positive definite matrix .* λ = 0.25"
    with pytest.raises(np.linalg.LinAlgError, match=wanted):
        optimizer((g,), factors={"fc": factors})
    assert np.array_equal(library.get(w.data), np.ones((4, 2)))
    assert np.array_equal(library.get(optimizer.moments[0]), np.zeros((4, 2)))
    assert optimizer.needs_statistics
    for bad in (np.nan, np.inf):
        spoilt = layers.Factors(library.array([[1.0, 0.0], [0.0, bad]]), library.array(np.eye(4)))
        with pytest.raises(np.linalg.LinAlgError, match=r"factor A, block 0 of 1: .* a NaN or"):
            optimizer((g,), factors={"fc": spoilt})


def test_a_fault_is_named_by_block_where_inverses_are_divided_by_their_largest_element():
    conv = layers.Conv2d("conv", weight=np.ones((4, 2, 1, 1)))
    optimizer = thor(
        [conv], np.asarray(0.1), 0.25, 0.9, batch_size=1, profile="mindspore-ascend", split_dim=2
    )
    factors = layers.Factors(np.eye(2), np.diag([1.0, 2.0, -3.0, 4.0]), 1.0, 1.0)
    with pytest.raises(np.linalg.LinAlgError, match="layer 'conv', factor G, block 1 of 2"):
        optimizer((np.ones((4, 2, 1, 1)),), factors={"conv": factors})


def test_a_factor_without_inverse_may_leave_the_previous_one_in_place(library):
    w, factors = indefinite(library)
    optimizer = thor(dense(w), 0.1, 0.25, 0.9, keep_inverse=True, frequency=2, batch_size=1)
    g = library.array(np.ones((4, 2)))
    with pytest.raises(np.linalg.LinAlgError, match="layer 'fc', factor G"):
        optimizer((g,), factors={"fc": factors})  # there is none yet
    good = factors._replace(G=library.array(np.eye(4)))
    optimizer((g,), factors={"fc": good})
    optimizer((g,))
    with pytest.warns(UserWarning, match=r"layer 'fc', factor G.*previous inverse is kept"):
        optimizer((g,), factors={"fc": factors})
    assert optimizer.report()["parameters"]["fc.weight"]["rule"] == "inverses of step 0"
    w0 = refopt.Parameter(library.array(np.ones((4, 2))))
    other = thor(dense(w0), 0.1, 0.25, 0.9, frequency=3, batch_size=1)
    for _ in range(3):
        other((g,), factors={"fc": good})
    assert np.array_equal(library.get(w.data), library.get(w0.data))


class Twins:
    """A communicator of two workers that hold the same."""

    def Get_size(self):  # noqa: N802
        return 2

    def Allreduce(self, given, total):  # noqa: N802
        assert isinstance(given, np.ndarray)
        total[...] = given + given

    def unused(self, *arguments, **keywords):
        raise AssertionError

    def Bcast(self, array, root):  # noqa: N802
        assert isinstance(array, np.ndarray)

    Get_rank = Send = Recv = unused


def test_the_mean_over_equal_workers_is_the_factor_itself_on_every_library(library):
    for dtype in ("float32", "bfloat16") if "bfloat16" in library.dtypes else ("float32",):

        def put(host, dtype=dtype):
            return library.array(host, dtype)

        alone = stepped(made(put), [0], put, ids=ids_of(library))
        twin = stepped(made(put, comm=Twins()), [0], put, ids=ids_of(library))
        assert (alone.messages, twin.messages) == (0, 1)
        for p, q in zip(alone.parameters, twin.parameters, strict=True):
            assert library.place(p.data) == library.place(q.data)
            same = same_bits(np.array(library.get(p.data)), np.array(library.get(q.data)))
            assert same != p.name.startswith("ln."), p.name  # whose samples are twice as many


@pytest.mark.torch
def test_libraries_do_not_mix():
    import torch

    w = layers.Dense("fc", weight=torch.ones(2, 2), bias=np.ones(2))
    with pytest.raises(TypeError, match=r"fc\.bias: an array of the library of fc\.weight"):
        thor([w], 0.1, 0.1, 0.9)
    optimizer = thor(dense(np.ones((2, 2))), 0.1, 0.1, 0.9)
    x = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"gradients\[0\] \(fc\.weight\): gradient: numpy"):
        optimizer((x,))
    with pytest.raises(TypeError, match=r"activations\['fc'\]: numpy\.ndarray is required"):
        optimizer((np.ones((2, 2)),), activations={"fc": x}, output_gradients={"fc": x})


@pytest.mark.torch
def test_a_torch_parameter_that_requires_a_gradient_is_stepped_in_place():
    import torch

    w = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = thor(dense(w), 0.1, 0.1, 0.9, batch_size=2)
    a = torch.ones(2, 2, requires_grad=True) * 2
    optimizer((torch.ones(2, 2),), activations={"fc": a}, output_gradients={"fc": a})
    assert not torch.equal(w, torch.ones(2, 2))
    assert w.is_leaf
    assert not optimizer.moments[0].requires_grad


# -- surface --------------------------------------------------------------------------------------
def test_the_signature_is_the_documented_one_with_keywords_added():
    parameters = list(inspect.signature(thor).parameters.values())
    documented = [
        *("net", "learning_rate", "damping", "momentum", "weight_decay", "loss_scale"),
        *("batch_size", "use_nesterov", "decay_filter", "split_indices", "enable_clip_grad"),
        "frequency",
    ]
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == documented
    defaults = {p.name: p.default for p in parameters if p.name in documented[4:]}
    assert defaults == {
        "weight_decay": 0.0,
        "loss_scale": 1.0,
        "batch_size": 32,
        "use_nesterov": False,
        "decay_filter": ...,
        "split_indices": None,
        "enable_clip_grad": False,
        "frequency": 100,
    }
    assert thor is refopt.THOR


def test_the_example_of_the_docstring_runs():
    failed, run = doctest.testmod(importlib.import_module("refopt.optim.thor"))
    assert run > 0
    assert failed == 0


def test_names_of_parameters_are_fixed_and_their_order_is_that_of_the_net():
    optimizer = made()
    assert [p.name for p in optimizer.parameters] == list(SHAPES)
    assert optimizer.factored == ("conv", "fc", "emb")
    named = layers.Other("bn", refopt.Parameter(np.ones(2), name="mine"), beta=np.ones(2))
    assert [p.name for p in named.parameters] == ["bn.0", "bn.beta"]


def test_statistics_are_needed_at_step_0_and_every_frequency_steps_and_else_ignored():
    optimizer, other = made(frequency=3), made(frequency=3)
    needed = []
    for step in range(6):
        needed.append(optimizer.needs_statistics)
        gradients, seen = arguments_of(optimizer, step)
        optimizer(gradients, **seen)
        other(gradients, **(seen if needed[-1] else {"activations": "nonsense"}))
    assert needed == [True, False, False, True, False, False]
    assert snapshot(optimizer) == snapshot(other)


def test_ready_factors_are_taken_as_statistics_are():
    optimizer, other = made(), made()
    gradients, seen = arguments_of(optimizer, 0)
    optimizer(gradients, **seen)
    a, ds = SEEN[0]["fc"]
    ready = layers.Factors(a.T @ a / SAMPLES, ds.T @ ds / SAMPLES)
    for mapping in seen.values():
        del mapping["fc"]
    other(gradients, factors={"fc": ready}, **seen)
    assert snapshot(optimizer) == snapshot(other)


def test_a_number_an_array_and_a_callable_are_the_same_schedule():
    forms = [
        ({"learning_rate": 0.5, "damping": 0.25}, True),
        ({"learning_rate": np.asarray(0.5), "damping": np.asarray(0.25, dtype="f4")}, True),
        ({"learning_rate": np.full(9, 0.5), "damping": np.full(9, 0.25)}, True),
        ({"learning_rate": lambda t: 0.5, "damping": lambda t: 0.25}, True),
        ({"learning_rate": lambda t: 0.5 / (t + 1), "damping": 0.25}, False),
        ({"learning_rate": 0.5, "damping": np.asarray([0.25, 1.0, 2.0])}, False),
    ]
    first = values(stepped(made(**forms[0][0]), range(3)))
    for arguments, same in forms:
        found = values(stepped(made(**arguments), range(3)))
        assert all(same_bits(found[k], first[k]) for k in first) == same


def test_a_callable_is_asked_once_a_step_and_once_for_each_group():
    asked = []
    conv, *rest = net_of(np.array)
    own = {"params": [conv], "lr": lambda t: asked.append(("group", t)) or 0.5}
    optimizer = made(net=[own, *rest], learning_rate=lambda t: asked.append(("all", t)) or 0.1)
    stepped(optimizer, range(2))
    assert sorted(asked) == [("all", 0), ("all", 1), ("group", 0), ("group", 1)]


@pytest.mark.parametrize("name", ["learning_rate", "damping"])
def test_past_the_end_of_a_schedule_is_an_error_and_zero_where_the_release_has_it(name):
    optimizer = stepped(made(**{name: np.full(2, 0.5)}), range(2))
    before = snapshot(optimizer)
    gradients, seen = arguments_of(optimizer, 2)
    with pytest.raises(IndexError, match=f"{name}: a value for step 2 is required, got 2 values"):
        optimizer(gradients, **seen)
    assert snapshot(optimizer) == before
    release = stepped(made(profile="mindspore-gpu", **{name: np.full(3, 0.5)}), range(3))
    before = values(release)
    stepped(release, [3])
    still = all(same_bits(x, before[k]) for k, x in values(release).items())
    assert still == (name == "learning_rate")


def test_the_default_decay_leaves_beta_and_gamma_alone_and_a_release_does_not():
    asked = []

    def only_bias(parameter):
        asked.append(parameter)
        return parameter.name.endswith("bias")

    def decaying(**arguments):
        parameters = stepped(made(**arguments), [0]).report()["parameters"]
        return {name for name, own in parameters.items() if own["weight_decay"]}

    assert decaying(weight_decay=0.5) == set(SHAPES) - {"ln.gamma", "ln.beta"}
    assert decaying(weight_decay=0.5, profile="mindspore-gpu") == set(SHAPES)
    assert decaying(weight_decay=0.0, decay_filter=only_bias) == set()
    assert asked == []
    assert decaying(weight_decay=0.5, decay_filter=only_bias) == {"conv.bias", "fc.bias"}
    assert [p.name for p in asked] == list(SHAPES)
    assert {type(p) for p in asked} == {refopt.Parameter}


# -- groups ---------------------------------------------------------------------------------------
def test_a_group_gives_its_parameters_options_of_their_own_and_others_keep_theirs():
    conv, fc, emb, ln, rest = net_of(np.array)
    groups = [
        {"params": [conv.weight], "grad_centralization": True},
        {"params": [fc], "lr": 0.5},
        emb,
        {"params": [ln, conv.bias], "weight_decay": 0.25, "lr": lambda t: 0.75},
        {"params": [rest]},
        conv,
    ]
    optimizer = stepped(made(net=groups, weight_decay=0.5), [0])
    report = optimizer.report()["parameters"]
    assert {name: (own["lr"], own["weight_decay"]) for name, own in report.items()} == {
        "conv.weight": (0.1, 0.5),
        "conv.bias": (0.75, 0.25),
        "fc.weight": (0.5, 0.5),
        "fc.bias": (0.5, 0.5),
        "emb.weight": (0.1, 0.5),
        "ln.gamma": (0.75, 0.25),
        "ln.beta": (0.75, 0.25),
        "rest.0": (0.1, 0.5),
    }
    g = GRADIENTS[0]["conv.weight"]
    centralized = g - g.reshape(2, -1).mean(axis=1).reshape(2, 1, 1, 1) + 0.5 * START["conv.weight"]
    assert report["conv.weight"]["gradient"] == np.linalg.norm(centralized.reshape(-1))


def test_beta_and_gamma_decay_where_groups_are_separated():
    ln = layers.LayerNorm("ln", weight=np.ones(2), bias=np.ones(2))
    optimizer = thor([{"params": [ln]}], 0.5, 1.0, 0.0, weight_decay=0.25, batch_size=1)
    optimizer((np.zeros(2), np.zeros(2)))
    u = 0.25 / (0.25 * 0.25 + 1.0)
    assert values(optimizer)["ln.beta"].tolist() == [1 - 0.5 * u] * 2


def test_order_params_is_the_order_of_gradients_and_changes_no_number():
    net = net_of(np.array)
    conv, fc, emb, ln, rest = net
    order = [rest, ln.parameters[1], emb, fc, ln.parameters[0], conv]
    optimizer = made(net=[*net, {"order_params": order}])
    names = [p.name for p in optimizer.parameters]
    assert names[:3] == ["rest.0", "ln.beta", "emb.weight"]
    plain = made()
    for step in range(3):
        gradients, seen = arguments_of(optimizer, step)
        assert [g.shape for g in gradients] == [SHAPES[name] for name in names]
        optimizer(gradients, **seen)
    stepped(plain, range(3))
    assert all(same_bits(x, values(plain)[name]) for name, x in values(optimizer).items())


def group(**keys):
    conv, fc, *_ = net_of(np.array)
    return [conv, fc, {"params": [fc], **keys}]


def centralized_bias():
    conv, *_ = net_of(np.array)
    return [conv, {"params": [conv.bias], "grad_centralization": True}]


def ordered(*numbers):
    """A net of two parameters, ordered."""
    fc = layers.Dense("fc", weight=np.ones((2, 2)), bias=np.ones(2))
    return [fc, {"order_params": [fc.parameters[i] for i in numbers]}]


SHARED = layers.Dense("fc", weight=np.ones((2, 2)))


@pytest.mark.parametrize(
    ("net", "error", "match"),
    [
        (group(rate=1), KeyError, "params, and of lr, weight_decay, grad_centralization"),
        ([{"lr": 0.5}], KeyError, r"net\[0\]: params, and of"),
        ([{"params": []}], ValueError, r"net\[0\]: params: at least one item"),
        ([{"params": SHARED}], TypeError, r"net\[0\]: params: a list is required, got .*Dense"),
        ([{"params": [np.ones(2)]}], TypeError, r"params\[0\]: a layer .* got numpy.ndarray"),
        (
            [SHARED, {"params": [refopt.Parameter(np.ones(2), name="b")]}],
            ValueError,
            r"params\[0\]: a layer of the net or a parameter of one is required, got 'b'",
        ),
        (group(lr=np.ones((2, 2))), ValueError, r"lr: real numbers of rank 0 or 1"),
        (group(lr=np.ones(7)), ValueError, r"lr: as many values .* got \[3, 7\]"),
        (group(lr="0.1"), TypeError, "lr: a number, an array or a callable"),
        (group(weight_decay=-1.0), ValueError, "weight_decay: a finite number >= 0"),
        (group(grad_centralization=1), TypeError, "grad_centralization: a bool"),
        (group(grad_centralization=True), ValueError, "no weight of a convolution.*fc.weight"),
        (centralized_bias(), ValueError, "no weight of a convolution.*conv.bias"),
        ([{"params": [SHARED]}, {"params": [SHARED]}], RuntimeError, "fc.weight again"),
        ([SHARED, {"order_params": [], "params": []}], ValueError, "order_params alone"),
        ([SHARED, {"order_params": 3}], TypeError, "order_params: a list is required, got int"),
        (ordered(0), ValueError, "order_params: each of .*fc.bias.* got .*fc.weight"),
        (ordered(0, 0), ValueError, "order_params: each of"),
        ([], ValueError, "net: at least one item"),
        (SHARED, TypeError, "net: a list is required, got .*Dense"),
        ([np.ones(2)], TypeError, r"net\[0\]: a layer or a dict is required, got numpy.ndarray"),
        ([SHARED, layers.Dense("fc", np.ones((1, 1)))], ValueError, "'fc' twice"),
        ([SHARED, layers.Other("x", SHARED.weight)], ValueError, "in one layer, once"),
    ],
)
def test_a_net_that_is_none_is_rejected(net, error, match):
    SHARED.weight.name = "fc.weight"
    with pytest.raises(error, match=match):
        thor(net, np.full(3, 0.1), 0.1, 0.9)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: layers.Dense("", np.ones((1, 1))), TypeError, "name: a text"),
        (lambda: layers.Dense("fc", None), TypeError, "weight: an array"),
        (lambda: layers.Dense("fc", [[1.0]]), TypeError, r"fc\.weight: an array .* got list"),
        (lambda: layers.Dense("fc", np.ones(3)), ValueError, r"weight \(out, in\) .* \(3,\)"),
        (lambda: layers.Dense("fc", np.ones((2, 0))), ValueError, r"got shape \(2, 0\)"),
        (lambda: layers.Dense("fc", np.ones((2, 2), int)), TypeError, "got int64"),
        (lambda: layers.Dense("fc", np.ones((2, 2), complex)), TypeError, "got complex128"),
        (lambda: layers.Dense("fc", np.ones((2, 3)), np.ones(3)), ValueError, r"shape \(2,\)"),
        (lambda: layers.Conv2d("c", np.ones((2, 3))), ValueError, "out, in, kh, kw"),
        (lambda: layers.Conv2d("c", np.ones((1, 1, 1, 1)), stride=0), ValueError, "c: stride"),
        (lambda: layers.Conv2d("c", np.ones((1, 1, 1, 1)), dilation="2"), ValueError, "dilation"),
        (lambda: layers.Conv2d("c", np.ones((1, 1, 1, 1)), padding=-1), ValueError, "padding"),
        (lambda: layers.Conv2d("c", np.ones((1, 1, 1, 1)), padding="SAME"), ValueError, "padding"),
        (lambda: layers.Embedding("e", np.ones(3)), ValueError, "ids, width"),
        (lambda: layers.EmbeddingLookup("e", np.ones((2, 3)), "GPU"), ValueError, "e: target must"),
        (lambda: layers.Other("rest"), ValueError, "rest: at least one parameter"),
    ],
)
def test_a_layer_that_is_none_is_rejected(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_padding_is_a_number_for_all_sides_for_two_or_four():
    w = np.ones((1, 1, 1, 1))
    found = [layers.Conv2d("c", w, padding=p).padding for p in ("valid", 1, (1, 2), (1, 2, 3, 4))]
    assert found == ["valid", ((1, 1), (1, 1)), ((1, 1), (2, 2)), ((1, 2), (3, 4))]


@pytest.mark.parametrize("padding", ["same", "valid", ((0, 0), (1, 1)), ((2, 0), (1, 3))])
@pytest.mark.parametrize(("stride", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 2))])
def test_a_convolution_sees_what_its_stride_padding_and_dilation_say(padding, stride, dilation):
    (n, channels, *sizes), kernel = (4, 2, 6, 7), (3, 2)
    a, w = RNG.normal(size=(n, channels, *sizes)), RNG.normal(size=(3, channels, *kernel))
    zeros = {"same": [], "valid": [(0, 0), (0, 0)]}.get(padding, padding)
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        if padding == "same":  # as many positions as strides fit in, the odd zero behind
            lacking = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            zeros.append((lacking // 2, lacking - lacking // 2))
    padded = np.pad(a, [(0, 0), (0, 0), *zeros])
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(2, 3))
    seen = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    rows = seen.transpose(0, 2, 3, 1, 4, 5).reshape(-1, w[0].size)
    ds = RNG.normal(size=(n, 3, *seen.shape[2:4]))
    sides = padding if isinstance(padding, str) else tuple(x for pair in zeros for x in pair)
    conv = layers.Conv2d("c", weight=w, stride=stride, padding=sides, dilation=dilation)
    optimizer = thor([conv], 1.0, 0.5, 0.0, batch_size=n)
    optimizer((np.ones_like(w),), activations={"c": a}, output_gradients={"c": ds})
    inverse = optimizer.state_dict()["state"]["c.weight"]["a_inverse"][0]
    wanted = rows.T @ rows / len(rows) + 0.5 * np.eye(w[0].size)
    # what `spd_inverse` states, 8 n u; this product; two moments of as many rows
    sizes = 9 * w[0].size * np.abs(wanted) + 2 * (len(rows) + 2) * (
        np.abs(rows).T @ np.abs(rows)
    ) / len(rows)
    allowed = np.finfo(float).eps / 2 * one_norm(sizes) * one_norm(inverse)
    assert one_norm(wanted @ inverse - np.eye(len(wanted))) <= allowed
    again = thor([conv], 1.0, 0.5, 0.0, batch_size=n)
    with pytest.raises(ValueError, match=r"output_gradients\['c'\]: shape"):
        again((w,), activations={"c": a}, output_gradients={"c": ds[:, :, 1:]})


# -- arguments ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"learning_rate": "0.1"}, TypeError, "learning_rate: a number, an array or a callable"),
        ({"learning_rate": True}, TypeError, "learning_rate"),
        ({"learning_rate": [0.1]}, TypeError, "learning_rate"),
        ({"learning_rate": np.ones((2, 2))}, ValueError, r"learning_rate: .* got .* \(2, 2\)"),
        ({"learning_rate": np.ones(0)}, ValueError, "learning_rate: .* at least one"),
        ({"learning_rate": np.nan}, ValueError, "learning_rate: a finite number"),
        ({"damping": -0.1}, ValueError, "damping: a finite number >= 0 is required, got -0.1"),
        ({"damping": np.asarray([0.1, -0.1])}, ValueError, "damping: .* got -0.1"),
        ({"damping": None}, TypeError, "damping"),
        ({"damping": np.ones((1, 1))}, ValueError, "damping"),
        ({"momentum": 1}, TypeError, "momentum: a float is required, got 1"),
        ({"momentum": -0.1}, ValueError, "momentum: a finite number >= 0"),
        ({"momentum": np.inf}, ValueError, "momentum"),
        ({"weight_decay": "0"}, TypeError, "weight_decay: a number"),
        ({"weight_decay": -1}, ValueError, "weight_decay"),
        ({"loss_scale": 1}, TypeError, "loss_scale: a float is required, got 1"),
        ({"loss_scale": 0.0}, ValueError, "loss_scale: a finite number > 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size: an integer"),
        ({"batch_size": 0}, ValueError, "batch_size: an integer >= 1"),
        ({"use_nesterov": 1}, TypeError, "use_nesterov: a bool"),
        ({"enable_clip_grad": "x"}, TypeError, "enable_clip_grad: a bool"),
        ({"decay_filter": None}, TypeError, "decay_filter: a callable is required, got None"),
        ({"frequency": 2.0}, TypeError, "frequency: an integer is required, got 2.0"),
        ({"frequency": True}, TypeError, "frequency"),
        ({"frequency": 1}, ValueError, "frequency: an integer >= 2 is required, got 1"),
        ({"profile": "thor"}, ValueError, "profile: one of documented, mindspore-gpu"),
        ({"comm": object()}, TypeError, "comm: an mpi4py communicator is required, got object"),
        ({"reduction": "mean"}, ValueError, "reduction: one of mean-of-factors"),
        ({"fixed_order": 0}, ValueError, "fixed_order: an integer >= 1"),
        ({"fixed_order": 2, "profile": "corrected"}, ValueError, "fixed_order: a reduction of"),
        ({"split_dim": 0}, ValueError, "split_dim"),
        ({"clip_norm": 0}, ValueError, "clip_norm"),
        ({"factor_decay": 1.5}, ValueError, "factor_decay: a finite number >= 0 and <= 1"),
        ({"keep_inverse": 1}, TypeError, "keep_inverse"),
        ({"split_indices": 2}, TypeError, "split_indices: a list of integers"),
        ({"split_indices": [True]}, TypeError, "split_indices"),
        ({"split_indices": [0.0]}, TypeError, "split_indices"),
        ({"split_indices": [1, 1]}, ValueError, "split_indices: ascending integers"),
        ({"split_indices": [1, 0]}, ValueError, "split_indices"),
        ({"split_indices": [-1]}, ValueError, "split_indices"),
        ({"split_indices": [3]}, ValueError, "below the 3 factored layers"),
    ],
)
def test_an_argument_is_rejected_by_name(arguments, error, match):
    with pytest.raises(error, match=match):
        made(**arguments)


def test_a_release_takes_only_arrays_as_learning_rate_and_an_integer_loss_scale():
    for profile in ("mindspore-gpu", "mindspore-ascend"):
        for rate in (0.1, 1, [0.1], lambda t: 0.1):
            with pytest.raises(TypeError, match="learning_rate: an array is required under"):
                thor(dense(np.ones((1, 1))), rate, 0.1, 0.9, profile=profile)
        thor(dense(np.ones((1, 1))), np.ones(2), 0.1, 0.9, loss_scale=1, profile=profile)


def _shorter(optimizer, gradients, seen):
    return gradients[1:], seen


def _as_array(optimizer, gradients, seen):
    return gradients[0], seen


def _gradient(x):
    def change(optimizer, gradients, seen):
        return (x, *gradients[1:]), seen

    return change


def _statistics(argument, name, x):
    def change(optimizer, gradients, seen):
        if x is None:
            del seen[argument][name]
        else:
            seen[argument][name] = x(seen[argument][name]) if callable(x) else x
        return gradients, seen

    return change


def _factors(name, **fields):
    def change(optimizer, gradients, seen):
        for mapping in seen.values():
            mapping.pop(name)
        sizes = {"conv": (12, 2), "fc": (5, 3), "emb": (4, 3)}[name]
        a = np.ones(4) if name == "emb" else np.eye(sizes[0])
        found = {"A": a, "G": np.eye(sizes[1]), "a_normalizer": 1.0, "g_normalizer": 1.0}
        return gradients, {**seen, "factors": {name: layers.Factors(**{**found, **fields})}}

    return change


KERNEL = GRADIENTS[0]["conv.weight"]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (_shorter, ValueError, "gradients: 8 arrays are required, got 7"),
        (_as_array, TypeError, "gradients: a tuple of arrays is required, got numpy.ndarray"),
        (_gradient(None), TypeError, r"gradients\[0\] \(conv.weight\): gradient: numpy.ndarray"),
        (_gradient(KERNEL[:1]), ValueError, r"shape \(2, 2, 3, 2\) is required"),
        (_gradient(KERNEL.astype("f4")), TypeError, "dtype float64 is required, got float32"),
        (_gradient(KERNEL * np.nan), ValueError, r"\(conv.weight\): finite numbers"),
        (_gradient(KERNEL * np.inf), ValueError, r"\(conv.weight\): finite numbers"),
        (
            _statistics("activations", "conv", None),
            ValueError,
            "activations: conv required at step 0, which renews the inverses, got fc, emb",
        ),
        (_statistics("output_gradients", "fc", None), ValueError, "output_gradients: fc required"),
        (_statistics("activations", "x", np.ones(2)), KeyError, r"\(conv, fc, emb\), got 'x'"),
        (_statistics("activations", "fc", lambda a: a[:, :4]), ValueError, r"\(6, 5\) is req"),
        (
            _statistics("activations", "fc", lambda a: a[:5]),
            ValueError,
            r"\['fc'\]: shape \(5, 3\)",
        ),
        (_statistics("activations", "fc", lambda a: a.tolist()), TypeError, "got list"),
        (_statistics("activations", "fc", lambda a: a.astype("f4")), TypeError, "dtype float64"),
        (_statistics("activations", "fc", np.ones(5)), ValueError, "at least one row"),
        (_statistics("activations", "conv", lambda a: a[0]), ValueError, r"\(samples, 2, height"),
        (_statistics("activations", "conv", lambda a: a[:, :1]), ValueError, r"\(6, 2, 5, 4\)"),
        (
            _statistics("output_gradients", "conv", lambda a: a[..., :3]),
            ValueError,
            r"output_gradients\['conv'\]: shape \(6, 2, 3, 4\) is required, got \(6, 2, 3, 3\)",
        ),
        (_statistics("activations", "emb", lambda a: a * 1.0), TypeError, "integers are required"),
        (_statistics("activations", "emb", lambda a: 0 * a + 4), ValueError, r"ids in \[0, 4\)"),
        (_statistics("activations", "emb", lambda a: a - 5), ValueError, r"ids in \[0, 4\)"),
        (_statistics("output_gradients", "emb", lambda a: a[0]), ValueError, r"\(6, 2, 3\) is"),
        (
            _statistics("activations", "fc", lambda a: a * np.nan),
            ValueError,
            "layer 'fc', factor A",
        ),
        (_statistics("output_gradients", "fc", lambda a: a / 0), ValueError, "'fc', factor G"),
        (_factors("fc", A=np.eye(4)), ValueError, r"factors\['fc'\].A: shape \(5, 5\)"),
        (_factors("fc", G=np.eye(3, dtype="f4")), TypeError, r"factors\['fc'\].G: dtype"),
        (_factors("fc", G=[[1.0]]), TypeError, r"factors\['fc'\].G: numpy"),
        (_factors("conv", a_normalizer=None), TypeError, "a_normalizer: a number is required"),
        (_factors("conv", g_normalizer=0), ValueError, "g_normalizer: a finite number > 0"),
        (_factors("emb", a_normalizer=None), TypeError, "a_normalizer"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value")
def test_a_step_that_does_not_fit_is_rejected_by_name_and_changes_nothing(change, error, match):
    optimizer = made()
    before = snapshot(optimizer)
    gradients, seen = change(optimizer, *arguments_of(optimizer, 0))
    with pytest.raises(error, match=match):
        optimizer(gradients, **seen)
    assert snapshot(optimizer) == before
    stepped(optimizer, range(2))


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_a_write_that_fails_at_any_parameter_takes_back_those_before(place, monkeypatch):
    module = importlib.import_module("refopt.optim.thor")
    optimizer, calls, write = stepped(made(), [0]), iter(range(len(SHAPES))), module.assign
    before = snapshot(optimizer)

    def failing(*arguments):
        if next(calls) == place:
            raise OSError("full")  # noqa: EM101
        write(*arguments)

    monkeypatch.setattr(module, "assign", failing)
    gradients, seen = arguments_of(optimizer, 1)
    with pytest.raises(OSError, match="full"):
        optimizer(gradients, **seen)
    assert snapshot(optimizer) == before
    monkeypatch.undo()
    assert snapshot(stepped(optimizer, [1])) == snapshot(stepped(made(), range(2)))


def test_a_layer_in_both_forms_is_rejected():
    optimizer = made()
    gradients, seen = arguments_of(optimizer, 0)
    both = {"fc": layers.Factors(np.eye(5), np.eye(3))}
    with pytest.raises(ValueError, match="factors: 'fc' in one form is required"):
        optimizer(gradients, factors=both, **seen)
    del seen["activations"]["fc"], seen["output_gradients"]["fc"]
    with pytest.raises(TypeError, match=r"factors\['fc'\]: refopt.layers.Factors .* got tuple"):
        optimizer(gradients, factors={"fc": (1, 2)}, **seen)
    with pytest.raises(TypeError, match="activations: a mapping from layers is required, got list"):
        optimizer(gradients, activations=[1])


def test_a_callable_that_gives_no_damping_is_rejected_at_its_step():
    optimizer = stepped(made(damping=lambda t: 0.5 - t), [0])
    before = snapshot(optimizer)
    gradients, seen = arguments_of(optimizer, 1)
    with pytest.raises(ValueError, match=r"damping: a finite number >= 0 .* got -0.5 at step 1"):
        optimizer(gradients, **seen)
    assert snapshot(optimizer) == before


def test_a_layer_norm_without_gradient_needs_damping():
    optimizer = thor([layers.LayerNorm("ln", np.ones(2))], 0.5, 0.0, 0.0, batch_size=1)
    with pytest.raises(ValueError, match=r"damping: a number > 0 .* ln.gamma"):
        optimizer((np.zeros(2),))
    optimizer((np.full(2, 0.5),))
    assert values(optimizer)["ln.gamma"].tolist() == [0.0, 0.0]


def test_what_lies_on_another_device_is_rejected_by_name():
    here, there = (LIBRARIES[i].values[0]() for i in (2, 3))
    table, w = there.array(np.ones((4, 2))), here.array(np.ones((2, 2)))
    net = [layers.Embedding("e", table), layers.Dense("f", w)]
    with pytest.raises(ValueError, match=r"f\.weight: device .*device1.*, that of e\.weight"):
        thor(net, 0.5, 0.5, 0.5)
    optimizer = thor(net[:1], 0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"activations\['e'\]: device .*device1.* is required"):
        optimizer(
            (there.array(np.ones((4, 2))),),
            activations={"e": here.put(np.array([1, 2]))},
            output_gradients={"e": there.array(np.ones((2, 2)))},
        )


def test_parameters_that_share_memory_are_rejected():
    room = np.ones((3, 2))
    net = [layers.Dense("a", room[:2]), layers.Dense("b", room[1:])]
    with pytest.raises(ValueError, match=r"b\.weight: memory of its own .* with a\.weight"):
        thor(net, 0.5, 0.5, 0.0)
    net[1].weight.data = np.ones((2, 2))
    optimizer = thor(net, 0.5, 0.5, 0.0)
    net[1].weight.data = room[1:]
    with pytest.raises(ValueError, match=r"b\.weight\): memory of its own"):
        optimizer((np.ones((2, 2)), np.ones((2, 2))))


# -- what is kept ---------------------------------------------------------------------------------
def test_a_report_says_which_rule_fired_and_how_large_everything_was():
    optimizer = made(enable_clip_grad=True, weight_decay=0.25)
    with pytest.raises(RuntimeError, match="report: a step is required"):
        optimizer.report()
    report = stepped(optimizer, range(2)).report()
    assert json.loads(json.dumps(report)) == report
    assert (report["step"], report["messages"]) == (1, 0)
    own = report["parameters"]
    assert {name: x["rule"] for name, x in own.items()} == {
        **dict.fromkeys(("conv.weight", "fc.weight", "emb.weight"), "inverses of step 0"),
        **dict.fromkeys(("ln.gamma", "ln.beta"), "diagonal"),
        **dict.fromkeys(("conv.bias", "fc.bias", "rest.0"), "none"),
    }
    a, ds = SEEN[0]["fc"]
    u = np.finfo(float).eps
    for key, matrix in (
        ("a_condition", a.T @ a / SAMPLES + 0.3 * np.eye(5)),
        ("g_condition", ds.T @ ds * SAMPLES + 0.3 * np.eye(3)),
    ):
        (found,) = own["fc.weight"][key]
        wanted = np.linalg.cond(matrix)
        # 8 n u (spd_inverse) from the norm of columns to that of vectors, and two moments
        n = len(matrix)
        share = 8 * n**2.5 + 4 * n * (SAMPLES + 2)
        assert abs(found - wanted) <= share * u * wanted**2
    # the norm by which it is divided, the quotient, and the norm that is reported
    assert all(x["update"] <= 1 + (2 * np.prod(SHAPES[name]) + 2) * u for name, x in own.items())
    param = np.linalg.norm(np.array(optimizer.parameters[2].data).reshape(-1))
    assert own["fc.weight"]["param"] == param
    blocks = stepped(made(profile="corrected", split_dim=2), [0]).report()["parameters"]
    assert [len(blocks["fc.weight"][k]) for k in ("a_condition", "g_condition")] == [3, 2]
    assert blocks["fc.weight"]["g_condition"][1] == 1.0  # the block (1, 1), without what fills it


def test_a_release_reports_what_it_leaves_alone():
    report = stepped(made(profile="mindspore-ascend"), [0]).report()["parameters"]
    assert {report[name]["rule"] for name in ("ln.gamma", "emb.weight")} == {"none"}


def test_a_state_of_another_run_is_rejected_and_nothing_is_loaded():
    optimizer = stepped(made(), [0])
    before = snapshot(optimizer)
    good = optimizer.state_dict()
    named = {"ln.gamma": good["state"]["ln.gamma"]}
    moment = {**good["state"], "ln.gamma": {"moment": np.ones(2)}}
    dtype = {**good["state"], "ln.gamma": {"moment": np.ones(3, "f4")}}
    for bad, error, match in [
        ({**good, "profile": "kfac"}, ValueError, "profile 'documented' is required, got 'kfac'"),
        ({**good, "split_dim": 4}, ValueError, "split_dim 128 is required, got 4"),
        ({**good, "state": named}, ValueError, r"state_dict: state: .* are required"),
        ({**good, "state": moment}, ValueError, r"moment: shape \(3,\) is required, got \(2,\)"),
        ({**good, "state": dtype}, TypeError, "dtype float64 is required, got float32"),
        ({"state": good["state"]}, KeyError, "profile"),
    ]:
        with pytest.raises(error, match=match):
            optimizer.load_state_dict(bad)
        assert snapshot(optimizer) == before


def test_a_state_dict_shares_no_memory_with_the_optimizer_that_made_or_loaded_it():
    optimizer, other = stepped(made(), [0]), made()
    state = optimizer.state_dict()
    other.load_state_dict(state)
    before = pickle.dumps([state, snapshot(optimizer), snapshot(other)])
    written = pickle.loads(pickle.dumps(state))
    for own in state["state"].values():
        for x in own.values():
            x[...] = 7.0
    assert pickle.dumps([written, snapshot(optimizer), snapshot(other)]) == before
    kept = optimizer.state_dict()
    before = pickle.dumps(kept)
    stepped(optimizer, range(1, 4))
    assert pickle.dumps(kept) == before


def test_half_precision_is_inverted_in_single_and_stored_rounded():
    dtype = numpy_dtype("float16")
    w = np.zeros((2, 2), dtype)
    optimizer = thor(dense(w), 1.0, 0.125, 0.0, batch_size=2)
    x = np.asarray([[3.0, 0.0], [0.0, 5.0]], dtype)
    ds = np.asarray([[1.0, 0.0], [0.0, 1.0]], dtype)
    optimizer((np.ones((2, 2), dtype),), activations={"fc": x}, output_gradients={"fc": ds})
    a = np.asarray([9.0, 25.0], "f4") / 2 + np.float32(0.125)
    g = np.float32(2.125)
    wanted = (np.float32(1) / g / a).astype(dtype)
    spacing = np.spacing(wanted)  # one rounding on storing, and a neighbour where float32 rounded
    assert w.dtype == dtype
    assert (np.abs(w + wanted) <= spacing).all()


def test_a_lookup_under_mindspore_is_what_its_target_says_and_documented_an_embedding():
    def after(kind, profile, **how):
        net = [kind("emb", np.zeros(SHAPES["emb.weight"]), **how)]
        optimizer = made(net=net, profile=profile, learning_rate=0.125, damping=2.0**-4)
        a, ds = SEEN[0]["emb"]
        optimizer((gradient,), activations={"emb": a}, output_gradients={"emb": ds})
        return optimizer.parameters[0].data

    lookup, gradient = layers.EmbeddingLookup, GRADIENTS[0]["emb.weight"]
    plain = after(layers.Embedding, "documented")
    for target in ("CPU", "DEVICE"):
        assert (after(lookup, "documented", target=target) == plain).all()
    # without statistics only the damping is left, of which the root of the root is exact
    damped = -0.125 * 16 * gradient
    assert (after(lookup, "mindspore-gpu") == damped).all()
    assert not (after(lookup, "mindspore-gpu", target="DEVICE") == damped).any()


# -- what must not pass ---------------------------------------------------------------------------
def single(dtype="f4", damping=0.25, momentum=0.0, **arguments):
    """(optimizer, weight) of a dense layer of two by two."""
    w = np.ones((2, 2), dtype)
    given = {"learning_rate": 1.0, "batch_size": 1, **arguments}
    rate = given.pop("learning_rate")
    return thor(dense(w), rate, damping, momentum, **given), w


def pushed(optimizer, w, gradient=1.0, a=1.0, g=1.0):
    """The optimizer after a step with factors that are multiples of the identity."""
    unit = np.eye(2, dtype=w.dtype)
    ready = layers.Factors(w.dtype.type(a) * unit, w.dtype.type(g) * unit)
    optimizer((np.full_like(w, gradient),), factors={"fc": ready})
    return optimizer


@pytest.mark.parametrize("profile", ["documented", "corrected"])
@pytest.mark.parametrize("counts", [[4.0, -4.0], [-0.5, 1.0], [np.inf, 1.0]])
def test_counts_of_a_table_that_no_ids_have_are_an_error(library, profile, counts):
    w = refopt.Parameter(library.array(np.zeros((2, 2))))
    optimizer = thor([layers.Embedding("e", w)], 1.0, 0.0625, 0.0, profile=profile, batch_size=1)
    factors = layers.Factors(library.array(counts), library.array(np.eye(2)), 1)
    with pytest.raises(np.linalg.LinAlgError, match="layer 'e', factor A, block 0 of 1"):
        optimizer((library.array(np.ones((2, 2))),), factors={"e": factors})
    assert np.array_equal(library.get(w.data), np.zeros((2, 2)))
    assert optimizer.needs_statistics


def test_what_overflows_is_named_and_not_called_indefinite():
    beyond = "factor A, block 0 of 1.* got one with an inverse beyond the largest float{}"
    for dtype, damping, wanted in [
        ("f2", 1e-6, beyond.format(16)),
        ("f4", 1e-39, beyond.format(32)),
    ]:
        optimizer, w = single(dtype, damping)
        with pytest.raises(np.linalg.LinAlgError, match=wanted):
            pushed(optimizer, w, a=0.0)
    for arguments in ({"loss_scale": 1e-300}, {"batch_size": 10**200}):
        optimizer, w = single(**arguments)
        with pytest.raises(np.linalg.LinAlgError, match=r"factor G.* overflows where it is scaled"):
            pushed(optimizer, w)
    optimizer, w = single(profile="kfac")
    with pytest.raises(np.linalg.LinAlgError, match=r"factor G.* that is not, after damping"):
        pushed(optimizer, w, g=0.0)


@pytest.mark.parametrize(
    ("arguments", "step", "stage"),
    [
        ({"damping": 1e-30}, {"a": 0.0, "g": 0.0}, "its preconditioned gradient"),
        ({"weight_decay": 1e30}, {"gradient": 1e38, "a": 1e30, "g": 0.0}, "its preconditioned"),
        ({"enable_clip_grad": True, "clip_norm": 100.0}, {"gradient": 1e38}, "decayed and clipped"),
        ({"learning_rate": 1e300}, {}, "its value"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_step_to_what_is_not_finite_is_an_error_and_changes_nothing(arguments, step, stage):
    optimizer, w = single(**arguments)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=f"fc.weight: finite numbers .* {stage}.* at step 0"):
        pushed(optimizer, w, **step)
    assert snapshot(optimizer) == before


@pytest.mark.parametrize(
    ("diagonal", "wanted"),
    [
        ([1.0, 2.0], "one that is not, after damping, to the rounding of float32"),
        ([1.0, 0.0], "one that is not, after damping"),
        ([1.0, -1.0], "one that is not, after damping"),
        ([1.0, 1e-39], "one with an inverse beyond the largest float32"),
        ([1.0, np.inf], "one that overflows where it is scaled and damped"),
    ],
)
def test_a_factor_without_inverse_is_described_as_what_it_is(diagonal, wanted):
    x = np.asarray(diagonal, "f4")
    assert fault_of(np.diag(np.r_[x[::-1], x]), 1, 2, "float32") == wanted
    assert fault_of(x, 0, 2, "float32") == wanted


def test_a_momentum_that_grows_beyond_the_dtype_is_an_error_at_its_step():
    optimizer, w = single(momentum=10.0)
    for _ in range(39):  # 0.64 · 10³⁸ · (1 + 0.1 + …) is below 2¹²⁸
        pushed(optimizer, w)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"fc.weight: finite numbers .* its momentum at step 39"):
        pushed(optimizer, w)
    assert snapshot(optimizer) == before


@pytest.mark.parametrize(("gradient", "limit"), [(1e19, 1.0), (1e-25, 1e-30)])
def test_a_gradient_that_clipping_would_lose_is_an_error_but_for_a_release(gradient, limit):
    def clipped(rate, profile):
        x = np.zeros(4, "f4")
        net = [layers.Other("x", x)]
        how = {"enable_clip_grad": True, "clip_norm": limit, "profile": profile}
        thor(net, rate, 0.5, 0.0, **how)((np.full(4, gradient, "f4"),))
        return x

    with pytest.raises(ValueError, match=r"x\.0: a preconditioned gradient that can be squared"):
        clipped(1.0, "documented")
    assert (clipped(np.asarray(1.0), "mindspore-gpu") == 0).all()


@pytest.mark.parametrize("profile", ["documented", "kfac", "corrected", "mindspore-ascend"])
def test_a_fixed_order_changes_no_result_where_sums_are_exact(profile):
    random = np.random.default_rng(5)
    a = random.integers(-2, 3, (8, 2, 4, 4)) * 1.0
    ds = random.integers(-2, 3, (8, 3, 4, 4)) / 8
    ids, de = random.integers(0, 4, (8, 2)), random.integers(-2, 3, (8, 2, 3)) / 8

    def after(**how):
        conv, table = np.ones((3, 2, 3, 3)), np.ones((4, 3))
        net = [layers.Conv2d("conv", conv), layers.Embedding("emb", table)]
        net, first = (net[1:], 1) if profile == "corrected" else (net, 0)
        how = {"profile": profile, "reduction": "mean-of-factors", "batch_size": 8, **how}
        optimizer = thor(net, np.asarray(1.0), 0.5, 0.0, **how)
        optimizer(
            (np.ones_like(conv), np.ones_like(table))[first:],
            activations={k: {"conv": a, "emb": ids}[k] for k in optimizer.factored},
            output_gradients={k: {"conv": ds, "emb": de}[k] for k in optimizer.factored},
        )
        assert not (optimizer.parameters[-1].data == 1).all()
        return values(optimizer)

    wanted = after()
    for size in (1, 2, 4, 8):
        found = after(fixed_order=size)
        assert all(same_bits(x, found[name]) for name, x in wanted.items()), size


def test_a_fixed_order_beside_a_convolution_of_the_mean_sample_is_rejected():
    how = {"fixed_order": 2, "reduction": "mean-of-factors"}
    with pytest.raises(ValueError, match="fixed_order: None is required beside a convolution"):
        made(profile="corrected", **how)
    thor(dense(np.ones((1, 1))), 0.5, 0.5, 0.5, profile="corrected", **how)


@pytest.mark.parametrize("profile", ["documented", "kfac", "mindspore-ascend"])
def test_a_state_that_no_step_leaves_is_rejected_and_nothing_is_loaded(profile):
    optimizer = stepped(made(profile=profile, split_dim=4), [0])
    good = optimizer.state_dict()
    own = good["state"]["conv.weight"]
    inverse, scale = own["a_inverse"], own.get("scale")

    def state(name="conv.weight", **fields):
        return {"state": {**good["state"], name: {**good["state"][name], **fields}}}

    cases = [
        (state(a_inverse=inverse[:, :-1, :-1]), ValueError, "a_inverse: shape"),
        (state("emb.weight", a_inverse=np.ones((1, 4, 4))), ValueError, "a_inverse: shape"),
        (state("emb.weight", a_inverse=-np.ones(4)), ValueError, "a_inverse: finite"),
        (state(a_inverse=np.full_like(inverse, np.nan)), ValueError, "a_inverse: finite"),
        (state(a_inverse=0 * inverse), ValueError, "a_inverse: finite numbers, above 0"),
        (state(g_inverse=-own["g_inverse"]), ValueError, "g_inverse: finite numbers, above 0"),
        (state(moment=np.full(SHAPES["conv.weight"], np.inf)), ValueError, "moment: finite"),
        (state(a_inverse="x"), TypeError, "a_inverse: an array is required, got str"),
        (state(moment=5), TypeError, "moment: an array is required, got int"),
        (state("ln.beta", a_inverse=inverse), ValueError, "state of ln.beta"),
        ({"state": {**good["state"], "ln.beta": None}}, TypeError, "state of ln.beta: a mapping"),
        (
            {"state": {**good["state"], "fc.weight": {"moment": np.ones((3, 5))}}},
            ValueError,
            "of fc",
        ),
        (state(scale="x"), TypeError if scale is not None else ValueError, "scale"),
        ({"step": -1}, ValueError, "step: an integer >= 0"),
        ({"step": 2.5}, TypeError, "step: an integer"),
        ({"step": True}, TypeError, "step: an integer"),
        ({"step": "x"}, TypeError, "step: an integer"),
        ({"step": 0}, ValueError, r"refreshed: \[\] are required"),
        ({"refreshed": {"zz": 0}}, ValueError, "refreshed"),
        ({"refreshed": None}, TypeError, "refreshed: a mapping"),
        ({"refreshed": {**good["refreshed"], "fc": "a"}}, TypeError, r"\['fc'\]: an integer"),
        ({"refreshed": {**good["refreshed"], "fc": 1}}, ValueError, r"\['fc'\]: a step before 1"),
        ({"profile": [1]}, ValueError, "profile"),
    ]
    before = snapshot(optimizer)
    for change, error, match in cases:
        with pytest.raises(error, match=match):
            optimizer.load_state_dict({**good, **change})
        assert snapshot(optimizer) == before
    for none in (None, [], "x"):
        with pytest.raises(TypeError, match="state_dict: a mapping is required"):
            optimizer.load_state_dict(none)
    for key in good:
        with pytest.raises(KeyError, match=f"state_dict: {key} is required"):
            optimizer.load_state_dict({k: x for k, x in good.items() if k != key})
    optimizer.load_state_dict(good)
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("profile", rule.PROFILES)
@pytest.mark.parametrize("split", [2, 128])
def test_every_profile_loads_what_it_saves(profile, split):
    optimizer = stepped(made(profile=profile, split_dim=split), range(2))
    other = made(profile=profile, split_dim=split)
    other.load_state_dict(optimizer.state_dict())
    assert snapshot(other)[1:2] == snapshot(optimizer)[1:2]
    assert pickle.dumps(other.state_dict()) == pickle.dumps(optimizer.state_dict())


# -- names ----------------------------------------------------------------------------------------
def test_two_parameters_of_one_name_are_rejected():
    net = [layers.Dense("a.b", np.ones((2, 2))), layers.Other("a", **{"b.weight": np.ones(2)})]
    with pytest.raises(ValueError, match=r"each parameter, got 'a\.b\.weight' twice"):
        thor(net, 0.5, 0.5, 0.5)


def test_a_layer_that_is_refused_renames_no_parameter_and_a_later_one_no_state():
    w, four = refopt.Parameter(np.ones((2, 2)), name="mine"), np.ones((2, 2, 1, 1))
    for make in (
        lambda: layers.Dense("fc", w, np.ones(3)),
        lambda: layers.Conv2d("c", w),
        lambda: layers.EmbeddingLookup("e", w, "GPU"),
        lambda: layers.LayerNorm("ln", w, np.ones(3)),
        lambda: layers.Other("x", w, 5),
    ):
        with pytest.raises((TypeError, ValueError)):
            make()
        assert w.name == "mine"
    kernel = refopt.Parameter(four)
    with pytest.raises(ValueError, match="stride"):
        layers.Conv2d("c", kernel, stride=0)
    assert kernel.name is None
    optimizer = thor([layers.Dense("fc", w)], 0.5, 0.5, 0.5, batch_size=1)
    layers.Other("elsewhere", w)
    assert list(optimizer.state_dict()["state"]) == ["fc.weight"]
    unit = np.eye(2)
    optimizer((unit,), factors={"fc": layers.Factors(unit, unit)})
    assert list(optimizer.report()["parameters"]) == ["fc.weight"]


def test_a_layers_name_stays_and_its_parameters_are_found_by_theirs():
    ln = layers.LayerNorm("ln", np.ones(2), np.zeros(2))
    assert (ln.gamma, ln.beta) == ln.parameters == (ln["gamma"], ln["beta"])
    other = layers.Other("x", np.ones(1), mean=np.ones(2))
    assert (other["0"], other["mean"]) == other.parameters
    with pytest.raises(KeyError, match="x: one of 0, mean is required, got 'y'"):
        other["y"]
    with pytest.raises(AttributeError, match="name"):
        ln.name = "y"


def test_data_that_are_replaced_by_others_are_rejected():
    layer = layers.Other("x", np.ones(3))
    optimizer = thor([layer], 0.5, 0.5, 0.5)
    for data, error in ((np.ones((3, 3)), ValueError), (np.ones(3, "f4"), TypeError)):
        layer["0"].data = data
        with pytest.raises(error, match=r"x\.0: data, as when the optimizer was made"):
            optimizer((np.ones_like(data),))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: layers.Layer("a", w=np.ones(2)), TypeError, "a: a layer of a kind"),
        (lambda: layers.Other("a", None), TypeError, r"a\.0: an array"),
        (lambda: layers.Other("a", np.ones(1), **{"0": np.ones(2)}), ValueError, "'0' twice"),
        (lambda: layers.LayerNorm("l", np.ones(3), np.ones(4)), ValueError, "l: a bias of the sh"),
        (
            lambda: layers.Conv2d("c", np.ones((1, 1, 1, 1)), padding=np.ones(2, int)),
            ValueError,
            "c: padding",
        ),
        (lambda: single(profile=["kfac"]), ValueError, "profile: one of"),
        (lambda: single(reduction=["x"]), ValueError, "reduction: one of"),
        (lambda: single(learning_rate=10**400), ValueError, "learning_rate: .* 1329 bits"),
        (lambda: single(damping=10**400), ValueError, "damping: a finite number"),
        (lambda: single(weight_decay=10**400), ValueError, "weight_decay: a finite number >= 0"),
        (lambda: single(clip_norm=10**400), ValueError, "clip_norm: a finite number > 0"),
        (lambda: single(batch_size=10**400), ValueError, "batch_size: an integer that"),
        (
            lambda: single(weight_decay=0.5, decay_filter=lambda p: np.ones(2)),
            TypeError,
            r"decay_filter: a bool is required for fc\.weight, got numpy",
        ),
        (
            lambda: pushed(*single(learning_rate=lambda t: 10**400)),
            ValueError,
            "learning_rate: a finite number",
        ),
        (lambda: pushed(*single(damping=lambda t: True)), TypeError, "damping: .* True at step 0"),
        (lambda: stepped(made(net=grouped()), range(4)), IndexError, "^.?lr: a value for step 3"),
    ],
)
def test_what_would_fail_without_a_name_or_pass_unseen_is_rejected_by_name(make, error, match):
    with pytest.raises(error, match=match):
        make()


def grouped():
    conv, fc, *rest = net_of(np.array)
    return [conv, {"params": [fc], "lr": np.ones(3)}, *rest]


@pytest.mark.parametrize("name", ["activations", "output_gradients", "factors"])
@pytest.mark.parametrize("nothing", [0, [], ""])
def test_statistics_that_are_empty_and_no_mapping_are_rejected(name, nothing):
    optimizer = made()
    gradients, seen = arguments_of(optimizer, 0)
    with pytest.raises(TypeError, match=f"{name}: a mapping from layers is required"):
        optimizer(gradients, **{**seen, name: nothing})


def test_a_null_communicator_is_rejected():
    class Null(Twins):
        def __bool__(self):
            return False

    with pytest.raises(ValueError, match="comm: a communicator that has workers"):
        made(comm=Null())


def test_an_image_smaller_than_the_kernel_is_named():
    conv = layers.Conv2d("c", np.ones((1, 1, 3, 3)), padding="valid")
    optimizer = thor([conv], 0.5, 0.5, 0.5)
    seen = {"c": np.ones((1, 1, 2, 5))}, {"c": np.ones((1, 1, 0, 3))}
    with pytest.raises(ValueError, match="as large as the kernel is required, got 2 x 5"):
        optimizer((np.ones((1, 1, 3, 3)),), activations=seen[0], output_gradients=seen[1])


def test_a_net_without_factored_layers_needs_no_statistics():
    assert not thor([layers.LayerNorm("ln", np.ones(2))], 0.5, 0.5, 0.5).needs_statistics


def test_numbers_of_numpy_are_numbers():
    i, x = np.int64(2), np.float32(0.5)
    conv = layers.Conv2d("c", np.ones((1, 1, 1, 1)), stride=i, padding=(i, i), dilation=i)
    assert (conv.stride, conv.padding, conv.dilation) == ((2, 2), ((2, 2), (2, 2)), (2, 2))
    how = {"batch_size": i, "frequency": i, "split_dim": i, "split_indices": [np.int64(0)]}
    optimizer = thor([conv], x, x, x, weight_decay=x, loss_scale=x, clip_norm=x, **how)
    unit = layers.Factors(np.eye(1), np.eye(1), i, x)
    optimizer((np.ones((1, 1, 1, 1)),), factors={"c": unit})
    with pytest.raises(TypeError, match="momentum: a float"):
        single(momentum=i)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int32"])
def test_ids_may_be_integers_of_every_dtype_of_torch(dtype):
    import torch

    def after(dtype):
        w = torch.zeros(4, 2)
        ids = torch.tensor([1, 3, 3]).to(getattr(torch, dtype))
        optimizer = thor([layers.Embedding("e", w)], 0.5, 0.5, 0.5, batch_size=2)
        seen = {"activations": {"e": ids}, "output_gradients": {"e": torch.ones(3, 2)}}
        optimizer((torch.ones(4, 2),), **seen)
        return w

    assert torch.equal(after(dtype), after("int64"))


def test_a_step_that_fails_after_its_messages_does_not_count_them():
    w = np.ones((4, 2))
    optimizer = thor(dense(w), 0.5, 0.25, 0.5, comm=Twins(), batch_size=1)
    bad = layers.Factors(np.eye(2), -np.eye(4))
    with pytest.raises(np.linalg.LinAlgError):
        optimizer((w,), factors={"fc": bad})
    assert optimizer.messages == 0
    optimizer((np.ones_like(w),), factors={"fc": bad._replace(G=np.eye(4))})
    assert optimizer.messages == 1


def test_a_step_on_dask_leaves_nothing_to_compute():
    da = pytest.importorskip("dask.array", reason="needs dask")
    w = da.ones((3, 4), chunks=2)
    optimizer = thor(dense(w), 0.5, 0.5, 0.5, frequency=2, batch_size=5)
    for _ in range(3):
        seen = {"activations": {"fc": da.ones((5, 4))}, "output_gradients": {"fc": da.ones((5, 3))}}
        optimizer((da.ones((3, 4), chunks=2),), **seen)
    kept = optimizer.state_dict()["state"]["fc.weight"].values()
    for x in (w, *optimizer.moments):
        assert len(x.dask) == x.npartitions
    assert len(list(kept)) == 3
