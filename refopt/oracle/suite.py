"""The suite: who ran which case, and the verdict on each run, spread over processes."""

from __future__ import annotations

import hashlib
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from refopt.errors import CaseError
from refopt.interp import arrays
from refopt.interp.formats import COMPLEX
from refopt.interp.rounded import Rounded, carried, plain
from refopt.oracle import golden
from refopt.oracle.golden import Case, Recording, Run, Values
from refopt.oracle.spec import RULES
from refopt.oracle.verdict import CONFORMS, Judge, Verdict
from refopt.typing import Profile

ON_NUMPY = ("nadam",)
"""Optimizers of which refopt's own runs are judged too."""

REJECTED, SKIPPED = "rejected", "skipped"
CRASHED, TIMED_OUT, BROKEN = "crashed", "timed out", "broken"
FAILURES = (CRASHED, TIMED_OUT, BROKEN)
"""What is no verdict. The implementation refused the case, or cannot express it; it crashed, took
too long, or left the protocol (`broken` also where judging itself failed)."""

GROUPS = {
    "epsilon": {"epsilon", "root", "v-hat"},
    "decay": {"l2", "decoupled", "decay-order", "decay-without-lr"},
    "moments": {"beta1", "beta2", "which-m", "momentum", "maximize", "correction"},
    "schedule": {"psi", "schedule", "base", "product", "product-dtype", "divisor", "long"},
    "counter": {"counter", "step-offset", "product-per-variable", "product-start", "none"},
    "lr": {"lr", "lr-dtype", "tensor-lr", "changes", "groups", "coefficient-dtype", "scalar-dtype"},
    "dtype": {"half", "complex", "dtype", "layout", "position", "state"},
    "edges": {"zero", "signed-zero", "nan", "inf", "huge", "subnormal", "underflow", "overflow"},
    "basics": {"defaults", "control"},
}
"""Topics of cases by the tags of the recordings; the first tag of a case decides."""


class Item(NamedTuple):
    """A run to judge, or what is known of one that cannot be judged."""

    implementation: str  # package and version
    name: str  # of the run: the release and its path, "torch-2.13-foreach"
    profile: str  # judged against
    run: Run | None = None  # None: refopt's own, on NumPy, under the profile
    axes: bool = True  # ask for every alternative; else for one that is excluded
    status: str = ""  # REJECTED, SKIPPED or one of FAILURES
    detail: str = ""  # why, in the implementation's words
    stale: str = ""  # an expectation that does not hold any more


class Task(NamedTuple):
    """A case and its runs: what one process does at a time."""

    case: Case
    items: tuple[Item, ...]


class Result(NamedTuple):
    """The outcome of one run."""

    case: str
    group: str
    item: Item  # without the run
    status: str
    verdict: Verdict | None = None
    named: Sequence[tuple[str, str]] = ()  # (axis, alternative): single changes that hold the run
    dtype: str = ""  # of the first observation outside
    seconds: float = 0.0


def version() -> str:
    """The version of the suite: the first digits of the SHA-256 of its files."""
    digest = hashlib.sha256()
    for folder in ("golden", "vectors"):
        for optimizer in RULES:
            for path in sorted((golden.root() / folder / optimizer).glob("*.json")):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def optimizer(case: str) -> str:
    """The optimizer of a case, from its id."""
    return case.partition(".")[0]


def rule(case: Case) -> ModuleType:
    """The rule of a case. Raises CaseError where its id names no optimizer."""
    if (found := RULES.get(optimizer(case.id))) is None:
        msg = f"case {case.id!r}: the id must begin with one of {', '.join(RULES)} and a dot"
        raise CaseError(msg)
    return cast(ModuleType, found)


def profiles(case: Case) -> dict[str, Profile]:
    """What a case can be judged against, by name."""
    return cast("dict[str, Profile]", rule(case).PROFILES)


def profile_names() -> list[str]:
    """The names of all profiles of all optimizers."""
    return list(dict.fromkeys(name for rule in RULES.values() for name in rule.PROFILES))


def group(case: Case) -> str:
    """The topic of a case."""
    tag = case.tags[0] if case.tags else ""
    return next((name for name, tags in GROUPS.items() if tag in tags), "other")


# -- tasks ----------------------------------------------------------------------------------------


def recordings(folder: Path | None = None) -> Iterator[Recording]:
    """The suite's recordings and vectors; or those of a file, or of the files in a folder."""
    if folder is None:
        for name in RULES:
            yield from golden.recordings(name)
            yield from golden.recordings(name, golden.root() / "vectors")
        return
    paths = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
    for path in paths:
        try:
            yield from golden.load(path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"{path}: not a recording of format refopt-golden/1: {error}"
            raise CaseError(msg) from error


def selected(found: Iterable[Recording], pattern: str) -> Iterator[Recording]:
    """Those whose case id matches a glob pattern."""
    return (r for r in found if fnmatchcase(r.case.id, pattern))


def tasks(
    found: Iterable[Recording], profile: str | None = None, *, numpy: bool = True
) -> Iterator[Task]:
    """One task a case: every recorded run, and with `numpy` what refopt does with it on NumPy.

    refopt runs each case by the documented algorithm and by the profile of each recorded run.
    `profile`: judge against this one instead of the run's own.
    """
    here = f"NumPy {np.__version__}"
    for recording in found:
        items = []
        for name, run in recording.runs.items():
            if (against := profile or name) not in (known := profiles(recording.case)):
                msg = (
                    f"case {recording.case.id}: the profile must be one of {', '.join(known)}; "
                    f"got {against!r}"
                )
                raise CaseError(msg)
            items.append(recorded(*_origin(recording, name), against, run))
        if numpy and optimizer(recording.case.id) in ON_NUMPY:
            items.append(Item(here, "refopt documented", "documented", axes=False))
            items += [
                Item(here, "refopt as recorded", name, axes=False)
                for name, run in recording.runs.items()
                if name != "documented" and not run.error
            ]
        yield Task(recording.case, tuple(items))


def _origin(recording: Recording, name: str) -> tuple[str, str]:
    """(what produced a run, its name in reports)."""
    source = recording.provenance
    if "framework" in source:
        return f"{source['framework']} {source['version']}", name
    return source["arithmetic"], f"vectors {name}"


def recorded(implementation: str, name: str, profile: str, run: Run) -> Item:
    """The item of a run; one that raised is a rejection."""
    if run.error:
        detail = f"{run.error['type']}: {run.error['message']}"
        return Item(implementation, name, profile, status=REJECTED, detail=detail)
    return Item(implementation, name, profile, run)


# -- work -----------------------------------------------------------------------------------------


def work(task: Task) -> list[Result]:
    """Judge every run of a task."""
    return [_judged(task.case, item) for item in task.items]


def _judged(case: Case, item: Item) -> Result:
    started = time.perf_counter()
    result = Result(case.id, group(case), item._replace(run=None), item.status)
    if not item.status:
        try:
            result = _verdict(case, item, result)
        except Exception:  # whatever it was, it is no verdict, and the other cases go on
            item = result.item._replace(detail=traceback.format_exc())
            result = result._replace(item=item, status=BROKEN)
    return result._replace(seconds=time.perf_counter() - started)


def _verdict(case: Case, item: Item, result: Result) -> Result:
    profile = profiles(case)[item.profile]
    run = item.run or numpy_run(case, profile)
    _complete(case, run)
    judge = Judge(rule(case), case, run, profile)
    verdict = judge.verdict(axes=item.axes)
    if (first := verdict.first) is not None:
        dtype = run.dtypes[first.quantity][first.parameter]
        return result._replace(
            status=verdict.status, verdict=verdict, named=judge.named(), dtype=dtype
        )
    if not item.axes:
        for axis, name, choice in judge.alternatives():
            if not judge.holds({axis: choice}):
                verdict = verdict._replace(status=CONFORMS, excluded={axis: [name]})
                break
    elif item.profile == item.name.rpartition(" ")[2]:
        excluded = {f"{axis}={name}" for axis, names in verdict.excluded.items() for name in names}
        if spared := sorted(set(case.source.get("kills", ())) - excluded):
            stale = f"does not exclude {', '.join(spared)} any more"
            result = result._replace(item=result.item._replace(stale=stale))
    return result._replace(status=verdict.status, verdict=verdict)


def _complete(case: Case, run: Run) -> None:
    """Raise CaseError unless all wanted steps have every parameter, of the right size."""
    sizes = [len(values) for values in case.params]
    if missing := set(case.source.get("record", [case.steps])) - run.steps.keys():
        msg = f"{case.id}: step {min(missing)} is required and was not reported"
        raise CaseError(msg)
    numbers = rule(case).Clock._fields
    for t, quantities in run.steps.items():
        if None in quantities.get("param", [None]):
            msg = f"{case.id}, step {t}: every parameter is required"
            raise CaseError(msg)
        for quantity, columns in quantities.items():
            wanted = [1] * len(sizes) if quantity in numbers else sizes
            got = [n if c is None else len(c) for c, n in zip(columns, wanted, strict=True)]
            if got != wanted:
                msg = f"{case.id}, step {t}, {quantity}: {wanted} elements are required, got {got}"
                raise CaseError(msg)


def spread(given: Iterable[Task], jobs: int) -> Iterator[list[Result]]:
    """The results of each task, in order; over `jobs` processes where there are several."""
    if jobs == 1:
        yield from map(work, given)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_ignore_interrupts
    ) as pool:
        waiting: deque[Future[list[Result]]] = deque()
        try:
            for task in given:
                waiting.append(pool.submit(work, task))
                while waiting and (waiting[0].done() or len(waiting) > 8 * jobs):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """The main process answers an interrupt, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# -- refopt on NumPy ------------------------------------------------------------------------------


def numpy_run(case: Case, profile: Profile) -> Run:
    """What refopt does with a case on NumPy, by the rule of a profile."""
    own = rule(case)
    # NumPy has no bfloat16 of its own: such arrays are float32, rounded here.
    half = set(case.dtypes) == {"bfloat16"}
    step: Callable[..., Any] = _bfloat16_step if half else arrays.run
    stored = ["float32" if half else p["dtype"] for p in case.source["params"]]
    params = [
        _laid_out(_array(x, d, shape), spec.get("layout", "C"))
        for x, d, shape, spec in zip(
            case.params, stored, case.shapes, case.source["params"], strict=True
        )
    ]
    pairs = [arrays.init(own, profile, p) for p in params]
    states, clocks = [state for state, _ in pairs], [clock for _, clock in pairs]
    wanted = case.source.get("record") or range(1, case.steps + 1)
    steps: dict[int, dict[str, list[Values | None]]] = {}
    for t in range(1, case.steps + 1):
        given = case.gradients(t)
        for members, overrides in case.groups:
            hyper = _hyper(profile.hyper, case, t, overrides)
            choices = own.configured(profile.choices, hyper, case.options)
            grads = [
                None if given[i] is None else _array(_dense(given[i]), stored[i], case.shapes[i])
                for i in members
            ]
            if all(g is None for g in grads):
                continue
            quantities, after, ticked = step(
                own,
                profile._replace(choices=choices),
                [params[i] for i in members],
                grads,
                [states[i] for i in members],
                [clocks[i] for i in members],
                hyper,
            )
            for i, q, state, clock in zip(members, quantities, after, ticked, strict=True):
                params[i] = params[i] if q is None else q.param
                states[i], clocks[i] = state, clock
        if t in wanted:
            steps[t] = {
                "param": [_flat(p) for p in params],
                **{q: [_flat(getattr(s, q)) for s in states] for q in own.State._fields},
                **{q: [[float(getattr(c, q))] for c in clocks] for q in own.Clock._fields},
            }
    dtypes = dict.fromkeys(("param", *own.State._fields), case.dtypes)
    for q in own.Clock._fields:
        dtypes[q] = [getattr(getattr(c, q), "dtype", "float64") for c in clocks]
    return Run(profile.name, steps, dtypes)


def _bfloat16_step(
    own: Any, profile: Profile, params: Any, grads: Any, states: Any, clocks: Any, hyper: Any
) -> tuple[Any, Any, Any]:
    """`arrays.run` for bfloat16 that is kept in float32 arrays."""

    def enter(x: Any) -> Any:
        return Rounded(x, "bfloat16", bfloat16) if profile.half == "each" else x

    with np.errstate(all="ignore"):
        quantities, after, ticked = own.update(
            [enter(x) for x in params],
            [None if x is None else enter(x) for x in grads],
            [type(state)(*map(enter, state)) for state in states],
            clocks,
            hyper,
            profile.choices,
            xp=arrays.namespace_of(*params),
            num=arrays.Floats(),
        )
    return (
        [q and q._replace(param=bfloat16(plain(q.param))) for q in quantities],
        [type(state)(*(bfloat16(plain(x)) for x in state)) for state in after],
        ticked,
    )


def bfloat16(x: Any) -> Any:
    """A float32 array rounded to the values of bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isnan(x), x, kept.view(np.float32))


def _hyper(defaults: Any, case: Case, t: int, overrides: dict[str, Any]) -> Any:
    """The hyperparameters of a group at step `t`."""
    named = case.hyper | overrides
    for start, change in case.changes.items():
        if start <= t:
            named |= change
    values = {k: carried(x[1])(x[0]) if isinstance(x, tuple) else x for k, x in named.items()}
    return defaults._replace(**values)


def _dense(gradient: golden.Gradient) -> Values:
    if not isinstance(gradient, list):
        msg = f"gradient: a dense one is required, got {type(gradient).__name__}"
        raise CaseError(msg)
    return gradient


def _array(values: Values, dtype: str, shape: list[int]) -> Any:
    """The array of a dtype with these values; pairs where it is complex."""
    flat = np.array(values, dtype=COMPLEX.get(dtype, dtype))
    return (flat.view(dtype) if dtype in COMPLEX else flat).reshape(shape)


def _laid_out(x: Any, layout: str) -> Any:
    """`x` in memory as a case asks: C, F, or every second element of a larger buffer."""
    if layout != "strided":
        return np.asarray(x, order="F" if layout == "F" else "C")
    place = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    place[...] = x
    return place


def _flat(x: Any) -> Values:
    """The elements in C order; complex as pairs."""
    flat = np.ascontiguousarray(x).reshape(-1)
    real = flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat
    return [float(value) for value in real]
