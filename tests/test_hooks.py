"""The six hooks of an optimizer, the two global ones, and their handles."""

import copy
import gc
import pickle

import numpy as np
import pytest

import refopt
from refopt.optim.hooks import Hooked

PREPENDABLE = [
    "register_state_dict_pre_hook",
    "register_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
]
OF_STEP = ["register_step_pre_hook", "register_step_post_hook"]
GLOBAL = [refopt.register_optimizer_step_pre_hook, refopt.register_optimizer_step_post_hook]


def made(value=1.0):
    """An optimizer of one parameter with a gradient, and the parameter."""
    param = refopt.Parameter(np.full(3, value))
    param.grad = np.full(3, 0.5)
    return refopt.NAdam([param], lr=0.1), param


def exercise(optimizer):
    """Run every kind of hook."""
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def test_step_hooks_run_global_own_step_own_global_in_order_of_registration():
    optimizer, param = made()
    seen = []

    def note(name):
        return lambda *_: seen.append((name, param.data[0] == 1.0))

    handles = [
        optimizer.register_step_post_hook(note("post")),
        refopt.register_optimizer_step_post_hook(note("global post")),
        optimizer.register_step_pre_hook(note("pre 1")),
        optimizer.register_step_pre_hook(note("pre 2")),
        refopt.register_optimizer_step_pre_hook(note("global pre")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    assert seen == [
        ("global pre", True),
        ("pre 1", True),
        ("pre 2", True),
        ("post", False),
        ("global post", False),
    ]
    optimizer.step()
    assert len(seen) == 5


def test_hooks_see_the_call_as_the_caller_wrote_it():
    optimizer, _ = made()
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append(a))
    optimizer.register_step_post_hook(lambda *a: calls.append(a))

    def closure():
        return 7

    assert optimizer.step(closure) == 7
    assert optimizer.step(closure=closure) == 7
    by_position, by_name = (optimizer, (optimizer, closure), {}), {"closure": closure}
    assert calls == [by_position] * 2 + [(optimizer, (optimizer,), by_name)] * 2


def test_a_pre_hook_replaces_the_arguments_for_all_that_follows():
    optimizer, _ = made()
    seen = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o,), {"closure": lambda: "loss"}))
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(sorted(kwargs)))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(sorted(kwargs)))
    assert optimizer.step() == "loss"
    assert seen == [["closure"], ["closure"]]


@pytest.mark.parametrize("result", [False, 0, [(), {}], ((), {}, 1), ()])
def test_a_pre_hook_that_returns_anything_else_stops_the_step(result):
    optimizer, param = made()
    optimizer.register_step_pre_hook(lambda *_: result)
    with pytest.raises(RuntimeError, match="None or \\(new_args, new_kwargs\\)"):
        optimizer.step()
    assert (param.data == 1.0).all()
    assert not optimizer.state


def test_what_a_post_hook_returns_is_ignored():
    optimizer, _ = made()
    optimizer.register_step_post_hook(lambda *_: 99)
    assert optimizer.step(lambda: 7) == 7


def test_a_failure_before_the_step_leaves_everything_and_skips_the_post_hooks():
    optimizer, param = made()
    ran = []

    def fail(*_):
        raise LookupError

    handle = optimizer.register_step_pre_hook(fail)
    optimizer.register_step_post_hook(lambda *_: ran.append("post"))
    with pytest.raises(LookupError):
        optimizer.step()
    handle.remove()
    with pytest.raises(LookupError):
        optimizer.step(fail)
    assert ran == []
    assert (param.data == 1.0).all()
    assert not optimizer.state


@pytest.mark.parametrize("register", PREPENDABLE)
def test_prepend_puts_a_hook_in_front(register):
    optimizer, _ = made()
    order = []
    for name, prepend in [("b", False), ("c", False), ("a", True)]:
        getattr(optimizer, register)(lambda *_, name=name: order.append(name), prepend=prepend)
    exercise(optimizer)
    assert order == ["a", "b", "c"]


@pytest.mark.parametrize("register", OF_STEP)
def test_step_hooks_refuse_prepend(register):
    optimizer, _ = made()
    with pytest.raises(TypeError, match="prepend"):
        getattr(optimizer, register)(lambda *_: None, prepend=True)
    with pytest.raises(TypeError, match="positional"):
        getattr(optimizer, register)(lambda *_: None, True)


def test_state_dict_hooks_run_around_it_and_may_replace_it():
    optimizer, _ = made()
    seen = []
    optimizer.register_state_dict_pre_hook(lambda *a: seen.append(a))
    optimizer.register_state_dict_post_hook(lambda o, sd: {**sd, "one": 1})
    optimizer.register_state_dict_post_hook(lambda o, sd: sd.update(two=sd["one"] * 2))
    result = optimizer.state_dict()
    assert seen == [(optimizer,)]
    assert list(result) == ["state", "param_groups", "one", "two"]
    assert result["two"] == 2


def test_load_hooks_get_a_shallow_copy_and_may_replace_it():
    optimizer, _ = made()
    optimizer.step()
    saved = optimizer.state_dict()
    seen = []

    def edit(o, sd):
        seen.append((o, sd is saved, sd["state"] is saved["state"]))
        sd["extra"] = 1

    def other(o, sd):
        group = {**sd["param_groups"][0], "lr": 0.5}
        return {**sd, "param_groups": [group]}

    optimizer.register_load_state_dict_pre_hook(edit)
    optimizer.register_load_state_dict_pre_hook(other)
    optimizer.register_load_state_dict_post_hook(lambda *a: seen.append((*a, a[0].param_groups)))
    optimizer.load_state_dict(saved)
    assert seen == [(optimizer, False, True), (optimizer, optimizer.param_groups)]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert list(saved) == ["state", "param_groups"]
    assert saved["param_groups"][0]["lr"] == 0.1


@pytest.mark.parametrize("register", [*OF_STEP, *PREPENDABLE, *GLOBAL])
def test_a_handle_removes_its_hook_once_and_again(register):
    optimizer, _ = made()
    ran = []
    registered = register if callable(register) else getattr(optimizer, register)
    handle = registered(lambda *_: ran.append(1))
    exercise(optimizer)
    assert ran == [1]
    handle.remove()
    handle.remove()
    exercise(optimizer)
    assert ran == [1]


def test_a_handle_removes_its_hook_at_the_end_of_a_with_block():
    optimizer, _ = made()
    ran = []
    with optimizer.register_step_pre_hook(lambda *_: ran.append(1)) as handle:
        assert isinstance(handle, refopt.RemovableHandle)
        optimizer.step()
    optimizer.step()
    assert ran == [1]


def test_handles_have_ids_of_their_own_and_keep_no_optimizer_alive():
    optimizer, _ = made()
    handles = [
        optimizer.register_step_pre_hook(lambda *_: None),
        made()[0].register_step_post_hook(len),
    ]
    assert handles[0].id != handles[1].id
    gc.collect()
    assert [handle._hooks() is None for handle in handles] == [False, True]
    handles[1].remove()


def test_a_copied_handle_is_one_for_the_same_hooks_and_a_deep_copy_for_none():
    optimizer, _ = made()
    ran = []
    handle = optimizer.register_step_pre_hook(lambda *_: ran.append(1))
    deep = copy.deepcopy(handle)
    deep.remove()
    optimizer.step()
    copy.copy(handle).remove()
    optimizer.step()
    assert (ran, deep.id) == ([1], handle.id)


def test_a_handle_can_be_pickled_with_and_without_its_optimizer():
    optimizer, _ = made()
    handles = [optimizer.register_step_pre_hook(len), made()[0].register_step_post_hook(len)]
    gc.collect()
    for handle in handles:
        again = pickle.loads(pickle.dumps(handle))
        again.remove()
        assert again.id == handle.id
    assert len(optimizer._step_pre_hooks) == 1


def test_a_hook_may_remove_itself_while_it_runs():
    optimizer, _ = made()
    ran = []

    def once(*_):
        ran.append("once")
        handle.remove()

    handle = optimizer.register_step_pre_hook(once)
    optimizer.register_step_pre_hook(lambda *_: ran.append("always"))
    optimizer.step()
    optimizer.step()
    assert ran == ["once", "always", "always"]


@pytest.mark.parametrize("register", [*OF_STEP, *PREPENDABLE, *GLOBAL])
def test_a_hook_that_cannot_be_called_is_refused(register):
    registered = register if callable(register) else getattr(made()[0], register)
    with pytest.raises(TypeError, match="hook: a callable is required, got 3"):
        registered(3)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_have_no_hooks_and_can_take_new_ones(duplicate):
    optimizer, _ = made()
    for register in [*OF_STEP, *PREPENDABLE]:
        getattr(optimizer, register)(lambda *_: pytest.fail("a hook of the original ran"))
    other = duplicate(optimizer)
    ran = []
    other.register_step_pre_hook(lambda *_: ran.append(1))
    exercise(other)
    assert ran == [1]


def test_each_of_the_six_hooks_has_its_own_list():
    lists = vars(Hooked())
    assert len(lists) == 6
    assert len({id(hooks) for hooks in lists.values()}) == 6
