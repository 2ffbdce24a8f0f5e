"""The cases on which RMSprops outside TensorFlow 2.9 are recorded: inputs only, deterministic.

Each function gives one implementation's cases, in what that implementation can express. Most take
the same inputs from `usual`, so that the files can be compared with each other.
"""

import math
from collections.abc import Callable
from typing import Any

from cases_nadam import BF16, BOTH, F16, F32, SHORT, Case, bits, draw, pairs, shortest, tensor

Rows = tuple[list[float], list[int]]  # a sparse gradient: values and the rows they belong to
Grad = list[float] | Rows | None

SHARP = {"lr": 0.05, "rho": 0.9, "momentum": 0.0, "epsilon": 0.25}
LR_CHANGES = {3: {"lr": 0.2}, 5: {"lr": 0.0125}}
KEPT = ("order", "finalize", "profiles")  # keys of a case that are taken as they are
CENTERED = ("centered", "centered-momentum", "centered-constant")
MOVING = ("epsilon-small", "momentum-lr-changed", *CENTERED)  # momentum or centered
INF, NAN = math.inf, math.nan


def on(
    slug: str,
    comment: str,
    tags: str,
    *,
    family: str,
    shapes: list[list[int]] | None = None,
    exponents: tuple[int, int] = (-8, 2),
    absent: Callable[[int, int], bool] = lambda t, variable: False,
    grads: list[list[Grad]] | None = None,
    dtypes: tuple[str, ...] = BOTH,
    steps: int = 6,
    record: list[int] | None = None,
    options: str = "",
    off: str = "",
    changes: dict[int, dict[str, Any]] | None = None,
    groups: list[tuple[list[int], dict[str, Any]]] | None = None,
    **rest: Any,
) -> list[Case]:
    """The case in each of `dtypes`, on values of both signs drawn from binary `exponents`.

    `absent` says where a gradient is None; `grads` gives the gradients instead; `options` are
    switched on and those of `off` off; `rest` are hyperparameters and keys of `KEPT`.
    """
    shapes = shapes or [[4]]
    sizes = [math.prod(shape) for shape in shapes]
    params = [draw(f"{slug} p{i}", n, -6, 0) for i, n in enumerate(sizes)]
    grads = grads or [
        [
            None if absent(t, i) else draw(f"{slug} g{t} {i}", n, *exponents)
            for i, n in enumerate(sizes)
        ]
        for t in range(1, 5)
    ]
    kept = {name: rest.pop(name) for name in KEPT if name in rest}
    if groups:
        kept["groups"] = [{"params": i, "hyper": decimals(h)} for i, h in groups]
    if changes:
        kept["changes"] = {str(t): decimals(h) for t, h in changes.items()}
    return [
        kept
        | {
            "id": f"rmsprop.{family}.{slug}.{SHORT[dtype]}",
            "comment": comment,
            "tags": tags.split(),
            "hyper": decimals(SHARP | rest),
            "options": dict.fromkeys(options.split(), 1) | dict.fromkeys(off.split(), 0),
            "params": [
                {"dtype": dtype, "shape": shape, "bits": bits(values, dtype)}
                for shape, values in zip(shapes, params, strict=True)
            ],
            "steps": steps,
            "record": record or (list(range(1, steps + 1)) if steps <= 6 else pairs(steps)),
            "grads": [[written(g, dtype) for g in row] for row in grads],
        }
        for dtype in dtypes
    ]


def decimals(hyper: dict[str, Any]) -> dict[str, Any]:
    """Numbers as decimals; a count without a point."""
    return {k: str(v) if isinstance(v, int) else shortest(v) for k, v in hyper.items()}


def written(grad: Grad, dtype: str) -> Any:
    if isinstance(grad, tuple):
        return {"values": bits(grad[0], dtype), "indices": grad[1]}
    return None if grad is None else bits(grad, dtype)


def schedule(name: str, **config: Any) -> dict[str, Any]:
    """A learning rate that is a schedule of Keras."""
    return {"schedule": name, "config": decimals(config)}


# --------------------------------------------------------------------------- inputs for everyone


def usual(family: str, defaults: dict[str, float], *leave_out: str, **fixed: Any) -> list[Case]:
    """The cases that most implementations can run, less those whose slugs are left out.

    `defaults` are the release's own hyperparameters; `fixed` goes to every case.
    """
    cases = [
        *on(
            "defaults",
            "The defaults of this implementation; little is decided in float32.",
            "defaults",
            family=family,
            exponents=(-12, 3),
            steps=20,
            **SHARP | defaults | fixed,
        ),
        *on(
            "epsilon-large",
            "Epsilon 0.25 against gradients over three decades: where epsilon stands and where "
            "the average starts show at step 1.",
            "epsilon start",
            family=family,
            **fixed,
        ),
        *on(
            "epsilon-small",
            "Epsilon 1e-3 with momentum at a constant learning rate.",
            "epsilon start momentum",
            family=family,
            **{"epsilon": 1e-3, "momentum": 0.9} | fixed,
        ),
        *on(
            "epsilon-0",
            "Epsilon 0, and an element whose first gradient is 0: 0/0 where the average starts "
            "at 0.",
            "epsilon start nan",
            family=family,
            shapes=[[3]],
            grads=[[[0.0, 0.5, -3e-3]], [[1.0, -0.25, 2e-3]], [[0.25, 0.03, -0.7]]],
            **{"epsilon": 0.0} | fixed,
        ),
        *on(
            "momentum-lr-changed",
            "The learning rate changes before steps 3 and 5 while momentum is under way: whether "
            "the buffer holds learning rates.",
            "lr-in-momentum momentum lr-dtype",
            family=family,
            changes=LR_CHANGES,
            **{"momentum": 0.9} | fixed,
        ),
        *on(
            "centered",
            "The centered form without momentum at epsilon 1e-3.",
            "centered epsilon",
            family=family,
            options="centered",
            **{"epsilon": 1e-3} | fixed,
        ),
        *on(
            "centered-momentum",
            "The centered form with momentum while the learning rate changes.",
            "centered epsilon lr-in-momentum momentum",
            family=family,
            options="centered",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "epsilon": 0.01} | fixed,
        ),
        *on(
            "rho-0",
            "No memory: the average is the squared gradient.",
            "rho",
            family=family,
            steps=3,
            **{"rho": 0.0} | fixed,
        ),
        *on(
            "rho-1",
            "Nothing but memory: the average stays where it starts, so only epsilon divides.",
            "rho start",
            family=family,
            steps=3,
            **{"rho": 1.0} | fixed,
        ),
        *on(
            "two-variables",
            "Two variables and 20 steps at rho 0.5: whether the count and the averages are each "
            "variable's own.",
            "counter",
            family=family,
            shapes=[[3], [2]],
            steps=20,
            **{"rho": 0.5, "momentum": 0.9, "epsilon": 0.01} | fixed,
        ),
        *on(
            "none-at-odd-steps",
            "The second variable has no gradient at odd steps: whether it is left alone, and "
            "whether it has a count of its own.",
            "none counter",
            family=family,
            shapes=[[3], [2]],
            absent=lambda t, variable: t % 2 == 1 and variable == 1,
            **{"momentum": 0.9} | fixed,
        ),
        *on(
            "not-finite",
            "Infinite, NaN and huge gradients at step 2: what stays infinite or NaN for ever.",
            "inf nan",
            family=family,
            grads=[[[0.5, -1.0, 0.25, 2.0]], [[INF, -INF, NAN, 1e30]], [[0.5, -1.0, 0.25, 2.0]]],
            steps=4,
            **{"momentum": 0.5, "dtypes": F32} | fixed,
        ),
        *on(
            "centered-constant",
            "200 steps of one gradient: the average of squares less the squared average cancels, "
            "and may round below zero.",
            "centered cancellation",
            family=family,
            options="centered",
            grads=[[draw("constant gradient", 6, -2, 1)]],
            shapes=[[6]],
            steps=200,
            record=[1, 2, 99, 100, 199, 200],
            **{"epsilon": 1e-8, "dtypes": F32} | fixed,
        ),
        *on(
            "size-33",
            "33 elements: more than one vector register, and a rest.",
            "vectorized epsilon",
            family=family,
            shapes=[[33]],
            steps=2,
            **{"momentum": 0.9, "epsilon": 0.01, "dtypes": F32} | fixed,
        ),
    ]
    slugs = {case["id"].split(".")[-2] for case in cases}
    assert slugs >= set(leave_out), leave_out
    return [case for case in cases if case["id"].split(".")[-2] not in leave_out]


def decay(kind: str, family: str, **rest: Any) -> list[Case]:
    """Weight decay; `kind` is l2 or decoupled."""
    return on(
        f"weight-decay-{kind}",
        "Weight decay of lr*wd = 0.15, then 0.0375 a step: in the gradient, decoupled before or "
        "after the step, or without lr are far apart.",
        "l2 decoupled decay-order decay-without-lr",
        family=family,
        shapes=[[3], [2]],
        changes={3: {"lr": 0.125}},
        options=" ".join(["decoupled_weight_decay"] * (kind == "decoupled")),
        steps=4,
        **{"lr": 0.5, "weight_decay": 0.3} | rest,
    )


def limits(family: str, *names: str, **fixed: Any) -> list[Case]:
    """Limits of gradients, which these frameworks have beside the optimizer."""
    small: list[list[Grad]] = [
        [draw(f"tiny {t} {i}", n, low - 1, low) for i, n in enumerate((3, 2))]
        for t, low in enumerate((-9, -12, -10))
    ]
    of: dict[str, Any] = {"family": family, "shapes": [[3], [2]], "steps": 3} | fixed
    return [
        case
        for name in names
        for slug, limit, grads in (("", 0.3, None), ("-tiny", 0.001, small))
        for case in on(
            f"{name.replace('_', '-')}{slug}",
            "Gradients on both sides of the limit; where they are tiny, what is added to a norm "
            "shows.",
            f"clip {name.replace('_', '-')}",
            grads=grads,
            **of | {name: limit, "epsilon": limit},
        )
    ]


def subnormal(family: str, tags: str = "subnormal", **rest: Any) -> list[Case]:
    return on(
        "subnormal",
        "Squares and gradients below the normal range at epsilon 0: whether they are flushed to "
        "zero.",
        tags,
        family=family,
        grads=[[[1e-20, -3e-21, 1e-39, 2e-30]], [[-2e-20, 1e-10, 1e-40, 1e-30]]],
        steps=4,
        **{"epsilon": 0.0, "dtypes": F32} | rest,
    )


# ---------------------------------------------------------------------------------------- torch


def torch() -> list[Case]:
    """torch 2.13, for-loop and foreach: rho is alpha, L2 decay, a count for each parameter."""
    of = {"family": "torch"}
    half = {"dtypes": F16 + BF16, **of}
    return [
        *usual("torch", {"lr": 0.01, "rho": 0.99, "epsilon": 1e-8}),
        *decay("l2", **of),
        *subnormal(**of),
        *limits("torch", "global_clipnorm", "clipvalue"),
        *on(
            "maximize",
            "Maximizing with L2 decay: the gradient is negated before the decay is added.",
            "maximize l2",
            options="maximize",
            **{"weight_decay": 0.25, "momentum": 0.9} | of,
        ),
        *on(
            "everything",
            "Centered, momentum, L2 decay and maximizing at once, while the learning rate changes.",
            "centered momentum l2 maximize lr-in-momentum",
            options="centered maximize",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "weight_decay": 0.25, "epsilon": 0.01} | of,
        ),
        *on(
            "centered-constant-500",
            "500 steps of one gradient: over the reals the variance is positive; rounded, it falls "
            "below zero near step 137 in float32 and 329 in float64, and the root is NaN. Clamped "
            "at zero, the step is the learning rate times the gradient over epsilon.",
            "centered cancellation nan",
            options="centered",
            grads=[[[1.13, -1.49, 1.69, 0.1]]],
            shapes=[[4]],
            steps=500,
            record=[1, 2, 136, 137, 328, 329, 499, 500],
            **{"epsilon": 0.01} | of,
        ),
        *on(
            "rho-small",
            "rho 0.25: torch's interpolation starts from the nearer end, the new gradient.",
            "rho centered lerp",
            options="centered",
            **{"rho": 0.25, "epsilon": 0.01} | of,
        ),
        *on(
            "groups",
            "Two groups with their own hyperparameters; the second has momentum.",
            "groups",
            shapes=[[2], [2], [2]],
            groups=[([0, 2], {}), ([1], {"lr": 0.5, "rho": 0.5, "momentum": 0.9, "epsilon": 0.01})],
            **of,
        ),
        *on(
            "lr-tensor",
            "The learning rate is a float32 tensor.",
            "lr-dtype",
            **{"lr": tensor(0.05, "float32"), "momentum": 0.9} | of,
        ),
        *on("half-plain", "Half precision, plain.", "dtype", **half),
        *on(
            "half-momentum",
            "Half precision with momentum and decay while the learning rate changes.",
            "dtype momentum l2",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "weight_decay": 0.25, "epsilon": 0.01} | half,
        ),
        *on(
            "half-centered",
            "Half precision, centered: the cancellation may turn out negative.",
            "dtype centered",
            options="centered",
            **{"epsilon": 0.01, "momentum": 0.9} | half,
        ),
    ]


def timm() -> list[Case]:
    """timm RMSpropTF: starts at 1, epsilon inside, L2 or decoupled decay, lr in or out of momentum.

    Absent, lr_in_momentum is on, as by default in the release.
    """
    of = {"family": "timm"}
    return [
        *usual("timm", {"lr": 0.01, "rho": 0.9, "epsilon": 1e-10}),
        *decay("l2", **of),
        *decay("decoupled", momentum=0.9, **of),
        *subnormal(rho=0.0, **of),
        *on(
            "lr-outside-momentum",
            "lr_in_momentum off: the buffer holds directions, as in torch.",
            "lr-in-momentum momentum",
            off="lr_in_momentum",
            changes=LR_CHANGES,
            momentum=0.9,
            **of,
        ),
        *on(
            "lr-outside-momentum-centered",
            "lr_in_momentum off, centered and decoupled decay at once.",
            "lr-in-momentum momentum centered decoupled",
            options="centered decoupled_weight_decay",
            off="lr_in_momentum",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "weight_decay": 0.3, "epsilon": 0.01} | of,
        ),
    ]


# ---------------------------------------------------------------------------------------- Keras


def keras2() -> list[Case]:
    """TensorFlow 2.15: epsilon and learning rate inside, decoupled decay, sparse gradients."""
    of = {"family": "keras-2.15"}
    found = [
        *keras(of["family"]),
        *subnormal("keras-2.15", "subnormal flush"),
        *on(
            "clipnorm-and-clipvalue",
            "Both clippings are set; only the norm counts.",
            "clipnorm clipvalue clip-order",
            shapes=[[3], [2]],
            **{"clipnorm": 0.3, "clipvalue": 0.1} | of,
        ),
        *on(
            "ema-none-between",
            "A gradient is None between two overwrites: whether the average of a variable that "
            "stands still moves towards it.",
            "ema none",
            shapes=[[2], [2]],
            options="use_ema",
            absent=lambda t, variable: t == 4 and variable == 0,
            **{"ema_momentum": 0.6, "ema_overwrite_frequency": 5, "momentum": 0.9} | of,
        ),
        *on(
            "ema-other-order",
            "Averages while the order of the pairs changes and a gradient is None: whether they "
            "are paired by variable.",
            "ema none order",
            shapes=[[2], [2]],
            options="use_ema",
            order={"2": [1, 0], "5": [1, 0]},
            absent=lambda t, variable: t == 3 and variable == 0,
            finalize=1,
            **{"ema_momentum": 0.6, "ema_overwrite_frequency": 2, "momentum": 0.9} | of,
        ),
        *sparse(of["family"]),
    ]
    return [case if _traced_once(case) else case | {"profiles": ["keras-2.15"]} for case in found]


def _traced_once(case: Case) -> bool:
    """Whether one graph does every step."""
    return "order" not in case and not any(g is None for row in case["grads"] for g in row)


def keras3() -> list[Case]:
    """Keras 3 on JAX."""
    return keras_dense("keras-3", "subnormal flush")


def keras3_tensorflow() -> list[Case]:
    """Keras 3 on TensorFlow."""
    return [*keras_dense("keras-3-tensorflow", "subnormal flush"), *sparse("keras-3-tensorflow")]


def keras3_torch() -> list[Case]:
    """Keras 3 on torch, which flushes nothing."""
    return keras_dense("keras-3-torch", "subnormal")


def keras_dense(family: str, flush: str) -> list[Case]:
    """Keras 3, where gradients are dense."""
    of = {"family": family}
    return [
        *keras(family),
        *subnormal(family, flush),
        *on(
            "ema-none",
            "Averages while a gradient is None: whether that variable's average moves.",
            "ema none",
            shapes=[[2], [2]],
            options="use_ema",
            absent=lambda t, variable: t == 3 and variable == 0,
            finalize=1,
            **{"ema_momentum": 0.6, "ema_overwrite_frequency": 2, "momentum": 0.9} | of,
        ),
    ]


def keras(family: str) -> list[Case]:
    """What the Keras optimizers since 2.11 share."""
    of = {"family": family}
    two = {"shapes": [[3], [2]], **of}
    ema = {"options": "use_ema", "finalize": 1, "shapes": [[2], [2]], "steps": 7, **of}
    ema |= {"record": [1, 2, 3, 4, 5, 6, 7]}
    return [
        *usual(family, {"lr": 0.001, "rho": 0.9, "epsilon": 1e-7}),
        *decay("decoupled", **of),
        *on("clipnorm", "The norm of each gradient is limited.", "clipnorm", clipnorm=0.3, **two),
        *on(
            "clipnorm-infinite",
            "An infinite and a zero gradient under a limit of the norm.",
            "clipnorm inf nan",
            grads=[[[INF, 1.0, -2.0], [0.0, 0.0]], [[0.5, 1.0, -2.0], [1.0, -0.5]]],
            dtypes=F32,
            steps=3,
            clipnorm=0.3,
            **two,
        ),
        *on(
            "global-clipnorm",
            "The norm of all gradients together is limited.",
            "global-clipnorm",
            global_clipnorm=0.3,
            **two,
        ),
        *on(
            "global-clipnorm-unreached",
            "A limit above the norm: a factor near 1 remains.",
            "global-clipnorm",
            global_clipnorm=30.0,
            **two | {"steps": 4},
        ),
        *on(
            "clipvalue",
            "Every element is limited; the learning rate changes.",
            "clipvalue lr-in-momentum",
            changes=LR_CHANGES,
            **{"clipvalue": 0.1, "momentum": 0.9} | two,
        ),
        *on(
            "ema",
            "Averages with an overwrite at every third step: their start, whether the count is "
            "this step's, and what finalizing does.",
            "ema ema-start ema-overwrite",
            **{"ema_momentum": 0.6, "ema_overwrite_frequency": 3, "momentum": 0.9} | ema,
        ),
        *on(
            "ema-only-finalized",
            "Averages that overwrite nothing until they are finalized, with decay.",
            "ema ema-start",
            **{"ema_momentum": 0.7, "weight_decay": 0.3}
            | ema
            | {"options": "use_ema decoupled_weight_decay", "steps": 4, "record": [1, 2, 3, 4]},
        ),
        *on(
            "ema-momentum-1",
            "Averages that never move from where they start.",
            "ema ema-start",
            **{"ema_momentum": 1.0} | ema | {"steps": 3, "record": [1, 2, 3]},
        ),
        *on(
            "ema-infinite",
            "The second step is infinite: what the next two, of which one overwrites, make of an "
            "average and a parameter that are.",
            "ema ema-overwrite inf nan",
            **{"ema_momentum": 0.5, "ema_overwrite_frequency": 4, "changes": {2: {"lr": 3e38}}}
            | ema
            | {"dtypes": F32, "steps": 4, "record": [1, 2, 3, 4]},
        ),
        *on(
            "schedule-exponential",
            "A decaying learning rate with momentum: which count the schedule sees.",
            "schedule lr-in-momentum",
            lr=schedule(
                "ExponentialDecay", initial_learning_rate=0.1, decay_steps=2, decay_rate=0.5
            ),
            momentum=0.9,
            **of,
        ),
        *on(
            "schedule-cosine",
            "A cosine that ends within the run.",
            "schedule",
            lr=schedule("CosineDecay", initial_learning_rate=0.1, decay_steps=4, alpha=0.125),
            **of,
        ),
    ]


def sparse(family: str) -> list[Case]:
    """Gradients by rows of a (4, 2) variable, with repeated, single and no rows."""
    rows = [[2, 0, 2], [1], [0, 0, 3], []]

    def made(slug: str, comment: str, tags: str, **rest: Any) -> list[Case]:
        grads: list[list[Grad]] = [
            [(draw(f"{slug} g{t}", 2 * len(index), -6, 2), index), draw(f"{slug} d{t}", 2, -6, 2)]
            for t, index in enumerate(rows)
        ]
        shapes = [[4, 2], [2]]
        return on(slug, comment, tags, shapes=shapes, grads=grads, family=family, **rest)

    return [
        *made(
            "sparse",
            "Whether repeated rows are summed before they are squared, and whether rows without a "
            "gradient decay.",
            "sparse-duplicates sparse-lazy",
        ),
        *made(
            "sparse-momentum",
            "Whether rows without a gradient keep moving, while the learning rate changes.",
            "sparse-duplicates sparse-lazy momentum lr-in-momentum",
            momentum=0.9,
            changes=LR_CHANGES,
        ),
        *made(
            "sparse-centered",
            "The centered form by rows.",
            "sparse-duplicates sparse-lazy centered",
            options="centered",
            epsilon=0.01,
        ),
        *made(
            "sparse-clipnorm",
            "Whether the norm is of the rows as given or of their sums.",
            "sparse-duplicates clipnorm",
            clipnorm=0.3,
            steps=4,
        ),
        *made(
            "sparse-global-clipnorm",
            "Whether the norm of all gradients is of the rows as given or of their sums; decay.",
            "sparse-duplicates global-clipnorm decoupled",
            options="decoupled_weight_decay",
            weight_decay=0.3,
            global_clipnorm=0.3,
            steps=4,
        ),
        *made(
            "sparse-clipvalue",
            "Whether values are clipped before or after they are summed.",
            "sparse-duplicates clipvalue",
            clipvalue=0.25,
            steps=4,
        ),
    ]


# ---------------------------------------------------------------------------------------- others


def optax() -> list[Case]:
    """optax: every gradient is there, no decay; eps_in_sqrt is on where absent."""
    of = {"family": "optax"}
    moving = {"momentum": 0.9, "changes": LR_CHANGES, **of}
    return [
        *usual("optax", {"lr": 0.01, "rho": 0.9, "epsilon": 1e-8}, "none-at-odd-steps"),
        *subnormal("optax", "subnormal flush"),
        *limits("optax", "global_clipnorm", "clipvalue"),
        *on(
            "epsilon-outside",
            "eps_in_sqrt off: the place of torch, but the learning rate stays in the buffer.",
            "epsilon lr-in-momentum",
            off="eps_in_sqrt",
            **moving,
        ),
        *on(
            "epsilon-outside-centered",
            "eps_in_sqrt off, centered.",
            "epsilon centered",
            options="centered",
            off="eps_in_sqrt",
            **of | {"epsilon": 0.01},
        ),
        *on(
            "start-1",
            "The average starts at 1, as in TensorFlow 1.",
            "start epsilon",
            initial_scale=1.0,
            **moving,
        ),
        *on(
            "start-1-centered",
            "The average of squares starts at 1, that of gradients at 0.",
            "start centered",
            options="centered",
            initial_scale=1.0,
            **of | {"epsilon": 0.01},
        ),
        *on(
            "nesterov",
            "The step looks ahead by one more momentum.",
            "nesterov lr-in-momentum",
            options="nesterov",
            **moving,
        ),
        *on(
            "nesterov-centered",
            "Nesterov with the centered form and epsilon outside.",
            "nesterov centered epsilon",
            options="nesterov centered",
            off="eps_in_sqrt",
            **moving | {"epsilon": 0.01},
        ),
        *on(
            "bias-correction",
            "The average is divided by 1 - rho^t.",
            "correction",
            options="bias_correction",
            **of,
        ),
        *on(
            "bias-correction-centered",
            "Both averages are divided by 1 - rho^t; two variables, momentum.",
            "correction centered momentum",
            options="bias_correction centered",
            shapes=[[3], [2]],
            **moving | {"epsilon": 0.01},
        ),
        *on(
            "bias-correction-outside",
            "Bias correction with epsilon outside: Adam with beta1 = 0.",
            "correction epsilon",
            options="bias_correction",
            off="eps_in_sqrt",
            rho=0.99,
            **of,
        ),
    ]


def paddle() -> list[Case]:
    """Paddle: epsilon and learning rate inside, L2 decay, no count."""
    of = {"family": "paddle"}
    return [
        *usual("paddle", {"lr": 0.01, "rho": 0.95, "epsilon": 1e-6}),
        *decay("l2", **of),
        *subnormal(**of),
        *limits("paddle", "global_clipnorm", "clipvalue"),
        *limits("paddle", "clipnorm", dtypes=F32),  # its kernel takes no float64
        *on(
            "everything",
            "Centered, momentum and L2 decay at once, while the learning rate changes.",
            "centered momentum l2 lr-in-momentum",
            options="centered",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "weight_decay": 0.25, "epsilon": 0.01} | of,
        ),
    ]


def mindspore() -> list[Case]:
    """MindSpore: starts at 1, epsilon (above 0) and learning rate inside, L2 decay, one count."""
    of = {"family": "mindspore"}
    of |= {"dtypes": F32 + F16}
    unable = ("none-at-odd-steps", "epsilon-0")
    return [
        *usual("mindspore", {"lr": 0.1, "rho": 0.9, "epsilon": 1e-10}, *unable, dtypes=F32),
        *decay("l2", **of),
        *subnormal(**{"epsilon": 1e-30, "rho": 0.0, **of, "dtypes": F32}),
        *on(
            "centered-below-zero",
            "One gradient until the variance plus epsilon is below zero: the element stands still "
            "from there on, its buffer too.",
            "centered cancellation skip",
            options="centered",
            grads=[[[-1.5318849, 1.8300238, -1.3526752, 0.5]]],
            steps=26,
            record=[1, 2, 22, 23, 24, 25, 26],
            **of | {"rho": 0.5, "momentum": 0.9, "epsilon": 1e-10, "dtypes": F32},
        ),
        *on(
            "centered-not-finite",
            "An infinite, NaN or huge gradient makes the variance NaN: those elements stand still.",
            "centered inf nan skip",
            options="centered",
            grads=[[[0.5, -1.0, 0.25, 2.0]], [[INF, -INF, NAN, 1e30]], [[0.5, -1.0, 0.25, 2.0]]],
            steps=4,
            **of | {"momentum": 0.5, "dtypes": F32},
        ),
        *on(
            "centered-double",
            "The centered form takes float64 too: where it computes in float32.",
            "centered dtype",
            options="centered",
            changes=LR_CHANGES,
            **of | {"momentum": 0.9, "epsilon": 0.01, "dtypes": ("float64",)},
        ),
        *on(
            "everything",
            "Centered, momentum and L2 decay at once, while the learning rate changes.",
            "centered momentum l2 lr-in-momentum",
            options="centered",
            changes=LR_CHANGES,
            **{"momentum": 0.9, "weight_decay": 0.25, "epsilon": 0.01} | of,
        ),
    ]


def chainer() -> list[Case]:
    """Chainer: RMSprop, and its RMSpropGraves where centered; decay is a hook on the gradient."""
    of = {"family": "chainer"}
    graves = {"options": "centered eps_in_sqrt lr_in_momentum", **of}
    return [
        *usual("chainer", {"lr": 0.01, "rho": 0.99, "epsilon": 1e-8}, *MOVING, momentum=0.0),
        *decay("l2", **of),
        *subnormal(**of),
        *limits("chainer", "global_clipnorm", "clipvalue"),
        *on(
            "epsilon-inside",
            "eps_inside_sqrt, while the learning rate changes.",
            "epsilon",
            options="eps_in_sqrt",
            changes=LR_CHANGES,
            **of,
        ),
        *on("graves", "RMSpropGraves without momentum.", "centered epsilon", **graves),
        *on(
            "graves-momentum",
            "RMSpropGraves with momentum, while the learning rate changes.",
            "centered epsilon momentum lr-in-momentum",
            changes=LR_CHANGES,
            **graves | {"momentum": 0.9, "epsilon": 0.01},
        ),
        *on(
            "graves-defaults",
            "The defaults of RMSpropGraves, two variables.",
            "centered defaults",
            shapes=[[3], [2]],
            **graves | {"lr": 1e-4, "rho": 0.95, "momentum": 0.9, "epsilon": 1e-4},
        ),
    ]


def mlx() -> list[Case]:
    """MLX on CPU: epsilon (above 0) outside, one count, neither momentum nor decay."""
    of = {"family": "mlx"}
    return [
        *usual(
            "mlx", {"lr": 0.01, "rho": 0.99, "epsilon": 1e-8}, "epsilon-0", *MOVING, momentum=0.0
        ),
        *subnormal(epsilon=1e-30, **of),
        *limits("mlx", "global_clipnorm"),
        *on(
            "epsilon-near",
            "Epsilon 1e-3 while the learning rate changes.",
            "epsilon lr-dtype",
            changes=LR_CHANGES,
            **of | {"epsilon": 1e-3},
        ),
    ]
