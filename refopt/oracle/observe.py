"""What an implementation does with the vectors of its optimizer, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from refopt.oracle import golden, live, rop, suite
from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.spec import RULES
from refopt.oracle.suite import FAILURES, Task
from refopt.oracle.verdict import VIOLATION


class Failed(NamedTuple):
    """A vector that was not answered, or not as a function of what was given."""

    case: str
    status: str  # skipped, rejected, crashed, timed out, broken; violation: no value shows it
    detail: str
    owed: bool = False


class Subject(NamedTuple):
    """One implementation: what it did, and where it did nothing."""

    name: str  # as given, or a path through a release
    version: str
    optimizer: str
    observed: tuple[tuple[Case, Run], ...]
    failed: tuple[Failed, ...]

    @property
    def broke(self) -> bool:
        """Whether it failed otherwise than by a refusal."""
        return any(failed.status in FAILURES for failed in self.failed)

    @property
    def wrong(self) -> bool:
        """Whether it has a fault that no value shows."""
        return any(failed.status == VIOLATION for failed in self.failed)


def framework(
    name: str, recordings: Iterable[Recording], *, python: str, seconds: float
) -> Iterator[Task]:
    """What a framework does, vector by vector: a run for each of its paths."""
    paths = sorted({path for recording in live.cases(name) for path in recording.runs})
    blank = (
        Recording(case._replace(source={"profiles": paths, **case.source}), {}, {})
        for case, *_ in recordings
    )
    yield from live.tasks(name, blank, None, python=python, seconds=seconds)


def recorded(path: Path, select: str = "*") -> Iterator[Task]:
    """The runs of a file of recordings, or of every file in a folder."""
    for recording in suite.selected(suite.recordings(path), select):
        runs = recording.runs.items()
        items = tuple(suite.recorded(name, name, name, run) for name, run in runs)
        yield Task(recording.case, items)


def vectors(optimizer: str, select: str = "*") -> list[Recording]:
    """The vectors of an optimizer that ask for values, and every step of them."""
    found = suite.selected(rop.vectors(optimizer), select)
    return [r for r in found if r.case.source.get("class") != golden.MUST_REJECT]


def cases(name: str, select: str = "*") -> list[Recording]:
    """What a framework is asked: the vectors, and what its recordings ask for and no vector does.

    Of THOR, whose network is its own, its recordings alone.
    """
    optimizer = live.IMPLEMENTATIONS[name].recordings.split("/")[0]
    if hasattr(RULES[optimizer], "Layer"):
        return list(suite.selected(live.cases(name), select))
    known = set().union(*(_asked(r.case) for r in vectors(optimizer)))
    more = [r for r in live.cases(name) if _asked(r.case) - known]
    return [*vectors(optimizer, select), *suite.selected(more, select)]


def _asked(case: Case) -> set[str]:
    """The dtypes of a case, its options, what most cases leave out, several gradients at steps."""
    whole = case.steps > 1 and not any(None in row for row in case.grads)
    alike = len(case.groups) == 1 and whole
    always = RULES[suite.optimizer(case.id)].REQUIRED
    numbers = {q for q, x in case.hyper.items() if q not in always and x != 0}
    several = {"several"} if len(case.params) > 1 and alike else set()
    return {*case.dtypes, *(q for q, on in case.options.items() if on), *numbers, *several}


def subjects(name: str, tasks: Iterable[Task], progress: Callable[[str], None]) -> list[Subject]:
    """The implementations that did some tasks, each with all that it did.

    `name`: of an implementation that has one path; else its runs have names of their own.
    """
    found: dict[tuple[str, str], Subject] = {}
    every: list[Failed] = []
    for case, items in tasks:
        progress(case.id)
        for item in items:
            failed = Failed(case.id, item.status, item.detail, item.owed)
            if item.run is None and item.name == item.implementation.partition(" ")[0]:
                every.append(failed)  # of all paths
                continue
            key = item.name, suite.optimizer(case.id)
            subject = found.setdefault(key, Subject(item.name, item.implementation, key[1], (), ()))
            if item.wrong:
                failed = Failed(case.id, VIOLATION, item.wrong)
            if item.run is None or item.wrong:
                subject = subject._replace(failed=(*subject.failed, failed))
            if item.run is not None:
                subject = subject._replace(observed=(*subject.observed, (case, item.run)))
            found[key] = subject
    if not found and every:
        optimizer = suite.optimizer(every[0].case)
        return [Subject(name, "", optimizer, (), tuple(every))]
    return [x._replace(failed=(*x.failed, *every)) for x in found.values()]
