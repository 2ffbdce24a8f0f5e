"""How fast a step is: refopt beside its peers and the floor of memory, in one interleaved run.

Every round times each contestant once, so that all meet the same machine; what is compared is the
ratio within a round.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import refopt
from refopt.errors import RefoptError
from refopt.interp import fused
from refopt.interp.arrays import init, namespace_of
from refopt.rules import nadam, rmsprop, thor

Shapes = Sequence[tuple[int, ...]]
Step = Callable[[], Any]
Parts = Sequence[tuple[int, Step]]  # a step of parts, of which some are alike: (how many, one)
SEED = 0


# -- what is stepped ------------------------------------------------------------------------------
def resnet50() -> list[tuple[int, ...]]:
    """The 161 tensors of ResNet-50 (He et al. 2016, as torchvision builds it)."""

    def conv(out: int, into: int, size: int) -> list[tuple[int, ...]]:
        return [(out, into, size, size), (out,), (out,)]  # with its normalisation

    shapes = conv(64, 3, 7)
    into = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += conv(width, into, 1) + conv(width, width, 3) + conv(4 * width, width, 1)
            shapes += conv(4 * width, into, 1) if block == 0 else []
            into = 4 * width
    return [*shapes, (1000, into), (1000,)]


def bert_base() -> list[tuple[int, ...]]:
    """The 199 tensors of BERT-base, uncased, with its pooler (Devlin et al. 2019)."""

    def linear(out: int, into: int) -> list[tuple[int, ...]]:
        return [(out, into), (out,)]

    norm: list[tuple[int, ...]] = [(768,), (768,)]
    layer = 4 * linear(768, 768) + norm + linear(3072, 768) + linear(768, 3072) + norm
    return [(30522, 768), (512, 768), (2, 768), *norm, *(12 * layer), *linear(768, 768)]


def factors() -> list[int]:
    """The sizes of the second moments A and G of ResNet-50's 53 convolutions and dense layer."""
    sizes = ((int(np.prod(into)), out) for out, *into in resnet50() if into)
    return [n for pair in sizes for n in pair]


LISTS: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "resnet50": resnet50,
    "bert-base": bert_base,
    "1000x1000": lambda: [(1000,)] * 1000,
}
FACTORS = {"resnet50": thor.whole, "resnet50-128": thor.split}
"""The factors that THOR inverts: whole, or by blocks of 128."""
SIZES = ("1e3", "1e4", "1e5", "1e6", "1e7", "5e7")


def shapes_of(name: str) -> list[tuple[int, ...]]:
    """The tensors of a list, or one tensor of so many elements."""
    return LISTS[name]() if name in LISTS else [(int(float(name)),)]


def arrays(shapes: Shapes) -> tuple[list[Any], list[Any]]:
    """Parameters, and gradients that all contestants share; float32."""
    rng = np.random.default_rng(SEED)
    params = [rng.standard_normal(s, dtype=np.float32) for s in shapes]
    return params, _gradients(tuple(shapes))


@functools.lru_cache(maxsize=1)
def _gradients(shapes: Shapes) -> list[Any]:
    rng = np.random.default_rng(SEED + 1)
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes]


# -- contestants: shapes -> a function that takes one step ----------------------------------------
def floor(optimizer: str, shapes: Shapes) -> Step:
    """What must be read and written, and nothing else: one loop, one buffer."""
    import numba

    n = int(sum(np.prod(s) for s in shapes))
    p, g, m, v = (np.ones(n, np.float32) for _ in range(4))

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def four(p: Any, g: Any, m: Any, v: Any) -> None:
        for i in range(len(p)):
            x = g[i]
            p[i] += x
            m[i] -= x
            v[i] += x

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def three(p: Any, g: Any, v: Any) -> None:
        for i in range(len(p)):
            x = g[i]
            p[i] += x
            v[i] -= x

    return (lambda: four(p, g, m, v)) if optimizer == "nadam" else (lambda: three(p, g, v))


L1 = 4096
"""Elements that stay in the first-level cache."""


def arithmetic(optimizer: str, shapes: Shapes) -> Step:
    """The divisions and roots of a step, as many as its program has, on elements at hand."""
    rule = {"nadam": nadam, "rmsprop": rmsprop}[optimizer]
    documented = rule.PROFILES["documented"]
    choices = rule.configured(documented.choices, documented.hyper, {})
    profile = documented._replace(choices=choices)
    state, _ = init(rule, profile, np.empty(0, np.float32))
    kept = [field for field, x in state._asdict().items() if x is not None]
    made = fused.program(rule, profile, profile.hyper, "float32", kept)
    slow = [x.op for x in made.instructions if x.op in ("div", "sqrt")]
    values = ["x", *(f"t{k}" for k in range(len(slow)))]
    inputs = [(x, "c0") if op == "div" else (x,) for op, x in zip(slow, values, strict=False)]
    alone = fused.Program(
        "float32",
        ("x",),
        ("1.5",),
        tuple(map(fused.Instruction, slow, inputs, values[1:])),
        (("x", values[-1]),),
    )
    n = int(sum(np.prod(s) for s in shapes))
    x = np.ones(min(n, L1), np.float32)
    table = np.array([[fused.extent(x)[0], x.size, 0]] * -(-n // L1), np.int64)
    kernel, numbers = fused._kernel(alone, False), np.full((1, 1), 1.5, np.float32)

    def step(x: Any = x) -> None:  # of which the table has the address
        kernel(table, numbers)

    return step


def _assigned(params: Sequence[Any], grads: Sequence[Any], step: Step) -> Step:
    def assigning() -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        step()

    return assigning


def _refopt(optimizer: str, shapes: Shapes, **options: Any) -> Step:
    params, grads = arrays(shapes)
    if optimizer == "nadam":
        parameters = [refopt.Parameter(p) for p in params]
        return _assigned(parameters, grads, refopt.NAdam(parameters, **options).step)
    variables = [refopt.Variable(p) for p in params]
    rms = refopt.RMSprop()
    return lambda: rms.apply_gradients(zip(grads, variables, strict=True))


def compiled(optimizer: str, shapes: Shapes) -> Step:
    """refopt with numba."""
    return with_engine("numba", _refopt(optimizer, shapes))


def tape(optimizer: str, shapes: Shapes) -> Step:
    """refopt on NumPy alone."""
    return with_engine("tape", _refopt(optimizer, shapes))


def with_engine(name: str, step: Step) -> Step:
    """The step, with programs run in this way."""

    def stepping() -> None:
        before = fused.engine
        fused.engine = lambda: name  # type: ignore[assignment]
        try:
            step()
        finally:
            fused.engine = before

    return stepping


def plain(optimizer: str, shapes: Shapes) -> Step:
    """refopt without fusion: NumPy's operations one after the other."""
    return _refopt(optimizer, shapes, foreach=False)


def _torch(optimizer: str, shapes: Shapes, foreach: bool, compiles: bool = False) -> Step:
    import torch

    params, grads = arrays(shapes)
    tensors = [torch.nn.Parameter(torch.from_numpy(p)) for p in params]
    given = [torch.from_numpy(g) for g in grads]
    kind = {"nadam": torch.optim.NAdam, "rmsprop": torch.optim.RMSprop}[optimizer]
    step = kind(tensors, foreach=foreach).step
    return _assigned(tensors, given, torch.compile(step) if compiles else step)


def torch_loop(optimizer: str, shapes: Shapes) -> Step:
    """torch, foreach=False."""
    return _torch(optimizer, shapes, False)


def torch_foreach(optimizer: str, shapes: Shapes) -> Step:
    """torch, foreach=True."""
    return _torch(optimizer, shapes, True)


def torch_compile(optimizer: str, shapes: Shapes) -> Step:
    """torch, its step under torch.compile."""
    return _torch(optimizer, shapes, False, True)


def optax_jit(optimizer: str, shapes: Shapes) -> Step:
    """optax under jax.jit, its buffers donated."""
    import jax
    import optax

    params, grads = (tuple(map(jax.numpy.asarray, x)) for x in arrays(shapes))
    rule = {"nadam": optax.nadam, "rmsprop": optax.rmsprop}[optimizer](1e-3)
    held = params, rule.init(params)

    def update(params: Any, state: Any, grads: Any) -> Any:
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    jitted = jax.jit(update, donate_argnums=(0, 1))

    def step() -> None:
        nonlocal held
        held = jitted(*held, grads)
        jax.block_until_ready(held)

    return step


def keras_eager(optimizer: str, shapes: Shapes) -> Step:
    """Keras 3, `apply` as it is called from Python."""
    import keras

    params, grads = arrays(shapes)
    variables = [keras.Variable(p) for p in params]
    given = [keras.ops.convert_to_tensor(g) for g in grads]
    kind = {"nadam": keras.optimizers.Nadam, "rmsprop": keras.optimizers.RMSprop}[optimizer]
    rule = kind()
    rule.build(variables)

    def step() -> None:
        rule.apply(given, variables)
        for variable in variables:
            if hasattr(variable.value, "block_until_ready"):
                variable.value.block_until_ready()

    return step


_WORKER = """
import json, sys
import numpy as np, tensorflow as tf

optimizer, shapes, threads = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(1)
variables = [tf.Variable(tf.ones(s)) for s in shapes]
grads = [tf.fill(s, 0.1) for s in shapes]
experimental = tf.keras.optimizers.experimental
kind = {"nadam": tf.keras.optimizers.Nadam, "rmsprop": experimental.RMSprop}[optimizer]
rule = kind(jit_compile=False) if optimizer == "rmsprop" else kind()
for _ in sys.stdin:
    rule.apply_gradients(zip(grads, variables))
    print(float(tf.reshape(variables[0], [-1])[0]), flush=True)
"""


def tensorflow_eager(optimizer: str, shapes: Shapes, python: str) -> Step:
    """TensorFlow 2.9, eager, in a process of its own: a step includes two lines through a pipe."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    command = [python, "-c", _WORKER, optimizer, json.dumps(shapes), threads]
    own = {**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=own,
    )
    atexit.register(worker.kill)
    into, out = worker.stdin, worker.stdout
    assert into is not None
    assert out is not None

    def step() -> None:
        into.write("step\n")
        into.flush()
        if not out.readline():
            message = f"TensorFlow 2.9 in {python}: a step ended with exit code {worker.wait()}"
            raise RefoptError(message)

    return step


# -- THOR: a size of a factor -> what renews its inverse ------------------------------------------
def _factor(n: int) -> Any:
    """A damped second moment, float32."""
    x = np.random.default_rng(n).standard_normal((n, 64), dtype=np.float32)
    return x @ x.T / 64 + np.eye(n, dtype=np.float32)


def _blocks(optimizer: str, n: int) -> Any:
    """The factor as the inverse sees it: (blocks, size, size)."""
    size = FACTORS[optimizer](n, thor.Hyper())
    a = _factor(n)
    return a[None] if size == n else namespace_of(a).diagonal_blocks(a, size).copy()


def refresh(tensors: str, n: int) -> Step:
    """refopt's THOR: blocks are cut and inverted."""
    a, hyper = _factor(n), thor.Hyper()
    choices = thor.PROFILES["documented"].choices._replace(block=FACTORS[tensors])
    return lambda: thor.inverse_of(a, n, hyper, choices, namespace_of(a))


def numpy_inv(tensors: str, n: int) -> Step:
    """numpy.linalg.inv of blocks."""
    a = _blocks(tensors, n)
    return lambda: np.linalg.inv(a)


def torch_inv(tensors: str, n: int) -> Step:
    """torch.linalg.inv of blocks."""
    import torch

    a = torch.from_numpy(_blocks(tensors, n))
    return lambda: torch.linalg.inv(a)


REFRESHES: dict[str, tuple[Callable[[str, int], Step], str]] = {
    "refopt": (refresh, ""),
    "torch inv": (torch_inv, "torch"),
    "numpy inv": (numpy_inv, ""),
}
"""By name: what renews an inverse, and the package that it needs."""

CONTESTANTS: dict[str, tuple[Callable[[str, Shapes], Step], str]] = {
    "floor": (floor, "numba"),
    "arithmetic": (arithmetic, "numba"),
    "refopt numba": (compiled, "numba"),
    "refopt tape": (tape, ""),
    "refopt plain": (plain, ""),
    "torch loop": (torch_loop, "torch"),
    "torch foreach": (torch_foreach, "torch"),
    "torch compile": (torch_compile, "torch"),
    "optax jit": (optax_jit, "optax"),
    "keras": (keras_eager, "keras"),
}
"""By name: what makes a step, and the package that it needs."""

MOST = {"torch compile": 20, "optax jit": 200}
"""Above so many tensors compiling takes minutes."""


TENSORFLOW = "tensorflow 2.9"


def contestants(
    optimizer: str, shapes: Shapes, wanted: Sequence[str] = (), tensorflow: str = ""
) -> dict[str, Step]:
    """Those whose package is installed; TensorFlow in the interpreter that has it."""
    found = {
        name: make(optimizer, shapes)
        for name, (make, package) in CONTESTANTS.items()
        if (not wanted or name in wanted)
        and (not package or importlib.util.find_spec(package))
        and len(shapes) <= MOST.get(name, len(shapes))
        and not (name == "refopt plain" and optimizer == "rmsprop")  # has no switch
    }
    if tensorflow and (not wanted or TENSORFLOW in wanted):
        found[TENSORFLOW] = tensorflow_eager(optimizer, shapes, tensorflow)
    return found


def refreshes(tensors: str, wanted: Sequence[str] = ()) -> dict[str, Parts]:
    """Those whose package is installed; of sizes that occur several times one is timed."""
    counts = Counter(factors())
    return {
        name: [(k, make(tensors, n)) for n, k in counts.items()]
        for name, (make, package) in REFRESHES.items()
        if (not wanted or name in wanted) and (not package or importlib.util.find_spec(package))
    }


# -- measuring ------------------------------------------------------------------------------------
class Timing(NamedTuple):
    """One contestant on one list of tensors."""

    optimizer: str
    tensors: str  # of SIZES or LISTS
    contestant: str
    seconds: tuple[float, float, float]  # of a step: quartiles
    ratio: tuple[float, float, float]  # to the reference in the same round: quartiles
    extra: int | None  # bytes at the peak of a step beyond what there was before it; of refopt


def quartiles(x: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median, the third."""
    if len(x) < 2:
        return x[0], x[0], x[0]
    a, b, c = statistics.quantiles(x, n=4, method="inclusive")
    return a, b, c


def compared(steps: Mapping[str, Step | Parts], reference: str, rounds: int) -> Iterator[Any]:
    """(contestant, seconds, ratios to the reference), each by its quartiles."""
    parts = {name: [(1, step)] if callable(step) else step for name, step in steps.items()}
    repeats = {name: [_repeats(step) for _, step in own] for name, own in parts.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    # a part at a time, so that those that are compared run one after the other
    for _ in range(rounds):
        for found in times.values():
            found.append(0.0)
        for j in range(max(map(len, parts.values()))):
            for name, own in parts.items():
                count, step = own[j]
                times[name][-1] += count * _seconds(step, repeats[name][j])
    for name, found in times.items():
        ratios = [x / y for x, y in zip(found, times[reference], strict=True)]
        yield name, quartiles(found), quartiles(ratios)


def _repeats(step: Step) -> int:
    """How often a step runs in a round."""
    step()  # states are made, loops compiled
    step()
    return max(1, min(10_000, int(5e-2 / max(_seconds(step, 1), 1e-9))))


clock = time.perf_counter


def _seconds(step: Step, repeats: int) -> float:
    begun = clock()
    for _ in range(repeats):
        step()
    return (clock() - begun) / repeats


def extra_memory(step: Step) -> int:
    """The peak of NumPy's and Python's memory within a step, beyond what was held before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measured(
    optimizer: str, tensors: str, rounds: int, wanted: Sequence[str] = (), tensorflow: str = ""
) -> Iterator[Timing]:
    """Every contestant on one list of tensors."""
    if optimizer == "thor":
        for name, seconds, ratio in compared(refreshes(tensors, wanted), "refopt", rounds):
            yield Timing(optimizer, tensors, name, seconds, ratio, None)
        return
    steps = contestants(optimizer, shapes_of(tensors), wanted, tensorflow)
    reference = "refopt numba" if "refopt numba" in steps else "refopt tape"
    found = list(compared(steps, reference, rounds))
    for name, seconds, ratio in found:
        own = name in ("refopt numba", "refopt tape")
        extra = extra_memory(steps[name]) if own else None
        yield Timing(optimizer, tensors, name, seconds, ratio, extra)


def limit_threads(threads: int) -> None:
    """Let every library use so many threads; before any of them is imported, NumPy excepted."""
    if importlib.util.find_spec("threadpoolctl"):
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads)
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if hasattr(os, "sched_setaffinity"):  # JAX asks the system
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def machine() -> dict[str, str]:
    """What was measured on."""
    versions = {}
    for name in ("numpy", "numba", "torch", "jax", "optax", "keras"):
        if importlib.util.find_spec(name):
            versions[name] = importlib.metadata.version(name)
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def drawn(timings: Sequence[Timing], path: Path) -> None:
    """A plot of the ratios to refopt, a panel for each optimizer."""
    from matplotlib.figure import Figure

    optimizers = list(dict.fromkeys(timing.optimizer for timing in timings))
    figure = Figure(figsize=(9, 4.5 * len(optimizers)), layout="constrained")
    for axes, optimizer in zip(
        figure.subplots(len(optimizers), squeeze=False)[:, 0], optimizers, strict=True
    ):
        own = [timing for timing in timings if timing.optimizer == optimizer]
        ticks = list(dict.fromkeys(timing.tensors for timing in own))
        for name in dict.fromkeys(timing.contestant for timing in own):
            found = [timing for timing in own if timing.contestant == name]
            places = [ticks.index(timing.tensors) for timing in found]
            low, middle, high = zip(*(timing.ratio for timing in found), strict=True)
            (line,) = axes.plot(places, middle, "o-", label=name)
            axes.vlines(places, low, high, color=line.get_color())
        axes.set_yscale("log")
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_ylabel("time of a step / refopt's")
        axes.set_title(optimizer)
        axes.legend(fontsize="small")
    figure.savefig(path)
