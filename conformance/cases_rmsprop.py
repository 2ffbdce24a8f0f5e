"""The cases on which the RMSprops of TensorFlow 2.9 are recorded: inputs only, deterministic.

Every case says in `comment` what it is for, and in `tags` which wrong semantics it separates from
the documented ones. Epsilon is large in most, for at 1e-7 most wrong formulas stay within rounding.
"""

import math
from collections.abc import Callable
from typing import Any

from cases_nadam import BF16, BOTH, F16, F32, F64, HALF, SHORT, Case, bits, draw, pairs, shortest

DTENSOR, EXPERIMENTAL = "tf-2.9-dtensor", "tf-2.9-experimental"
ALONE = [EXPERIMENTAL]  # the DTensor class has no arguments to clip or to average
INF, NAN = math.inf, math.nan

Rows = tuple[list[float], list[int]]  # a sparse gradient: values, and the rows they belong to
Grad = list[float] | Rows | None
Present = Callable[[int, int], bool]  # (step, variable) -> whether there is a gradient


def on(
    slug: str,
    comment: str,
    tags: str,
    dtypes: tuple[str, ...] = BOTH,
    *,
    family: str = "tf",
    profiles: list[str] | None = None,
    shapes: list[list[int]] | None = None,
    params: list[list[float]] | None = None,
    grads: list[list[Grad]] | None = None,
    exponents: tuple[int, int] = (-8, 2),
    present: Present = lambda t, variable: True,
    cycle: int = 4,
    steps: int = 6,
    record: list[int] | None = None,
    options: str = "",
    schedule: tuple[str, dict[str, Any]] | None = None,
    changes: dict[int, dict[str, float]] | None = None,
    order: dict[int, list[int]] | None = None,
    mesh: list[list[str | None]] | None = None,
    finalize: int = 0,
    lr: float = 0.05,
    rho: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 0.25,
    **hyper: float,
) -> list[Case]:
    """The case in each of `dtypes`, on the same values.

    Values of both signs are drawn, gradients with binary `exponents`, where none are given; `mesh`
    names for each parameter the mesh axes that its axes are split over; `hyper` are the rest.
    """
    shapes = shapes or [[len(values)] for values in params or [[0.0] * 4]]
    sizes = [math.prod(shape) for shape in shapes]
    params = params or [draw(f"{slug} p{i}", n, -6, 0) for i, n in enumerate(sizes)]
    grads = grads or [
        [
            draw(f"{slug} g{t} {i}", n, *exponents) if present(t, i) else None
            for i, n in enumerate(sizes)
        ]
        for t in range(1, cycle + 1)
    ]
    extra: Case = {}
    if changes:
        extra["changes"] = {str(t): decimals(new) for t, new in changes.items()}
    if order:
        extra["order"] = {str(t): places for t, places in order.items()}
    if mesh:
        extra["mesh"] = {"x": 2, "y": 2}
    if finalize:
        extra["finalize"] = finalize
    rate = {"schedule": schedule[0], "config": written(schedule[1])} if schedule else shortest(lr)
    hyper |= {"rho": rho, "momentum": momentum, "epsilon": epsilon}
    return [
        extra
        | {
            "id": f"rmsprop.{family}.{slug}.{SHORT[dtype]}",
            "comment": comment,
            "tags": tags.split(),
            "hyper": decimals(hyper) | {"lr": rate},
            "options": dict.fromkeys(options.split(), 1),
            "params": [
                {"dtype": dtype, "shape": shape, "bits": bits(values, dtype)}
                | ({"sharding": mesh[i]} if mesh else {})
                for i, (shape, values) in enumerate(zip(shapes, params, strict=True))
            ],
            "profiles": profiles or [DTENSOR, EXPERIMENTAL],
            "steps": steps,
            "record": record or (list(range(1, steps + 1)) if steps <= 3 else pairs(steps)),
            "grads": [[gradient(g, dtype) for g in row] for row in grads],
        }
        for dtype in dtypes
    ]


def decimals(hyper: dict[str, float]) -> dict[str, str]:
    return {
        name: str(value) if name == "ema_overwrite_frequency" else shortest(value)
        for name, value in hyper.items()
    }


def written(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a schedule; integers stay integers."""
    return {k: [str(x) for x in v] if isinstance(v, list) else str(v) for k, v in config.items()}


def gradient(grad: Grad, dtype: str) -> Any:
    if isinstance(grad, tuple):
        values, indices = grad
        return {"values": bits(values, dtype), "indices": indices}
    return None if grad is None else bits(grad, dtype)


def sparse(
    slug: str, rows: list[list[int]], width: int, low: int = -8, high: int = 2
) -> list[list[Grad]]:
    """One parameter's sparse gradients, a step for each list of rows."""
    return [
        [(draw(f"{slug} s{t}", width * len(indices), low, high), indices)]
        for t, indices in enumerate(rows)
    ]


# -------------------------------------------------------------------- tf-2.9-dtensor, -experimental


def tensorflow() -> list[Case]:
    """The cases of the DTensor class and of its parent."""
    return [
        *sharp(),
        *centered(),
        *hyperparameters(),
        *changed(),
        *values(),
        *dtypes(),
        *shapes(),
        *variables(),
        *clipped(),
        *averaged(),
        *schedules(),
        *by_rows(),
        *long_runs(),
        *meshes(),
    ]


def sharp() -> list[Case]:
    """Few steps at hyperparameters that set wrong formulas far apart."""
    return [
        *on(
            "sharp",
            "Epsilon 0.25 against gradients over three decades: epsilon inside the root or dropped "
            "and a second moment that starts at 1 are far outside at step 1.",
            "epsilon v-start",
            record=[1, 2, 3, 5, 6],
        ),
        *on(
            "epsilon-0.001",
            "Epsilon 1e-3 with gradients about as large.",
            "epsilon v-start",
            exponents=(-14, -6),
            epsilon=0.001,
        ),
        *on(
            "momentum",
            "Momentum 0.9: a buffer of the gradient, or one damped by 1 - momentum, differs.",
            "momentum buffer epsilon",
            momentum=0.9,
        ),
        *on(
            "momentum-lr-changed",
            "The learning rate changes while momentum is under way: inside the buffer it would act "
            "on later gradients only.",
            "lr-in-momentum buffer",
            momentum=0.9,
            steps=8,
            record=[1, 2, 3, 4, 5, 6, 7, 8],
            changes={3: {"lr": 0.4}, 6: {"lr": 0.0125}},
        ),
        *on(
            "momentum-lr-changed-fine",
            "As momentum-lr-changed at epsilon 1e-3 and momentum 0.5, two variables.",
            "lr-in-momentum buffer epsilon",
            shapes=[[3], [2]],
            momentum=0.5,
            epsilon=0.001,
            steps=8,
            record=[1, 2, 4, 5, 7, 8],
            changes={5: {"lr": 0.005}},
        ),
        *on(
            "two-variables",
            "Two parameters: a counter or state shared between them differs from step 1.",
            "counter",
            shapes=[[3], [2]],
        ),
        *on(
            "three-variables-momentum",
            "Three parameters of different shapes with momentum.",
            "counter buffer",
            shapes=[[2], [1, 2], []],
            momentum=0.9,
            steps=4,
        ),
        *on(
            "alternating-signs",
            "The gradient changes sign at every step: the buffer lags, the second moment does not.",
            "buffer centered",
            params=[[0.75, -0.0625, 0.5]],
            grads=[[[1.0, -0.25, 0.015625]], [[-1.0, 0.25, -0.015625]]],
            momentum=0.5,
            epsilon=0.01,
        ),
        *on(
            "tiny-gradients",
            "Gradients near 1e-7 at the default epsilon 1e-7: epsilon placed elsewhere is far off.",
            "epsilon",
            exponents=(-26, -22),
            epsilon=1e-7,
            steps=4,
        ),
        *on(
            "page-example",
            "The example of the page, 10 descending on x^2 / 2 with lr 0.1: 9.683772, and on.",
            "control",
            F32,
            params=[[10.0]],
            grads=[[[10.0]], [[9.683772]], [[9.45788]], [[9.270531]], [[9.105434]]],
            shapes=[[]],
            lr=0.1,
            epsilon=1e-7,
            steps=5,
            record=[1, 2, 3, 4, 5],
        ),
    ]


def centered() -> list[Case]:
    """The centered form of 2.9: the average of squares, its square taken from the stored moment."""
    few: dict[str, Any] = {"options": "centered", "exponents": (-9, -3)}
    return [
        *on(
            "centered",
            "Centered on gradients below sqrt(1 - rho): finite, yet another formula than the "
            "variance.",
            "centered epsilon",
            record=[1, 2, 3, 5, 6],
            epsilon=0.01,
            **few,
        ),
        *on(
            "centered-momentum-lr-changed",
            "Centered with momentum and a changed learning rate.",
            "centered buffer lr-in-momentum",
            momentum=0.9,
            epsilon=0.01,
            steps=8,
            record=[1, 2, 4, 5, 7, 8],
            changes={5: {"lr": 0.005}},
            **few,
        ),
        *on(
            "centered-two-variables",
            "Centered, two parameters, rho 0.5.",
            "centered",
            shapes=[[2], [3]],
            rho=0.5,
            **few,
        ),
        *on(
            "centered-normal",
            "Centered on gradients over three decades: elements turn NaN one after the other and "
            "stay so; the second moment stays finite.",
            "centered nan",
            steps=20,
            options="centered",
            exponents=(-4, 1),
            epsilon=1e-7,
        ),
        *on(
            "centered-constant-nan",
            "Constant gradients c around sqrt(1 - rho) = 0.316: the stored moment turns negative "
            "at a step that depends on c, and never below the bound.",
            "centered nan",
            params=[[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]],
            grads=[[[0.316, 0.317, 0.33, 0.5, 1.0, 3.0, -3.2, 0.1]]],
            epsilon=1e-7,
            options="centered",
            steps=80,
            record=[1, 2, 5, 6, 14, 15, 43, 44, 75, 76, 79, 80],
        ),
        *on(
            "centered-constant-500",
            "Constant gradients for 500 steps: here the documented variance is 0 up to rounding "
            "and may fall below; the form of 2.9 settles at c^2 - c^4/(1 - rho).",
            "centered cancellation",
            params=[[0.5, 0.25, -0.75, 1.0, -0.125, 0.0625]],
            grads=[[[0.1, -0.2, 0.3, 0.03, -0.007, 0.25]]],
            epsilon=1e-7,
            options="centered",
            steps=500,
            record=[1, 2, 99, 100, 249, 250, 499, 500],
        ),
        *on(
            "centered-rho-0.99",
            "Centered at rho 0.99, where the bound is 0.1.",
            "centered nan",
            F32,
            rho=0.99,
            params=[[1.0, 1.0, 1.0, 1.0]],
            grads=[[[0.09, -0.11, 0.3, 0.01]]],
            steps=200,
            options="centered",
        ),
        *on(
            "centered-rho-zero",
            "Centered at rho 0: the moment is g^2 - g^4.",
            "centered rho",
            rho=0.0,
            steps=3,
            **few,
        ),
        *on("centered-half", "Centered in half precision.", "centered dtype", HALF, **few),
    ]


def hyperparameters() -> list[Case]:
    """Each hyperparameter at its edges."""
    return [
        *on(
            "defaults",
            "The defaults, 20 steps: the control; little is decided here in float32.",
            "control",
            steps=20,
            lr=0.001,
            epsilon=1e-7,
        ),
        *on("rho-zero", "rho 0: v is the squared gradient.", "rho", rho=0.0, steps=4),
        *on(
            "rho-one",
            "rho 1: v stays 0 and the step is lr g / epsilon; a v that starts at 1 differs.",
            "rho v-start",
            rho=1.0,
            steps=4,
        ),
        *on("rho-0.5", "rho 0.5 with momentum.", "rho buffer", rho=0.5, momentum=0.9, steps=4),
        *on(
            "rho-0.9999",
            "rho 0.9999: 1 - rho is formed in double and then rounded; in float32 it would differ.",
            "rho scalar-dtype",
            rho=0.9999,
            epsilon=0.001,
        ),
        *on(
            "rho-above-one",
            "rho 1.5 is accepted; the second moment turns negative and the root NaN.",
            "rho nan",
            F32,
            rho=1.5,
            steps=4,
        ),
        *on(
            "momentum-negative",
            "A negative momentum is accepted and means none.",
            "momentum",
            momentum=-0.5,
            steps=4,
        ),
        *on("momentum-one", "momentum 1: the buffer sums.", "momentum", momentum=1.0, steps=4),
        *on("momentum-1.5", "momentum 1.5: it grows.", "momentum", F32, momentum=1.5, steps=4),
        *on(
            "momentum-1e-30",
            "momentum 1e-30 keeps a buffer but changes nothing: neither epsilon nor the learning "
            "rate moves, as they do in the legacy class.",
            "momentum epsilon-moves",
            momentum=1e-30,
            steps=4,
        ),
        *on(
            "epsilon-zero",
            "Epsilon 0 is kept, with a gradient of 0 from the start: 0 / 0; and later: 0 / |v|.",
            "epsilon nan zero",
            params=[[0.5, -0.25, 1.0]],
            grads=[[[0.0, 1.0, -0.125]], [[0.5, 0.0, 0.25]]],
            epsilon=0.0,
            steps=3,
        ),
        *on("epsilon-huge", "Epsilon 1e6: it alone divides.", "epsilon", epsilon=1e6, steps=4),
        *on(
            "epsilon-negative",
            "A negative epsilon is accepted: the divisor changes sign.",
            "epsilon",
            F32,
            epsilon=-0.25,
            steps=4,
        ),
        *on("lr-zero", "lr 0: only the averages move.", "lr", lr=0.0, momentum=0.9, steps=3),
        *on("lr-negative", "A negative lr is accepted: ascent.", "lr", F32, lr=-0.05, steps=3),
        *on("lr-huge", "lr 1e6: the parameter is forgotten at once.", "lr", lr=1e6, steps=3),
        *on("lr-tiny", "lr 1e-12: steps below half an ulp.", "lr", F32, lr=1e-12, steps=3),
        *on("lr-infinite", "lr inf: infinite, then NaN.", "lr inf", F32, lr=INF, steps=3),
        *on(
            "lr-float32",
            "lr 0.1 reaches float64 parameters rounded to float32: 2e-8 of the step.",
            "lr-dtype",
            F64,
            lr=0.1,
            momentum=0.9,
        ),
    ]


def changed() -> list[Case]:
    """Hyperparameters set between steps."""
    return [
        *on(
            "lr-changed",
            "The learning rate changes without momentum.",
            "lr",
            changes={3: {"lr": 0.4}, 5: {"lr": 0.0}},
        ),
        *on("rho-changed", "rho changes.", "rho", F32, changes={4: {"rho": 0.25}}),
        *on("epsilon-changed", "Epsilon changes.", "epsilon", F32, changes={4: {"epsilon": 4.0}}),
        *on(
            "momentum-changed",
            "momentum changes, then ends: the buffer is kept as it is and no longer used.",
            "momentum",
            F32,
            momentum=0.9,
            changes={3: {"momentum": 0.25}, 5: {"momentum": 0.0}},
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "momentum-begun",
            "A momentum set after the first step finds no buffer: an IndexError.",
            "momentum error",
            F32,
            changes={3: {"momentum": 0.9}},
        ),
    ]


def values() -> list[Case]:
    """Zeros, infinities, NaN, overflow and underflow."""
    return [
        *on(
            "zero-gradients",
            "All gradients 0 (of both signs): 0 / (0 + epsilon).",
            "zero",
            F32,
            params=[[1.0, -0.0, 0.0]],
            grads=[[[0.0, -0.0, 0.0]]],
            epsilon=1e-7,
            steps=2,
        ),
        *on(
            "zero-after-gradients",
            "Gradients become 0: v decays, the buffer coasts.",
            "zero buffer",
            params=[[0.5, -0.25]],
            grads=[[[1.0, -0.125]], [[0.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]],
            momentum=0.9,
            steps=4,
        ),
        *on(
            "infinite-gradient",
            "A gradient inf: v inf, the step NaN; -inf and a finite one beside it.",
            "inf nan",
            params=[[0.5, 0.25, 1.0]],
            grads=[[[INF, 1.0, -0.5]], [[0.5, -INF, 0.25]]],
            steps=3,
        ),
        *on(
            "nan-gradient",
            "A gradient NaN stays in v, buffer and parameter of its element.",
            "nan",
            params=[[0.5, 0.25, 1.0]],
            grads=[[[0.5, NAN, -0.5]], [[0.25, 0.5, -0.25]]],
            momentum=0.9,
            steps=3,
        ),
        *on(
            "infinite-parameter",
            "A parameter inf or NaN stays; its averages do not care.",
            "inf nan",
            F32,
            params=[[INF, NAN, -INF, 1.0]],
            steps=2,
        ),
        *on(
            "square-overflows",
            "|g| > 1.8e19: the square is inf for ever, and this element never moves again.",
            "inf overflow",
            F32,
            params=[[0.5, 0.25]],
            grads=[[[1e20, 1.0]], [[1.0, 0.5]]],
            steps=3,
        ),
        *on(
            "square-underflows",
            "Squares below the smallest number: v is 0 and epsilon alone divides.",
            "underflow",
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-30, -1e-25, 1.0]]],
            epsilon=1e-7,
            steps=3,
        ),
        *on(
            "subnormal-square",
            "g = 1e-20, g^2 subnormal in float32: flushed to 0; with epsilon 0 the step is inf.",
            "flush underflow inf",
            F32,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-20, -3e-20, 2e-19]], [[1e-3, 1e-20, -1e-19]]],
            epsilon=0.0,
            steps=3,
        ),
        *on(
            "subnormal-square-epsilon",
            "As subnormal-square at epsilon 1e-20: v decays through the subnormals.",
            "flush underflow",
            F32,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1.2e-19, -3e-20, 2e-19]], [[0.0, 0.0, 1e-20]]],
            epsilon=1e-20,
            lr=1e-3,
            steps=6,
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "subnormal-gradient",
            "Subnormal gradients are read as 0.",
            "flush underflow",
            F32,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-40, -1e-42, 1.2e-38]]],
            epsilon=1e-38,
            steps=3,
        ),
        *on(
            "subnormal-gradient",
            "Subnormal gradients are read as 0.",
            "flush underflow",
            F64,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-310, -1e-322, 2.3e-308]]],
            epsilon=1e-300,
            steps=3,
        ),
        *on(
            "subnormal-square",
            "g = 1e-160, g^2 subnormal in float64: flushed to 0.",
            "flush underflow",
            F64,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-160, -3e-155, 2e-154]], [[0.0, 1e-154, -1e-158]]],
            epsilon=1e-160,
            lr=1e-3,
            steps=4,
            record=[1, 2, 3, 4],
        ),
        *on(
            "subnormal-parameter",
            "A subnormal parameter, still at lr 0 and moved by a subnormal step.",
            "flush underflow",
            F32,
            params=[[1e-40, -1e-39, 1.5e-38]],
            grads=[[[0.0, 0.5, 0.5]]],
            lr=1e-38,
            steps=3,
        ),
        *on(
            "subnormal-half",
            "Squares that are subnormal in float16, which are not flushed, or 0: epsilon is 2^-23.",
            "underflow",
            F16,
            params=[[0.5, 0.25, -0.5]],
            grads=[[[1e-3, -4e-4, 1e-4]]],
            epsilon=1e-7,
            steps=3,
        ),
    ]


def dtypes() -> list[Case]:
    """Half precision, and parameters of different dtypes."""
    return [
        *on("half", "Half precision.", "dtype epsilon", HALF),
        *on(
            "half-momentum",
            "Half precision with momentum and a changed learning rate.",
            "dtype lr-in-momentum buffer",
            HALF,
            momentum=0.9,
            changes={4: {"lr": 0.4}},
        ),
        *on(
            "half-rho",
            "rho 0.99 in half precision: rho and 1 - rho are rounded each for itself.",
            "dtype rho",
            HALF,
            rho=0.99,
            epsilon=0.01,
        ),
    ]


def shapes() -> list[Case]:
    """Shapes change nothing."""
    return [
        *on("scalar", "A scalar.", "shape", shapes=[[]], momentum=0.9, steps=3),
        *on("empty", "No element.", "shape", F32, shapes=[[0]], momentum=0.9, steps=2),
        *on("empty-2d", "No element, two axes.", "shape", F32, shapes=[[2, 0], [2]], steps=2),
        *on("shape-4d", "Four axes.", "shape", shapes=[[2, 1, 3, 1]], momentum=0.9, steps=3),
        *on(
            "seventeen",
            "17 elements: a kernel's vector part and its rest round alike.",
            "shape kernel",
            shapes=[[17]],
            momentum=0.9,
            epsilon=0.001,
            steps=2,
        ),
    ]


def variables() -> list[Case]:
    """None gradients, and pairs in another order."""
    return [
        *on(
            "none-at-even-steps",
            "The second variable has no gradient at even steps: neither motion nor decay nor "
            "momentum; the counter goes on.",
            "none counter",
            shapes=[[3], [2]],
            momentum=0.9,
            present=lambda t, variable: t % 2 == 1 or variable == 0,
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "none-in-turn",
            "Each of three variables is left out once.",
            "none counter",
            F32,
            shapes=[[2], [1], [2]],
            present=lambda t, variable: t != variable + 2,
        ),
        *on(
            "none-forever",
            "A variable that never has a gradient is never built.",
            "none",
            F32,
            shapes=[[2], [2]],
            present=lambda t, variable: variable == 0,
            steps=3,
        ),
        *on(
            "none-at-first",
            "No gradient in the first step: the variable is not built, and later refused.",
            "none error",
            F32,
            shapes=[[2], [2]],
            present=lambda t, variable: t > 1 or variable == 0,
        ),
        *on(
            "all-none",
            "No gradient at all: refused.",
            "none error",
            F32,
            shapes=[[2], [2]],
            present=lambda t, variable: False,
        ),
        *on(
            "order-swapped",
            "The pairs come in another order from step 3 on: state belongs to its variable.",
            "order",
            shapes=[[2], [2]],
            momentum=0.9,
            order={3: [1, 0], 5: [1, 0]},
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "order-at-first",
            "Three variables built in another order than they are given later.",
            "order",
            F32,
            shapes=[[2], [2], [1]],
            momentum=0.9,
            order={1: [2, 0, 1], 4: [1, 2, 0]},
        ),
    ]


def clipped() -> list[Case]:
    """The three clippings, which only the experimental class takes."""
    one: dict[str, Any] = {"profiles": ALONE, "steps": 4, "exponents": (-3, 2)}
    two: dict[str, Any] = one | {"shapes": [[3], [2]]}
    spread: list[list[Grad]] = [
        [[3.0, -4.0, 0.5], [0.25, -0.125]],
        [[0.03, -0.04, 0.0], [0.0, 0.0]],
        [[0.0, 0.0, 0.0], [12.0, -5.0]],
    ]
    given: dict[str, Any] = {"profiles": ALONE, "steps": 3, "shapes": [[3], [2]], "grads": spread}
    small: list[list[Grad]] = [
        [draw(f"tiny {t} {i}", n, low - 1, low) for i, n in enumerate((3, 2))]
        for t, low in enumerate((-9, -12, -10))
    ]
    tiny = given | {"grads": small, "epsilon": 0.001}
    return [
        *on(
            "clipnorm",
            "Each variable's gradient is scaled to norm 1 for itself, or not at all.",
            "clip clipnorm",
            clipnorm=1.0,
            **given,
        ),
        *on(
            "clipnorm-drawn",
            "Drawn gradients with momentum; the norms are well above the limit.",
            "clip clipnorm buffer",
            clipnorm=0.3,
            momentum=0.9,
            **two,
        ),
        *on(
            "clipnorm-seventeen",
            "A norm of 17 elements: the order of summation.",
            "clip clipnorm kernel",
            clipnorm=0.5,
            **one | {"shapes": [[17]], "steps": 2},
        ),
        *on(
            "clipnorm-inactive",
            "Norms below the limit: g * c / c may be an ulp away from g.",
            "clip clipnorm",
            clipnorm=37.0,
            **two,
        ),
        *on(
            "clipnorm-tiny",
            "Norms near 1e-3, on both sides of the limit: 1e-6 added to them shows, and so does a "
            "gradient that is lengthened to it.",
            "clip clipnorm",
            clipnorm=0.001,
            **tiny,
        ),
        *on(
            "clipnorm-half",
            "Clipping by norm in half precision.",
            "clip clipnorm dtype",
            HALF,
            clipnorm=0.3,
            **two,
        ),
        *on(
            "clipnorm-infinite",
            "A limit of inf: inf / inf is NaN.",
            "clip clipnorm inf nan",
            F32,
            clipnorm=INF,
            **one,
        ),
        *on(
            "clipnorm-of-inf",
            "An infinite element: NaN there, 0 beside it; the other variable is untouched.",
            "clip clipnorm inf nan",
            F32,
            clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0, -1.0]],
            grads=[[[INF, 1.0], [0.5, 3.0]], [[1.0, 1.0], [NAN, 1.0]]],
        ),
        *on(
            "clipnorm-overflow",
            "Squares overflow, so the norm is inf and the gradient becomes 0.",
            "clip clipnorm overflow",
            F32,
            clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0, -1.0]],
            grads=[[[1e20, 1.0], [0.5, 3.0]]],
        ),
        *on(
            "clipnorm-zero",
            "A limit of 0 is off.",
            "clip clipnorm",
            F32,
            clipnorm=0.0,
            **one,
        ),
        *on("clipnorm-negative", "So is -1.", "clip clipnorm", F32, clipnorm=-1.0, **one),
        *on(
            "clipvalue",
            "Each element is limited to ±0.25.",
            "clip clipvalue",
            clipvalue=0.25,
            **two,
        ),
        *on(
            "clipvalue-0.1",
            "A limit that is no binary fraction, momentum.",
            "clip clipvalue buffer",
            clipvalue=0.1,
            momentum=0.9,
            **one,
        ),
        *on(
            "clipvalue-of-inf-nan",
            "inf becomes the limit, NaN stays.",
            "clip clipvalue inf nan",
            F32,
            clipvalue=0.25,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25, 1.0]],
            grads=[[[INF, -INF, 0.5]], [[0.5, 1.0, NAN]]],
        ),
        *on("clipvalue-infinite", "No limit.", "clip clipvalue", F32, clipvalue=INF, **one),
        *on("clipvalue-half", "In half.", "clip clipvalue dtype", HALF, clipvalue=0.3, **one),
        *on(
            "global",
            "All gradients together are scaled to norm 1, or not at all.",
            "clip global-clipnorm",
            global_clipnorm=1.0,
            **given,
        ),
        *on(
            "global-drawn",
            "Drawn gradients of three variables with momentum.",
            "clip global-clipnorm buffer",
            global_clipnorm=0.3,
            momentum=0.9,
            **one | {"shapes": [[3], [2], []]},
        ),
        *on(
            "global-seventeen",
            "A norm of 17 and 5 elements: the order of summation.",
            "clip global-clipnorm kernel",
            global_clipnorm=0.5,
            **one | {"shapes": [[17], [5]], "steps": 2},
        ),
        *on(
            "global-inactive",
            "A norm below the limit scales by c * (1/c), which may be an ulp away from 1.",
            "clip global-clipnorm",
            global_clipnorm=49.0,
            **two,
        ),
        *on(
            "global-tiny",
            "Norms near 1e-3, on both sides of the limit.",
            "clip global-clipnorm",
            global_clipnorm=0.001,
            **tiny,
        ),
        *on(
            "global-none",
            "A gradient that is None takes no part in the norm.",
            "clip global-clipnorm none",
            global_clipnorm=0.5,
            present=lambda t, variable: t == 1 or variable == 0,
            **two,
        ),
        *on(
            "global-half",
            "In half.",
            "clip global-clipnorm dtype",
            HALF,
            global_clipnorm=0.3,
            **two,
        ),
        *on(
            "global-of-zero",
            "Gradients of 0: 1 / 0 is inf, the smaller scale is taken and nothing is NaN.",
            "clip global-clipnorm zero",
            F32,
            global_clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0]],
            grads=[[[0.0, 0.0], [0.0]], [[0.0, 2.0], [-1.0]]],
        ),
        *on(
            "global-of-inf",
            "One infinite element makes every gradient NaN.",
            "clip global-clipnorm inf nan",
            F32,
            global_clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0]],
            grads=[[[0.5, 3.0], [1.0]], [[INF, 2.0], [-1.0]]],
        ),
        *on(
            "global-of-nan",
            "So does a NaN.",
            "clip global-clipnorm nan",
            F32,
            global_clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0]],
            grads=[[[0.5, 3.0], [1.0]], [[0.5, 2.0], [NAN]]],
        ),
        *on(
            "global-overflow",
            "So does a norm that overflows, though every gradient is finite.",
            "clip global-clipnorm overflow nan",
            F32,
            global_clipnorm=1.0,
            profiles=ALONE,
            steps=2,
            params=[[0.5, 0.25], [1.0]],
            grads=[[[0.5, 3.0], [1.0]], [[1e20, 2.0], [-1.0]]],
        ),
        *on(
            "global-infinite",
            "A limit of inf: inf * min(1/n, 0) is NaN.",
            "clip global-clipnorm inf nan",
            F32,
            global_clipnorm=INF,
            **one,
        ),
        *on(
            "clipnorm-before-value",
            "clipnorm and clipvalue: the norm alone acts.",
            "clip clipnorm clipvalue combination",
            clipnorm=1.0,
            clipvalue=0.25,
            **two,
        ),
        *on(
            "global-before-value",
            "global_clipnorm and clipvalue: the norm alone acts.",
            "clip global-clipnorm clipvalue combination",
            global_clipnorm=1.0,
            clipvalue=0.25,
            **two,
        ),
        *on(
            "clipnorm-zero-then-value",
            "clipnorm 0 is off, so clipvalue acts.",
            "clip clipnorm clipvalue combination",
            F32,
            clipnorm=0.0,
            clipvalue=0.25,
            **two,
        ),
        *on(
            "clipnorm-and-global",
            "Both norms: refused.",
            "clip clipnorm global-clipnorm error",
            F32,
            clipnorm=1.0,
            global_clipnorm=1.0,
            **two,
        ),
        *on(
            "clip-centered",
            "Clipping before the centered averages.",
            "clip clipnorm centered",
            F32,
            options="centered",
            clipnorm=0.25,
            **two,
        ),
    ]


def averaged() -> list[Case]:
    """Averages of the parameters, which only the experimental class takes."""
    of: dict[str, Any] = {"profiles": ALONE, "options": "use_ema", "shapes": [[2], [2]], "lr": 0.5}
    alike: dict[str, Any] = of | {"ema_momentum": 0.9, "record": [1, 2, 3, 4, 5, 6]}
    return [
        *on(
            "ema",
            "The average starts at the parameter and moves after each step; nothing is overwritten "
            "until the end.",
            "ema ema-start finalize",
            finalize=1,
            **alike,
        ),
        *on(
            "ema-default",
            "ema_momentum is 0.99 unless stated, momentum 0.9.",
            "ema finalize",
            finalize=1,
            momentum=0.9,
            **of,
        ),
        *on(
            "ema-overwrite-3",
            "Every third step the parameters become their averages; v and buffer stay.",
            "ema ema-overwrite",
            ema_overwrite_frequency=3,
            momentum=0.9,
            **alike,
        ),
        *on(
            "ema-overwrite-1",
            "At every step.",
            "ema ema-overwrite finalize",
            ema_overwrite_frequency=1,
            finalize=1,
            **alike,
        ),
        *on(
            "ema-overwrite-0",
            "A frequency of 0 is never.",
            "ema ema-overwrite",
            F32,
            ema_overwrite_frequency=0,
            **alike,
        ),
        *on(
            "ema-momentum-0",
            "ema_momentum 0: the average is the parameter.",
            "ema",
            F32,
            ema_momentum=0.0,
            finalize=1,
            **of,
        ),
        *on(
            "ema-momentum-1",
            "ema_momentum 1: the average stays where it started, and finalizing resets.",
            "ema ema-start finalize",
            F32,
            ema_momentum=1.0,
            finalize=1,
            **of,
        ),
        *on(
            "ema-momentum-1-overwrite",
            "ema_momentum 1 overwriting every second step.",
            "ema ema-start ema-overwrite",
            F32,
            ema_momentum=1.0,
            ema_overwrite_frequency=2,
            **of,
        ),
        *on(
            "ema-momentum-above-one",
            "ema_momentum 1.5: refused.",
            "ema error",
            F32,
            ema_momentum=1.5,
            **of,
        ),
        *on(
            "ema-none",
            "A None gradient shifts the pairs of the averages: the first average takes the second "
            "variable's value.",
            "ema ema-pairing none finalize",
            present=lambda t, variable: t != 2 or variable == 1,
            finalize=1,
            **alike,
        ),
        *on(
            "ema-none-overwrite",
            "Fewer pairs than averages when overwriting: refused after the step.",
            "ema ema-overwrite none error",
            present=lambda t, variable: t != 2 or variable == 1,
            ema_overwrite_frequency=2,
            **alike,
        ),
        *on(
            "ema-order-swapped",
            "Pairs in another order update each other's averages.",
            "ema ema-pairing order finalize",
            order={3: [1, 0]},
            finalize=1,
            **alike,
        ),
        *on(
            "ema-order-overwrite",
            "And overwrite each other's variables.",
            "ema ema-pairing ema-overwrite order",
            F32,
            order={4: [1, 0]},
            ema_overwrite_frequency=2,
            **alike,
        ),
        *on("ema-half", "In half precision.", "ema dtype", HALF, **alike),
        *on(
            "ema-clip-centered",
            "Average, clipping, centering and momentum at once.",
            "ema clip clipnorm centered buffer",
            F32,
            momentum=0.9,
            clipnorm=0.25,
            ema_overwrite_frequency=2,
            **alike | {"options": "use_ema centered"},
        ),
    ]


def schedules() -> list[Case]:
    """The six schedules of the release; they are called with the count before the step."""

    def run(slug: str, comment: str, name: str, steps: int = 13, **config: Any) -> list[Case]:
        config = {"initial_learning_rate": 0.1} | config
        if name == "PiecewiseConstantDecay":
            del config["initial_learning_rate"]
        return on(
            f"schedule-{slug}",
            comment,
            "schedule lr-dtype",
            shapes=[[2]],
            schedule=(name, config),
            steps=steps,
            record=list(range(1, steps + 1)),
        )

    return [
        *run("exponential", "r^(s/d).", "ExponentialDecay", 6, decay_steps=5, decay_rate=0.5),
        *run(
            "exponential-staircase",
            "r^floor(s/d).",
            "ExponentialDecay",
            7,
            decay_steps=3,
            decay_rate=0.9,
            staircase=1,
        ),
        *run(
            "exponential-growing",
            "A rate above 1 and decay_steps that is no integer.",
            "ExponentialDecay",
            6,
            decay_steps=2.5,
            decay_rate=1.1,
        ),
        *run(
            "piecewise",
            "A boundary belongs to the interval before it.",
            "PiecewiseConstantDecay",
            7,
            boundaries=[1, 4],
            values=[0.1, 0.03, 0.5],
        ),
        *run(
            "polynomial",
            "Power 1 down to the default end 1e-4.",
            "PolynomialDecay",
            7,
            decay_steps=5,
        ),
        *run(
            "polynomial-power",
            "Power 2.5.",
            "PolynomialDecay",
            7,
            decay_steps=5,
            end_learning_rate=0.01,
            power=2.5,
        ),
        *run(
            "polynomial-cycle",
            "A cycle reaches its end at s = d and then starts over with twice the length.",
            "PolynomialDecay",
            9,
            decay_steps=3,
            end_learning_rate=0.01,
            power=0.5,
            cycle=1,
        ),
        *run(
            "inverse-time", "i/(1 + r s/d).", "InverseTimeDecay", 6, decay_steps=3, decay_rate=0.7
        ),
        *run(
            "inverse-time-staircase",
            "i/(1 + r floor(s/d)).",
            "InverseTimeDecay",
            7,
            decay_steps=3,
            decay_rate=0.7,
            staircase=1,
        ),
        *run("cosine", "Down to 0 and staying.", "CosineDecay", 9, decay_steps=7),
        *run(
            "cosine-alpha",
            "Down to a third; 1 - 0.34 is formed in double here, in float32 with restarts.",
            "CosineDecay",
            9,
            decay_steps=7,
            alpha=0.34,
        ),
        *run("restarts", "Periods double.", "CosineDecayRestarts", 12, first_decay_steps=3),
        *run(
            "restarts-even",
            "Periods of one length, each half as high.",
            "CosineDecayRestarts",
            9,
            first_decay_steps=4,
            t_mul=1.0,
            m_mul=0.5,
        ),
        *run(
            "restarts-all",
            "Every argument.",
            "CosineDecayRestarts",
            12,
            first_decay_steps=3,
            t_mul=1.5,
            m_mul=0.8,
            alpha=0.34,
        ),
        *on(
            "schedule-momentum",
            "A schedule with momentum, two variables: the rate is outside of the buffer.",
            "schedule lr-in-momentum buffer",
            shapes=[[2], [3]],
            momentum=0.9,
            schedule=(
                "ExponentialDecay",
                {"initial_learning_rate": 0.5, "decay_steps": 1, "decay_rate": 0.25},
            ),
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "schedule-none",
            "The schedule counts steps of the optimizer, not of a variable.",
            "schedule none counter",
            F32,
            shapes=[[2], [2]],
            present=lambda t, variable: t == 1 or variable == 0 or t > 3,
            cycle=6,
            schedule=(
                "ExponentialDecay",
                {"initial_learning_rate": 0.5, "decay_steps": 1, "decay_rate": 0.5},
            ),
            record=[1, 2, 3, 4, 5, 6],
        ),
        *on(
            "schedule-half",
            "A schedule is float32, then rounded.",
            "schedule lr-dtype dtype",
            F16 + BF16,
            schedule=(
                "InverseTimeDecay",
                {"initial_learning_rate": 0.1, "decay_steps": 1, "decay_rate": 0.3},
            ),
            steps=4,
        ),
    ]


def by_rows() -> list[Case]:
    """Sparse gradients: rows that repeat, rows without a gradient."""
    of: dict[str, Any] = {"shapes": [[4, 2]], "steps": 3}
    unique = [[1, 3], [0, 1], [2, 0]]
    repeated = [[1, 3, 1], [0, 0, 0], [2, 1, 2]]
    return [
        *on(
            "sparse",
            "Rows without a gradient: v decays there, the parameter stands.",
            "sparse lazy",
            grads=sparse("sparse", unique, 2),
            **of,
        ),
        *on(
            "sparse-repeated",
            "Repeated rows: their squares are added, not the square of their sum, and each adds "
            "its own step.",
            "sparse duplicates",
            grads=sparse("sparse-repeated", repeated, 2),
            **of,
        ),
        *on(
            "sparse-momentum",
            "With momentum, rows without a gradient keep moving.",
            "sparse lazy buffer",
            momentum=0.9,
            grads=sparse("sparse-momentum", unique, 2),
            **of,
        ),
        *on(
            "sparse-repeated-momentum",
            "Repeated rows with momentum and a changed learning rate.",
            "sparse duplicates lr-in-momentum",
            momentum=0.9,
            changes={3: {"lr": 0.4}},
            grads=sparse("sparse-repeated-momentum", repeated, 2),
            **of,
        ),
        *on(
            "sparse-centered",
            "Centered: the square of the average leaves v on every row at every step.",
            "sparse centered duplicates",
            options="centered",
            epsilon=0.01,
            grads=sparse("sparse-centered", repeated, 2, -9, -4),
            **of,
        ),
        *on(
            "sparse-centered-momentum",
            "Centered with momentum.",
            "sparse centered buffer",
            F32,
            options="centered",
            momentum=0.9,
            epsilon=0.01,
            grads=sparse("sparse-centered-momentum", unique, 2, -9, -4),
            **of,
        ),
        *on(
            "sparse-empty",
            "No row at all: only decay.",
            "sparse lazy",
            F32,
            momentum=0.9,
            grads=sparse("sparse-empty", [[1, 2], [], [3]], 2),
            **of,
        ),
        *on(
            "sparse-vector",
            "Rows of a vector are elements; default epsilon.",
            "sparse duplicates",
            F32,
            shapes=[[5]],
            epsilon=1e-7,
            steps=3,
            grads=sparse("sparse-vector", [[4, 0, 4], [2], [0, 1, 2, 3]], 1),
        ),
        *on(
            "sparse-and-dense",
            "A sparse and a dense gradient, each with its variable; the sparse one turns dense.",
            "sparse",
            F32,
            shapes=[[3, 2], [2]],
            steps=3,
            momentum=0.9,
            grads=[
                [([1.0, -0.5, 0.25, 2.0], [2, 0]), [0.5, -1.0]],
                [[0.5, 0.25, -0.5, 1.0, -2.0, 0.125], [0.25, 0.5]],
                [None, [-0.25, 2.0]],
            ],
        ),
        *on(
            "sparse-half",
            "Repeated rows in half precision.",
            "sparse duplicates dtype",
            F16,
            grads=sparse("sparse-half", repeated, 2),
            **of,
        ),
        *on(
            "sparse-clipnorm",
            "The norm is that of the rows as given, repeated or not.",
            "sparse duplicates clip clipnorm",
            profiles=ALONE,
            clipnorm=0.5,
            grads=sparse("sparse-clipnorm", repeated, 2, -3, 2),
            **of,
        ),
        *on(
            "sparse-clipvalue",
            "Each given value is limited, not a row's sum.",
            "sparse duplicates clip clipvalue",
            F32,
            profiles=ALONE,
            clipvalue=0.25,
            grads=sparse("sparse-clipvalue", repeated, 2, -3, 2),
            **of,
        ),
        *on(
            "sparse-global",
            "The global norm is that of the rows as given.",
            "sparse duplicates clip global-clipnorm",
            F32,
            profiles=ALONE,
            global_clipnorm=0.5,
            grads=sparse("sparse-global", repeated, 2, -3, 2),
            **of,
        ),
        *on(
            "sparse-ema",
            "The average of all rows.",
            "sparse ema",
            F32,
            profiles=ALONE,
            options="use_ema",
            ema_momentum=0.5,
            grads=sparse("sparse-ema", repeated, 2),
            **of,
        ),
    ]


def long_runs() -> list[Case]:
    return [
        *on("200-steps", "200 steps.", "long", shapes=[[3]], cycle=8, steps=200, epsilon=0.001),
        *on(
            "200-steps-momentum",
            "200 steps with momentum and a cosine schedule.",
            "long schedule buffer",
            shapes=[[3]],
            cycle=8,
            steps=200,
            momentum=0.9,
            epsilon=0.001,
            schedule=("CosineDecay", {"initial_learning_rate": 0.01, "decay_steps": 150}),
        ),
        *on(
            "200-steps-ema",
            "200 steps, averaged and overwritten at step 100 and 200.",
            "long ema ema-overwrite",
            F32,
            profiles=ALONE,
            shapes=[[3]],
            cycle=8,
            steps=200,
            options="use_ema",
            ema_momentum=0.99,
            ema_overwrite_frequency=100,
            record=[1, 2, 99, 100, 101, 102, 199, 200],
        ),
    ]


def meshes() -> list[Case]:
    """On a mesh of 2 x 2 devices; the experimental class runs the same cases without one."""
    both: list[str | None] = ["x", "y"]
    return [
        *on(
            "mesh",
            "Parameters that are whole, split over one axis and over both: the same bits as "
            "without a mesh.",
            "mesh",
            shapes=[[2], [4], [2, 4]],
            mesh=[[None], ["x"], both],
            steps=5,
        ),
        *on(
            "mesh-momentum",
            "With momentum.",
            "mesh buffer",
            F32,
            shapes=[[2], [4, 3], [2, 4]],
            mesh=[[None], ["y", None], both],
            momentum=0.9,
            epsilon=0.001,
            steps=5,
        ),
        *on(
            "mesh-centered",
            "With the centered form of 2.9.",
            "mesh centered",
            F32,
            shapes=[[4, 2]],
            mesh=[both],
            options="centered",
            exponents=(-9, -3),
            steps=5,
        ),
        *on(
            "mesh-schedule",
            "With a schedule: rate and counter are on every device.",
            "mesh schedule",
            F32,
            shapes=[[4, 2], [2]],
            mesh=[["x", None], ["y"]],
            momentum=0.9,
            schedule=(
                "ExponentialDecay",
                {"initial_learning_rate": 0.5, "decay_steps": 2, "decay_rate": 0.5},
            ),
            steps=5,
        ),
    ]


# ------------------------------------------------------------------------------- keras-legacy-2.9


def keras_legacy() -> list[Case]:
    """OptimizerV2, where a momentum above 0 chooses another kernel and another formula."""
    of: dict[str, Any] = {"family": "keras-legacy", "profiles": ["keras-legacy-2.9"]}
    norms: list[list[Grad]] = [[[3.0, -4.0, 0.5], [0.25, -0.125]], [[0.3, -0.4, 0.0], [6.0, 1.0]]]
    return [
        *shared(of, lr=0.001, epsilon=1e-7),
        *on(
            "momentum-0",
            "Momentum 0: epsilon outside the root. The inputs of momentum-1e-30.",
            "epsilon epsilon-moves",
            **of | MOVING,
        ),
        *on(
            "momentum-1e-30",
            "Momentum 1e-30 weighs nothing, yet epsilon is now inside the root and the learning "
            "rate inside the buffer.",
            "epsilon epsilon-moves lr-in-momentum",
            momentum=1e-30,
            **of | MOVING,
        ),
        *on(
            "momentum-0.9",
            "Momentum 0.9 on the same inputs.",
            "epsilon epsilon-moves lr-in-momentum",
            momentum=0.9,
            **of | MOVING,
        ),
        *on(
            "epsilon-zero",
            "Epsilon 0 is silently 1e-7.",
            "epsilon",
            exponents=(-26, -22),
            epsilon=0.0,
            steps=4,
            **of,
        ),
        *on(
            "centered-constant-500",
            "Constant gradients for 500 steps: v - mg^2 rounds to or below 0, and an element whose "
            "root is NaN stays so.",
            "centered cancellation nan",
            params=[[0.5, 0.25, -0.75, 1.0, -0.125, 0.0625]],
            grads=[[[0.1, -0.2, 0.3, 1.3, -0.7, 2.5]]],
            epsilon=1e-7,
            options="centered",
            steps=500,
            record=[1, 2, 99, 100, 249, 250, 499, 500],
            **of,
        ),
        *on(
            "none-at-even-steps",
            "The second variable has no gradient at even steps.",
            "none counter",
            F32,
            shapes=[[3], [2]],
            momentum=0.9,
            present=lambda t, variable: t % 2 == 1 or variable == 0,
            **of,
        ),
        *on(
            "clipvalue-then-norm",
            "clipvalue and clipnorm both act, the value first.",
            "clip clipnorm clipvalue combination",
            shapes=[[3], [2]],
            grads=norms,
            clipvalue=1.0,
            clipnorm=0.5,
            steps=2,
            **of,
        ),
        *on(
            "clipvalue-then-global",
            "clipvalue and global_clipnorm both act, the value first.",
            "clip global-clipnorm clipvalue combination",
            shapes=[[3], [2]],
            grads=norms,
            clipvalue=1.0,
            global_clipnorm=0.5,
            steps=2,
            **of,
        ),
        *on(
            "clipnorm-zero",
            "A limit of 0 zeroes every gradient.",
            "clip clipnorm",
            F32,
            shapes=[[3], [2]],
            grads=norms,
            clipnorm=0.0,
            steps=2,
            **of,
        ),
        *on(
            "schedule",
            "A schedule is called with the count in the parameter's dtype.",
            "schedule lr-dtype",
            momentum=0.9,
            schedule=(
                "ExponentialDecay",
                {"initial_learning_rate": 0.5, "decay_steps": 2, "decay_rate": 0.5},
            ),
            **of,
        ),
        *on("half", "Half precision.", "dtype epsilon", F16, **of),
    ]


MOVING: dict[str, Any] = {
    "shapes": [[4], [2]],
    "exponents": (-8, 0),
    "epsilon": 0.1,
    "changes": {4: {"lr": 0.4}},
    "record": [1, 2, 3, 4, 5, 6],
}


def shared(of: dict[str, Any], **defaults: float) -> list[Case]:
    """The cases that the two older classes have in common."""
    repeated = [[1, 3, 1], [0, 0, 0], [2, 1, 2]]
    rows: dict[str, Any] = {"shapes": [[4, 2]], "steps": 3}
    return [
        *on("defaults", "The defaults, 20 steps.", "control", steps=20, **of | defaults),
        *on("sharp", "Epsilon 0.25: where epsilon stands and v starts.", "epsilon v-start", **of),
        *on(
            "momentum-lr-changed",
            "The learning rate changes while momentum is under way.",
            "lr-in-momentum buffer epsilon",
            shapes=[[3], [2]],
            momentum=0.9,
            steps=8,
            record=[1, 2, 4, 5, 7, 8],
            changes={5: {"lr": 0.005}},
            **of,
        ),
        *on(
            "rho-0.9999",
            "rho 0.9999: in which precision 1 - rho is formed.",
            "rho scalar-dtype v-start",
            rho=0.9999,
            epsilon=0.001,
            steps=4,
            **of,
        ),
        *on(
            "centered",
            "Centered: the average of the gradient.",
            "centered epsilon",
            options="centered",
            epsilon=0.01,
            **of,
        ),
        *on(
            "centered-momentum",
            "Centered with momentum.",
            "centered epsilon buffer",
            options="centered",
            momentum=0.9,
            epsilon=0.01,
            **of,
        ),
        *on(
            "sparse-repeated",
            "Repeated rows without momentum: merged, and which rows decay.",
            "sparse duplicates lazy",
            grads=sparse("sparse-repeated", repeated, 2),
            **of | rows,
        ),
        *on(
            "sparse-repeated-momentum",
            "Repeated rows with momentum: merged, and which rows decay and move.",
            "sparse duplicates lazy buffer",
            momentum=0.9,
            grads=sparse("sparse-repeated-momentum", repeated, 2),
            **of | rows,
        ),
        *on(
            "sparse-centered-momentum",
            "Repeated rows, centered with momentum.",
            "sparse duplicates lazy centered",
            options="centered",
            momentum=0.9,
            grads=sparse("sparse-centered-momentum", repeated, 2),
            **of | rows,
        ),
    ]


# --------------------------------------------------------------------------------------------- tf1


def tf1() -> list[Case]:
    """The optimizer of TensorFlow 1: v starts at 1, epsilon is inside the root."""
    of: dict[str, Any] = {"family": "tf1", "profiles": ["tf1"]}
    return [
        *shared(of, lr=0.001, epsilon=1e-10),
        *on(
            "epsilon-0.001", "Epsilon 1e-3 and rho 0.", "epsilon rho", epsilon=0.001, rho=0.0, **of
        ),
        *on(
            "none-at-even-steps",
            "The second variable has no gradient at even steps.",
            "none",
            F32,
            shapes=[[3], [2]],
            momentum=0.9,
            present=lambda t, variable: t % 2 == 1 or variable == 0,
            **of,
        ),
        *on(
            "sparse-repeated-centered",
            "Repeated rows, centered without momentum.",
            "sparse duplicates lazy centered",
            F32,
            options="centered",
            grads=sparse("sparse-repeated-centered", [[1, 3, 1], [0, 0, 0], [2, 1, 2]], 2),
            shapes=[[4, 2]],
            steps=3,
            **of,
        ),
    ]
