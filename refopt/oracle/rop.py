"""`ROP/1`: any program that reads JSON Lines and answers each with one (docs/protocol.md).

What is asked never depends on what was answered. So the questions can stand in a file, and the
answers in another: `refopt gen`, the program, `refopt ver`.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from refopt.errors import AdapterError, CaseError, Misused
from refopt.interp.formats import COMPLEX, FORMATS, from_bits, to_bits
from refopt.optim.nadam import NAdam
from refopt.optim.rmsprop import RMSprop
from refopt.optim.thor import THOR
from refopt.oracle import drawn, golden, refused, spec, suite
from refopt.oracle.golden import BY_LAYER, Case, Recording, Schedule, Sparse
from refopt.oracle.live import unjudged
from refopt.oracle.own import numpy_run
from refopt.oracle.process import Failure, Process, message
from refopt.oracle.spec import RULES
from refopt.oracle.suite import BROKEN, CRASHED, LACKS, REJECTED, SKIPPED, Item, Task
from refopt.oracle.verdict import CONFORMS, VIOLATION

OBJECTS: dict[str, Any] = {"nadam": NAdam, "rmsprop": RMSprop, "thor": THOR}
"""Where what is documented is an object of this package."""

MANY, LONGEST = 10_000, 2**19  # questions, and characters of an answer in a file, that are kept
NAME, REASON = 200, 2000  # characters of a name, and of a reason, that are kept
SEED = re.compile(r"[0-9]{1,18}").fullmatch
HELLO_SECONDS = 120.0  # until the program has started
KINDS = (
    *("invalid-hyperparameter", "shape-mismatch", "dtype-mismatch"),
    *("missing-gradient", "missing-statistics", "state-mismatch", "non-finite"),
)
"""Why a program may reject a case."""
IDLE = ("split_dim",)
"""Hyperparameters that vectors state, and the documented optimizer does not use."""

Message = dict[str, Any]
Ask = Callable[[Message], Message]


class Lacking(Exception):
    """A case that a program rejects, or says it cannot do."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


# -- questions ------------------------------------------------------------------------------------


def vectors(optimizer: str) -> list[Recording]:
    """The vectors of an optimizer, every step of each asked for."""
    found = golden.recordings(optimizer, golden.root() / "vectors")
    return [r._replace(case=_every_step(r.case)) for r in found]


def _every_step(case: Case) -> Case:
    """What a vector excludes is no promise of what a program shows: without `kills`."""
    source = {key: x for key, x in case.source.items() if key != "kills"}
    return case._replace(source=source | {"record": [*range(1, case.steps + 1)]})


def words(optimizer: str) -> list[str]:
    """What a program may say it takes."""
    rule = RULES[optimizer]
    dtypes = [*FORMATS, *COMPLEX]
    extras = ["several", "missing", "rejects"]
    extras += ["schedule", *rule.KINDS] if hasattr(rule, "Layer") else ["set_state"]
    extras += ["sparse"] if hasattr(rule, "Rows") else []
    extras += ["schedule", "order"] if hasattr(rule, "scheduled") else []
    return [*dtypes, *extras, *rule.Hyper._fields, *rule.OPTIONS]


def plain(optimizer: str) -> set[str]:
    """What a program takes that knows nothing beyond the plain optimizer."""
    rule = RULES[optimizer]
    found = {"float32", "float64", "several", "missing", *rule.REQUIRED}
    if hasattr(rule, "Layer"):
        found |= {rule.DENSE, *(name for name, x in rule.Hyper()._asdict().items() if x)}
    return found


def needs(case: Case) -> set[str]:
    """What a program must take to run a case: hyperparameters that are not 0, and what is more."""
    given = [case.hyper, *(overrides for _, overrides in case.groups), *case.changes.values()]
    found = {name for hyper in given for name, x in hyper.items() if x != 0}
    found |= {name for name, on in case.options.items() if on}
    found |= {layer.kind for layer in case.layers.values()}
    found |= {p["dtype"] for p in case.source["params"]}
    found |= {*case.source["hyper"]} if refused.must(case) else set()
    found -= {*IDLE}
    values = [*case.hyper.values(), *case.source["hyper"].values()]
    arrays = [grad for row in case.grads for grad in row]
    return found | {
        word
        for word, needed in {
            "several": len(case.params) > 1,
            "missing": None in arrays,
            "sparse": any(isinstance(grad, Sparse) for grad in arrays),
            "schedule": any(isinstance(x, Schedule | list) for x in values),
            "groups": bool(case.layers) and len(case.groups) > 1,
            "order": bool(case.orders),
            "rejects": refused.must(case),
        }.items()
        if needed
    }


def drawn_for(optimizer: str, seed: int, takes: set[str]) -> list[Recording]:
    """Cases drawn for what a program takes."""
    cases = drawn.asked(optimizer, seed, lambda case: needs(case) <= takes, takes)
    return [Recording(case, {}, {}) for case in cases]


def drawn_for_file(optimizer: str, seed: int | None) -> list[Recording]:
    """Cases drawn before it is known what a program takes: the plainest, and any."""
    if seed is None:
        return []
    takes = (plain(optimizer), {*words(optimizer)} - {*COMPLEX, "float16", "bfloat16"})
    found = [r for words_ in takes for r in drawn_for(optimizer, seed, words_)]
    return [*{r.case.id: r for r in found}.values()]


def hello(optimizer: str, seed: int | None = None) -> Message:
    """The first question; a seed of what is drawn stands behind the version of the suite."""
    return {
        "op": "hello",
        "seq": 0,
        "rop": 1,
        "optimizer": optimizer,
        "suite": suite.version() + ("" if seed is None else f"-{seed}"),
    }


class Part(NamedTuple):
    """The questions of one group of a case: a program is asked for each group as for a case."""

    members: list[int]  # parameters, by number
    questions: list[Message]  # the case, then its steps


def questions(
    found: Iterable[Recording], *, settable: bool = False
) -> Iterator[tuple[Recording, list[Part]]]:
    """What is asked of each case, numbered throughout; `settable`: with states to be set."""
    seq = 1
    for recording in found:
        case = recording.case
        states = _states(case) if settable and not refused.must(case) else {}
        last = 0 if refused.must(case) else case.steps
        parts = []
        for members, asked in _groups(case):
            numbered = []
            for question in asked:
                numbered.append({"op": question["op"], "seq": seq} | question)
                seq += 1
                if 1 <= (t := question.get("t", 0)) < last:
                    if columns := states.get(t + 1):
                        state = {q: [column[i] for i in members] for q, column in columns.items()}
                        numbered.append({"op": "set_state", "seq": seq} | state)
                    seq += 1  # kept where no state is set
            parts.append(Part(members, numbered))
        yield recording, parts


def _states(case: Case) -> dict[int, dict[str, list[Any]]]:
    """The state to be set before each step but the first, as bits.

    What the documented rule has there, the elements of each array in reverse: no answer to what is
    asked, and of the same size.
    """
    run = numpy_run(case, RULES[suite.optimizer(case.id)].PROFILES["documented"])
    double = FORMATS["float64"]

    def bits(q: str, i: int, values: golden.Values | None) -> str | None:
        if values is None:
            return None
        f = FORMATS[case.dtypes[i]] if q in (*_ARRAYS, "param") else double
        return to_bits(values[::-1], f)

    return {
        t + 1: {q: [bits(q, i, x) for i, x in enumerate(column)] for q, column in step.items()}
        for t, step in run.steps.items()
        if t < case.steps
    }


_ARRAYS = {q for name in RULES for q in RULES[name].State._fields}


def _groups(case: Case) -> Iterator[tuple[list[int], list[Message]]]:
    """The groups of a case; of one that must be refused those of its repair as well, last."""
    yield from _asked(case, case.source)
    if refused.must(case):
        yield from _asked(case, case.source | case.source["repair"])


def _asked(case: Case, source: dict[str, Any]) -> Iterator[tuple[list[int], list[Message]]]:
    groups = source.get("groups", [{"params": [*range(len(case.params))]}])
    changes, orders = source.get("changes", {}), source.get("order", {})
    seen = source.get("statistics", {})
    for group in groups:
        members = group["params"]
        first = {
            "op": "case",
            "id": case.id,
            "dtype": source["params"][members[0]]["dtype"],
            "shapes": [source["params"][i]["shape"] for i in members],
            "hyper": source["hyper"] | group.get("hyper", {}),
            "options": source.get("options", {}),
            "params": [source["params"][i]["bits"] for i in members],
        }
        if case.layers:
            names = [source["params"][i].get("name", "") for i in members]
            first |= {"layers": source["layers"], "names": names}
        steps = []
        for t in range(1, case.steps + 1):
            grads = source["grads"][(t - 1) % len(source["grads"])]
            step = {"op": "step", "t": t, "grads": [grads[i] for i in members]}
            step |= {"hyper": changes[str(t)]} if str(t) in changes else {}
            step |= {"order": orders[str(t)]} if str(t) in orders else {}
            step |= {"statistics": seen[str(t)]} if str(t) in seen else {}
            steps.append(step)
        yield members, [first, *steps]


def generate(
    optimizer: str, pattern: str, takes: set[str], seed: int | None = None
) -> Iterator[Message]:
    """All questions to a program that takes this, in the order of a file.

    `seed`: of the cases that are drawn beside the vectors; None: none is.
    """
    yield hello(optimizer, seed)
    last = 0
    found = [*vectors(optimizer), *drawn_for_file(optimizer, seed)]
    for recording, parts in questions(found, settable="set_state" in takes):
        last = parts[-1].questions[-1]["seq"]
        if fnmatchcase(recording.case.id, pattern) and needs(recording.case) <= takes:
            for part in parts:
                yield from part.questions
    yield {"op": "bye", "seq": last + 1}


# -- answers --------------------------------------------------------------------------------------


class Spoken(NamedTuple):
    """What a program says of itself."""

    name: str
    version: str
    takes: set[str]
    notes: tuple[str, ...] = ()


def spoken(answer: Message, optimizer: str) -> Spoken:
    """The answer to hello. Raises Failure where it is none."""
    name, version = answer.get("name"), answer.get("version")
    takes, known = answer.get("takes"), words(optimizer)
    if answer.get("rop") != 1 or not isinstance(name, str) or not isinstance(version, str):
        raise Failure(BROKEN, f"hello: rop 1, name and version are required, got {answer!r:.200}")
    if not (name + version).isprintable() or len(name + version) > NAME:
        wanted = f"name and version must be one line, of {NAME} characters together"
        raise Failure(BROKEN, f"hello: {wanted}, got {name!r:.80}, {version!r:.80}")
    if (got := answer.get("optimizer")) != optimizer:
        raise Failure(BROKEN, f"hello: optimizer must be {optimizer!r}, as asked, got {got!r:.80}")
    if not isinstance(takes, list) or any(word not in known for word in takes):
        raise Failure(BROKEN, f"hello: takes must list some of {', '.join(known)}, got {takes!r}")
    notes = answer.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise Failure(BROKEN, f"hello: notes must be a list of texts, got {notes!r:.200}")
    return Spoken(name, version, {*takes}, tuple(note[:REASON] for note in notes))


def notes(program: Spoken, optimizer: str) -> Iterator[str]:
    """What to know before what comes of a program is read."""
    for note in program.notes:
        yield f"{program.name}: {note}"
    described, rule = spec.load(optimizer)["hyperparameters"], RULES[optimizer]
    wanted = [needs(r.case) - program.takes for r in vectors(optimizer)]
    for name in rule.REQUIRED:
        default = described[name].get("default")
        alone = sum(lacks == {name} for lacks in wanted)
        if default and alone and name not in program.takes:
            asked = wanted.count(set())
            yield (
                f"{program.name} does not take {described[name]['keyword']}, which is {default:g} "
                f"by default: it is asked {asked} of {asked + alone} vectors, where that is 0"
            )


def items(
    program: Spoken, recording: Recording, parts: list[Part], ask: Ask, profile: str | None
) -> tuple[Item, ...]:
    """What a program does with a case."""
    known = f"{program.name} {program.version}"
    if lacks := sorted(needs(recording.case) - program.takes):
        return (_unjudged(program, profile, SKIPPED, LACKS + ", ".join(lacks)),)
    if refused.must(recording.case):
        return (_unjudged(program, profile, *_refusal(program, recording.case, parts, ask)),)
    try:
        source = _run(program, recording.case, parts, ask)
        wrong = source.pop("violation")
        run = golden.parse_run(recording.case, program.name, {program.name: source})
    except Lacking as lacking:
        item = _unjudged(program, profile, lacking.status, lacking.detail)
        owed = lacking.status in (SKIPPED, REJECTED) and _owed(recording.case)
        return (item._replace(owed=owed),)
    except CaseError as error:
        raise Failure(BROKEN, str(error)) from None
    run = run._replace(before=_set(recording.case, parts))
    item = Item(known, program.name, profile or "documented", run, together=True, wrong=wrong)
    return (item._replace(axes=drawn.parsed(recording.case.id) is None),)


def _owed(case: Case) -> bool:
    """Whether its values are owed by whoever takes what it needs."""
    return case.source.get("class") == golden.MUST


def _set(case: Case, parts: list[Part]) -> dict[int, dict[str, list[Any]]]:
    """What the state was set to before each step."""
    found: dict[int, dict[str, list[Any]]] = {}
    for members, asked in parts:
        for question, then in pairwise(asked):
            state = question.items() if question["op"] == "set_state" else ()
            for q, column in ((q, x) for q, x in state if q not in ("op", "seq")):
                for i, bits in zip(members, column, strict=True):
                    f = FORMATS[case.dtypes[i] if q in (*_ARRAYS, "param") else "float64"]
                    columns = found.setdefault(then["t"], {})
                    values = None if bits is None else from_bits(bits, f)
                    columns.setdefault(q, [None] * len(case.params))[i] = values
    return found


def _refusal(program: Spoken, case: Case, parts: list[Part], ask: Ask) -> tuple[str, str]:
    """(status, why) of a case that must be refused, and of its repair, which must not be."""
    kind, half = case.source["kind"], len(parts) // 2
    try:
        _run(program, case, parts[:half], ask)
        return VIOLATION, f"accepts what must be refused: {kind}"
    except Lacking as lacking:
        if lacking.status != REJECTED:
            return lacking.status, lacking.detail
        if not lacking.detail.startswith(f"{kind}:"):
            return VIOLATION, f"refuses with {lacking.detail}, which is no {kind}"
    try:
        _run(program, case, parts[half:], ask)
    except Lacking as lacking:
        wrong = lacking.status == REJECTED
        why = f"refuses what is right: {lacking.detail}" if wrong else lacking.detail
        return VIOLATION if wrong else lacking.status, why
    return CONFORMS, ""


def _unjudged(program: Spoken, profile: str | None, status: str, detail: str) -> Item:
    known = f"{program.name} {program.version}"
    return unjudged(known, profile, status, detail)._replace(name=program.name, together=True)


def _run(program: Spoken, case: Case, parts: list[Part], ask: Ask) -> dict[str, Any]:
    """The run of a case as a recording has it."""
    rule = RULES[suite.optimizer(case.id)]
    dtypes = {q: "float64" for q in (*rule.Clock._fields, "lr") if q in rule.OBSERVABLE}
    factored = sum(layer.kind in rule.FACTORED for layer in case.layers.values())
    steps: dict[str, dict[str, list[Any]]] = {str(t): {} for t in range(1, case.steps + 1)}
    wrong = ""
    for members, (first, *rest) in parts:
        _accepted(ask(first), first)
        for question in rest:
            answer = dict(_accepted(ask(question), question))
            if question["op"] == "set_state":
                continue
            stated = answer.pop("dtypes", {})
            if not isinstance(stated, dict):
                _refuse(case, question, f"dtypes must be an object, got {stated!r:.80}")
            dtypes |= stated
            wrong = str(answer.pop("violation", ""))[:REASON] or wrong
            del answer["seq"]
            if "param" not in answer:
                _refuse(case, question, f"param is required, got {answer!r:.200}")
            for q, values in answer.items():
                if q not in rule.OBSERVABLE:
                    known = ", ".join(rule.OBSERVABLE)
                    _refuse(case, question, f"what is shown must be among {known}; got {q!r:.80}")
                by_layer = q in BY_LAYER and bool(case.layers)
                size = factored if by_layer else len(members)
                if not isinstance(values, list) or len(values) != size:
                    _refuse(case, question, f"{q} must list {size}, got {values!r:.80}")
                if by_layer:
                    steps[str(question["t"])][q] = values
                    continue
                column = steps[str(question["t"])].setdefault(q, [None] * len(case.params))
                for i, value in zip(members, values, strict=True):
                    column[i] = value
    return {"dtypes": dtypes, "steps": steps, "violation": wrong}


def _refuse(case: Case, question: Message, why: str) -> NoReturn:
    raise Failure(BROKEN, f"{case.id}, step {question['t']}: {why}")


def _accepted(answer: Message, question: Message) -> Message:
    """An answer that is one to this question, and no refusal."""
    if type(answer.get("seq")) is not int or answer["seq"] != question["seq"]:
        raise Failure(BROKEN, f"seq {question['seq']} is required, got {answer!r:.200}")
    if "skipped" in answer:
        raise Lacking(SKIPPED, str(answer["skipped"])[:REASON])
    if "rejected" in answer:
        why = answer["rejected"]
        if not isinstance(why, dict) or why.get("kind") not in KINDS:
            raise Failure(BROKEN, f"a kind of {', '.join(KINDS)} is required, got {why!r:.200}")
        raise Lacking(REJECTED, f"{why['kind']}: {why.get('message', '')}"[:REASON])
    if "usage" in answer and question["op"] == "hello":
        raise Misused(str(answer["usage"])[:REASON])
    if "error" in answer:
        raise Lacking(CRASHED, str(answer["error"])[:REASON])
    return answer


def keywords(optimizer: str) -> dict[str, str]:
    """The documented keyword of each hyperparameter and option: `betas[0]` for `beta1`."""
    described = spec.load(optimizer)["hyperparameters"]
    options = RULES[optimizer].OPTIONS
    if optimizer in OBJECTS:
        documented = inspect.signature(OBJECTS[optimizer]).parameters
        options = [option for option in options if option in documented]
    return {name: x["keyword"] for name, x in described.items()} | {o: o for o in options}


def alike(optimizer: str) -> dict[str, str]:
    """The keyword for what vectors, or other optimizers, call it: `eps` for `epsilon`."""
    mine = {name: keyword.partition("[")[0] for name, keyword in keywords(optimizer).items()}
    others = {keyword: name for of in RULES for name, keyword in keywords(of).items()}
    return {keyword: mine[name] for keyword, name in others.items() if name in mine} | mine


def function(place: str, optimizer: str, python: str, path: Iterable[str] = ()) -> list[str]:
    """The command that runs a plain function by the protocol.

    `path`: folders where its module may be, after the present one; those of PYTHONPATH come last.
    They are given as an argument: in the environment they would be those of the interpreter too,
    and what stands there would replace what is pinned.
    """
    path = [*path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    rule, named = RULES[optimizer], keywords(optimizer)
    counters = [q for q in rule.OBSERVABLE if q in rule.Clock._fields]
    factors = BY_LAYER if hasattr(rule, "Layer") else ()
    arrays = {*rule.State._fields, *(rule.Quantities._fields if factors else ())} - {*factors}
    known = {
        "documented": named,
        "alike": alike(optimizer),
        "path": [*dict.fromkeys(map(os.path.abspath, path))],
        "others": [n for n in (*rule.Hyper._fields, *rule.OPTIONS) if n not in named],
        "absent": rule.PROFILES["documented"].hyper._asdict(),
        "options": rule.OPTIONS,
        "arrays": [q for q in rule.OBSERVABLE if q in arrays - {"param"}],
        "numbers": counters,
        "factors": factors,
        "kinds": [*rule.KINDS] if factors else [],
        "factored": [*rule.FACTORED] if factors else [],
    }
    adapter = golden.root() / "adapters" / "function.py"
    return [python, str(adapter), place, json.dumps(known)]


class Program(Process):
    """A program that runs."""

    def __init__(self, command: list[str], optimizer: str, seconds: float) -> None:
        super().__init__(command)
        self._seconds, self.optimizer = seconds, optimizer
        try:
            question = hello(optimizer)
            answer = _accepted(self.ask(question, HELLO_SECONDS), question)
            self.spoken = spoken(answer, optimizer)
        except Lacking as lacking:  # of what it is asked first it has no other opinion later
            self.close()
            msg = f"{lacking.status}: hello: {lacking.detail}"
            raise AdapterError(msg) from None
        except BaseException:
            self.close()
            raise
        self.known = f"{self.spoken.name} {self.spoken.version}"
        self._settable = "set_state" in self.spoken.takes
        asked = questions(vectors(optimizer), settable=self._settable)
        self._parts = {r.case.id: parts for r, parts in asked}

    def items(self, recording: Recording, profile: str | None) -> tuple[Item, ...]:
        """What it does with a case, of the suite or not."""
        parts = self._parts.get(recording.case.id)
        if parts is None:
            ((_, parts),) = questions([recording], settable=self._settable)
        return items(self.spoken, recording, parts, self._asked, profile)

    def drawn(self, seed: int) -> list[Recording]:
        """Cases drawn for what it takes."""
        return drawn_for(self.optimizer, seed, self.spoken.takes)

    def _asked(self, question: Message) -> Message:
        return self.ask(question, self._seconds)


class Answers:
    """A file of answers. Raises CaseError where it has none to hello, or to another suite."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._found: dict[int, Message] = {}
        self._outside: list[str] = []  # the first line outside the protocol
        for n, line in enumerate(lines, 1):
            try:
                answer = message(line) if len(line) <= LONGEST else {}
            except Failure as failure:
                self._outside = self._outside or [f"line {n}: {failure.detail}"]
                continue
            seq = answer.get("seq")
            if type(seq) is not int or not 0 <= seq <= MANY or seq in self._found:
                why = f"line {n}: a seq of its own is required, got {line!r:.200}"
                self._outside = self._outside or [why]
            else:
                self._found[seq] = answer
        first = self._found.get(0, {})
        optimizer = first.get("optimizer")
        if not isinstance(optimizer, str) or optimizer not in RULES:
            wanted = f"an answer to hello (seq 0, optimizer one of {', '.join(RULES)})"
            msg = f"{wanted} is required, got {first!r:.200}"
            raise CaseError("; ".join([msg, *self._outside[:1]]))
        version, _, seed = str(first.get("suite")).partition("-")
        if version != suite.version() or (seed and not SEED(seed)):
            wanted = (
                f"hello must repeat the suite of the questions, {suite.version()} of this refopt"
            )
            msg = f"{wanted}; got {first.get('suite')!r:.80}"
            raise CaseError(msg)
        self.seed = int(seed) if seed else None
        try:
            self._spoken = spoken(first, optimizer)
        except Failure as failure:
            raise CaseError(failure.detail) from None
        found = [*vectors(optimizer), *drawn_for_file(optimizer, self.seed)]
        self._asked = [*questions(found, settable="set_state" in self._spoken.takes)]
        self._bye = self._asked[-1][1][-1].questions[-1]["seq"] + 1
        if not any(q["seq"] in self._found for q in self._questions("set_state")):
            self._asked = [*questions(found)]  # it takes more than was asked

    def _questions(self, op: str) -> Iterator[Message]:
        parts = (part for _, parts in self._asked for part in parts)
        return (q for part in parts for q in part.questions if q["op"] == op)

    def tasks(self, pattern: str, profile: str | None) -> Iterator[Task]:
        """The cases that were answered, and the first that was not where the answers end early."""
        ended = self._bye in self._found
        for recording, parts in self._asked:
            seqs = [q["seq"] for part in parts for q in part.questions]
            taken = needs(recording.case) <= self._spoken.takes
            cut = not ended and taken and seqs[-1] not in self._found
            ended = ended or cut
            answered = cut or any(seq in self._found for seq in seqs)
            if answered and fnmatchcase(recording.case.id, pattern):
                try:
                    done = items(self._spoken, recording, parts, self._answer, profile)
                except Failure as failure:
                    detail = "; ".join([failure.detail, *self._outside[:1]])
                    done = (_unjudged(self._spoken, profile, failure.status, detail),)
                yield Task(recording.case, done)

    def _answer(self, question: Message) -> Message:
        if question["seq"] not in self._found:
            raise Failure(BROKEN, f"no answer has seq {question['seq']}")
        return self._found[question["seq"]]
