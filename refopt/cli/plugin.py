"""The vectors as tests of pytest, one each; loaded by `pytest_refopt` where they are asked for."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, cast

import pytest
import typer

from refopt.cli.check import command_of, seeded
from refopt.errors import RefoptError
from refopt.oracle import drawn, live, report, rop, suite
from refopt.oracle.golden import Recording
from refopt.oracle.process import Failure
from refopt.oracle.spec import RULES
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION

KEY = "refopt"  # of what a report carries: [implementation, status, undecided, excluded]


class Asked:
    """An implementation, and the vectors that it is asked for."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        of, python = config.getoption("refopt_optimizer"), config.getoption("refopt_python")
        profile, python = config.getoption("refopt_profile"), python or sys.executable
        seconds = config.getoption("refopt_timeout")
        self.name, self.seed = name, None
        self.drawn: list[str] = []  # a test for each case that is drawn when it runs
        try:
            if name in live.IMPLEMENTATIONS:
                start: Any = live.starter(name, python, seconds)
                found: Iterable[Recording] = live.cases(name)
            else:
                last = name.rpartition(":")[2]
                of = of or (last if name.startswith("py:") and last in RULES else None)
                path = [str(folder) for folder in config.getini("pythonpath")]
                optimizer, command = command_of(name, of, python, path)
                if not command:
                    known = f"py:MODULE:FUNCTION, cmd:PROGRAM, {', '.join(live.IMPLEMENTATIONS)}"
                    msg = f"--refopt-impl must be one of {known}; got {name!r}"
                    raise pytest.UsageError(msg)

                def start() -> rop.Program:
                    return rop.Program(command, optimizer, seconds)

                found = rop.vectors(optimizer)
                seed = config.getoption("refopt_seed") or os.environ.get("REFOPT_SEED")
                self.seed = seeded(None if seed is None else int(seed), drawn=True)
                self.drawn = [f"{optimizer}.drawn.{n}" for n in range(drawn.number(optimizer))]
            select = config.getoption("refopt_select")
            self.found = list(suite.selected(found, select))
            self.drawn = [id_ for id_ in self.drawn if fnmatchcase(id_, select)]
        except (typer.BadParameter, RefoptError) as error:
            msg = f"--refopt-impl {name}: {error}"
            raise pytest.UsageError(msg) from None
        profiles = suite.profile_names({suite.optimizer(r.case.id) for r in self.found})
        if profile is not None and profile not in profiles:
            msg = f"--refopt-profile must be one of {', '.join(profiles)}; got {profile!r}"
            raise pytest.UsageError(msg)
        self._asking, self._over = live.Asking(start, profile), ""
        self.notes = self._noted() if name.startswith("py:") else []

    def _noted(self) -> list[str]:
        """What to know of a function before its tests. A name that is wrong ends pytest here."""
        try:
            program: Any = self._asking.talker()
        except Failure:  # each test says so
            return []
        except RefoptError as error:
            raise pytest.UsageError(str(error)) from None
        return list(rop.notes(program.spoken, program.optimizer))

    def results(self, recording: Recording) -> list[suite.Result]:
        """What it did with a vector, judged. Once it was given up, every vector fails."""
        if self._over:
            raise RefoptError(self._over)
        try:
            task = self._asking.task(recording)
        except RefoptError as error:
            self._over = str(error)
            raise
        try:
            self._asking.more(task)
        except RefoptError as error:
            self._over = str(error)
        return suite.work(task)

    def recording(self, id_: str) -> Recording:
        """The case that is drawn for a test; it is skipped where nothing suits what is taken."""
        try:
            program: Any = self._asking.talker()
        except Failure as failure:
            raise RefoptError(failure.detail) from None
        cases = program.drawn(self.seed)
        if (n := int(id_.rpartition(".")[2])) >= len(cases):
            pytest.skip("no case was drawn for what it takes")
        return cast(Recording, cases[n])

    def close(self) -> None:
        """End it."""
        self._asking.close()


class Failed(Exception):
    """A vector that an implementation does not pass."""


class Vector(pytest.Item):
    """One vector and one implementation."""

    def __init__(self, *, asked: Asked, recording: Recording | str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._asked, self._recording = asked, recording
        self.extra_keyword_matches.add("refopt")

    def runtest(self) -> None:
        """Judge it: a violation, a failure, an unrecorded rejection and a stale expectation fail.

        So does a must vector that is not answered though everything that it needs is taken.
        Undecided is no pass: a vector that excludes nothing is skipped, with what it left open.
        """
        given, again = self._recording, ""
        if isinstance(given, str):
            given = self._asked.recording(given)
            again = f"\n\ndrawn: --refopt-seed={self._asked.seed} asks the same again"
        results = self._asked.results(given)
        for result in results:
            verdict = result.verdict
            known = (verdict.undecided, verdict.excluded) if verdict else ({}, {})
            self.user_properties.append((KEY, [self._asked.name, result.status, *known]))
        if wrong := [result for result in results if not _fine(result)]:
            raise Failed("\n\n".join("\n".join(report.plain(result)) for result in wrong) + again)
        if not any(result.status in (CONFORMS, suite.DEVIATES) for result in results):
            pytest.skip("; ".join(dict.fromkeys(map(_reason, results))))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The finding alone: where refopt raised it says nothing."""
        if isinstance(excinfo.value, Failed | RefoptError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where it is from, for reports."""
        return "refopt", None, self.name


class Vectors:
    """The plugin: its tests come after those of the files."""

    def __init__(self, config: pytest.Config, named: Iterable[str]) -> None:
        self.asked = [Asked(config, name) for name in dict.fromkeys(named)]
        self._counts: dict[str, Counter[str]] = {}
        self._open: dict[str, dict[str, bool]] = {}  # axis=alternative -> whether still undecided

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add them before -k and -m select."""
        vectors = []
        for asked in self.asked:
            every: list[Recording | str] = [*asked.found, *asked.drawn]
            for recording in every:
                id_ = recording if isinstance(recording, str) else recording.case.id
                name = f"{asked.name}[{id_}]"
                keywords = {"asked": asked, "recording": recording, "nodeid": f"refopt::{name}"}
                vectors.append(Vector.from_parent(session, name=name, **keywords))
        items += vectors
        report = pytest.CollectReport(
            "refopt", "passed", None, [*vectors]
        )  # so that it counts them
        session.config.hook.pytest_collectreport(report=report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what the tests said, in whatever process they ran."""
        said: Any
        for key, said in report.user_properties if report.when == "call" else ():
            if key == KEY:
                name, status, *decided = said
                self._counts.setdefault(name, Counter())[status] += 1
                known = self._open.setdefault(name, {})
                for axes, still in zip(decided, (True, False), strict=True):
                    for axis, names in axes.items():
                        pairs = [f"{axis}={alternative}" for alternative in names]
                        known |= {pair: still and known.get(pair, True) for pair in pairs}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What each implementation did in all, and the alternatives that no vector excludes."""
        for note in (note for asked in self.asked for note in asked.notes):
            terminalreporter.write_line(f"refopt: {note}")
        for name in self._undecided:
            terminalreporter.write_line(f"refopt: {name}: nothing was decided", red=True)
        for name, counts in self._counts.items():
            parts = ", ".join(f"{n} {status}" for status, n in counts.most_common())
            terminalreporter.write_line(f"refopt: {name}: {parts}")
            if undecided := [pair for pair, still in self._open[name].items() if still]:
                terminalreporter.write_line(f"refopt: undecided: {', '.join(undecided)}")

    @property
    def _undecided(self) -> list[str]:
        """Implementations of which no vector that ran says anything."""
        said = {*(CONFORMS, VIOLATION, suite.DEVIATES), *suite.FAILURES}
        return [name for name, counts in self._counts.items() if not said & {*counts}]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail where nothing was decided, in all processes together, as refopt check does."""
        if self._undecided and exitstatus == pytest.ExitCode.OK and not _worker(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """End what runs."""
        for asked in self.asked:
            asked.close()


def _worker(config: pytest.Config) -> bool:
    """Whether this is a process of pytest-xdist, which runs a part of the tests."""
    return hasattr(config, "workerinput")


def _fine(result: suite.Result) -> bool:
    as_recorded = result.status == suite.REJECTED and not result.item.together
    passes = (CONFORMS, INCONCLUSIVE, suite.DEVIATES, suite.SKIPPED)
    return not (result.item.stale or result.item.owed) and (result.status in passes or as_recorded)


def _reason(result: suite.Result) -> str:
    """Why a vector says nothing of an implementation."""
    if result.verdict is None:
        return f"{result.status}: {result.item.detail}"
    axes = (f"{axis}: {', '.join(names)}" for axis, names in result.verdict.undecided.items())
    return f"{result.status}; undecided: {'; '.join(axes)}"
