"""`refopt.NAdam` on every array library: arguments, groups, steps, and steps that fail."""

import copy
import pickle

import numpy as np
import pytest
from backends import LIBRARIES, same_bits

import refopt
from refopt.interp.arrays import Device, Floats, dtype_name, init, run
from refopt.optim import parameter as optim_parameter
from refopt.oracle import spec
from refopt.rules import nadam as rule
from refopt.rules.nadam import PROFILES

RNG = np.random.default_rng(20160502)
GRADIENTS = RNG.normal(size=(6, 3, 4))
START = RNG.normal(size=(3, 4))
NUMPY = LIBRARIES[0].values[0]()
FEW = ("documented", "torch-2.13", "keras-3", "paddle-3.3")


@pytest.fixture(params=[row for row in LIBRARIES if row.id != "jax-jit"])
def library(request):
    row = request.param()
    with row.session():
        yield row


def parameter(value=1.0, grad=0.5, n=3):
    """A NumPy parameter with a gradient."""
    param = refopt.Parameter(np.full(n, value))
    param.grad = None if grad is None else np.full(n, grad)
    return param


def trained(library, host, gradients, dtype="float64", layout="C", steps=None, **options):
    """A parameter after a step with each gradient, and its optimizer."""
    param = refopt.Parameter(library.array(host, dtype, layout))
    optimizer = refopt.NAdam([param], **{"lr": 0.05, **options})
    for grad in gradients[:steps]:
        param.grad = library.array(grad, dtype, layout)
        optimizer.step()
    return param, optimizer


def snapshot(optimizer):
    """All that a step may change, as bytes."""
    return pickle.dumps(
        [
            [[p.data for p in g["params"]] for g in optimizer.param_groups],
            [(list(s), list(s.values())) for s in optimizer.state.values()],
            [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        ]
    )


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lr": -1}, ValueError, "lr: a number >= 0 is required, got -1"),
        ({"lr": float("nan")}, ValueError, "lr: .* got nan"),
        ({"lr": np.ones(2)}, ValueError, r"lr: an array of one element .* got shape \(2,\)"),
        ({"lr": np.array([-1.0])}, ValueError, "lr: "),
        ({"lr": np.array([1j])}, TypeError, "lr: a number is required"),
        ({"eps": -1e-8}, ValueError, "eps: a number >= 0"),
        ({"betas": (1.0, 0.9)}, ValueError, r"betas\[0\]: a number in \[0, 1\) .* got 1.0"),
        ({"betas": (0.9, -0.1)}, ValueError, r"betas\[1\]: a number in \[0, 1\)"),
        ({"betas": (0.9, float("nan"))}, ValueError, r"betas\[1\]"),
        ({"betas": (0.9,)}, IndexError, r"betas: two numbers are required, got \(0.9,\)"),
        ({"betas": 0.9}, TypeError, "betas: two numbers are required, got 0.9"),
        ({"betas": None}, TypeError, "betas: two numbers are required, got None"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay: a number >= 0"),
        ({"momentum_decay": -0.1}, ValueError, "momentum_decay: a number >= 0"),
        ({"profile": "torch"}, ValueError, "profile: one of documented, torch-2.13.*got 'torch'"),
        ({"fused": True}, TypeError, "fused"),
    ],
)
def test_a_bad_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        refopt.NAdam([parameter()], **arguments)


def test_arguments_are_checked_in_the_order_of_the_signature_and_before_the_parameters():
    bad = {"lr": -1, "eps": -1, "betas": (2, 2), "weight_decay": -1, "momentum_decay": -1}
    for names in [*bad]:
        with pytest.raises(ValueError, match=f"^{names}"):
            refopt.NAdam([], **bad)
        del bad[names]
    with pytest.raises(ValueError, match="at least one parameter"):
        refopt.NAdam([])


def test_seven_arguments_have_a_position():
    optimizer = refopt.NAdam([parameter()], 0.1, [0.8, 0.9], 1e-3, 0.2, 0.3, True)
    assert {key: optimizer.defaults[key] for key in optimizer.defaults} == {
        "lr": 0.1,
        "betas": [0.8, 0.9],
        "eps": 1e-3,
        "weight_decay": 0.2,
        "momentum_decay": 0.3,
        "decoupled_weight_decay": True,
        "maximize": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
    }
    with pytest.raises(TypeError, match="positional"):
        refopt.NAdam([parameter()], 0.1, (0.8, 0.9), 1e-3, 0.2, 0.3, True, True)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (np.ones(3), TypeError, r"params: .*got numpy.ndarray; wrap it: refopt.Parameter\(array\)"),
        (parameter(), TypeError, "params: an iterable .* got refopt.optim.parameter.Parameter"),
        (None, TypeError, "params: an iterable .* got NoneType"),
        (iter(()), ValueError, "params: at least one"),
        ([np.ones(3)], TypeError, r"params\[0\]: .*got numpy.ndarray; an array has no .grad: wrap"),
        ([parameter(), "w"], TypeError, r"params\[1\]: .*got str$"),
        ({"params": [parameter()]}, TypeError, r"params\[0\]: .*got str$"),
        ([{"params": {parameter()}}], TypeError, "ordered collection is required, got a set"),
        ([{"lr": 0.1}], KeyError, "params"),
        ([{"params": [parameter()]}, parameter()], TypeError, "param_group: a dict is required"),
        ([("a", parameter()), parameter()], ValueError, "got 1 names for 2 parameters"),
        (
            [{"params": [("a", parameter())]}, {"params": [parameter()]}],
            ValueError,
            "names for all groups or for none .* got one without names",
        ),
    ],
)
def test_bad_parameters_are_named(params, error, message):
    with pytest.raises(error, match=message):
        refopt.NAdam(params)


def test_a_parameter_belongs_to_one_group():
    p = parameter()
    with pytest.raises(ValueError, match="one group only is required, got one of group 0"):
        refopt.NAdam([{"params": [p]}, {"params": [parameter(), p]}])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("1.0", "data: an array or numbers are required, got str"),
        (None, "data: an array or numbers are required, got NoneType"),
        (np.ma.ones(2), "data: an array or numbers are required"),
        (np.arange(3), "data: a real or complex floating-point array is required, got int64"),
        (np.array([None]), "got object"),
    ],
)
def test_a_parameter_of_anything_but_a_floating_point_array_is_refused(data, message):
    with pytest.raises(TypeError, match=message):
        refopt.Parameter(data)


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, tuple, iter, set, lambda p: (x for x in p)])
def test_parameters_come_from_any_iterable(form):
    a, b = parameter(), parameter()
    assert set(refopt.NAdam(form([a, b])).param_groups[0]["params"]) == {a, b}


def test_a_group_takes_the_defaults_that_it_does_not_state_and_keeps_unknown_keys():
    a, b = parameter(), parameter()
    groups = [{"params": a, "lr": 0.5}, {"params": iter([b]), "note": "head"}]
    optimizer = refopt.NAdam(groups, lr=0.1, eps=0.2)
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1]
    assert [g["eps"] for g in optimizer.param_groups] == [0.2, 0.2]
    assert optimizer.param_groups[1]["note"] == "head"
    assert list(optimizer.param_groups[0]) == ["params", "lr", *list(optimizer.defaults)[1:]]
    assert optimizer.param_groups[1]["params"] == [b]


def test_the_dict_of_a_group_is_copied_but_is_the_group_under_a_torch_profile():
    for profile, same in [("documented", False), ("torch-2.13", True)]:
        group = {"params": parameter()}
        optimizer = refopt.NAdam([group], profile=profile)
        assert (optimizer.param_groups[0] is group) == same
        assert (list(group) == ["params"]) != same


def test_names_are_kept_with_their_group():
    a, b = parameter(), parameter()
    optimizer = refopt.NAdam([("w", a), ("b", b)])
    assert optimizer.param_groups[0]["param_names"] == ["w", "b"]
    assert optimizer.param_groups[0]["params"] == [a, b]


def test_each_group_steps_with_its_own_options():
    other = {"lr": 0.3, "maximize": True}
    alone = [trained(NUMPY, START, GRADIENTS, **o)[0] for o in ({"lr": 0.1}, other)]
    pair = [refopt.Parameter(START.copy()) for _ in range(2)]
    optimizer = refopt.NAdam([{"params": pair[:1]}, {"params": pair[1:], **other}], lr=0.1)
    for grad in GRADIENTS:
        pair[0].grad = pair[1].grad = grad
        optimizer.step()
    assert [same_bits(p.data, q.data) for p, q in zip(pair, alone, strict=True)] == [True, True]
    assert not same_bits(pair[0].data, pair[1].data)


def test_a_group_added_later_starts_at_step_zero():
    a, b = parameter(), parameter()
    optimizer = refopt.NAdam([a])
    optimizer.step()
    assert optimizer.add_param_group({"params": [b]}) is None
    optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in (a, b)] == [2.0, 1.0]


def test_repr_lists_the_options_of_each_group_sorted():
    optimizer = refopt.NAdam([{"params": parameter()}, {"params": parameter(), "lr": 0.5}])
    lines = repr(optimizer).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("NAdam (", "Parameter Group 0", ")")
    keys = [line.split(":")[0].strip() for line in lines[2:12]]
    assert keys == sorted(optimizer.defaults)
    assert lines[12:] == ["", "Parameter Group 1", *lines[2:8], "    lr: 0.5", *lines[9:12], ")"]


# -- steps ----------------------------------------------------------------------------------------


def by_the_rule(library, profile, hyper, num, dtype, layout="C"):
    """The parameter, moments and clock after a step with each gradient, without an object."""
    array = library.array(START, dtype, layout)
    state, clock = init(rule, profile, array, num)
    for grad in GRADIENTS[:3]:
        grads = [library.array(grad, dtype, layout)]
        (q,), (state,), (clock,) = run(rule, profile, [array], grads, [state], [clock], hyper, num)
        array = q.param
    return array, state, clock


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("profile", [*PROFILES])
def test_an_object_does_what_its_profile_does_on_every_library(library, profile, capturable):
    if library.slow and profile not in FEW:
        pytest.skip(f"{library.name} is slow; {', '.join(FEW)} reach every kind of counter")
    chosen = PROFILES[profile]
    if profile == "torch-2.13" and capturable:
        chosen = PROFILES["torch-2.13-capturable"]
    choices = rule.configured(
        chosen.choices,
        rule.Hyper(weight_decay=0.1),
        {"decoupled_weight_decay": 0 if profile.startswith(("documented", "torch")) else None},
    )
    num = Device() if capturable else Floats()
    for dtype in library.dtypes[: 1 if library.slow else None]:
        want, moments, clock = by_the_rule(
            library,
            chosen._replace(choices=choices),
            rule.Hyper(lr=0.05, weight_decay=0.1),
            num,
            dtype,
        )
        param, optimizer = trained(
            library,
            START,
            GRADIENTS[:3],
            dtype,
            weight_decay=0.1,
            profile=profile,
            capturable=capturable,
        )
        state = optimizer.state[param]
        assert same_bits(library.get(param.data), library.get(want))
        assert same_bits(library.get(state["exp_avg"]), library.get(moments.m))
        assert same_bits(library.get(state["exp_avg_sq"]), library.get(moments.v))
        assert library.place(param.data) == library.place(library.array(START, dtype))
        powers = ["base_power", "beta2_power"] if profile == "paddle-3.3" else []
        assert list(state) == ["step", "mu_product", *powers, "exp_avg", "exp_avg_sq"]
        for key, field in [("step", "t"), ("mu_product", "product")]:
            counter, number = state[key], getattr(clock, field)
            assert tuple(counter.shape) == ()
            if capturable:
                assert type(counter) is type(number)
                assert dtype_name(counter) == dtype_name(number)
                counter, number = library.get(counter), library.get(number)
            else:
                torch = library.name == "torch"
                assert isinstance(counter, np.ndarray) != torch
                narrow = profile.startswith("torch")
                assert dtype_name(counter) == ("float32" if narrow else "float64")
            assert float(counter) == float(number)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_memory_stays_where_and_as_it_is(library, layout, capturable):
    if library.strides is None or library.name == "numpy-read-only":
        pytest.skip(f"{library.name} is not written in place")
    options = {"layout": layout, "steps": 1, "capturable": capturable}
    param, optimizer = trained(library, START, GRADIENTS, **options)
    state = optimizer.state[param]

    def moments():
        return param.data, state["exp_avg"], state["exp_avg_sq"]

    held = [param.data, *state.values()]
    bits = [library.get(x).copy() for x in moments()]
    strides = [library.strides(x) for x in moments()]
    assert strides[0] == library.strides(library.array(START, "float64", layout))
    gradient = param.grad = library.array(GRADIENTS[1], "float64", "C" if layout == "F" else "F")
    kept = library.get(gradient).copy()
    optimizer.step()
    same = [x is y for x, y in zip(held, [param.data, *state.values()], strict=True)]
    in_place = capturable or library.name == "numpy"
    assert same == [True, *[in_place] * 4]
    assert [library.strides(x) for x in moments()] == strides
    assert not any(same_bits(library.get(x), old) for x, old in zip(moments(), bits, strict=True))
    assert param.grad is gradient
    assert same_bits(library.get(gradient), kept)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 1, 2, 2)])
def test_every_shape_steps(library, shape):
    for dtype in ("float32", "complex128")[: 1 if library.slow else None]:
        param = refopt.Parameter(library.array(np.ones(shape), dtype))
        param.grad = library.array(np.ones(shape), dtype)
        optimizer = refopt.NAdam([param], lr=0.5)
        optimizer.step()
        got = library.get(param.data)
        assert got.shape == shape
        assert got.dtype.name == dtype
        assert (got.real < 1).all()
        assert [tuple(optimizer.state[param][k].shape) for k in ("exp_avg", "exp_avg_sq")] == [
            shape
        ] * 2


def test_a_complex_parameter_steps_as_its_two_real_parts(library):
    z = START + 1j * GRADIENTS[5]
    gradients = [g + 1j * GRADIENTS[0] for g in GRADIENTS]
    param, optimizer = trained(library, z, gradients, "complex128", steps=2)
    pairs = [np.stack([x.real, x.imag], -1) for x in [z, *gradients]]
    pair, real = trained(library, pairs[0], pairs[1:], steps=2)
    for got, want in [
        (param.data, pair.data),
        *[(optimizer.state[param][k], real.state[pair][k]) for k in ("exp_avg", "exp_avg_sq")],
    ]:
        assert same_bits(
            np.ascontiguousarray(library.get(got)).view("f8").reshape(3, 4, 2), library.get(want)
        )


def test_a_step_reads_nothing_from_the_device():
    import cupy_standin

    row = next(p for p in LIBRARIES if p.id == "cupy-standin").values[0]()
    lr = row.array(np.array(0.05), "float32")
    for capturable in (False, True):
        for rate in (0.05, lr):
            before = cupy_standin.ndarray.syncs
            param = refopt.Parameter(row.array(START))
            optimizer = refopt.NAdam([param], capturable=capturable)
            optimizer.param_groups[0]["lr"] = rate
            for grad in GRADIENTS:
                param.grad = row.array(grad)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            optimizer.state_dict()
            assert cupy_standin.ndarray.syncs == before
            assert isinstance(optimizer.state[param]["step"], np.ndarray) != capturable
            assert float(optimizer.state[param]["step"]) == 6.0


# -- gradients ------------------------------------------------------------------------------------


def test_a_parameter_without_gradient_keeps_its_value_and_its_own_count():
    a, b = parameter(), parameter(grad=None)
    optimizer = refopt.NAdam([a, b], weight_decay=0.1)
    optimizer.step()
    assert b not in optimizer.state
    assert (b.data == 1.0).all()
    b.grad, a.grad = a.grad, None
    kept = copy.deepcopy(optimizer.state[a]), a.data.copy()
    optimizer.step()
    assert optimizer.state[b]["step"] == 1.0
    assert pickle.dumps(optimizer.state[a]) == pickle.dumps(kept[0])
    assert same_bits(a.data, kept[1])
    first = parameter()
    refopt.NAdam([first], weight_decay=0.1).step()
    assert same_bits(b.data, first.data)


def test_no_gradient_at_all_makes_no_state():
    optimizer = refopt.NAdam([parameter(grad=None)])
    assert optimizer.step() is None
    assert not optimizer.state


def test_a_zero_gradient_is_a_step():
    p = parameter(grad=0.0)
    optimizer = refopt.NAdam([p], lr=0.5, weight_decay=0.1, decoupled_weight_decay=True)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1.0
    assert (p.data == 1.0 - 0.5 * 0.1).all()


def test_shared_counters_advance_without_a_gradient():
    for profile, step, product in [("keras-3", True, True), ("mindspore-2.10", True, False)]:
        a, b = parameter(), parameter(grad=None)
        optimizer = refopt.NAdam([a, b], profile=profile)
        optimizer.step()
        state = [optimizer.state[p] for p in (a, b)]
        assert (state[0]["step"] == state[1]["step"]) == step
        assert (state[0]["mu_product"] == state[1]["mu_product"]) == product
        assert (b.data == 1.0).all()


def test_maximize_ascends_and_leaves_the_gradient_alone():
    up, down = parameter(grad=0.5), parameter(grad=-0.5)
    refopt.NAdam([up], maximize=True).step()
    refopt.NAdam([down]).step()
    assert same_bits(up.data, down.data)
    assert (up.data > 1.0).all()
    assert (up.grad == 0.5).all()


def test_decoupled_decay_spares_the_moments():
    plain, coupled, decoupled = ({}, {"weight_decay": 0.5}, {"weight_decay": 0.5})
    decoupled = {**decoupled, "decoupled_weight_decay": True}
    moments = []
    for options in (plain, coupled, decoupled):
        p = parameter()
        optimizer = refopt.NAdam([p], **options)
        optimizer.step()
        moments.append(optimizer.state[p]["exp_avg"])
    assert same_bits(moments[0], moments[2])
    assert not same_bits(moments[0], moments[1])


def test_a_parameter_twice_in_a_group_is_warned_about_and_steps_twice():
    p, q = parameter(), parameter()
    with pytest.warns(UserWarning, match="twice"):
        twice = refopt.NAdam([p, p])
    once = refopt.NAdam([q])
    twice.step()
    once.step()
    once.step()
    assert twice.state[p]["step"] == 2.0
    assert same_bits(p.data, q.data)
    assert pickle.dumps(dict(twice.state[p])) == pickle.dumps(dict(once.state[q]))


def test_options_may_change_between_steps():
    p = parameter()
    optimizer = refopt.NAdam([p], lr=0.1)
    optimizer.step()
    product = float(optimizer.state[p]["mu_product"])
    optimizer.param_groups[0].update(lr=0.0, betas=(0.0, 0.5), momentum_decay=3.0)
    before = p.data.copy()
    optimizer.step()
    assert same_bits(p.data, before)
    assert optimizer.state[p]["mu_product"] == 0.0 != product
    assert (optimizer.state[p]["exp_avg"] == 0.5).all()


def test_zero_grad_forgets_or_zeroes(library):
    param = refopt.Parameter(library.array(START))
    gradient = param.grad = library.array(GRADIENTS[0])
    optimizer = refopt.NAdam([param, refopt.Parameter(library.array(START))])
    optimizer.zero_grad(set_to_none=False)
    assert (library.get(param.grad) == 0).all()
    fixed = library.name in ("numpy-read-only", "jax")
    assert (param.grad is gradient) != fixed
    assert optimizer.param_groups[0]["params"][1].grad is None
    optimizer.zero_grad()
    assert param.grad is None


def test_the_closure_is_called_once_first_and_its_value_returned():
    p = parameter(grad=None)
    calls = []

    def closure():
        calls.append(p.data.copy())
        p.grad = np.full(3, 0.5)
        return "loss"

    assert refopt.NAdam([p]).step(closure) == "loss"
    assert [(c == 1.0).all() for c in calls] == [True]
    assert (p.data < 1.0).all()


# -- learning rates that are arrays ---------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_an_array_of_one_element_is_a_learning_rate(library, shape):
    for dtype in ("float32", "float64"):
        for rate_dtype in ("float32", "float64"):
            lr = library.array(np.full(shape, 0.25), rate_dtype)
            param, optimizer = trained(library, START, GRADIENTS, dtype, lr=lr, steps=3)
            want, _ = trained(library, START, GRADIENTS, dtype, lr=0.25, steps=3)
            assert optimizer.param_groups[0]["lr"] is lr
            got = library.get(param.data)
            assert got.dtype == library.get(want.data).dtype
            # a power of two scales without rounding
            assert same_bits(got, library.get(want.data))


def test_a_learning_rate_array_keeps_its_dtype_and_is_read_at_each_step():
    lr = np.array(0.1, dtype="float32")
    a, b, c = parameter(), parameter(), parameter()
    refopt.NAdam([a], lr=lr).step()
    refopt.NAdam([b], lr=float(lr)).step()
    refopt.NAdam([c], lr=0.1).step()
    assert same_bits(a.data, b.data)
    assert not same_bits(a.data, c.data)
    d = parameter()
    optimizer = refopt.NAdam([d], lr=lr)
    lr[...] = 0.0
    optimizer.step()
    assert (d.data == 1.0).all()


# -- steps that fail ------------------------------------------------------------------------------


def bad_state(key, value):
    def spoil(optimizer, param):
        optimizer.state[param][key] = value

    return spoil


def bad_option(**options):
    return lambda optimizer, param: optimizer.param_groups[1].update(options)


def bad_gradient(value):
    return lambda optimizer, param: setattr(param, "grad", value)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (bad_gradient(np.ones(2)), ValueError, r"gradient: shape \(3,\) is required, got \(2,\)"),
        (bad_gradient(np.ones((1, 3))), ValueError, r"got \(1, 3\)"),
        (bad_gradient(np.ones(3, "f4")), TypeError, "gradient: dtype float64 .* got float32"),
        (bad_gradient([1.0] * 3), TypeError, "gradient: numpy.ndarray is required, got list"),
        (bad_gradient(1.0), TypeError, "got float"),
        (bad_gradient(np.ma.ones(3)), TypeError, "got numpy.ma"),
        (bad_state("exp_avg", np.ones(2)), ValueError, r"state 'exp_avg': shape \(3,\)"),
        (bad_state("exp_avg_sq", np.ones(3, "f4")), TypeError, "state 'exp_avg_sq': dtype"),
        (bad_state("exp_avg", [0.0] * 3), TypeError, "state 'exp_avg': an array .* got list"),
        (bad_state("step", np.ones(3)), ValueError, "state 'step': one number"),
        (bad_state("step", np.array(1j)), TypeError, "state 'step': a floating-point number"),
        (bad_state("mu_product", np.array(1)), TypeError, "'mu_product': a floating-point .* int"),
        (
            bad_state("exp_avg", np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,))),
            RuntimeError,
            "state 'exp_avg': memory for each element is required",
        ),
        (lambda o, p: o.state[p].pop("mu_product"), KeyError, "state 'mu_product' is required"),
    ],
)
def test_a_failed_step_names_the_parameter_and_changes_nothing(spoil, error, message):
    a, b, c = parameter(), parameter(), parameter()
    groups = [{"params": [("a", a), ("c", c)]}, {"params": [("weight", b)], "lr": 0.5}]
    optimizer = refopt.NAdam(groups)
    c.grad = None
    optimizer.step()
    c.grad = a.grad
    spoil(optimizer, b)
    before = snapshot(optimizer)
    with pytest.raises(error, match=rf"group 1, parameter 0 \(weight\): .*{message}"):
        optimizer.step()
    assert snapshot(optimizer) == before
    assert c not in optimizer.state


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"betas": (0.9, "x")}, TypeError, r"group 1: betas\[1\]: a number is required, got 'x'"),
        ({"lr": "0.1"}, TypeError, "group 1: lr: a number is required, got '0.1'"),
        ({"lr": np.ones(2)}, ValueError, r"group 1: lr: an array of one element .* got shape \(2,"),
        ({"eps": None}, TypeError, "group 1: eps: a number is required, got None"),
        ({"weight_decay": "1"}, TypeError, "group 1: weight_decay: a number"),
        ({"momentum_decay": 1j}, TypeError, "momentum_decay: a number"),
        ({"foreach": True, "differentiable": True}, AssertionError, "foreach=False is required"),
    ],
)
def test_a_bad_option_is_named_at_the_step_which_changes_nothing(options, error, message):
    a, b = parameter(), parameter()
    optimizer = refopt.NAdam([{"params": a}, {"params": b}])
    optimizer.step()
    optimizer.param_groups[1].update(options)
    before = snapshot(optimizer)
    with pytest.raises(error, match=message):
        optimizer.step()
    assert snapshot(optimizer) == before
    b.grad = None
    assert optimizer.step() is None  # options of a group without gradients are not read


@pytest.mark.parametrize("grad", [0.5, None])
@pytest.mark.parametrize(
    ("betas", "error"),
    [((0.9, 0.9, 0.9), ValueError), ((0.9,), ValueError), (None, TypeError), (0.9, TypeError)],
)
def test_betas_that_are_not_two_are_named_with_a_gradient_or_without(betas, error, grad):
    optimizer = refopt.NAdam([{"params": [parameter(grad=grad)], "betas": betas}])
    with pytest.raises(error, match="group 0: betas: two numbers are required, got"):
        optimizer.step()


def test_a_gradient_of_another_library_is_named(library):
    if library.name.startswith("numpy"):
        library = next(p for p in LIBRARIES if p.id == "strict-CPU_DEVICE").values[0]()
    param, other = refopt.Parameter(START.copy(), name="w"), refopt.Parameter(library.array(START))
    param.grad, other.grad = library.array(START, "float64"), library.array(START)
    optimizer = refopt.NAdam([other, param])
    before = library.get(other.data).copy()
    with pytest.raises(TypeError, match=r"parameter 1 \(w\): gradient: numpy.ndarray is required"):
        optimizer.step()
    assert same_bits(library.get(other.data), before)
    param.grad = GRADIENTS[0]
    optimizer.step()  # one optimizer may hold parameters of two libraries
    assert not same_bits(param.data, START)


def test_a_gradient_on_another_device_is_named():
    import array_api_strict as xp

    param = refopt.Parameter(xp.asarray(START, device=xp.Device("device1")))
    param.grad = xp.asarray(START)
    with pytest.raises(ValueError, match=r"gradient: device .*device1.* is required, got"):
        refopt.NAdam([param]).step()


def test_a_closure_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="closure: a callable is required, got int"):
        refopt.NAdam([parameter()]).step(3)


def test_a_decoupled_decay_that_a_profile_lacks_is_refused():
    optimizer = refopt.NAdam([parameter()], profile="paddle-3.3", decoupled_weight_decay=True)
    with pytest.raises(ValueError, match="decoupled_weight_decay: False is required"):
        optimizer.step()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("capturable", "fails"), [(False, "data"), (True, "data"), (True, "exp_avg_sq")]
)
def test_what_a_step_has_written_is_taken_back_when_a_later_write_fails(
    monkeypatch, capturable, fails, error
):
    a, b, c = parameter(), parameter(grad=None), parameter()
    optimizer = refopt.NAdam(
        [("a", a), ("b", b), ("weight", c)], foreach=False, capturable=capturable
    )
    optimizer.step()
    b.grad = a.grad
    before = snapshot(optimizer)
    held = [a.data, c.data, *optimizer.state[a].values()]
    target, write = c.data if fails == "data" else optimizer.state[c][fails], optim_parameter.write
    broken = []

    def writing(x, value):
        if x is target and not broken:
            broken.append(snapshot(optimizer))
            raise error
        return write(x, value)

    monkeypatch.setattr(optim_parameter, "write", writing)
    with pytest.raises(error) as caught:
        optimizer.step()
    note = "group 0, parameter 2 (weight): not written; the step has changed nothing"
    assert caught.value.__notes__ == [note]
    assert snapshot(optimizer) == before != broken[0]
    assert b not in optimizer.state
    now = [a.data, c.data, *optimizer.state[a].values()]
    assert all(x is y for x, y in zip(held, now, strict=True))


@pytest.mark.torch
def test_a_view_that_torch_lets_nobody_write_undoes_the_step_and_keeps_the_graph():
    import torch

    start = torch.ones(3, dtype=torch.float64, requires_grad=True)
    first = start * 2
    view, _ = (torch.ones(2, 3, dtype=torch.float64, requires_grad=True) * 1).unbind()
    first.grad = view.grad = torch.ones(3, dtype=torch.float64)
    optimizer = refopt.NAdam([first, view], differentiable=True)
    with pytest.raises(RuntimeError, match="parameter 1: not written; the step has changed"):
        optimizer.step()
    assert not optimizer.state
    assert (first.tolist(), view.tolist()) == ([2.0] * 3, [1.0] * 3)
    first.sum().backward()
    assert start.grad.tolist() == [2.0] * 3


# -- memory that parameters share -----------------------------------------------------------------


def test_parameters_that_share_memory_are_named_and_nothing_changes(library):
    if library.name in ("jax", "dask", "numpy-read-only", "strict-device1", "strict-device2"):
        pytest.skip(f"views of {library.name} cannot be written, or share nothing")
    whole = library.array(np.arange(12.0), "float64")
    halves = [refopt.Parameter(whole[:7], name="left"), refopt.Parameter(whole[6:], name="right")]
    for half in halves:
        half.grad = library.like(np.ones(half.shape), half.data)
    optimizer = refopt.NAdam(halves)
    message = r"parameter 1 \(right\): memory of its own .* group 0, parameter 0 \(left\)"
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert same_bits(library.get(whole), np.arange(12.0))
    assert not optimizer.state
    halves[0].grad = None
    optimizer.step()
    assert not same_bits(library.get(whole)[6:], np.arange(6.0, 12.0))


def test_views_without_a_common_element_step_as_if_they_were_alone(library):
    if library.name in ("jax", "dask", "numpy-read-only"):
        pytest.skip(f"views of {library.name} cannot be written")
    whole = library.array(START, "float64")
    views = [whole[:, ::2], whole[:, 1::2]]
    params = [refopt.Parameter(view) for view in views]
    for param in params:
        param.grad = library.like(np.ones((3, 2)), param.data)
    refopt.NAdam(params, lr=0.05).step()
    alone, _ = trained(library, START, [np.ones((3, 4))])
    assert same_bits(library.get(whole), library.get(alone.data))


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("options", [{}, {"differentiable": True}])
def test_a_parameter_keeps_its_layout_and_one_that_is_replaced_its_order(library, layout, options):
    if library.strides is None:
        pytest.skip(f"{library.name} has no strides")
    param = refopt.Parameter(library.array(START, "float64", layout))
    replaced = options or library.name == "numpy-read-only"
    gaps = layout == "strided" and replaced
    want = (4, 1) if gaps else library.strides(param.data)
    param.grad = library.array(GRADIENTS[0], "float64", "F" if layout == "C" else "C")
    refopt.NAdam([param], **options).step()
    assert library.strides(param.data) == want


@pytest.mark.parametrize("capturable", [False, True])
def test_counters_of_shape_1_leave_the_shape_of_the_parameter_alone(capturable):
    param = refopt.Parameter(np.asarray(1.0))
    param.grad = np.asarray(0.5)
    optimizer = refopt.NAdam([param], capturable=capturable, momentum_decay=0.0)
    optimizer.step()
    optimizer.state[param].update(step=np.array([1.0]), mu_product=np.array([[0.25]]))
    optimizer.step()
    assert param.data.shape == optimizer.state[param]["exp_avg"].shape == ()
    assert optimizer.state[param]["step"].item() == 2.0
    assert optimizer.state[param]["mu_product"].item() == 0.25 * 0.45


# -- flags ----------------------------------------------------------------------------------------


def effect_default(library, options):
    param, optimizer = trained(library, START, GRADIENTS, steps=2, **options)
    assert not same_bits(library.get(param.data), START)
    assert float(optimizer.state[param]["step"]) == 2.0
    assert getattr(param.data, "grad_fn", None) is None


def effect_same(library, options):
    got, want = (trained(library, START, GRADIENTS, steps=3, **o)[0] for o in (options, {}))
    assert same_bits(library.get(got.data), library.get(want.data))


def effect_counters(library, options):
    param, optimizer = trained(library, START, GRADIENTS, steps=2, **options)
    for key, value in [("step", 2.0), ("mu_product", None)]:
        counter = optimizer.state[param][key]
        assert type(counter) is type(param.data)
        assert (dtype_name(counter), tuple(counter.shape)) == ("float32", ())
        assert value is None or float(library.get(counter)) == value


def effect_waitless(library, options):
    import cupy_standin

    before = cupy_standin.ndarray.syncs
    effect_counters(library, options)
    assert cupy_standin.ndarray.syncs == before


def effect_gradients(library, options):
    def after(start, grad):
        param = refopt.Parameter(start)
        param.grad = grad
        refopt.NAdam([param], lr=0.1, **options).step()
        return param.data.sum()

    start, grad = (library.array(x, "float64") for x in (START, GRADIENTS[0]))
    if library.name == "jax":
        import jax

        of_start, of_grad = jax.grad(after, (0, 1))(start, grad)
    else:
        inputs = [x.clone().requires_grad_() for x in (start, grad)]
        after(*inputs).backward()
        of_start, of_grad = (x.grad for x in inputs)
    assert (library.get(of_start) == 1).all()
    assert (library.get(of_grad) != 0).any()


def effect_assertion_error(library, options):
    param = refopt.Parameter(library.array(START))
    param.grad = library.array(GRADIENTS[0])
    optimizer = refopt.NAdam([param], **options)
    with pytest.raises(AssertionError, match=r"group 0, parameter 0: foreach=False is required"):
        optimizer.step()
    assert not optimizer.state
    assert same_bits(library.get(param.data), START.astype("f4"))


EFFECTS = {
    "default": effect_default,
    "same": effect_same,
    "counters": effect_counters,
    "waitless": effect_waitless,
    "gradients": effect_gradients,
    "AssertionError": effect_assertion_error,
}
COLUMNS = {"numpy": "numpy", "cupy": "cupy-standin", "torch": "torch", "jax": "jax"}


@pytest.mark.parametrize(
    ("row", "column", "make"),
    [
        pytest.param(row, column, p.values[0], marks=p.marks, id=f"{column}-{row['given']}")
        for row in spec.load("nadam")["options"]
        for column, name in COLUMNS.items()
        for p in LIBRARIES
        if p.id == name
    ],
)
def test_an_option_does_on_each_library_what_the_specification_says(row, column, make):
    library = make()
    with library.session():
        EFFECTS[row[column]](library, row["given"])


def test_every_effect_of_the_specification_has_a_test():
    data = spec.load("nadam")
    assert {*data["effects"], "AssertionError"} == EFFECTS.keys()
    assert all(row.keys() == {"given", *COLUMNS} for row in data["options"])


@pytest.mark.parametrize("flag", ["foreach", "capturable", "differentiable"])
def test_a_flag_takes_the_formula_that_torch_takes_for_it(flag):
    got, _ = trained(NUMPY, START, GRADIENTS, profile="torch-2.13", **{flag: True})
    options = {"capturable": True} if flag == "capturable" else {}
    want, _ = trained(NUMPY, START, GRADIENTS, profile=f"torch-2.13-{flag}", **options)
    plain, _ = trained(NUMPY, START, GRADIENTS, profile="torch-2.13")
    assert same_bits(got.data, want.data)
    assert not same_bits(got.data, plain.data)


@pytest.mark.parametrize(
    ("flags", "taken"),
    [(("foreach", "capturable"), "capturable"), (("differentiable", "capturable"), "capturable")],
)
def test_capturable_decides_among_flags(flags, taken):
    got, _ = trained(NUMPY, START, GRADIENTS, profile="torch-2.13", **dict.fromkeys(flags, True))
    want, _ = trained(NUMPY, START, GRADIENTS, profile="torch-2.13", **{taken: True})
    other, _ = trained(NUMPY, START, GRADIENTS, profile="torch-2.13", **{flags[0]: True})
    assert same_bits(got.data, want.data)
    assert not same_bits(got.data, other.data)


def test_without_decay_the_parameter_never_meets_the_gradient():
    p = parameter(value=np.inf)
    optimizer = refopt.NAdam([p], weight_decay=0)
    optimizer.step()
    assert (p.data == np.inf).all()
    assert (optimizer.state[p]["exp_avg"] == (1 - 0.9) * 0.5).all()


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"foreach": False}, {"differentiable": True}]
)
def test_foreach_and_differentiable_leave_the_documented_numbers_alone(library, options):
    got, optimizer = trained(library, START, GRADIENTS, steps=3, **options)
    want, _ = trained(library, START, GRADIENTS, steps=3)
    assert same_bits(library.get(got.data), library.get(want.data))
    assert optimizer.param_groups[0][next(iter(options))] == next(iter(options.values()))


def test_a_differentiable_step_replaces_what_a_parameter_holds():
    start = START.copy()
    param = refopt.Parameter(start)
    param.grad = GRADIENTS[0]
    optimizer = refopt.NAdam([param], differentiable=True)
    optimizer.step()
    first = param.data, dict(optimizer.state[param])
    optimizer.step()
    assert same_bits(start, START)
    assert param.data is not first[0]
    assert all(optimizer.state[param][key] is not value for key, value in first[1].items())


def test_a_group_may_become_capturable_between_steps(library):
    param, optimizer = trained(library, START, GRADIENTS, "float32", steps=2)
    optimizer.param_groups[0]["capturable"] = True
    optimizer.step()
    assert float(optimizer.state[param]["step"]) == 3.0
    optimizer.param_groups[0]["capturable"] = False
    optimizer.step()
    assert float(optimizer.state[param]["step"]) == 4.0
    assert library.get(param.data).dtype == "float32"


# -- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_goes_on_alone_and_alike(duplicate):
    param, optimizer = trained(NUMPY, START, GRADIENTS, steps=3)
    other = duplicate(optimizer)
    (twin,) = other.param_groups[0]["params"]
    assert twin is not param
    assert list(other.state) == [twin]
    before = param.data.copy()
    twin.grad = GRADIENTS[3]
    other.step()
    assert same_bits(param.data, before)
    param.grad = GRADIENTS[3]
    optimizer.step()
    assert same_bits(param.data, twin.data)
    assert repr(other) == repr(optimizer)
    assert other.profile == optimizer.profile


def test_public_names_are_listed_once_and_documented():
    assert len(set(refopt.__all__)) == len(refopt.__all__)
    assert all(getattr(refopt, name).__doc__ for name in refopt.__all__)


@pytest.mark.jax
def test_gradients_flow_through_the_step_of_jax():
    import jax
    from jax.test_util import check_grads

    def after(start, grad, lr):
        param = refopt.Parameter(start)
        optimizer = refopt.NAdam([param], weight_decay=0.1, differentiable=True)
        optimizer.param_groups[0]["lr"] = lr
        for scale in (1.0, 2.0):
            param.grad = grad * scale
            optimizer.step()
        return param.data

    with jax.enable_x64(True):
        values = [jax.numpy.asarray(x) for x in ([0.5, 1.0], [-0.5, 2.0], 0.1)]
        check_grads(after, values, order=1)
        check_grads(jax.jit(after), values, order=1)


@pytest.mark.torch
def test_an_inference_tensor_is_refused_before_anything_moves():
    import torch

    first = refopt.Parameter(torch.ones(2))
    first.grad = torch.ones(2)
    with torch.inference_mode():
        data = torch.ones(2)
    second = refopt.Parameter(data, name="frozen")
    second.grad = torch.ones(2)
    optimizer = refopt.NAdam([first, second])
    with pytest.raises(RuntimeError, match=r"frozen.*inference tensor"):
        optimizer.step()
    assert first.data.tolist() == [1.0, 1.0]
    assert not optimizer.state


@pytest.mark.torch
@pytest.mark.parametrize("row", [p for p in LIBRARIES if p.id in ("numpy", "torch")])
def test_a_scheduler_of_torch_takes_a_subclass_of_both(row):
    import torch

    class NAdam(refopt.NAdam, torch.optim.Optimizer):
        pass

    library = row()
    param = refopt.Parameter(library.array(START))
    optimizer = NAdam([param], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    rates = []
    for grad in GRADIENTS[:5]:
        rates.append(optimizer.param_groups[0]["lr"])
        param.grad = library.array(grad)
        optimizer.step()
        scheduler.step()
    assert rates == [0.5, 0.5, 0.25, 0.25, 0.125]
    assert float(optimizer.state[param]["step"]) == 5.0


def test_a_gradient_of_shape_that_numpy_makes_a_scalar_is_an_array():
    for dtype in ("float16", "float32", "float64"):
        param, other = (refopt.Parameter(np.array(3.0, dtype)) for _ in "ab")
        for _ in range(2):
            param.grad = 2 * param.data
            other.grad = np.asarray(2 * other.data)
            refopt.NAdam([param], lr=0.5).step()
            refopt.NAdam([other], lr=0.5).step()
        assert same_bits(param.data, other.data)
        assert param.data != 3.0
        optimizer = refopt.NAdam([param])
        optimizer.zero_grad(set_to_none=False)
        assert param.grad == 0.0
        param.data = param.data * 2
        assert isinstance(param.data, np.ndarray)


@pytest.mark.parametrize("option", ["lr", "betas", "maximize", "capturable"])
def test_a_group_that_lost_an_option_is_named(option):
    param = refopt.Parameter(np.ones(2))
    optimizer = refopt.NAdam([param])
    param.grad = np.ones(2)
    del optimizer.param_groups[0][option]
    with pytest.raises(KeyError, match=f"group 0: '{option}' is required, got"):
        optimizer.step()
    assert same_bits(param.data, np.ones(2))


@pytest.mark.torch
def test_parameters_without_memory_share_none():
    import torch

    params = [torch.ones(3, device="meta", requires_grad=True) for _ in range(2)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = refopt.NAdam(params, capturable=True)
    optimizer.step()
    assert optimizer.state[params[0]]["exp_avg"].device.type == "meta"


@pytest.mark.parametrize("profile", [["documented"], {}, None, 3, np.array("documented")])
def test_a_profile_is_a_name(profile):
    with pytest.raises(ValueError, match=r"profile: one of documented, .* is required, got"):
        refopt.NAdam([refopt.Parameter(np.ones(2))], profile=profile)


@pytest.mark.jax
@pytest.mark.parametrize("flag", ["differentiable", "capturable"])
def test_a_learning_rate_may_be_traced_from_the_constructor_on(flag):
    import jax
    import jax.numpy as jnp

    def stepped(lr):
        param = refopt.Parameter(jnp.ones(3))
        optimizer = refopt.NAdam([param], lr=lr, **{flag: True})
        param.grad = jnp.ones(3)
        optimizer.step()
        return jnp.sum(param.data)

    with jax.enable_x64(False):
        lr = jnp.float32(0.5)
        slope = jax.grad(stepped)(lr)
        # the step is linear in lr: the slope is what it changes for each unit of lr
        change = (stepped(lr) - 3.0) / lr
        assert abs(slope - change) <= 8 * np.spacing(abs(np.float32(slope)))
        assert jax.jit(stepped)(lr).shape == ()
        with pytest.raises(ValueError, match="lr: an array of one element is required"):
            jax.grad(stepped)(jnp.ones(2))
