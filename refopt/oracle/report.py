"""What is said of results: tables and findings for people, JSON Lines and JUnit for machines."""

from __future__ import annotations

import math
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from textwrap import shorten
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as marked
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from refopt.interp.formats import FORMATS, to_bits, ulp
from refopt.oracle import spec, suite
from refopt.oracle.compare import MOST
from refopt.oracle.golden import Case, Recording, Run, Sparse, Values
from refopt.oracle.search import Changes
from refopt.oracle.suite import (
    AGREES,
    DEVIATES,
    DIFFERS,
    FAILURES,
    GROUPS,
    LACKS,
    REJECTED,
    SKIPPED,
    Result,
)
from refopt.oracle.verdict import CONFORMS, INCONCLUSIVE, VIOLATION, Finding, Verdict

SCHEMA = "refopt-report/1"
OK, VIOLATED, USAGE, BROKE, STALE, NOTHING, INTERRUPTED, LEFT = 0, 1, 2, 3, 4, 5, 130, 141
SHOWN = 5  # findings printed in full
TOLD, REASON = 20, 160  # rejected and deviating cases that are named, and letters of the reason
HEADS = {  # broken where a column would be too wide for a terminal of 80
    CONFORMS: "con-\nforms",
    VIOLATION: "viola-\ntion",
    INCONCLUSIVE: "incon-\nclusive",
    REJECTED: "re-\njected",
    DEVIATES: "de-\nviates",
}
MARKS = {
    VIOLATION: ("x", "bold red"),
    INCONCLUSIVE: ("?", "yellow"),
    **dict.fromkeys(FAILURES, ("!", "bold red")),
}
STYLES = {CONFORMS: "green", VIOLATION: "bold red", INCONCLUSIVE: "yellow"}


class Terminal(Console):
    """Where text goes; a reader that has seen enough is the caller's affair."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(emoji=False, **keywords)  # py:mine:ok: is the text of others

    def on_broken_pipe(self) -> None:
        """Raise it again: rich would exit with 1, which means a violation here."""
        raise

    def say(self, what: Any) -> None:
        """Print markup, whose wrapped lines keep its indent, or a table; no line ends in spaces."""
        if isinstance(what, str):
            lines = [(line, len(line) - len(line.lstrip(" "))) for line in what.split("\n")]
            parts: list[Any] = [
                Padding(self.render_str(line.strip(" "), highlight=False), (0, 0, 0, indent))
                for line, indent in lines
            ]
        else:
            parts = [what]
        for part in parts:
            for line in self.render_lines(part, pad=False):
                text = Text.assemble(*((s.text, s.style or "") for s in line))
                text.rstrip()
                self.print(text, highlight=False, soft_wrap=True)


NO_TEXT = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What neither XML nor a terminal takes as text: control characters, halves of characters."""


def printable(text: str) -> str:
    """The text of others; what is no text is shown by its code."""
    return NO_TEXT.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def escape(text: str) -> str:
    """The text of others, as markup."""
    return marked(printable(text))


def counted(n: int, what: str) -> str:
    """A number of things: 1 run, 2 runs."""
    return f"{n} {what}{'s' * (n != 1)}"


def release() -> str:
    """The version of refopt that is installed; "unknown" in a checkout that is not."""
    try:
        return installed("refopt")
    except PackageNotFoundError:
        return "unknown"


# -- tally ----------------------------------------------------------------------------------------


class Row:
    """What is known of one implementation so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cells: dict[str, Counter[str]] = {}
        self.origins: set[str] = set()
        self.worst_ulp = self.worst_share = 0.0
        self.first: Result | None = None  # the violation at the earliest step
        self.axes: dict[str, dict[str, bool]] = {}  # axis -> alternative -> whether excluded

    def add(self, result: Result) -> None:
        """Take one more result into account."""
        self.counts[result.status] += 1
        self.cells.setdefault(result.group, Counter())[result.status] += 1
        self.origins.add(result.item.implementation)
        if (verdict := result.verdict) is None:
            return
        self.worst_ulp = max(self.worst_ulp, verdict.worst_ulp)
        self.worst_share = max(self.worst_share, verdict.worst_share)
        if verdict.first and (self.first is None or verdict.first.step < _step(self.first)):
            self.first = result
        for known, excluded in ((verdict.undecided, False), (verdict.excluded, True)):
            for axis, names in known.items() if result.item.axes else ():
                decided, own = self.axes.setdefault(axis, {}), suite.own(result, axis)
                decided.update(
                    {n: excluded or decided.get(n, False) for n in names if n not in own}
                )

    @property
    def undecided(self) -> dict[str, list[str]]:
        """The alternatives that no run excludes, by axis; of what is wrong none."""
        if self.counts[VIOLATION]:
            return {}
        found = {
            axis: [name for name, excluded in names.items() if not excluded]
            for axis, names in self.axes.items()
        }
        return {axis: names for axis, names in found.items() if names}


class Tally:
    """All results of a check."""

    def __init__(self) -> None:
        self.optimizers: dict[str, dict[str, Row]] = {}  # optimizer -> implementation -> row
        self.counts: Counter[str] = Counter()
        self.notable: list[Result] = []  # violations, failures, stale expectations
        self.told: list[Result] = []  # rejections and expected deviations
        self.compared: dict[str, dict[str, list[Result]]] = {}  # optimizer -> release -> results
        self.skipped: Counter[str] = Counter()  # what is not taken, of what is judged together
        self.declined: Counter[str] = Counter()  # what is said instead of an answer
        self.wrong: dict[tuple[str, str], list[Result]] = {}  # (run, fault that no value shows)
        self.owed: list[Result] = []
        self.cases: set[str] = set()
        self.checks = 0

    def add(self, result: Result) -> None:
        """Take one more result into account."""
        if result.status in (AGREES, DIFFERS):
            releases = self.compared.setdefault(suite.optimizer(result.case), {})
            releases.setdefault(result.item.name, []).append(result)
            return
        rows = self.optimizers.setdefault(suite.optimizer(result.case), {})
        rows.setdefault(result.item.name, Row()).add(result)
        self.counts[result.status] += 1
        self.cases.add(result.case)
        self.checks += result.verdict.checks if result.verdict else 0
        if result.item.wrong:
            self.wrong.setdefault((result.item.name, result.item.wrong), []).append(result)
        if result.item.owed:
            self.owed.append(result)
        unseen = result.item.wrong and not (result.verdict and result.verdict.first)
        if unseen and not result.item.stale:
            return
        if result.status == VIOLATION or result.status in FAILURES or result.item.stale:
            self.notable.append(result)
        elif result.status in (REJECTED, DEVIATES):
            self.told.append(result)
        elif result.status == SKIPPED and result.item.together:
            words = result.item.detail.removeprefix(LACKS)
            lacks = words != result.item.detail
            (self.skipped if lacks else self.declined).update(
                words.split(", ") if lacks else [words]
            )

    @property
    def together(self) -> list[Result]:
        """The violations of an implementation that is judged as a whole."""
        return [r for r in self.notable if r.item.together and r.verdict and r.verdict.first]

    def explanations(self) -> list[tuple[Changes, list[Result]]]:
        """The fewest sets of changes that explain what is judged together, each with its runs."""
        left = [result for result in self.together if result.named]
        found = []
        while left:
            known = list(dict.fromkeys(changes for r in left for changes in r.named))
            explained = {c: [r for r in left if any({*x} <= {*c} for x in r.named)] for c in known}
            # another rule is said before a number that is mistaken for another
            mistaken = {c: sum(":" in name for _, name in c) for c in known}
            best = max(known, key=lambda c: (len(explained[c]), -len(c), -mistaken[c]))
            found.append((best, explained[best]))
            left = [result for result in left if result not in explained[best]]
        return found

    def diagnosis(self) -> Iterator[str]:
        """What an implementation does otherwise than the rule, as one paragraph of markup."""
        if not (outside := self.together):
            return
        item, ran = (
            outside[0].item,
            len(outside) + self.counts[CONFORMS] + self.counts[INCONCLUSIVE],
        )
        runs = f"{len(outside)} of {counted(ran, 'vector')}"
        yield (
            f"[bold]{escape(item.name)}[/] does not follow the profile {item.profile}: "
            f"[bold red]{runs}[/] lie outside"
        )
        for changes, results in self.explanations():
            yield from _otherwise(changes, results)
        if unexplained := [result for result in outside if not result.named]:
            more = f"no change of choices was found that explains {len(unexplained)} of them"
            yield f"  {more}, each by itself; the first of these"
            yield from _seen(unexplained[0])
        yield "  refopt diagnose takes all vectors together, and says what is right and what is not"
        yield ""

    @property
    def exit_code(self) -> int:
        """The exit code of a check that ran to its end."""
        if any(self.counts[status] for status in FAILURES):
            return BROKE
        if self.counts[VIOLATION]:
            return VIOLATED
        if any(result.item.stale for result in self.notable):
            return STALE
        return OK if self.counts[CONFORMS] and not self.owed else NOTHING


def _step(result: Result) -> int:
    assert result.verdict is not None
    assert result.verdict.first is not None
    return result.verdict.first.step


# -- text -----------------------------------------------------------------------------------------


def summary(tally: Tally, console: Terminal, seconds: float, *, complete: bool = True) -> None:
    """Tables by optimizer, what needs attention, and the totals."""
    if not tally.optimizers:
        if complete:
            console.say("no case matches the selection: nothing ran")
        return
    for optimizer, rows in tally.optimizers.items():
        if len(tally.optimizers) > 1:
            console.say(f"[bold]{optimizer}[/]\n")
        _results(dict(sorted(rows.items(), key=_own_first)), console)
        _comparison(optimizer, tally.compared.get(optimizer, {}), console)
    for text in tally.diagnosis():
        console.say(text)
    notable = [r for r in tally.notable if r not in tally.together]
    first = {result.item.name: result for result in reversed(notable)}
    some = sorted(notable, key=lambda r: r is not first[r.item.name])[:SHOWN]
    for result in some:
        for text in paragraph(result):
            console.say(text)
        console.print()
    if len(notable) > len(some):
        console.say(f"… and {len(notable) - len(some)} more: --json lists all\n")
    for status in (REJECTED, DEVIATES):
        _told([result for result in tally.told if result.status == status], status, console)
    for (name, fault), results in tally.wrong.items():
        where = f"{counted(len(results), 'vector')}, first {results[0].case}"
        console.say(f"[bold red]violation[/]: {escape(f'{name} {fault}')}\n  in {where}\n")
    for what, found in (
        ("for what they need", tally.skipped),
        ("by the implementation, which said why", tally.declined),
    ):
        if found:
            words = ", ".join(f"{word} ({n})" for word, n in found.most_common())
            console.say(f"[bold]skipped[/] {what}: {escape(words)}\n")
    if tally.owed:
        n, example = len(tally.owed), tally.owed[0]
        more = f" and {n - 1} more" if n > 1 else ""
        console.say(
            f"[bold red]owed[/]: {counted(n, 'must vector')} whose every need is taken, and that "
            f"{'were' if n > 1 else 'was'} not answered: {escape(example.case)}{more}\n"
        )
    every = [row for rows in tally.optimizers.values() for row in rows.values()]
    origins = sorted(set().union(*(row.origins for row in every)))
    console.say(f"made by {escape(', '.join(origins))}")
    parts = [f"{n} {status}" for status, n in tally.counts.most_common()]
    runs, cases = counted(sum(tally.counts.values()), "run"), counted(len(tally.cases), "case")
    console.say(
        f"{runs} of {cases}: {', '.join(parts)}; {counted(tally.checks, 'comparison')}; "
        f"suite {suite.version()}; {seconds:.1f} s"
    )
    if not complete:
        console.say("[bold red]incomplete[/]: the check was cut short")


def _own_first(row: tuple[str, Row]) -> tuple[bool, str]:
    """The order of rows: refopt's own, then by name."""
    return not row[0].startswith("refopt "), row[0]


def _told(results: list[Result], status: str, console: Terminal) -> None:
    """Runs of one status: case, runs, and the reason in short."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        reason = shorten(result.item.detail.partition("\n")[0], REASON, placeholder=" …")
        reasons.setdefault((result.case, reason), []).append(result.item.name)
    if reasons:
        console.say(f"[bold]{status}[/]")
    for (case, reason), names in list(reasons.items())[:TOLD]:
        console.say(f"  {escape(case)}, {escape(', '.join(names))}: {escape(reason)}")
    if len(reasons) > TOLD:
        console.say(f"  … and {len(reasons) - TOLD} more: --json lists all")
    if reasons:
        console.print()


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)


def _results(rows: dict[str, Row], console: Terminal) -> None:
    """Both tables of an optimizer, and what stayed undecided."""
    counts = sum((row.counts for row in rows.values()), Counter[str]())
    console.say(_verdicts(rows, counts))
    console.print()
    console.say(_groups(rows))
    if marks := [f"{mark} {what}" for what, (mark, _) in MARKS.items() if counts[what]]:
        console.say(", ".join(marks))
    console.print()
    undecided: dict[str, list[str]] = {}
    for name, row in rows.items():
        if text := "; ".join(f"{axis}: {', '.join(x)}" for axis, x in row.undecided.items()):
            undecided.setdefault(text, []).append(name)
    if undecided:
        console.say("[bold]undecided[/]: alternatives that no run of these excludes")
    for text, names in undecided.items():
        console.say(f"  [bold]{escape(', '.join(names))}[/]  {text}")
    if undecided:
        console.print()


def _comparison(optimizer: str, releases: dict[str, list[Result]], console: Terminal) -> None:
    """What each release does otherwise than the profile it is compared with, and what that is."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, results in sorted(releases.items()):
        alike.setdefault(tuple(differences(results)), []).append(name)
    if not alike:
        return
    (against,) = {result.item.profile for results in releases.values() for result in results}
    console.say(f"[bold]against {against}[/]: the changes of it that explain the runs of a release")
    for found, names in sorted(alike.items(), key=lambda x: (len(x[0]), x[1])):
        console.say(f"  [bold]{escape(', '.join(names))}[/]")
        for difference in found:
            console.say(f"    {difference}")
    axes = spec.load(optimizer)["axes"]
    results = [result for found in releases.values() for result in found]
    named = {change for result in results for changes in result.named for change in changes}
    for axis in [axis for axis in axes if any(a == axis for a, _ in named)]:
        console.say(f"  {axis}: {escape(axes[axis]['question'])}")
        for name in sorted(name for a, name in named if a == axis):
            chosen = axes[axis]["alternatives"][name]
            console.say(f"    {name} ({chosen['clause']}): {escape(chosen['text'])}")
    console.print()


def differences(results: list[Result]) -> Iterator[str]:
    """What a release does where each feature is on, features with the same finding together."""
    found: dict[str, list[str]] = {}
    for result in sorted(results, key=_feature):
        dtype = "" if result.dtype == "float32" else f" in {result.dtype}"
        found.setdefault(_difference(result), []).append(f"{result.item.feature}{dtype}")
    for difference, features in sorted(found.items(), key=lambda x: x[0] != AGREES):
        yield f"{', '.join(features)}: {difference}"


def _feature(result: Result) -> tuple[str, bool, str]:
    """The order of features: in float32, the plain one first."""
    return result.dtype, result.item.feature != "plain", result.item.feature


def _difference(result: Result) -> str:
    """The changes that explain a run: names on one axis joined, where every combination does."""
    if result.status == AGREES:
        return AGREES
    by_axes: dict[tuple[str, ...], list[Changes]] = {}
    for changes in result.named:
        by_axes.setdefault(tuple(axis for axis, _ in changes), []).append(changes)
    parts = []
    for axes, several in by_axes.items():
        names = [list(dict.fromkeys(c[n][1] for c in several)) for n in range(len(axes))]
        if math.prod(map(len, names)) == len(several):
            pairs = zip(axes, names, strict=True)
            parts.append(", ".join(f"{axis}={' or '.join(x)}" for axis, x in pairs))
        else:
            parts += [", ".join("=".join(change) for change in changes) for changes in several]
    rounding = all(name in suite.own(result, a) for c in result.named for a, name in c)
    if not parts:
        most = MOST[result.dtype]
        return "no single change explains it" if most == 1 else f"no {most} changes explain it"
    return "; or ".join(parts) + " (rounding alone)" * rounding


def _verdicts(rows: dict[str, Row], totals: Counter[str]) -> Table:
    table = _table()
    table.add_column("implementation", no_wrap=True)
    others = [s for s in (REJECTED, SKIPPED, DEVIATES, *FAILURES) if totals[s]]
    for status in (CONFORMS, VIOLATION, INCONCLUSIVE, *others):
        table.add_column(HEADS.get(status, status), justify="right", no_wrap=True)
    table.add_column("worst\nulp", justify="right", no_wrap=True)
    table.add_column("of\nradius", justify="right", no_wrap=True)
    if totals[VIOLATION]:
        table.add_column("first\ndivergence", overflow="fold")
    for name, row in rows.items():
        counts = [
            f"[{STYLES.get(s, 'red')}]{row.counts[s]}[/]" if row.counts[s] else "·"
            for s in (CONFORMS, VIOLATION, INCONCLUSIVE, *others)
        ]
        where = [_where(row.first) if row.first else ""] if totals[VIOLATION] else []
        share = "out" if row.first else f"{row.worst_share:.2f}"
        table.add_row(escape(name), *counts, short(row.worst_ulp), share, *where)
    return table


def _groups(rows: dict[str, Row]) -> Table:
    table = _table()
    table.add_column("by topic", no_wrap=True)
    names = [g for g in (*GROUPS, "other") if any(g in row.cells for row in rows.values())]
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for name, row in rows.items():
        table.add_row(escape(name), *(_cell(row.cells.get(group, Counter())) for group in names))
    return table


def _cell(counts: Counter[str]) -> str:
    """Conforming runs, and with a mark those that are something else."""
    parts = [f"[green]{counts[CONFORMS]}[/]"] if counts[CONFORMS] else []
    parts += [
        f"[{style}]{counts[what]}{mark}[/]" for what, (mark, style) in MARKS.items() if counts[what]
    ]
    return " ".join(parts) or "·"


def _where(result: Result) -> str:
    assert result.verdict is not None
    assert result.verdict.first is not None
    return f"step {result.verdict.first.step}, {result.verdict.first.quantity}"


def short(x: float) -> str:
    """A number in a column."""
    return f"{x:.1f}" if x < 10 else f"{x:.0f}" if x < 1e5 else f"{x:.0e}"


def paragraph(result: Result) -> Iterator[str]:
    """What happened to one run, for a person to act on; lines of rich markup."""
    item = result.item
    title = f"[bold]{escape(result.case)}[/], {escape(item.name)}"
    if (verdict := result.verdict) is not None and (first := verdict.first) is not None:
        yield f"{title}: [bold red]violation[/] of profile {item.profile}"
        yield f"  step {first.step}, {_placed(result)}"
        yield from _beside(first, result.dtype)
        if item.wrong:
            yield f"  and it {escape(item.wrong)}"
        yield from (f"  {line}" for line in _explained(result))
    elif item.stale:
        yield f"{title}: [bold red]stale expectation[/]: {escape(item.stale)}"
    else:
        lines = escape((item.wrong or item.detail).strip()).splitlines()
        if lines and lines[0].startswith("Traceback"):  # --json has all of it
            where = [x.strip() for x in lines if x.startswith("  File ")][-1]
            lines = [lines[-1], where]
        yield f"{title}: [bold red]{result.status}[/]: {lines[0] if lines else ''}"
        yield from (f"  {line}" for line in lines[1:])
        if item.owed:
            yield "  owed: a must vector, whose every need is taken"


def plain(result: Result) -> Iterator[str]:
    """What happened to one run, without markup."""
    console = Console(width=10**4, emoji=False)
    return (console.render_str(line).plain for line in paragraph(result))


def _otherwise(changes: Changes, results: list[Result]) -> Iterator[str]:
    """What is done otherwise, what the rule says instead, and where it shows first."""
    spec_ = spec.load(suite.optimizer(results[0].case))
    clauses = {clause["id"]: clause["text"] for clause in spec_["clauses"]}
    if not changes:  # its arrays conform
        first = results[0].verdict and results[0].verdict.first
        q = first.quantity if first else ""
        where = ", ".join(spec_["exercised"].get(q, ()))
        yield f"  in {len(results)} of them what it calls {q} is not the rule's {q} ({where});"
        yield "  everything else holds"
    else:
        many = "one change explains" if len(changes) == 1 else f"{len(changes)} changes explain"
        yield f"  {many} {len(results)} of them"
    of = spec_["optimizer"]
    for axis, name in changes:
        about = spec_["axes"].get(axis, {"clause": "hyperparameters", "question": ""})
        does, shown = told(of, axis, name), [r for r in results if _names(r, (axis, name))]
        asked = list(dict.fromkeys(r.asked[axis] for r in shown if axis in r.asked))
        text = clauses.get(about["clause"], about["question"])
        yield f"  [bold]{axis}={name}[/], shown by {counted(len(shown), 'vector')}"
        yield f"    it does    {escape(does[0])}{f' ({does[1]})' if does[1] else ''}"
        for choice in asked:
            it, at = told(of, axis, choice)
            yield f"    it should  {escape(it)} ({at}, {axis}={choice})"
        if text:
            yield f"    the rule   {escape(text)} ({about['clause']})"
    yield "  first seen"
    yield from _seen(results[0])


def told(optimizer: str, axis: str, name: str) -> tuple[str, str]:
    """(what an alternative does, its clause); a mistaken hyperparameter has no clause."""
    known = spec.load(optimizer)["axes"].get(axis, {}).get("alternatives", {})
    if name in known:
        return known[name]["text"], known[name]["clause"]
    if name == "as-given":
        return "the hyperparameters as they are given", "hyperparameters"
    quantity, _, value = name.partition(":")
    return f"{quantity} is {value}{', whatever is given' * value[0].isdigit()}", ""


def _names(result: Result, change: tuple[str, str]) -> bool:
    return any(change in changes for changes in result.named)


def _seen(result: Result) -> Iterator[str]:
    """Where a run leaves its envelope; `refopt show` prints the input."""
    assert result.verdict is not None
    first = result.verdict.first
    assert first is not None
    yield f"    {escape(result.case)}, step {first.step}, {_placed(result)}"
    yield from (f"  {line}" for line in _beside(first, result.dtype))


def _placed(result: Result) -> str:
    """Where a run leaves its envelope, in which dtype it keeps that, and from what it is judged."""
    assert result.verdict is not None
    assert result.verdict.first is not None
    kept = f", kept in {result.kept}" if result.kept else ""
    return f"{place(result.verdict.first)}{kept}, {result.verdict.first.mode}"


def place(first: Finding) -> str:
    """Where an observation lies: quantity, element, layer or parameter."""
    element = "" if first.quantity in ("product", "t") else f"[{first.element}]"
    of = f"layer {first.layer}" if first.layer else f"parameter {first.parameter}"
    return f"{first.quantity}{escape(element)} of {of}"


def outside(first: Finding, dtype: str) -> tuple[float, float] | None:
    """(distance from the envelope, the same in ulp of the value); None where it has no number."""
    if math.isnan(first.low) or not math.isfinite(first.observed):
        return None
    nearest = first.low if first.observed < first.low else first.high
    distance = abs(first.observed - nearest)
    return distance, distance / ulp(nearest, FORMATS.get(dtype, FORMATS["float64"]))


def _explained(result: Result) -> Iterator[str]:
    if not result.named:
        yield "no change of one choice of the profile, or of two, explains the run"
        return
    yield "the run conforms if the profile is changed so:"
    for n, changes in enumerate(result.named):
        if not changes:
            yield "  its arrays conform: a counter that it shows is not what the rule calls so"
        for m, (axis, name) in enumerate(changes):
            text, clause = told(suite.optimizer(result.case), axis, name)
            begin = "  and " if m else "  or " if n else "  "
            yield f"{begin}{axis}={name}{f' ({clause})' if clause else ''}: {escape(text)}"


def _beside(first: Finding, dtype: str) -> Iterator[str]:
    yield f"  got       {_number(first.observed)}"
    yield from _envelope(first)
    if distance := outside(first, dtype):
        yield f"  outside by {distance[0]:.3g}, {short(distance[1])} ulp of {dtype}"


def _envelope(first: Finding) -> Iterator[str]:
    if math.isnan(first.low):
        yield "  envelope  no finite value"
        return
    yield f"  envelope  {_number(first.low)} to"
    yield f"            {_number(first.high)}"


def _number(x: float) -> str:
    return f"{x!r} ({x.hex()})" if math.isfinite(x) else repr(x)


# -- machines -------------------------------------------------------------------------------------


def header(arguments: dict[str, Any]) -> dict[str, Any]:
    """The first line of a report."""
    return {
        "kind": "header",
        "schema": SCHEMA,
        "refopt": release(),
        "suite": suite.version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "arguments": arguments,
    }


def line(result: Result) -> dict[str, Any]:
    """The line of one run."""
    item = result.item
    found: dict[str, Any] = {
        "kind": "comparison" if item.feature else "run",
        "case": result.case,
        "group": result.group,
        "implementation": item.implementation,
        "run": item.name,
        "profile": item.profile,
        "status": result.status,
        "seconds": round(result.seconds, 3),
    }
    found |= {
        key: value for key in ("detail", "stale", "wrong", "owed") if (value := getattr(item, key))
    }
    if result.verdict is not None:
        found |= _fields(result, result.verdict)
    elif item.feature:
        found |= {"feature": item.feature, "dtype": result.dtype, "named": _named(result)}
    return found


def _named(result: Result) -> list[list[str]]:
    return [["=".join(change) for change in changes] for changes in result.named]


def _fields(result: Result, verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = {
        "checks": verdict.checks,
        "open": verdict.open,
        "worst_ulp": _json(verdict.worst_ulp),
        "worst_share": _json(verdict.worst_share),
        "excluded": verdict.excluded,
    }
    if result.item.axes:
        found["undecided"] = verdict.undecided
    if verdict.first:
        where = verdict.first._asdict()
        found["first"] = {key: _json(x) for key, x in where.items() if key != "layer" or x}
        found["named"] = _named(result)
    return found


def footer(tally: Tally, code: int, seconds: float, *, complete: bool) -> dict[str, Any]:
    """The last line of a report; without it, or with complete false, a report is no verdict."""
    return {
        "kind": "footer",
        "complete": complete,
        "exit": code,
        "cases": len(tally.cases),
        "counts": dict(tally.counts),
        "checks": tally.checks,
        "explained": [
            {"by": ["=".join(change) for change in changes], "cases": [r.case for r in results]}
            for changes, results in tally.explanations()
        ],
        "undecided": {
            optimizer: {name: row.undecided for name, row in rows.items() if row.undecided}
            for optimizer, rows in tally.optimizers.items()
        },
        "seconds": round(seconds, 3),
    }


def _json(x: Any) -> Any:
    """JSON has no infinity and no NaN: they are strings."""
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def junit(results: Iterable[Result], seconds: float) -> bytes:
    """The results as JUnit XML: one suite an implementation, one test case a run."""
    root = ElementTree.Element("testsuites", name="refopt", time=f"{seconds:.3f}")
    suites: dict[str, ElementTree.Element] = {}
    counts: dict[str, Counter[str]] = {}
    for result in results:
        name = result.item.name
        parent = suites.get(name)
        if parent is None:
            parent = suites[name] = ElementTree.SubElement(root, "testsuite", name=name)
        test = ElementTree.SubElement(
            parent,
            "testcase",
            classname=f"{name} against {result.item.profile}",
            name=result.case,
            time=f"{result.seconds:.3f}",
        )
        kind = _junit_kind(result)
        counts.setdefault(name, Counter()).update(["tests", kind])
        if kind != "passed":
            tag = {"failures": "failure", "errors": "error", "skipped": "skipped"}[kind]
            text = "\n".join(plain(result))
            ElementTree.SubElement(test, tag, message=result.status).text = text
    for name, parent in suites.items():
        for key in ("tests", "failures", "errors", "skipped"):
            parent.set(key, str(counts[name][key]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{printable(text)}".encode()


def _junit_kind(result: Result) -> str:
    if result.status == VIOLATION or result.item.stale or result.item.owed:
        return "failures"
    if result.status in FAILURES:
        return "errors"
    return "passed" if result.status == CONFORMS else "skipped"


# -- list and show --------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A case in a list."""

    id: str
    group: str
    dtypes: list[str]
    steps: int
    runs: list[str]


def listed(recording: Recording) -> Listed:
    """The line of a case in a list."""
    case = recording.case
    dtypes = list(dict.fromkeys(p["dtype"] for p in case.source["params"]))
    return Listed(case.id, suite.group(case), dtypes, case.steps, list(recording.runs))


def table_of(cases: Iterable[Listed], *, names: bool) -> Table:
    """Cases as a table; of their runs the names, or the number."""
    table = _table()
    for column in ("case", "topic", "dtype", "steps", "runs"):
        justify: Any = "right" if column == "steps" or (column == "runs" and not names) else "left"
        table.add_column(column, no_wrap=column == "case", overflow="fold", justify=justify)
    for case in cases:
        runs = ", ".join(case.runs) if names else str(len(case.runs))
        table.add_row(case.id, case.group, ", ".join(case.dtypes), str(case.steps), runs)
    return table


def shown(recording: Recording, results: Iterable[Result]) -> Iterator[Any]:
    """A case with every number in decimals and in bits, its runs, and their verdicts."""
    case, source = recording.case, recording.case.source
    yield f"[bold]{case.id}[/]  {suite.group(case)} ({', '.join(case.tags)})"
    yield escape(case.comment)
    for key in ("hyper", "options", "groups", "changes", "layers"):
        if value := source.get(key):
            yield f"{key}: {escape(settings(value))}"
    yield _course(case)
    table = _columns("input", "parameter", "dtype", "values", "bits")
    for i, (values, given) in enumerate(zip(case.params, source["params"], strict=True)):
        dtype = f"{given['dtype']}{given['shape']}"
        _fill(table, "initial", i, escape(dtype), values, case.dtypes[i])
    for t in range(1, len(case.grads) + 1):
        for i, gradient in enumerate(case.gradients(t)):
            place: int | str = i
            if isinstance(gradient, Sparse):
                place, gradient = f"{i}, rows {list(gradient.indices)}", gradient.values
            _fill(table, f"gradient {t}", place, case.dtypes[i], gradient, case.dtypes[i])
    for t, layers in case.statistics.items():
        for name, arrays in layers.items():
            for quantity, x in arrays.items():
                _fill(table, f"{quantity} {t}", name, x.dtype, x.values, x.dtype)
    yield table
    for (name, run), result in zip(recording.runs.items(), results, strict=True):
        yield f"[bold]{name}[/]: {_outcome(result)}"
        if not run.error:
            yield _trajectory(case, run)


def _course(case: Case) -> str:
    """How many steps, with which gradients, and which are recorded."""
    n = len(case.grads)
    cycle = "each with gradient 1" if n == 1 else f"with gradients 1 to {n} in turn"
    if n > 1 and case.steps > n:
        cycle += f", step {n + 1} with gradient 1 again"
    record = case.source.get("record", [case.steps])
    return f"{counted(case.steps, 'step')}, {cycle}; recorded: {', '.join(map(str, record))}"


def settings(value: Any) -> str:
    """Names and values on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k}={settings(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "; ".join(settings(x) for x in value)
    return str(value)


def _columns(*names: str) -> Table:
    table = _table()
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _fill(
    table: Table, what: str, i: int | str, dtype: str, values: Values | None, real: str
) -> None:
    if values is None:
        table.add_row(what, str(i), dtype, "none", "")
    elif real not in FORMATS:  # integer counters
        table.add_row(what, str(i), dtype, "\n".join(f"{x:.0f}" for x in values), "")
    else:
        bits = "\n".join(to_bits([x], FORMATS[real]) for x in values)
        table.add_row(what, str(i), dtype, "\n".join(map(_decimal(real), values)), bits)


def _decimal(dtype: str) -> Any:
    """Enough digits to read the same value back."""
    digits = {"float16": 5, "bfloat16": 4, "float32": 9, "float64": 17}[dtype]
    return lambda x: f"{x:.{digits}g}"


def _trajectory(case: Case, run: Run) -> Table:
    table = _columns("step", "parameter", "dtype", "values", "bits")
    for t, quantities in run.steps.items():
        for quantity in suite.rule(case).OBSERVABLE:
            for i, values in enumerate(quantities.get(quantity, ())):
                dtype = run.dtypes[quantity][i]
                _fill(table, f"{t} {quantity}", i, dtype, values, dtype)
        for quantity, layers in run.factors.get(t, {}).items():
            for name, x in layers.items():
                _fill(table, f"{t} {quantity}", name, x.dtype, x.values, x.dtype)
    return table


def _outcome(result: Result) -> str:
    if result.verdict is None:
        return f"{result.status}: {escape(result.item.detail)}"
    if result.status == VIOLATION:
        return "\n".join(paragraph(result))
    axes = "; ".join(f"{axis}: {', '.join(x)}" for axis, x in result.verdict.undecided.items())
    return f"[{STYLES[result.status]}]{result.status}[/], undecided: {axes or 'nothing'}"
