"""The suite: who ran which case, and the verdict on each run, spread over processes."""

from __future__ import annotations

import hashlib
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import NamedTuple, TypeVar, cast

import numpy as np

from refopt.errors import CaseError
from refopt.oracle import drawn, golden, refused
from refopt.oracle.compare import Comparison, decisive, explained
from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.layered import judging
from refopt.oracle.mistakes import mistaken
from refopt.oracle.mistakes import own as own_choice
from refopt.oracle.own import numpy_run
from refopt.oracle.replay import Replay
from refopt.oracle.search import Changes, equal
from refopt.oracle.spec import RULES
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION, Judge, Verdict, of_any
from refopt.typing import Profile

T = TypeVar("T")
R = TypeVar("R")

REJECTED, SKIPPED = "rejected", "skipped"
DEVIATES = "deviates"
"""A violation that is expected: conformance/expected.toml has the reason."""
AGREES, DIFFERS = "agrees", "differs"
"""Of a run that is compared with a profile, not judged."""
CRASHED, TIMED_OUT, BROKEN = "crashed", "timed out", "broken"
FAILURES = (CRASHED, TIMED_OUT, BROKEN)
"""What is no verdict. The implementation refused the case, or cannot express it; it crashed, took
too long, or left the protocol (`broken` also where judging itself failed)."""

LACKS = "does not take "  # how the detail of a skipped case begins, before a list of words
SEARCHES = 3  # in vain, after which no more runs of an implementation are searched for changes

GROUPS = {
    "epsilon": {"epsilon", "root", "v-hat"},
    "decay": {"l2", "decoupled", "decay-order", "decay-without-lr", "decay"},
    "moments": {
        *("beta1", "beta2", "which-m", "momentum", "maximize", "correction"),
        *("rho", "centered", "buffer", "nesterov", "start"),
    },
    "clipping": {"clip", "clipnorm", "clipvalue", "global-clipnorm"},
    "average": {"ema", "order"},
    "sparse": {"sparse", "sparse-duplicates"},
    "schedule": {
        *("psi", "schedule", "base", "product", "product-dtype", "divisor", "long", "none"),
        *("counter", "step-offset", "product-per-variable", "product-start"),
        *("schedules", "frequency", "past-the-end"),
    },
    "layers": {"conv", "embedding", "norm", "two-outputs", "conversion"},
    "inverses": {"blocks", "damping", "batch-size", "loss-scale"},
    "lr": {
        *("lr", "lr-dtype", "tensor-lr", "changes", "groups", "coefficient-dtype", "scalar-dtype"),
        "lr-in-momentum",
    },
    "dtype": {
        *("half", "complex", "dtype", "layout", "position", "state"),
        *("shape", "vectorized", "mesh"),
    },
    "edges": {
        *("zero", "signed-zero", "nan", "inf", "huge", "subnormal", "underflow", "overflow"),
        *("flush", "error"),
    },
    "basics": {"defaults", "control", "plain"},
    "drawn": {"drawn"},
}
"""Topics of cases by the tags of the recordings; the first tag of a case decides."""


class Item(NamedTuple):
    """A run to judge, or what is known of one that cannot be judged."""

    implementation: str  # package and version
    name: str  # of the run: the release and its path, "torch-2.13-foreach"
    profile: str  # judged against
    run: Run | None = None  # None: refopt's own, on NumPy, under the profile
    execution: str = "plain"  # of refopt's own runs; see `own.numpy_run`
    axes: bool = True  # ask for alternatives until each is excluded by some run; else for one
    every: bool = False  # ask for every alternative of this run
    together: bool = False  # what explains one run of an implementation is tried on its next
    feature: str = ""  # compare, do not judge: the run stands for its release where this is on
    status: str = ""  # REJECTED, SKIPPED or one of FAILURES
    detail: str = ""  # why, in the implementation's words
    stale: str = ""  # an expectation that does not hold any more
    wrong: str = ""  # a fault that no value shows, in the implementation's words
    owed: bool = False  # a vector that must be answered was not


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
    named: Sequence[Changes] = ()  # changes of one choice, or of two, that hold the run
    asked: dict[str, str] = {}  # noqa: RUF012  # axis that is changed -> what the case asks for
    dtype: str = ""  # of the first observation outside
    kept: str = ""  # the same, where it is of a state that has another dtype than its parameter
    seconds: float = 0.0


def version() -> str:
    """The version of the suite: the first digits of the SHA-256 of its files."""
    digest = hashlib.sha256()
    for folder in ("golden", "vectors"):
        for optimizer in RULES:
            for path in sorted((golden.root() / folder / optimizer).glob("*.*")):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def optimizer(case: str) -> str:
    """The optimizer of a case, from its id."""
    return case.partition(".")[0]


def rule(case: Case) -> ModuleType:
    """The rule of a case."""
    return cast(ModuleType, RULES[optimizer(case.id)])


def profiles(case: Case) -> dict[str, Profile]:
    """What a case can be judged against, by name."""
    return cast("dict[str, Profile]", rule(case).PROFILES)


def profile_names(optimizers: Iterable[str] = ()) -> list[str]:
    """The names of all profiles of some optimizers, or of all."""
    rules = [RULES[name] for name in sorted(optimizers) or RULES]
    return list(dict.fromkeys(name for rule in rules for name in rule.PROFILES))


def group(case: Case) -> str:
    """The topic of a case."""
    tag = case.tags[0] if case.tags else ""
    return next((name for name, tags in GROUPS.items() if tag in tags), "other")


# -- tasks ----------------------------------------------------------------------------------------


def recordings(folder: Path | None = None) -> Iterator[Recording]:
    """The suite's recordings and vectors; or those of a file, or of every .json in a folder.

    Raises CaseError, naming it, at a file that is no recording: passed over, it would seem judged.
    """
    if folder is None:
        for name in RULES:
            yield from golden.recordings(name)
            yield from golden.recordings(name, golden.root() / "vectors")
        return
    paths = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
    for path in paths:
        yield from golden.load(path)


def selected(found: Iterable[Recording], pattern: str) -> Iterator[Recording]:
    """Those whose case id matches a glob pattern."""
    return (r for r in found if fnmatchcase(r.case.id, pattern))


def tasks(
    found: Iterable[Recording],
    profile: str | None = None,
    *,
    numpy: bool = True,
    as_recorded: bool = True,
    every: bool = False,
    beside: str = "",
    execution: str = "plain",
) -> Iterator[Task]:
    """One task a case: every recorded run, and with `numpy` what refopt does with it on NumPy.

    refopt runs each case by the documented algorithm and, with `as_recorded`, by the profile of
    each recorded run.
    `profile`: judge against this one instead of the run's own. `every`: ask of every recorded run
    for every alternative, so that a report says the same whatever ran before. `beside`: compare
    some runs of each release with this profile as well, and say which rule explains them.
    `execution`: how refopt runs it; see `refopt.oracle.own.numpy_run`.
    """
    here, found = f"NumPy {np.__version__}", list(found)
    standing: dict[str, list[Comparison]] = {}
    for comparison in decisive(found) if beside else ():
        standing.setdefault(comparison.case, []).append(comparison)
    for recording in found:
        items = []
        for name, run in recording.runs.items():
            if (against := profile or name) not in (known := profiles(recording.case)):
                raise CaseError(_unknown(recording.case, name, profile, known))
            items.append(recorded(*_origin(recording, name), against, run))
        if numpy:
            mine = Item(here, "refopt documented", "documented", axes=False, execution=execution)
            items.append(mine)
            items += [
                mine._replace(name="refopt as recorded", profile=name)
                for name, run in recording.runs.items()
                if as_recorded and name != "documented" and not run.error
            ]
        items = [item._replace(every=every) for item in items]
        for _, name, feature, _ in standing.get(recording.case.id, ()):
            item = recorded(*_origin(recording, name), beside, recording.runs[name])
            items.append(item._replace(feature=feature))
        yield Task(recording.case, tuple(items))


def _unknown(case: Case, run: str, profile: str | None, known: Iterable[str]) -> str:
    """Why a run has no profile to be judged against."""
    names = f"the profiles of {optimizer(case.id)} are {', '.join(known)}"
    if profile is None:
        return f"case {case.id}: the run {run!r} is no profile: pass --profile NAME; {names}"
    return f"case {case.id}: --profile must be one of its optimizer, got {profile!r}; {names}"


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


def own(result: Result, axis: str) -> set[str]:
    """What a result's profile itself chooses on an axis, under every name that is equal to it."""
    judged = RULES[optimizer(result.case)]
    return equal(judged, axis, judged.PROFILES[result.item.profile].choices)


# -- work -----------------------------------------------------------------------------------------


def work(task: Task) -> list[Result]:
    """Judge every run of a task."""
    return [_judged(task.case, item) for item in task.items]


def _judged(case: Case, item: Item) -> Result:
    started = time.perf_counter()
    result = Result(case.id, group(case), item._replace(run=None), item.status)
    if not item.status:
        judged = _compared if item.feature else _refused if refused.must(case) else _verdict
        try:
            result = judged(case, item, result)
        except Exception:  # whatever it was, it is no verdict, and the other cases go on
            item = result.item._replace(detail=traceback.format_exc())
            result = result._replace(item=item, status=BROKEN)
    if item.wrong and result.status in (CONFORMS, INCONCLUSIVE):
        result = result._replace(status=VIOLATION)
    return result._replace(seconds=time.perf_counter() - started)


def _verdict(case: Case, item: Item, result: Result) -> Result:
    profile = profiles(case)[item.profile]
    if item.together:
        profile = of_any(profile)
    run = item.run or numpy_run(case, profile, execution=item.execution)
    if run.error:
        refused = result.item._replace(detail="{type}: {message}".format(**run.error))
        return result._replace(item=refused, status=REJECTED)
    # XLA has no subnormal numbers on a CPU; steps of layers are never compiled
    more = {"flush": True} if item.execution == "jax" and not case.layers else {}
    apart, answers = drawn.distinct(case, run)
    judge = judging(rule(case))(rule(case), apart, answers, profile, **more)
    vector = "kills" in case.source and item.run is not None
    known = _Any() if not item.axes else _excluded.setdefault((item.name, profile.name), set())
    verdict = judge.verdict(skip=set() if vector or item.every else known)
    result = result._replace(status=verdict.status, verdict=verdict)
    recorded = item.run is not None and item.profile == item.name
    if recorded and (known_as := _expected().get((case.id, item.name))):
        if verdict.first is not None and verdict.first[:2] == known_as[:2]:
            return result._replace(
                item=result.item._replace(detail=known_as.reason), status=DEVIATES
            )
        place = "{} at step {}".format(*known_as[1::-1])
        stale = f"is expected to deviate, first in {place}, and does not"
        result = result._replace(item=result.item._replace(stale=stale))
        if verdict.first is None:
            return result
    if (first := verdict.first) is not None:
        dtype = run.dtypes.get(first.quantity, case.dtypes)[first.parameter]
        named = _explained(judge, item) if item.together else judge.named()
        asked = {axis: _asked(judge, axis) for changes in named for axis, _ in changes}
        other = first.quantity in judge.rule.State._fields and dtype != case.dtypes[first.parameter]
        kept = dtype if other else ""
        return result._replace(named=named, asked=asked, dtype=dtype, kept=kept)
    pairs = {(axis, name) for axis, names in verdict.excluded.items() for name in names}
    if item.axes:
        known |= pairs
    if vector and (spared := set(case.source.get("kills", ())) - {"=".join(p) for p in pairs}):
        stale = f"does not exclude {', '.join(sorted(spared))} any more"
        result = result._replace(item=result.item._replace(stale=stale))
    return result


def _refused(case: Case, item: Item, result: Result) -> Result:
    """Whether the documented object refuses what it must, and nothing but that."""
    if why := refused.wrong(case.source):
        return result._replace(item=result.item._replace(detail=why), status=VIOLATION)
    return result._replace(status=CONFORMS)


def _explained(judge: Judge, item: Item) -> list[Changes]:
    """What explains runs before and this one; else this one alone, by three changes at most.

    Mistaken hyperparameters are changes too, as in `diagnose`, which takes all runs together.

    Last, what explains its arrays: an implementation may count what it does not use.
    """
    before = _named.setdefault((item.name, item.profile), [])
    judge = type(judge)(mistaken(optimizer(judge.case.id)), judge.case, judge.run, judge.profile)
    axes, arrays = judge.rule.AXES, judge.of_arrays()

    def holding(explanation: Sequence[Changes]) -> list[Changes]:
        changed = [(c, {axis: axes[axis][name] for axis, name in c}) for c in explanation]
        return [c for c, x in changed if judge.holds(x)] or [
            c for c, x in changed if arrays.holds(x)
        ]

    for explanation in before:
        if found := holding(explanation):
            return found
    if before.count([]) == SEARCHES or drawn.parsed(judge.case.id):
        return []
    found = judge.named() or arrays.named()
    if not found and [] not in before:
        deeper = explained(judge.rule, judge.case, arrays.run, judge.profile)
        found = holding(deeper.found())
    before.append(found)
    return found


def _asked(judge: Judge, axis: str) -> str:
    """The alternative on an axis that the profile has for the options of a case."""
    replay = Replay(judge.rule, judge.case, judge.profile)
    choices = replay.choices(replay.hyper(1, judge.case.groups[0][1]))
    return own_choice(judge.rule.AXES.get(axis, {}), choices, axis)


def _compared(case: Case, item: Item, result: Result) -> Result:
    assert item.run is not None
    profile = profiles(case)[item.profile]
    found = explained(rule(case), case, item.run, profile).found()
    agrees = () in found
    return result._replace(
        status=AGREES if agrees else DIFFERS,
        named=() if agrees else found,
        dtype=case.dtypes[0],
    )


_expected = cache(golden.expected)


class _Any(set[tuple[str, str]]):
    """Every alternative."""

    def __contains__(self, x: object) -> bool:
        return True


_named: dict[tuple[str, str], list[list[Changes]]] = {}
"""What explains runs, by implementation and profile."""

_excluded: dict[tuple[str, str], set[tuple[str, str]]] = {}
"""What runs before have excluded, by run and profile: it needs no answer from every other run."""


def spread(given: Iterable[Task], jobs: int) -> Iterator[list[Result]]:
    """The results of each task, in order; over `jobs` processes where there are several."""
    _named.clear()
    _excluded.clear()
    yield from over(work, given, jobs)


def over(work: Callable[[T], R], given: Iterable[T], jobs: int) -> Iterator[R]:
    """What is made of each, in order; over `jobs` processes where there are several."""
    if jobs == 1:
        yield from map(work, given)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_ignore_interrupts
    ) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for one in given:
                with _uninterrupted():  # a worker may start here, and ignores nothing yet
                    waiting.append(pool.submit(work, one))
                while waiting and (waiting[0].done() or len(waiting) > 8 * jobs):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold an interrupt back; a process that starts meanwhile never sees one."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts() -> None:
    """The main process answers an interrupt, and ends the others; they end with it, however."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := parent_process()) is not None:

        def follow() -> None:
            wait([parent.sentinel])
            os._exit(1)

        Thread(target=follow, daemon=True).start()
