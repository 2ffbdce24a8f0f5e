"""Exercises: a step to write, and hints from the oracle until it conforms.

A file is judged as any implementation is: every value must lie inside the envelope of the
documented rule. What it does otherwise is told bit by bit: the first quantity and step, then the
clause, and only on demand the equation.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import CaseError
from refopt.interp.formats import FORMATS, to_bits
from refopt.interp.notation import unicode
from refopt.oracle import golden, spec
from refopt.oracle.golden import Case, Run, Tensor
from refopt.oracle.layered import judging
from refopt.oracle.spec import RULES
from refopt.oracle.verdict import Finding
from refopt.teach.explain import occurring, symbols
from refopt.teach.runs import known

STEPS, SHAPE, ROWS = 5, (3,), 6
SECONDS = 10.0  # in which a step of a few numbers must have ended
DTYPE = "float64"


class Exercise(NamedTuple):
    """What is to be written, and the numbers that show whether it is right."""

    optimizer: str
    hyper: dict[str, float]  # sharp, so that a mistake shows
    changes: dict[int, dict[str, float]]  # step -> what is set before it
    state: dict[str, str]  # what a state shows, and the clauses that lead to it
    moves: str  # the clauses that lead on to the parameter
    shape: tuple[int, ...] = SHAPE
    layer: bool = False  # whether the step also sees what a layer saw


EXERCISES = {
    x.optimizer: x
    for x in (
        Exercise(
            "sgd",
            {"lr": 0.125, "momentum": 0.75, "dampening": 0.375, "weight_decay": 0.1875},
            {4: {"lr": 0.5}},
            {"buffer": "SGD-4.1 SGD-5.1 SGD-5.2"},
            "SGD-6.1",
        ),
        Exercise(
            "rmsprop",
            {"lr": 0.125, "rho": 0.75, "momentum": 0.625, "epsilon": 0.1875},
            {4: {"lr": 0.5}},
            {"v": "RMS-4.1", "buffer": "RMS-5.2 RMS-5.3 RMS-5.4 RMS-6.1"},
            "RMS-6.2",
        ),
        Exercise(
            "nadam",
            {
                **{"lr": 0.15625, "beta1": 0.75, "beta2": 0.875, "epsilon": 0.1875},
                **{"weight_decay": 0.0, "momentum_decay": 0.375},
            },
            {4: {"lr": 0.5}},
            {"t": "NAD-5.2", "product": "NAD-5.3 NAD-6.2", "m": "NAD-7.1", "v": "NAD-8.1"},
            "NAD-6.3 NAD-9.1 NAD-9.2 NAD-10.1 NAD-11.1 NAD-11.2 NAD-11.3",
        ),
        Exercise(
            "thor",
            {"lr": 0.125, "damping": 0.3125, "momentum": 0.75, "batch_size": 4, "frequency": 1},
            {},
            {
                **{"A": "THO-3.1 THO-3.2", "G": "THO-3.1 THO-3.2", "a_inverse": "THO-4.4 THO-5.2"},
                **{"g_inverse": "THO-4.1 THO-4.4 THO-5.2", "m": "THO-6.1 THO-8.1"},
            },
            "THO-8.1",
            (2, 3),
            layer=True,
        ),
    )
}
"""Every exercise by its optimizer."""

LEFT_OUT = {"frequency"}
"""What an exercise does not ask for: THOR's inverses are new at each step."""


# -- the file to fill in --------------------------------------------------------------------------
def text(optimizer: str, name: str) -> str:
    """The exercise of an optimizer, as the file `name`. Raises Unknown where there is none."""
    x: Exercise = known("OPTIMIZER", EXERCISES, optimizer)
    data = spec.load(optimizer)
    keywords = _keywords(x)
    sees = {"a, ds": "a, input of the layer (rows, in); d, gradient for its output (rows, out)"}
    given = {
        "param, grad": "arrays of float64",
        **(sees if x.layer else {}),
        **{keyword: _meaning(data, fields) for keyword, fields in keywords.items()},
        "state": "what you returned the step before; None at first",
    }
    signature = ["param", "grad", "state", "*", *(["a", "ds"] if x.layer else []), *keywords]
    lines = [
        f'"""Exercise: {data["title"]}.',
        "",
        "Write `step`, one step for one array. What is right is the documented rule. This says",
        "where it is wrong first, which clause it breaks, and the equation:",
        "",
        f"    refopt exercise --check {name}",
        f"    refopt exercise --check {name} --hint 2",
        f"    refopt exercise --check {name} --hint 3",
        "",
        "Arguments",
        *_listed(given),
        "",
        "Returns (param, state): the new parameter, and a dict of these as they are after the step",
        *_listed({q: _state(data, q) for q in x.state}),
        "",
        "Never write to an argument.",
        '"""',
        "",
        "import numpy as np",
        "",
        f'OPTIMIZER = "{optimizer}"',
        "",
        "",
        f"def step({', '.join(signature)}):",
        '    raise NotImplementedError("write the step")',
    ]
    return "\n".join(lines) + "\n"


def _listed(entries: Mapping[str, str]) -> list[str]:
    """Names with their meanings, in lines that are short enough."""
    found = []
    for name, meaning in entries.items():
        line = f"{name}: {meaning}"
        found += textwrap.wrap(line, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return found


def _keywords(x: Exercise) -> dict[str, list[str]]:
    """The documented keywords of a step, each with the hyperparameters that it holds."""
    described = spec.load(x.optimizer)["hyperparameters"]
    found: dict[str, list[str]] = {}
    for field in x.hyper:
        if field not in LEFT_OUT and not (field == "weight_decay" and not x.hyper[field]):
            found.setdefault(described[field]["keyword"].partition("[")[0], []).append(field)
    return found


def _meaning(data: Mapping[str, Any], fields: list[str]) -> str:
    clauses = {clause["id"]: clause["text"] for clause in data["clauses"]}
    several = [data["hyperparameters"][field] for field in fields]
    symbols = ", ".join(unicode(h["symbol"]) for h in several)
    return f"{symbols}. {' '.join(clauses[h['clause']] for h in several)}"


def _state(data: Mapping[str, Any], q: str) -> str:
    symbols = {**data["inputs"], **data["quantities"]}
    places = (f"{label}.{q}" for label in ("quantities", "scalars", "next"))
    symbol = next(symbols[place] for place in places if place in symbols)
    meaning = data["meanings"].get(symbol)
    return f"{unicode(symbol)}, {_short(meaning)}" if meaning else unicode(symbol)


def _short(meaning: str) -> str:
    """What a symbol means to a dense layer: embeddings and convolutions come after."""
    return meaning.partition(";")[0]


# -- running it -----------------------------------------------------------------------------------
class Report(NamedTuple):
    """What is known of a file."""

    optimizer: str
    checks: int  # values that were compared
    hints: tuple[str, ...]  # the next is more telling; none: it conforms
    step: int = 0
    quantity: str = ""
    clause: str = ""

    @property
    def conforms(self) -> bool:
        """Whether every value lies in the envelope of the documented rule."""
        return not self.hints


def loaded(path: Path) -> tuple[str, Callable[..., Any]]:
    """(optimizer, step) of a file. Raises CaseError where it has none."""
    found = importlib.util.spec_from_file_location("exercise", path)
    if not path.is_file():
        msg = f"FILE must be a file that exists, got {path}"
        raise CaseError(msg)
    if found is None or found.loader is None:
        msg = f"FILE must be a Python file, by its name too, got {path}"
        raise CaseError(msg)
    module = importlib.util.module_from_spec(found)
    try:
        _ended(found.loader.exec_module, path, module)
    except (Exception, SystemExit) as error:  # the student's own
        msg = f"FILE must be a Python file that can be loaded, got {path}: {_where(error, path)}"
        raise CaseError(msg) from error
    optimizer, step = getattr(module, "OPTIMIZER", None), getattr(module, "step", None)
    if optimizer not in EXERCISES or not callable(step):
        msg = (
            f"FILE must define OPTIMIZER, one of {', '.join(EXERCISES)}, and the function step; "
            f"got {optimizer!r} and {step!r}"
        )
        raise CaseError(msg)
    return optimizer, step


class Endless(Exception):
    """A function that does not end."""


def _ended(function: Callable[..., Any], path: Path, *given: Any, **more: Any) -> Any:
    """What a function of the file returns. Raises Endless where it does not."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((function(*given, **more), None))
        except BaseException as error:  # raised again below
            outcome.extend((None, error))

    # an endless loop ends with the process
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if not outcome:
        frame = sys._current_frames().get(thread.ident or 0)
        place = _place(traceback.extract_stack(frame), path)
        msg = f"does not end within {SECONDS:g} s{place}"
        raise Endless(msg)
    result, error = outcome
    if error is not None:
        raise error
    return result


def _where(error: BaseException, path: Path) -> str:
    """An error, and the last line of the file that it came through."""
    if isinstance(error, Endless):
        return str(error)
    place = _place(traceback.extract_tb(error.__traceback__), path)
    return f"raised {type(error).__name__}: {error}{place}"


def _place(stack: traceback.StackSummary, path: Path) -> str:
    """The last line of the file on a stack."""
    lines = [x.lineno for x in stack if x.filename == str(path.absolute())]
    return f" (line {lines[-1]})" if lines else ""


def case_of(x: Exercise) -> Case:
    """The case of an exercise: numbers from a seed, over three decades."""
    source, size = random.Random(x.optimizer), int(np.prod(x.shape))

    def drawn(n: int) -> list[float]:
        return [source.choice((-1, 1)) * 10 ** source.uniform(-1.5, 0.5) for _ in range(n)]

    def array(*shape: int) -> dict[str, Any]:
        values = drawn(int(np.prod(shape)))
        return {"dtype": DTYPE, "shape": [*shape], "bits": to_bits(values, FORMATS[DTYPE])}

    stated: dict[str, Any] = {
        "id": f"{x.optimizer}.exercise",
        "comment": "An exercise.",
        "tags": [],
        "hyper": {q: repr(v) for q, v in x.hyper.items()},
        "options": {},
        "params": [{"name": "fc.weight", **array(*x.shape)}],
        "steps": STEPS,
        "record": [*range(1, STEPS + 1)],
        "changes": {str(t): {q: repr(v) for q, v in new.items()} for t, new in x.changes.items()},
        "grads": [[to_bits(drawn(size), FORMATS[DTYPE])] for _ in range(STEPS)],
    }
    if x.layer:
        out, inputs = x.shape
        stated["layers"] = [{"name": "fc", "kind": "dense", "params": [0]}]
        stated["statistics"] = {
            str(t): {"fc": {"a": array(ROWS, inputs), "ds": array(ROWS, out)}}
            for t in range(1, STEPS + 1)
        }
    return golden.parse(stated)


class Wrong(Exception):
    """A step that raised, or gave something else than what it must."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step = step


def run_of(x: Exercise, case: Case, step: Callable[..., Any], path: Path) -> Run:
    """What a step does with the case of its exercise. Raises Wrong."""
    param = np.reshape(np.array(case.params[0]), x.shape)
    state: Any = None
    steps: dict[int, dict[str, Any]] = {}
    factors: dict[int, dict[str, dict[str, Tensor]]] = {}
    hyper = dict(x.hyper)
    for t in range(1, case.steps + 1):
        hyper |= x.changes.get(t, {})
        grad: Any = np.reshape(np.array(case.gradients(t)[0]), x.shape)
        given: dict[str, Any] = {
            keyword: hyper[fields[0]] if len(fields) == 1 else tuple(hyper[q] for q in fields)
            for keyword, fields in _keywords(x).items()
        }
        for q, tensor in case.statistics.get(t, {}).get("fc", {}).items():
            given[q] = np.reshape(np.array(tensor.values), tensor.shape)
        kept = [np.copy(param), np.copy(grad)]
        try:
            result = _ended(step, path, param, grad, state, **given)
        except (Exception, SystemExit) as error:  # the student's own
            raise Wrong(t, f"step {_where(error, path)}") from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise Wrong(t, f"step must return (param, state), state a dict; got {result!r:.80}")
        if not x.state.keys() <= result[1].keys():
            got = ", ".join(map(str, result[1])) or "nothing"
            raise Wrong(t, f"state must have {', '.join(x.state)}; got {got}")
        pairs = zip(kept, (param, grad), strict=True)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
            raise Wrong(t, "step must not write to its arguments")
        if not isinstance(result[0], np.ndarray):
            raise Wrong(t, f"step must return a param that is an array, got {result[0]!r:.80}")
        param, state = result
        if param.shape != x.shape or param.dtype != DTYPE:
            got = f"{param.dtype} of shape {param.shape}"
            raise Wrong(t, f"step must return a param of float64 and shape {x.shape}, got {got}")
        steps[t] = {"param": [param.ravel().tolist()]}
        for q in x.state:
            _show(t, q, state[q], x, steps, factors)
    dtypes = {q: [DTYPE] for q in (*x.state, "param")}
    return Run("exercise", steps, dtypes, factors=factors)


def _show(
    t: int,
    q: str,
    value: Any,
    x: Exercise,
    steps: dict[int, dict[str, Any]],
    factors: dict[int, dict[str, dict[str, Tensor]]],
) -> None:
    """Put a quantity of a state where a run has it. Raises Wrong where it is no such array."""
    try:
        array = np.asarray(value, DTYPE)
    except (TypeError, ValueError):
        raise Wrong(t, f"{q} must be numbers, got {value!r:.80}") from None
    kind = np.asarray(value).dtype
    if kind.kind == "f" and kind != DTYPE:
        raise Wrong(t, f"{q} must be of {DTYPE}, got {kind}")
    if q in golden.BY_LAYER:
        n = x.shape[1] if q in ("A", "a_inverse") else x.shape[0]
        if array.shape != (n, n):
            raise Wrong(t, f"{q} must have shape {(n, n)}, got {array.shape}")
        tensor = Tensor(DTYPE, array.shape, array.ravel().tolist())
        factors.setdefault(t, {})[q] = {"fc": tensor}
        return
    wanted = () if q in RULES[x.optimizer].Clock._fields else x.shape
    if array.shape != wanted:
        raise Wrong(t, f"{q} must have shape {wanted}, got {array.shape}")
    steps[t][q] = [array.ravel().tolist()]


# -- judging it -----------------------------------------------------------------------------------
def check(path: Path) -> Report:
    """Judge a file.

    Returns
    -------
    What is wrong with it, told in three hints: quantity and step; clause; equation.

    Raises
    ------
    CaseError
        It is no exercise.
    """
    optimizer, step = loaded(path)
    x = EXERCISES[optimizer]
    case = case_of(x)
    try:
        run = run_of(x, case, step, path)
    except Wrong as wrong:
        return Report(optimizer, 0, (str(wrong),), wrong.step)
    rule = RULES[optimizer]
    judge = judging(rule)(rule, case, run, rule.PROFILES["documented"])
    verdict = judge.verdict(axes=False)
    if verdict.first is None:
        return Report(optimizer, verdict.checks, ())
    return _told(x, case, run, verdict.first, verdict.checks)


def _told(x: Exercise, case: Case, run: Run, first: Finding, checks: int) -> Report:
    """The hints for a run that does not conform."""
    from refopt.oracle.mistakes import mistaken
    from refopt.oracle.search import Search

    data, rule = spec.load(x.optimizer), mistaken(x.optimizer)
    judge = judging(rule)(rule, case, run, rule.PROFILES["documented"])
    # a count that is wrong needs no explanation
    found = Search([judge], 2).found() if first.quantity != "t" else []
    possible = [changes for changes in found if all(_possible(x, *c) for c in changes)]
    # a formula says more than a number that is taken for another
    chosen = min(possible, key=lambda c: sum(axis == "given" for axis, _ in c), default=())
    changes = sorted(chosen, key=lambda c: [*rule.AXES].index(c[0]))  # as data flow
    clauses = [clause_of(x.optimizer, *c) for c in changes]
    leading = {**x.state, "param": x.moves}[first.quantity].split()
    where = f"step {first.step}, {first.quantity}"
    got = f"element {first.element} is {first.observed!r}"
    ends = "" if np.isnan(first.low) else f"; rounding allows {first.low!r} to {first.high!r}"
    texts = {c["id"]: f"{c['id']}: {c['text']}" for c in data["clauses"]}
    second = [
        f"{texts[clause]} {_yours(data, *c)}" for clause, c in zip(clauses, changes, strict=True)
    ]
    if not second:
        several = ["One of these is broken, or more:"] if len(leading) > 1 else []
        second = [*several, *(texts[id_] for id_ in leading)]
    return Report(
        x.optimizer,
        checks,
        (
            f"{where}: {got}{ends}",
            "\n".join(second),
            "\n".join(_equations(x, changes, first.quantity)),
        ),
        first.step,
        first.quantity,
        " ".join(clauses or leading),
    )


def _possible(x: Exercise, axis: str, alternative: str) -> bool:
    """Whether a step of the exercise can take an alternative: it has no other hyperparameters.

    A parameter that does not move has no rate of 0: the line is not written yet.
    """
    field, colon, _ = alternative.partition(":")
    return axis != "given" or not colon or (field in x.hyper and alternative != "lr:0")


def _yours(data: Mapping[str, Any], axis: str, alternative: str) -> str:
    """What a step does instead; of a hyperparameter from its name in a diagnosis ("rho:1-rho")."""
    named = data["axes"].get(axis, {}).get("alternatives", {}).get(alternative)
    if named:
        return f"Yours: {named['text']}."
    field, _, instead = alternative.partition(":")
    return f"Yours takes {instead} for {field}."


def clause_of(optimizer: str, axis: str, alternative: str) -> str:
    """The clause that says what is right in place of an alternative."""
    data = spec.load(optimizer)
    if alternative in data["axes"].get(axis, {}).get("alternatives", {}):
        clause: str = data["axes"][axis]["clause"]
        return clause
    stated: str = data["hyperparameters"][alternative.partition(":")[0]]["clause"]
    return stated


def _equations(x: Exercise, changes: Sequence[tuple[str, str]], quantity: str) -> Iterator[str]:
    """The documented equations of what differs, else of the quantity, and the symbols in them."""
    if quantity == "t":
        yield "t = 1 after the first step, 2 after the second"
        return
    rule, data = RULES[x.optimizer], spec.load(x.optimizer)
    documented = rule.PROFILES["documented"]
    hyper = documented.hyper._replace(**x.hyper)
    choices = rule.configured(documented.choices, hyper, {})
    lines = _undecayed(data, spec.equations(x.optimizer, choices))
    wanted: set[str] = set()
    for axis, alternative in changes:
        if alternative in rule.AXES.get(axis, {}):
            named = {axis: rule.AXES[axis][alternative]}
            other = _undecayed(data, spec.equations(x.optimizer, choices._replace(**named)))
            wanted |= {left for left, right in lines.items() if other.get(left) != right}
        else:
            symbol = data["hyperparameters"][alternative.partition(":")[0]]["symbol"]
            wanted |= {left for left, right in lines.items() if symbol in right}
    names = {left: name.rpartition(".")[2] for name, left in data["quantities"].items()}
    wanted = wanted or _leading_to(lines, names, quantity, x.state)
    shown = {left: right for left, right in lines.items() if left in wanted}
    for left, right in shown.items():
        yield f"{unicode(left)} = {unicode(right)}"
    stated = {symbol for symbol, name in names.items() if name in x.state}
    for symbol, meaning in symbols(x.optimizer, shown):
        if symbol not in stated:
            yield f"  {unicode(symbol)}: {_short(meaning)}"
    for field, described in data["hyperparameters"].items():
        if field not in x.hyper and occurring([described["symbol"]], shown):
            value = getattr(hyper, field)
            yield f"  {unicode(described['symbol'])}: {described['keyword']}, here {value:g}"


def _undecayed(data: Mapping[str, Any], lines: Mapping[str, str]) -> dict[str, str]:
    """Equations in which a parameter that does not decay has no other name."""
    p, before = data["quantities"].get("decayed.p"), data["inputs"]["param"]
    if lines.get(p) != before:
        return dict(lines)
    return {left: right.replace(p, before) for left, right in lines.items() if left != p}


def _leading_to(
    lines: Mapping[str, str], names: Mapping[str, str], quantity: str, shown: Container[str]
) -> set[str]:
    """The equations of a quantity, and what enters them from the last one that is shown."""
    before: list[str] = []
    for left in lines:
        if names[left] == quantity:
            break
        before = [] if names[left] in shown else [*before, left]
    found = {left}
    for earlier in reversed(before):
        if any(earlier in lines[later] for later in found):
            found.add(earlier)
    return found
