"""A rule run on symbols: the expressions it leaves, and the numbers they give."""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from refopt.interp import trace
from refopt.interp.arrays import namespace_of
from refopt.rules import average, clip, nadam, rmsprop, schedules

# The operations that a compiler of traces has to know.
OPERATIONS = {"const", "name", *trace.ARITHMETIC, *trace.CASTS, *trace.FUNCTIONS}
OPERATIONS |= {"sqrt", "lerp", "float32", "sum", "maximum", "minimum"}
OPERATIONS |= {"zeros_like", "scatter_add", "take", "rows"}
EVERY = [(axis, name) for axis, options in nadam.AXES.items() for name in options]
HYPER = nadam.Hyper(lr=0.05, beta1=0.9, epsilon=0.25, weight_decay=0.1, momentum_decay=0.3)
# Products that their formulas cannot cause: a trace must not take one number for another.
CLOCK = nadam.Clock(t=7.0, product=0.1234567891, base_power=0.7512, beta2_power=0.9912)
ARRAYS = {
    name: np.random.default_rng(seed).standard_normal(5) ** power
    for seed, (name, power) in enumerate({"param": 1, "grad": 1, "m": 1, "v": 2}.items())
}


class Arrays:
    """NumPy, by the operations of a rule."""

    sqrt = staticmethod(np.sqrt)
    zeros_like = staticmethod(np.zeros_like)
    sum = staticmethod(np.sum)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)

    @staticmethod
    def lerp(start: Any, end: Any, weight: Any) -> Any:
        return start + weight * (end - start)

    @staticmethod
    def lerp_from_end(start: Any, end: Any, weight: Any) -> Any:
        return end + (1 - weight) * (start - end)

    @staticmethod
    def float32(x: Any) -> Any:
        return x.astype(np.float32).astype(x.dtype)

    @staticmethod
    def scatter_add(base: Any, indices: Any, values: Any) -> Any:
        place = base.copy()
        np.add.at(place, list(indices), values)
        return place

    @staticmethod
    def take(x: Any, indices: Any, size: int) -> Any:
        return x[list(indices)]

    @staticmethod
    def rows(new: Any, old: Any, indices: Any, size: int) -> Any:
        here = np.isin(np.arange(size), indices)
        return np.where(here.reshape(-1, *[1] * (new.ndim - 1)), new, old)


class Numbers:
    """Floats, and NumPy scalars for what is rounded; parameters are float32."""

    pi = math.pi

    float32 = staticmethod(np.float32)
    float64 = staticmethod(float)
    native = staticmethod(np.float32)
    floor = staticmethod(math.floor)
    ceil = staticmethod(math.ceil)
    cos = staticmethod(math.cos)
    log = staticmethod(math.log)

    def __call__(self, x: Any) -> Any:
        return x

    def of(self, param: Any) -> "Numbers":
        return self


def varied(axis: str, name: str) -> nadam.Choices:
    """The documented choices, with weight decay, one axis changed."""
    choices = nadam.Choices(decay=nadam.decoupled)
    return choices._replace(**{axis: nadam.AXES[axis][name]})


def traced(choices: nadam.Choices, hyper: nadam.Hyper = HYPER) -> dict[str, trace.Node]:
    """Definitions of every scalar, of the next clock and of every quantity."""
    given = trace.symbols(nadam.Hyper, "hyper", hyper)
    clock = trace.symbols(nadam.Clock, "clock")
    scalars, after = nadam.tick(clock, given, choices, num=trace.NUMBERS)
    settled = nadam.settle(given, choices, num=trace.NUMBERS)
    state = trace.symbols(nadam.State, "state")
    quantities, _ = nadam.step(
        trace.name("param"),
        trace.name("grad"),
        state,
        scalars,
        settled,
        choices,
        xp=trace.NAMESPACE,
    )
    return trace.define(
        {
            **trace.fields(scalars, "scalars"),
            **trace.fields(after, "next"),
            **trace.fields(quantities, "quantities"),
        }
    )


def nodes(definitions: dict[str, trace.Node]) -> list[trace.Node]:
    """Every node, each object once."""
    found: dict[int, trace.Node] = {}

    def walk(node: trace.Node) -> None:
        if id(node) not in found:
            found[id(node)] = node
            for x in node.args if node.op not in ("const", "name") else ():
                walk(x)

    for node in definitions.values():
        walk(node)
    return list(found.values())


def test_every_field_is_defined_by_earlier_ones() -> None:
    definitions = {name: repr(node) for name, node in traced(nadam.Choices()).items()}
    assert definitions == {
        "scalars.t": "num.float64(add(clock.t, 1))",
        "scalars.mu": "mul(hyper.beta1, sub(1, mul(0.5, pow(hyper.base, "
        "mul(scalars.t, hyper.momentum_decay)))))",
        "scalars.mu_next": "mul(hyper.beta1, sub(1, mul(0.5, pow(hyper.base, "
        "mul(add(scalars.t, 1), hyper.momentum_decay)))))",
        "scalars.product": "mul(num.float64(clock.product), scalars.mu)",
        "scalars.rest": "sub(1, num.float64(scalars.product))",
        "scalars.rest_next": "sub(1, mul(num.float64(scalars.product), scalars.mu_next))",
        "scalars.here": "div(mul(1.0, sub(1, scalars.mu)), scalars.rest)",
        "scalars.ahead": "div(mul(1.0, scalars.mu_next), scalars.rest_next)",
        "scalars.correction": "sub(1, pow(hyper.beta2, scalars.t))",
        "scalars.root": "pow(scalars.correction, 0.5)",
        "scalars.lr": "hyper.lr",
        "scalars.rate": "1.0",
        "scalars.decay": "mul(hyper.lr, hyper.weight_decay)",
        "next.t": "scalars.t",
        "next.product": "scalars.product",
        "next.base_power": "mul(clock.base_power, hyper.base)",
        "next.beta2_power": "mul(clock.beta2_power, hyper.beta2)",
        "quantities.g": "grad",
        "quantities.m": "add(mul(hyper.beta1, state.m), mul(sub(1, hyper.beta1), grad))",
        "quantities.v": "add(mul(hyper.beta2, state.v), mul(sub(1, hyper.beta2), mul(grad, grad)))",
        "quantities.m_hat": "add(mul(scalars.ahead, quantities.m), mul(scalars.here, grad))",
        "quantities.v_hat": "div(quantities.v, scalars.correction)",
        "quantities.denominator": "add(sqrt(quantities.v_hat), hyper.epsilon)",
        "quantities.param": "sub(param, div(mul(hyper.lr, quantities.m_hat), "
        "quantities.denominator))",
    }


@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_a_trace_evaluates_to_the_bits_of_the_direct_run(axis: str, name: str) -> None:
    choices, num = varied(axis, name), Numbers()
    scalars, after = nadam.tick(CLOCK, HYPER, choices, num=num)
    quantities, _ = nadam.step(
        ARRAYS["param"],
        ARRAYS["grad"],
        nadam.State(ARRAYS["m"], ARRAYS["v"]),
        scalars,
        nadam.settle(HYPER, choices, num=num),
        choices,
        xp=Arrays(),
    )
    direct = {
        f"{label}.{field}": value
        for label, record in (("scalars", scalars), ("next", after), ("quantities", quantities))
        for field, value in record._asdict().items()
    }
    inputs = {
        "param": ARRAYS["param"],
        "grad": ARRAYS["grad"],
        "state.m": ARRAYS["m"],
        "state.v": ARRAYS["v"],
        **{f"hyper.{field}": value for field, value in HYPER._asdict().items()},
        **{f"clock.{field}": value for field, value in CLOCK._asdict().items()},
    }
    got = trace.run(traced(choices), inputs, xp=Arrays(), num=num)
    assert list(got) == list(direct)
    for field, value in direct.items():
        assert np.asarray(got[field]).dtype == np.asarray(value).dtype, field
        assert np.asarray(got[field]).tobytes() == np.asarray(value).tobytes(), field


@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_a_trace_has_no_operation_outside_the_closed_list(axis: str, name: str) -> None:
    assert {node.op for node in nodes(traced(varied(axis, name)))} <= OPERATIONS


def test_traces_use_every_operation_of_the_list() -> None:
    used = {node.op for axis, name in EVERY for node in nodes(traced(varied(axis, name)))}
    for axis, name in EVERY_RMSPROP:
        used |= {node.op for node in nodes(traced_rmsprop(varied_rmsprop(axis, name), True))}
    for beside in BESIDE:
        used |= {node.op for node in nodes({"x": beside.traced()})}
    assert used == OPERATIONS


# -- RMSprop: state that may be absent, gradients by rows, functions beside the step --------------
EVERY_RMSPROP = [(axis, name) for axis, options in rmsprop.AXES.items() for name in options]
RMSPROP = rmsprop.Hyper(lr=0.05, rho=0.9, momentum=0.7, epsilon=0.25, weight_decay=0.1)
ROWS = rmsprop.Rows(np.array([0.3, -2.0, 3.0]), (4, 1, 4), 5)
STATE = {
    "v": ARRAYS["v"] + 9.0,  # above what any variance takes from it
    "a": ARRAYS["m"],
    "buffer": ARRAYS["grad"],
    "average": ARRAYS["param"],
}


def varied_rmsprop(axis: str, name: str) -> rmsprop.Choices:
    """Everything that the options can turn on, one axis changed."""
    choices = rmsprop.Choices(
        decay=rmsprop.coupled,
        variance=rmsprop.clamped,
        move=rmsprop.lr_outside,
        average=rmsprop.every_parameter,
    )
    return choices._replace(**{axis: rmsprop.AXES[axis][name]})


def kept(choices: rmsprop.Choices, make: Callable[[str], Any]) -> rmsprop.State:
    """A state with what the choices keep."""
    state, _ = rmsprop.init(ARRAYS["param"], choices, xp=Arrays(), num=Numbers())
    return rmsprop.State(
        *(None if x is None else make(field) for field, x in state._asdict().items())
    )


def stepped(
    choices: rmsprop.Choices,
    *,
    param: Any,
    grad: Any,
    state: Any,
    clock: Any,
    hyper: Any,
    xp: Any,
    num: Any,
) -> dict[str, Any]:
    """Scalars, clock and quantities, by name; what is None is left out."""
    scalars, after = rmsprop.tick(clock, hyper, choices, num=num)
    settled = rmsprop.settle(hyper, choices, num=num)
    quantities, _ = rmsprop.step(param, grad, state, scalars, settled, choices, xp=xp)
    return {
        f"{label}.{field}": value
        for label, record in (("scalars", scalars), ("next", after), ("quantities", quantities))
        for field, value in record._asdict().items()
        if value is not None
    }


def traced_rmsprop(choices: rmsprop.Choices, sparse: bool) -> dict[str, trace.Node]:
    grad = trace.name("grad")
    outputs = stepped(
        choices,
        param=trace.name("param"),
        grad=ROWS._replace(values=trace.name("rows")) if sparse else grad,
        state=kept(choices, lambda field: trace.name(f"state.{field}")),
        clock=trace.symbols(rmsprop.Clock, "clock"),
        hyper=trace.symbols(rmsprop.Hyper, "hyper", RMSPROP),
        xp=trace.NAMESPACE,
        num=trace.NUMBERS,
    )
    return trace.define({name: trace.lift(x) for name, x in outputs.items()})


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("axis", "name"), EVERY_RMSPROP)
def test_a_trace_of_rmsprop_evaluates_to_the_bits_of_the_direct_run(
    axis: str, name: str, sparse: bool
) -> None:
    choices, num = varied_rmsprop(axis, name), Numbers()
    direct = stepped(
        choices,
        param=ARRAYS["param"],
        grad=ROWS if sparse else ARRAYS["grad"],
        state=kept(choices, STATE.__getitem__),
        clock=rmsprop.Clock(7.0),
        hyper=RMSPROP,
        xp=Arrays(),
        num=num,
    )
    inputs = {
        "param": ARRAYS["param"],
        "grad": ARRAYS["grad"],
        "rows": ROWS.values,
        "clock.t": 7.0,
        **{f"hyper.{field}": x for field, x in RMSPROP._asdict().items()},
        **{f"state.{field}": x for field, x in STATE.items()},
    }
    definitions = traced_rmsprop(choices, sparse)
    assert {node.op for node in nodes(definitions)} <= OPERATIONS
    got = trace.run(definitions, inputs, xp=Arrays(), num=num)
    assert list(got) == list(direct)
    assert ("quantities.buffer" in got) == (choices.move is not rmsprop.no_momentum)
    for field, value in direct.items():
        assert np.asarray(got[field]).dtype == np.asarray(value).dtype, field
        assert np.asarray(got[field]).tobytes() == np.asarray(value).tobytes(), field


class Beside(NamedTuple):
    """A call of a function beside a step."""

    function: Callable[..., Any]
    arguments: dict[str, Any]

    def call(self, make: Callable[[str, Any], Any], xp: Any, num: Any) -> Any:
        given = {
            name: x if isinstance(x, bool) or name == "t_mul" else make(name, x)
            for name, x in self.arguments.items()
        }
        if self.function.__module__ == schedules.__name__:
            return self.function(given.pop("s"), num, num, **given)
        if self.function is average.averaged:
            return self.function(**given)
        return self.function(*given.values(), xp)

    def traced(self) -> trace.Node:
        def named(name: str, x: Any) -> trace.Node:
            return trace.name(name, None if isinstance(x, np.ndarray) else x)

        return trace.lift(self.call(named, trace.NAMESPACE, trace.NUMBERS))


POLYNOMIAL = {
    "initial_learning_rate": 0.3,
    "decay_steps": 5.0,
    "end_learning_rate": 0.01,
    "power": 1.5,
}
PERIODIC = {"initial_learning_rate": 0.3, "alpha": 0.1}
BESIDE = [
    Beside(clip.by_norm, {"g": ARRAYS["grad"], "limit": 0.5}),
    Beside(clip.by_value, {"g": ARRAYS["grad"], "limit": 0.5}),
    Beside(average.averaged, {"old": ARRAYS["v"], "param": ARRAYS["param"], "momentum": 0.9}),
    *(
        Beside(function, {"s": s, **arguments, "decay_rate": 0.7, "staircase": staircase})
        for function in (schedules.exponential_decay, schedules.inverse_time_decay)
        for arguments in [{"initial_learning_rate": 0.3, "decay_steps": 5.0}]
        for s in (0.0, 7.0)
        for staircase in (False, True)
    ),
    *(
        Beside(schedules.polynomial_decay, {"s": s, **POLYNOMIAL, "cycle": cycle})
        for s in (0.0, 3.0, 7.0)
        for cycle in (False, True)
    ),
    *(
        Beside(schedules.cosine_decay, {"s": s, **PERIODIC, "decay_steps": 5.0})
        for s in (0.0, 3.0, 7.0)
    ),
    *(
        Beside(
            schedules.cosine_decay_restarts,
            {"s": s, **PERIODIC, "first_decay_steps": 5.0, "t_mul": t_mul, "m_mul": 0.8},
        )
        for s in (0.0, 7.0)
        for t_mul in (1.0, 2.0)
    ),
]


@pytest.mark.parametrize("beside", BESIDE, ids=lambda x: x.function.__name__)
def test_a_trace_of_a_function_beside_a_step_has_its_bits(beside: Beside) -> None:
    direct = beside.call(lambda name, x: x, Arrays(), Numbers())
    got = trace.evaluate(beside.traced(), beside.arguments, xp=Arrays(), num=Numbers())
    assert np.asarray(got).tobytes() == np.asarray(direct).tobytes()


def test_a_trace_of_a_global_norm_spans_all_gradients() -> None:
    grads = [trace.name("g"), trace.name("h")]
    values = {"g": ARRAYS["grad"], "h": ARRAYS["v"]}
    direct = clip.by_global_norm([ARRAYS["grad"], ARRAYS["v"]], 0.5, Arrays())
    for node, expected in zip(
        clip.by_global_norm(grads, 0.5, trace.NAMESPACE), direct, strict=True
    ):
        got = trace.evaluate(node, values, xp=Arrays(), num=Numbers())
        assert got.tobytes() == expected.tobytes()


def test_the_start_is_a_constant_in_the_dtype_of_the_product() -> None:
    choices = nadam.Choices(product=nadam.float32_product)
    state, clock = nadam.init(trace.name("param"), choices, xp=trace.NAMESPACE, num=trace.NUMBERS)
    assert {**trace.fields(state, "state"), **trace.fields(clock, "clock")}.keys() == {
        *("state.m", "state.v", "clock.t", "clock.product"),
        *("clock.base_power", "clock.beta2_power"),
    }
    start = trace.evaluate(state.m, ARRAYS, xp=Arrays(), num=Numbers())
    assert start.tobytes() == np.zeros_like(ARRAYS["param"]).tobytes()
    product = trace.evaluate(clock.product, {}, xp=Arrays(), num=Numbers())
    assert (product, product.dtype) == (1, np.float32)


def test_formulas_leave_out_conversions_to_float64_alone() -> None:
    num, x = trace.FORMULA_NUMBERS, trace.name("x")
    assert num.float64(x) is x
    assert [repr(num.float32(x)), repr(num.native(x))] == ["num.float32(x)", "num.native(x)"]


def test_what_the_rule_shares_stays_shared() -> None:
    m = trace.name("m")
    root = trace.NAMESPACE.sqrt(m)
    definition = trace.define({"y": trace.name("b") * 2, "x": (root + 1) * (root - 1)})["x"]
    assert definition.args[0].args[0] is definition.args[1].args[0]
    assert trace.replace(definition, lambda node: None) is definition
    replaced = trace.replace(definition, lambda node: trace.name("a") if node is m else None)
    assert repr(replaced) == "mul(add(sqrt(a), 1), sub(sqrt(a), 1))"
    assert replaced.args[0].args[0] is replaced.args[1].args[0]


def test_evaluation_computes_a_shared_node_once() -> None:
    calls = []

    class Counting(Arrays):
        @staticmethod
        def sqrt(x: float) -> float:
            calls.append(x)
            return x**0.5

    node = trace.NAMESPACE.sqrt(trace.name("m"))
    for _ in range(12):  # 2 ** 12 calls, if a node were not remembered
        node = node + node
    assert trace.evaluate(node, {"m": 4.0}, xp=Counting(), num=Numbers()) == 2.0**13
    assert calls == [4.0]


def test_a_value_keeps_its_first_name_and_its_example() -> None:
    once = trace.name("x", 3.0) + 1
    definitions = trace.define({"a": once, "b": once, "c": once * 2})
    assert [repr(node) for node in definitions.values()] == ["add(x, 1)", "a", "mul(a, 2)"]
    assert definitions["b"].value == 4.0


def test_a_renamed_input_is_called_by_its_new_name() -> None:
    p, g = trace.name("p"), trace.name("g")
    outputs = {"before": p, "grad": g, "after": p - g}
    assert repr(trace.define(outputs)["after"]) == "sub(p, g)"
    renamed = trace.define(outputs, renamed={"p"})
    assert [repr(renamed["before"]), repr(renamed["after"])] == ["p", "sub(before, g)"]


@pytest.mark.parametrize(
    ("beta1", "m"),
    [
        (0.9, "lerp(state.m, grad, sub(1, hyper.beta1))"),
        (0.3, "lerp(grad, state.m, sub(1, sub(1, hyper.beta1)))"),
    ],
)
def test_an_example_value_decides_a_branch_on_numbers(beta1: float, m: str) -> None:
    choices = nadam.Choices(first=nadam.lerp)
    definitions = traced(choices, HYPER._replace(beta1=beta1))
    assert repr(definitions["quantities.m"]) == m


def test_a_branch_without_an_example_value_is_refused() -> None:
    with pytest.raises(TypeError, match=r"an example value, and sub\(1, w\) has none"):
        _ = 1 - trace.name("w") < 0.5


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_are_those_of_the_example_values(compare: Any) -> None:
    for x, y in [(1, 2), (2, 2), (3, 2)]:
        assert compare(trace.name("x", x), y) == compare(x, y)
        assert compare(x, trace.name("y", y)) == compare(x, y)


def test_an_expression_as_a_condition_is_refused() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(trace.name("x", 1.0))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: 1 / x, "div(1, x)"),
        (trace.NUMBERS.log, "num.log(x)"),
        (lambda x: trace.NAMESPACE.scatter_add(x, (0,), x), "scatter_add(x, (0,), x)"),
        (lambda x: trace.NAMESPACE.take(x, (0,), 1), "take(x, (0,), 1)"),
        (lambda x: trace.NAMESPACE.rows(x, x, (0,), 1), "rows(x, x, (0,), 1)"),
    ],
)
def test_an_example_that_cannot_be_computed_is_unknown(function: Any, expected: str) -> None:
    node = function(trace.name("x", 0.0))
    assert (repr(node), node.value) == (expected, None)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (trace.NUMBERS.floor, 2),
        (trace.NUMBERS.ceil, 3),
        (trace.NUMBERS.cos, math.cos(2.5)),
        (trace.NUMBERS.log, math.log(2.5)),
        (trace.NAMESPACE.sum, 2.5),
        (lambda x: trace.NAMESPACE.maximum(x, 3), 3),
        (lambda x: trace.NAMESPACE.minimum(3, x), 2.5),
    ],
)
def test_functions_have_examples(function: Any, value: float) -> None:
    assert function(trace.name("x", 2.5)).value == value


def test_what_is_absent_has_no_name() -> None:
    state = rmsprop.State(trace.name("v"), None, None, trace.name("average"))
    assert trace.fields(state, "state").keys() == {"state.v", "state.average"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: -x, "neg(x)"),
        (lambda x: x + 1, "add(x, 1)"),
        (lambda x: 1 + x, "add(1, x)"),
        (lambda x: x - 1, "sub(x, 1)"),
        (lambda x: 1 - x, "sub(1, x)"),
        (lambda x: x * 2, "mul(x, 2)"),
        (lambda x: 2 * x, "mul(2, x)"),
        (lambda x: x / 2, "div(x, 2)"),
        (lambda x: 2 / x, "div(2, x)"),
        (lambda x: x**2, "pow(x, 2)"),
        (lambda x: 2**x, "pow(2, x)"),
    ],
)
def test_operators_keep_the_order_of_their_operands(function: Any, expected: str) -> None:
    node = function(trace.name("x", 3.0))
    assert repr(node) == expected
    assert node.value == function(3.0)
    assert trace.evaluate(node, {"x": 5.0}, xp=Arrays(), num=Numbers()) == function(5.0)


def test_a_name_without_a_value_is_named_by_the_error() -> None:
    with pytest.raises(KeyError, match=r"state\.m"):
        trace.evaluate(trace.name("state.m") + 1, {}, xp=Arrays(), num=Numbers())


def test_matrices_as_symbols_have_the_shapes_of_their_examples() -> None:
    xp = trace.Matrices(namespace_of(np.ones(1)))
    x = trace.name("x", np.ones((6, 5)))
    product = xp.matmul(xp.transpose(x), x)
    assert xp.shape(product) == (5, 5)
    assert repr(product) == "matmul(transpose(x), x)"
    assert xp.shape(xp.diagonal_blocks(product, 2)) == (3, 2, 2)
    length = xp.length(x)
    assert (length.op, length.value) == ("length", 6)


def test_what_matrices_have_not_is_named_by_the_error() -> None:
    with pytest.raises(AttributeError, match="hadamard"):
        trace.Matrices(namespace_of(np.ones(1))).hadamard(1)
