"""Saving and loading the state of an optimizer: torch's structure, nothing aliased or lost."""

import copy
import pickle

import numpy as np
import pytest
from backends import LIBRARIES, numpy_dtype, same_bits

import refopt

RNG = np.random.default_rng(4)
START, *GRADIENTS = RNG.normal(size=(7, 2, 3))
NUMPY = LIBRARIES[0].values[0]()


@pytest.fixture(params=[row for row in LIBRARIES if row.id != "jax-jit"])
def library(request):
    row = request.param()
    with row.session():
        yield row


def made(library=NUMPY, dtype="float64", layout="C", steps=0, **options):
    """A parameter and its optimizer after some steps."""
    param = refopt.Parameter(library.array(START, dtype, layout))
    optimizer = refopt.NAdam([param], **{"lr": 0.05, **options})
    walk(library, param, optimizer, GRADIENTS[:steps])
    return param, optimizer


def walk(library, param, optimizer, gradients):
    """A step with each gradient."""
    for grad in gradients:
        param.grad = library.like(grad, param.data)
        optimizer.step()


def arrays(library, optimizer, param):
    """Value and state on the host."""
    get = [library.get(param.data)]
    for value in optimizer.state[param].values():
        get.append(np.asarray(value if isinstance(value, np.ndarray) else library.get(value)))
    return get


def alike(a, b):
    return len(a) == len(b) and all(map(same_bits, a, b))


def saved(*ids, groups=1, dtype="float64", shape=(2, 3), **options):
    """A state dict written by hand."""
    state = {
        "step": np.array(3.0, dtype),
        "mu_product": np.array(0.125, dtype),
        "exp_avg": np.full(shape, 0.5, dtype),
        "exp_avg_sq": np.full(shape, 0.25, dtype),
    }
    group = {**refopt.NAdam([refopt.Parameter(START)]).defaults, **options}
    return {
        "state": {key: copy.deepcopy(state) for key in ids},
        "param_groups": [{**group, "params": [*ids]} for _ in range(groups)],
    }


# -- state_dict -----------------------------------------------------------------------------------


def test_a_state_dict_has_the_structure_of_torch():
    a, b, c = (refopt.Parameter(START.copy()) for _ in range(3))
    optimizer = refopt.NAdam([{"params": [a, b], "extra": 1}, {"params": [c], "lr": 0.5}])
    c.grad = b.grad = GRADIENTS[0]
    optimizer.step()
    a.grad = GRADIENTS[0]
    optimizer.step()
    optimizer.state["note"] = "mine"
    result = optimizer.state_dict()
    assert list(result) == ["state", "param_groups"]
    assert list(result["state"]) == [1, 2, 0, "note"]
    assert result["state"]["note"] == "mine"
    assert [group["params"] for group in result["param_groups"]] == [[0, 1], [2]]
    keys = list(optimizer.defaults)
    assert list(result["param_groups"][0]) == ["extra", *keys, "params"]
    assert list(result["param_groups"][1]) == ["lr", *keys[1:], "params"]
    assert [result["state"][i]["step"] for i in range(3)] == [1.0, 2.0, 2.0]


def test_names_are_part_of_the_groups():
    optimizer = refopt.NAdam([("w", refopt.Parameter(START))])
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["w"]


def test_a_saved_state_does_not_move_with_its_optimizer(library):
    lr = library.array(np.array(0.05))
    param, optimizer = made(library, steps=1, lr=lr)
    first = optimizer.state_dict()
    kept = pickle.dumps([host(library, x) for x in first["state"][0].values()])
    walk(library, param, optimizer, GRADIENTS[1:])
    assert pickle.dumps([host(library, x) for x in first["state"][0].values()]) == kept
    assert first["param_groups"][0]["lr"] is not lr
    assert float(first["param_groups"][0]["lr"]) == float(lr)


def host(library, x):
    return x if isinstance(x, np.ndarray) else library.get(x)


# -- load_state_dict ------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["documented", "keras-3", "paddle-3.3"])
def test_a_run_that_was_saved_and_loaded_goes_on_bit_for_bit(library, profile):
    for dtype in library.dtypes[:: 4 if library.slow else 1]:
        param, optimizer = made(library, dtype, steps=6, profile=profile)
        half, first = made(library, dtype, steps=3, profile=profile)
        rest = refopt.Parameter(library.like(library.get(half.data), half.data))
        second = refopt.NAdam([rest], profile=profile)
        second.load_state_dict(first.state_dict())
        assert alike(arrays(library, first, half), arrays(library, second, rest))
        walk(library, rest, second, GRADIENTS[3:])
        assert alike(arrays(library, second, rest), arrays(library, optimizer, param))


def test_a_state_moves_between_libraries_and_back_without_loss(library):
    for dtype in library.dtypes:
        a, first = made(NUMPY, dtype, steps=2)
        b, second = made(library, dtype)
        second.load_state_dict(first.state_dict())
        c, third = made(NUMPY, dtype)
        third.load_state_dict(second.state_dict())
        state = arrays(NUMPY, first, a)[1:]
        assert alike(state, arrays(library, second, b)[1:])
        assert alike(state, arrays(NUMPY, third, c)[1:])
        for key in ("exp_avg", "exp_avg_sq"):
            array = second.state[b][key]
            assert type(array) is type(b.data)
            assert array.dtype == b.data.dtype
            assert library.place(array) == library.place(b.data)


def test_nothing_loaded_is_aliased(library):
    _, optimizer = made(library, steps=1)
    given = optimizer.state_dict()
    given["param_groups"][0]["lr"] = np.array(0.05)
    receiver, other = made(library)
    other.load_state_dict(given)
    kept = pickle.dumps([host(library, x) for x in given["state"][0].values()])
    walk(library, receiver, other, GRADIENTS)
    other.param_groups[0]["lr"][...] = 9.0
    assert pickle.dumps([host(library, x) for x in given["state"][0].values()]) == kept
    assert given["param_groups"][0]["lr"] == 0.05
    assert given["param_groups"][0]["params"] == [0]


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_a_loaded_state_takes_the_layout_of_its_parameter(library, layout):
    if library.strides is None:
        pytest.skip(f"{library.name} has no strides")
    stepped, first = made(library, layout=layout, steps=1)
    fresh, second = made(library, layout=layout)
    second.load_state_dict(made(library, steps=1)[1].state_dict())
    for key in ("exp_avg", "exp_avg_sq"):
        want = library.strides(first.state[stepped][key])
        assert library.strides(second.state[fresh][key]) == want


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d["param_groups"].append(d["param_groups"][0]), ValueError, r"\[1\] .*\[1, 1\]"),
        (lambda d: d["param_groups"][0]["params"].append(1), ValueError, r"\[1\] .*got \[2\]"),
        (lambda d: d.pop("param_groups"), KeyError, "param_groups"),
        (lambda d: d.pop("state"), KeyError, "state_dict: 'state' is required, got"),
        (
            lambda d: d["param_groups"][0].pop("params"),
            KeyError,
            r"\[0\]: 'params' is required, got",
        ),
        (lambda d: d["param_groups"][0].pop("lr"), KeyError, r"\[0\]: 'lr' is required, got"),
        (lambda d: d["param_groups"][0].pop("betas"), KeyError, r"\[0\]: 'betas' is required, got"),
        (lambda d: d.update(state=None), TypeError, r"\['state'\]: a dict is required, got None"),
        (lambda d: d["state"].update({0: 3}), TypeError, r"\['state'\]\[0\]: a dict .* got int"),
        (lambda d: d.update(param_groups={}), TypeError, r"\['param_groups'\]: a list .* got dict"),
        (lambda d: d.update(param_groups="a"), TypeError, r"\['param_groups'\]: a list .* got str"),
        (lambda d: d.update(param_groups=[1]), TypeError, r"groups'\]\[0\]: a dict .* got int"),
        (
            lambda d: d["param_groups"][0].update(params=0),
            TypeError,
            r"'params'\]: a list .* got int",
        ),
    ],
)
def test_a_dict_of_another_structure_is_refused_and_nothing_loaded(change, error, message):
    _, optimizer = made(steps=1)
    state, groups = optimizer.state, optimizer.param_groups
    before = pickle.dumps(optimizer)
    bad = saved(0, lr=9.0)
    change(bad)
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(bad)
    assert optimizer.state is state
    assert optimizer.param_groups is groups
    assert pickle.dumps(optimizer) == before


@pytest.mark.parametrize("bad", [None, 3, [], "text", np.ones(2)])
def test_what_is_no_dict_is_refused_and_nothing_loaded(bad):
    _, optimizer = made(steps=1)
    before = pickle.dumps(optimizer)
    with pytest.raises(TypeError, match="state_dict: a dict is required, got"):
        optimizer.load_state_dict(bad)
    assert pickle.dumps(optimizer) == before


def test_states_go_to_parameters_by_position_whatever_the_ids():
    a, b = refopt.Parameter(START.copy()), refopt.Parameter(START.copy())
    optimizer = refopt.NAdam([a, b])
    given = saved("x", "y")
    given["state"]["y"]["step"][...] = 8.0
    given["state"]["nobody"] = {"kept": 1}
    optimizer.load_state_dict(given)
    assert [float(optimizer.state[p]["step"]) for p in (a, b)] == [3.0, 8.0]
    assert optimizer.state["nobody"] == {"kept": 1}
    given["param_groups"][0]["params"].reverse()
    optimizer.load_state_dict(given)
    assert [float(optimizer.state[p]["step"]) for p in (a, b)] == [8.0, 3.0]


def test_saved_options_replace_the_present_ones_and_missing_flags_are_off():
    param, optimizer = made(maximize=True, capturable=True, foreach=True, eps=0.5)
    given = saved(0, lr=0.25, note="kept")
    for key in ("maximize", "foreach", "capturable", "differentiable", "decoupled_weight_decay"):
        del given["param_groups"][0][key]
    optimizer.load_state_dict(given)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["note"]) == (0.25, 1e-8, "kept")
    assert (group["maximize"], group["foreach"], group["capturable"]) == (False, None, False)
    assert optimizer.defaults["maximize"] is True
    assert group["params"] == [param]
    walk(NUMPY, param, optimizer, GRADIENTS[:1])
    assert optimizer.state[param]["step"] == 4.0


def test_names_stay_unless_the_saved_groups_have_some():
    optimizer = refopt.NAdam([("w", refopt.Parameter(START))])
    optimizer.load_state_dict(saved(0))
    assert optimizer.param_groups[0]["param_names"] == ["w"]
    optimizer.load_state_dict(saved(0, param_names=["other"]))
    assert optimizer.param_groups[0]["param_names"] == ["other"]


def test_a_state_of_another_shape_loads_and_is_named_at_the_next_step(library):
    param, optimizer = made(library)
    given = saved(0, shape=(3, 2))
    optimizer.load_state_dict(given)
    loaded = host(library, optimizer.state[param]["exp_avg"])
    assert not np.shares_memory(loaded, given["state"][0]["exp_avg"])
    param.grad = library.array(GRADIENTS[0], "float64")
    with pytest.raises(
        ValueError, match=r"state 'exp_avg': shape \(2, 3\) is required, got \(3, 2\)"
    ):
        optimizer.step()
    assert same_bits(library.get(param.data), START)
    assert float(optimizer.state[param]["step"]) == 3.0


def test_a_state_that_the_dtype_of_the_parameter_holds_takes_that_dtype(library):
    param, optimizer = made(library)
    optimizer.load_state_dict(saved(0, dtype="float32"))
    state = optimizer.state[param]
    assert [str(np.dtype(host(library, x).dtype)) for x in state.values()] == [
        *["float32"] * 2,
        *["float64"] * 2,
    ]
    walk(library, param, optimizer, GRADIENTS[:2])
    assert float(state["step"]) == 5.0
    assert host(library, state["step"]).dtype == "float32"


def test_a_state_that_it_does_not_hold_is_kept_and_named_at_the_next_step():
    param, optimizer = made(dtype="float32")
    for shape in [(3, 2), (2, 3)]:
        given = saved(0, shape=shape)
        optimizer.load_state_dict(given)
        loaded = optimizer.state[param]["exp_avg"]
        assert not np.shares_memory(loaded, given["state"][0]["exp_avg"])
    assert optimizer.state[param]["exp_avg"].dtype == "float64"
    with pytest.raises(TypeError, match="state 'exp_avg': dtype float32 is required, got float64"):
        walk(NUMPY, param, optimizer, GRADIENTS[:1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_a_torch_profile_casts_as_torch_does(dtype):
    param, optimizer = made(dtype=dtype, profile="torch-2.13")
    optimizer.load_state_dict(saved(0, dtype="float32"))
    state = optimizer.state[param]
    cast = "float32" if dtype == "complex64" else dtype
    assert [x.dtype.name for x in state.values()] == ["float32", cast, cast, cast]


def test_a_torch_profile_multiplies_the_product_in_the_dtype_that_it_was_loaded_in():
    for dtype in ("float32", "float64"):
        param, optimizer = made(dtype=dtype, profile="torch-2.13", momentum_decay=0.0)
        optimizer.load_state_dict(saved(0, dtype=dtype, momentum_decay=0.0, betas=(0.7, 0.9)))
        walk(NUMPY, param, optimizer, GRADIENTS[:1])
        product = optimizer.state[param]["mu_product"]
        mu = 0.7 * (1 - 0.5)
        assert product.dtype == dtype
        assert product == np.dtype(dtype).type(0.125) * np.dtype(dtype).type(mu)


def test_numbers_in_the_place_of_counters_become_arrays(library):
    for profile, dtype in [("documented", "float64"), ("torch-2.13", "float32")]:
        param, optimizer = made(library, profile=profile)
        given = saved(0)
        given["state"][0].update(step=3, mu_product=0.125)
        optimizer.load_state_dict(given)
        for key, value in [("step", 3.0), ("mu_product", 0.125)]:
            counter = host(library, optimizer.state[param][key])
            assert (counter.dtype, counter.shape, float(counter)) == (dtype, (), value)


@pytest.mark.parametrize("counter", [3, np.array(3), np.array([3.0]), np.array([[3]])])
@pytest.mark.parametrize("capturable", [False, True])
def test_a_loaded_counter_is_one_floating_point_number(library, counter, capturable):
    param, optimizer = made(library, momentum_decay=0.0)
    given = saved(0, momentum_decay=0.0, betas=(0.5, 0.9), capturable=capturable)
    given["state"][0].update(step=counter, mu_product=counter)
    optimizer.load_state_dict(given)
    state = optimizer.state[param]
    for key in ("step", "mu_product"):
        x = host(library, state[key])
        assert (x.dtype.kind, x.shape, float(x)) == ("f", (), 3.0)
    walk(library, param, optimizer, GRADIENTS[:1])
    assert tuple(param.data.shape) == (2, 3)
    assert float(host(library, state["step"])) == 4.0
    assert float(host(library, state["mu_product"])) == 3.0 * 0.25


@pytest.mark.parametrize(
    ("counter", "error", "message"),
    [
        (np.ones(2), ValueError, r"one number is required, got shape \(2,\)"),
        (np.array(1j), TypeError, "a floating-point number is required, got complex128"),
        ("3", TypeError, "an array is required, got str"),
        (None, TypeError, "an array is required, got NoneType"),
    ],
)
@pytest.mark.parametrize("key", ["step", "mu_product"])
def test_a_loaded_counter_that_is_no_number_is_named_at_the_next_step(key, counter, error, message):
    param, optimizer = made()
    given = saved(0)
    given["state"][0][key] = counter
    optimizer.load_state_dict(given)
    with pytest.raises(error, match=f"group 0, parameter 0: state '{key}': {message}"):
        walk(NUMPY, param, optimizer, GRADIENTS[:1])
    assert same_bits(param.data, START)


def test_a_capturable_group_has_its_counters_beside_the_parameter(library):
    param, optimizer = made(library, "float32", steps=1)
    given = optimizer.state_dict()
    given["param_groups"][0]["capturable"] = True
    optimizer.load_state_dict(given)
    for key in ("step", "mu_product"):
        assert type(optimizer.state[param][key]) is type(param.data)
        assert library.get(optimizer.state[param][key]).dtype == "float32"
    walk(library, param, optimizer, GRADIENTS[:1])
    assert float(optimizer.state[param]["step"]) == 2.0


def test_half_precision_survives_every_way_of_saving():
    param, optimizer = made(dtype="bfloat16", steps=3)
    for again in (copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))):
        twin, other = made(dtype="bfloat16")
        other.load_state_dict(again(optimizer.state_dict()))
        assert other.state[twin]["exp_avg"].dtype == numpy_dtype("bfloat16")
        assert alike(arrays(NUMPY, optimizer, param)[1:], arrays(NUMPY, other, twin)[1:])
