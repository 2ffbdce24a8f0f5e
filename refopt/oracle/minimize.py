"""The smallest input on which an implementation leaves a profile, as a program that fails.

An input is made smaller by one change at a time, as long as the implementation leaves the profile
on it: fewer steps, one parameter of one element, no options, round numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import CaseError
from refopt.interp.formats import FORMATS, from_bits, to_bits
from refopt.oracle import golden, live, rop, spec, suite
from refopt.oracle.golden import Case, Recording, Run
from refopt.oracle.layered import judging
from refopt.oracle.live import Asking
from refopt.oracle.verdict import Finding
from refopt.typing import Profile

ROUND = (0.0, 1.0, 0.5, 2.0, -1.0, 0.25)
"""Elements, the roundest first."""
PLAIN = ("0.0", "1.0", "0.5", "0.25", "0.125", "0.1", "0.9")
"""Hyperparameters, the roundest first."""

OPTIONS = {option for rule in spec.RULES.values() for option in rule.OPTIONS}

SAID = {"class", "clauses", "decisive_through", "kills", "modes", "tags"}
"""What is said of a vector, and not of an input."""

Source = dict[str, Any]
Ask = Callable[[Case], Run | None]


def start(ask: Ask, recordings: Iterable[Recording], profile: Profile) -> Case | None:
    """The vector of fewest numbers that an implementation leaves the profile on.

    One that it leaves by more than roundings comes first.
    """
    rounded: Case | None = None

    def size(recording: Recording) -> int:
        case = recording.case
        return case.steps * sum(map(len, case.params)) + len(case.options)

    for case, *_ in sorted(recordings, key=size):
        if (found := _tried(ask, case.source, profile)) is not None:
            if found.plain:
                return case
            rounded = rounded or case
    return rounded


class Smallest(NamedTuple):
    """An input, and where an implementation leaves the profile on it."""

    case: Case
    run: Run
    first: Finding

    @property
    def plain(self) -> bool:
        """Whether it shows in the first half of the digits, of float32 or of what has less."""
        x = self.first
        dtypes = {"float32", *self.case.dtypes, *self.run.dtypes.get(x.quantity, ())} & {*FORMATS}
        digits = min(FORMATS[dtype].precision for dtype in dtypes)
        away = max(x.low - x.observed, x.observed - x.high)
        largest = max(map(abs, (x.low, x.high, x.observed)))
        return not away * 2.0 ** (digits / 2) <= largest


def asker(asking: Asking, path: str = "") -> Ask:
    """What an implementation does with any case; `path`: through a release of several."""

    def ask(case: Case) -> Run | None:
        source = {"profiles": [path], **case.source} if path else case.source
        task = asking.task(Recording(case._replace(source=source), {}, {}))
        return next((item.run for item in task.items), None)

    return ask


def minimize(
    ask: Ask,
    case: Case,
    profile: Profile,
    progress: Callable[[str], None] = lambda what: None,
) -> Smallest | None:
    """The smallest input; None where the implementation conforms on `case` already.

    What shows in the leading digits remains so: else all would end at some rounding.
    """
    smallest = _tried(ask, case.source, profile)
    plain = smallest is not None and smallest.plain
    while smallest is not None:
        for source in _smaller(smallest):
            progress(f"{len(source['params'])} parameters, {source['steps']} steps")
            found = _tried(ask, source, profile)
            if found is not None and (found.plain or not plain):
                smallest = found
                break
        else:
            return smallest
    return None


def _tried(ask: Ask, source: Source, profile: Profile) -> Smallest | None:
    """Where an implementation leaves the profile at a number; None where it does not."""
    source = {key: x for key, x in source.items() if key not in SAID}
    source["comment"] = "the smallest that is known"
    source["record"] = [*range(1, source["steps"] + 1)]
    source["id"] = f"{source['id'].split('.')[0]}.smallest.case"
    try:
        case = golden.parse(source)
    except CaseError:
        return None
    run = ask(case)
    if run is None or run.error:
        return None
    rule = spec.RULES[suite.optimizer(case.id)]
    factors = {  # an inverse is judged by what it is the inverse of, which is no range
        t: {q: x for q, x in by_quantity.items() if not q.endswith("inverse")}
        for t, by_quantity in run.factors.items()
    }
    run = run._replace(factors=factors)
    first = judging(rule)(rule, case, run, profile).verdict(axes=False).first
    if first is None or math.isnan(first.low) or not math.isfinite(first.low + first.high):
        return None
    return Smallest(case, run, first)


def _smaller(smallest: Smallest) -> Iterator[Source]:
    """Inputs with one thing less, or rounder, the smallest first."""
    source, first = smallest.case.source, smallest.first
    for steps in (x for x in (1, 2, first.step) if x < source["steps"]):
        yield _with(source, steps=steps)
    layers = smallest.case.layers
    for t in range(source["steps"] if source["steps"] > 1 and not layers else 0):
        rows = [source["grads"][n % len(source["grads"])] for n in range(source["steps"])]
        yield _with(source, steps=len(rows) - 1, grads=[*rows[:t], *rows[t + 1 :]])
    for key in ("groups", "changes", "order", "finalize"):
        if source.get(key):
            yield {k: x for k, x in source.items() if k != key}
    if layers:
        yield from _smaller_net(source, first)
    elif len(source["params"]) > 1:
        for i in (first.parameter, *range(len(source["params"]))):
            yield _only(source, i)
    else:
        yield from _one_element(source, first.element)
    yield from _rounder(source)


def _with(source: Source, **changed: Any) -> Source:
    """A copy with some keys changed; what belongs to later steps is left out."""
    source = copy.deepcopy(source) | changed
    for key in ("changes", "order", "statistics"):
        if key in source:
            source[key] = {t: x for t, x in source[key].items() if int(t) <= source["steps"]}
    source["grads"] = source["grads"][: source["steps"]]
    return source


def _only(source: Source, i: int) -> Source:
    """One parameter alone."""
    source = _with(
        source, params=[source["params"][i]], grads=[[row[i]] for row in source["grads"]]
    )
    return {key: x for key, x in source.items() if key not in ("groups", "order")}


def _one_element(source: Source, j: int) -> Iterator[Source]:
    """One element of the one parameter."""
    (param,) = source["params"]
    grads = [row[0] for row in source["grads"]]
    size = math.prod(param["shape"])
    if size == 1 or not all(isinstance(g, str) for g in grads if g is not None):
        return
    digits = len(param["bits"]) // size

    def element(bits: str) -> str:
        return bits[j * digits : (j + 1) * digits]

    yield _with(
        source,
        params=[{"dtype": param["dtype"], "shape": [1], "bits": element(param["bits"])}],
        grads=[[None if g is None else element(g)] for g in grads],
    )


def _smaller_net(source: Source, first: Finding) -> Iterator[Source]:
    """One layer alone; one sample; of a dense layer the first input and output."""
    layers, seen = source["layers"], source["statistics"]
    if len(layers) > 1:
        for layer in sorted(layers, key=lambda x: first.parameter not in x["params"]):
            members = layer["params"]
            yield _with(
                source,
                layers=[{**layer, "params": [*range(len(members))]}],
                params=[source["params"][i] for i in members],
                grads=[[row[i] for i in members] for row in source["grads"]],
                statistics={
                    t: {name: x for name, x in by_layer.items() if name == layer["name"]}
                    for t, by_layer in seen.items()
                },
            )
        return

    def cut(x: Source, rows: int | None, columns: int | None) -> Source:
        dtype = x["dtype"]
        array = np.array(from_bits(x["bits"], FORMATS[dtype])).reshape(x["shape"])
        array = array[:rows] if columns is None else array[:rows, ..., :columns]
        bits = to_bits([float(value) for value in array.ravel()], FORMATS[dtype])
        return {**x, "shape": [*array.shape], "bits": bits}

    if layers[0]["kind"] != "dense":
        return
    if any(x["shape"][0] > 1 for y in seen.values() for z in y.values() for x in z.values()):
        yield _seen(_with(source), lambda x: cut(x, 1, None))
    if any(max(param["shape"]) > 1 for param in source["params"]):
        params = source["params"]
        like = [
            [{**p, "bits": g} for p, g in zip(params, row, strict=True)] for row in source["grads"]
        ]

        def one(x: Source) -> Source:
            return cut(x, 1, 1 if len(x["shape"]) > 1 else None)

        grads = [[one(g)["bits"] for g in row] for row in like]
        smaller = _with(source, params=[one(p) for p in params], grads=grads)
        yield _seen(smaller, lambda x: cut(x, None, 1))


def _rounder(source: Source) -> Iterator[Source]:
    """Numbers that are rounder: float64, options off, hyperparameters, elements."""
    optimizer = suite.optimizer(source["id"])
    dtype = source["params"][0]["dtype"]
    if dtype in FORMATS and dtype != "float64" and _dense(source):
        yield _in_double(source)
    for option, on in source.get("options", {}).items():
        if on:
            yield _with(source, options={**source["options"], option: 0})
    required = spec.RULES[optimizer].REQUIRED
    for name, value in source["hyper"].items():
        if name not in required:
            yield _with(source, hyper={k: x for k, x in source["hyper"].items() if k != name})
        for x in PLAIN[: PLAIN.index(value) if value in PLAIN else None]:
            if not isinstance(value, dict) and _allowed(optimizer, name, float(x)):
                yield _with(source, hyper={**source["hyper"], name: x})
    if dtype in FORMATS and _dense(source):
        yield from _round_elements(source, FORMATS[dtype])


def _dense(source: Source) -> bool:
    """Whether there are arrays alone, of one dtype."""
    same = len({p["dtype"] for p in source["params"]}) == 1
    return same and all(g is None or isinstance(g, str) for row in source["grads"] for g in row)


def _allowed(optimizer: str, name: str, x: float) -> bool:
    """Whether a hyperparameter may have a value."""
    described = spec.load(optimizer)["hyperparameters"].get(name, {}).get("range", {})
    if x == 0 and getattr(spec.RULES[optimizer].Hyper(), name) is None:
        return False  # a limit that is none
    low, above = float(described.get("least", 0.0)), float(described.get("above", -math.inf))
    whole = x.is_integer() or "whole" not in described
    return whole and low <= x < float(described.get("below", math.inf)) and x > above


def _in_double(source: Source) -> Source:
    old, new = FORMATS[source["params"][0]["dtype"]], FORMATS["float64"]

    def doubled(bits: str | None) -> str | None:
        return None if bits is None else to_bits(from_bits(bits, old), new)

    def typed(x: Source) -> Source:
        return {**x, "dtype": new.name, "bits": doubled(x["bits"])} if x["dtype"] == old.name else x

    grads = [[doubled(g) for g in row] for row in source["grads"]]
    return _seen(_with(source, params=[*map(typed, source["params"])], grads=grads), typed)


def _seen(source: Source, change: Callable[[Source], Source]) -> Source:
    """With every array that a layer saw changed."""
    if "statistics" not in source:
        return source
    return source | {
        "statistics": {
            t: {
                name: {q: change(x) for q, x in arrays.items()} for name, arrays in by_layer.items()
            }
            for t, by_layer in source["statistics"].items()
        }
    }


def _round_elements(source: Source, f: Any) -> Iterator[Source]:
    """Each array with one element rounder."""

    def rounder(bits: str) -> Iterator[str]:
        values = from_bits(bits, f)
        for j, value in enumerate(values):
            known = value in ROUND and str(value) != "-0.0"
            for x in ROUND[: ROUND.index(value) if known else None]:
                yield to_bits([*values[:j], x, *values[j + 1 :]], f)

    for i, param in enumerate(source["params"]):
        for bits in rounder(param["bits"]):
            params = copy.deepcopy(source["params"])
            params[i]["bits"] = bits
            yield _with(source, params=params)
    for t, row in enumerate(source["grads"]):
        for i, grad in enumerate(row):
            for bits in rounder(grad) if grad is not None else ():
                grads = copy.deepcopy(source["grads"])
                grads[t][i] = bits
                yield _with(source, grads=grads)
    for t, by_layer in source.get("statistics", {}).items():
        for name, q in ((name, q) for name, arrays in by_layer.items() for q in arrays):
            for bits in (
                rounder(by_layer[name][q]["bits"]) if by_layer[name][q]["dtype"] == f.name else ()
            ):
                changed = _with(source)
                changed["statistics"][t][name][q]["bits"] = bits
                yield changed


# -- programs -------------------------------------------------------------------------------------


def of_function(smallest: Smallest, place: str, takes: set[str], profile: str) -> str:
    """A Python program that calls a function (param, grad, state, **hyper), and fails."""
    module, name = place.split(":")
    case, first = smallest.case, smallest.first
    i, dtype = first.parameter, smallest.case.dtypes[first.parameter]
    names = rop.keywords(suite.optimizer(case.id))
    hyper = dict(case.source["hyper"])
    absent = spec.RULES[suite.optimizer(case.id)].PROFILES["documented"].hyper._asdict()
    lines = [
        f'"""{_claim(smallest, profile)}"""',
        "",
        "import sys",
        "",
        "import numpy as np",
        "",
        'sys.path.insert(0, ".")',
        f"from {module} import {name}",
        "",
        "state = None",
    ]
    if case.layers:
        values = _of_net(smallest, name, lines, takes)
        return "\n".join([*lines, *_asserted(smallest, values)])
    lines.append(f"param = {_array(case.params[i], dtype, case.shapes[i])}")
    for t in range(1, first.step + 1):
        hyper |= case.source.get("changes", {}).get(str(t), {})
        if (grad := case.gradients(t)[i]) is None:
            continue
        given = _keywords(names, absent, hyper, case.options, takes)
        lines.append(f"grad = {_array(grad, dtype, case.shapes[i])}")
        lines.append(f"param, state = {name}(param, grad, state{given})")
    value = "param" if first.quantity == "param" else f'state["{first.quantity}"]'
    return "\n".join([*lines, *_asserted(smallest, value)])


def _asserted(smallest: Smallest, values: str) -> list[str]:
    """What fails."""
    first = smallest.first
    return [
        f"got = float(np.ravel({values})[{first.element}])",
        f"assert {first.low!r} <= got <= {first.high!r}, got",
        "",
    ]


def _of_net(smallest: Smallest, name: str, lines: list[str], takes: set[str]) -> str:
    """The calls of a function of a whole net; gives the text of the array that is wrong."""
    case, _, first = smallest
    hyper, source = case.source["hyper"], case.source
    names = rop.keywords(suite.optimizer(case.id))
    absent = spec.RULES[suite.optimizer(case.id)].PROFILES["documented"].hyper._asdict()

    def arrays(columns: Any) -> str:
        each = zip(columns, case.dtypes, case.shapes, strict=True)
        return ", ".join(_array(values, dtype, shape) for values, dtype, shape in each)

    lines += [
        f"params = [{arrays(case.params)}]",
        f"layers = {source['layers']!r}",
        f"names = {[x.get('name', '') for x in source['params']]!r}",
    ]
    for t in range(1, first.step + 1):
        here = {q: x[t - 1] if isinstance(x, list) else x for q, x in hyper.items()}
        seen = [
            f"{layer!r}: {{"
            + ", ".join(f"{q!r}: {_array(x.values, x.dtype, x.shape)}" for q, x in found.items())
            + "}"
            for layer, found in case.statistics.get(t, {}).items()
        ]
        given = _keywords(names, absent, here, case.options, takes)
        lines += [
            f"grads = [{arrays(case.gradients(t))}]",
            f"statistics = {'{' + ', '.join(seen) + '}' if seen else None}",
            "net = dict(layers=layers, names=names, statistics=statistics)",
            f"params, state = {name}(params, grads, state, **net{given})",
        ]
    place = first.parameter
    if first.layer:
        place = [*smallest.run.factors[first.step][first.quantity]].index(first.layer)
    return (
        f"params[{place}]" if first.quantity == "param" else f'state["{first.quantity}"][{place}]'
    )


def _claim(smallest: Smallest, profile: str) -> str:
    first = smallest.first
    where = f"{first.quantity}[{first.element}] after step {first.step}"
    return f"By the profile {profile}, {where} lies between {first.low!r} and {first.high!r}."


def _array(values: Any, dtype: str, shape: Any) -> str:
    """The source text of an array."""
    given = [int(x) for x in values] if dtype.startswith("int") else list(values)
    text = f"np.array({given!r}, np.{dtype})"
    return text if list(shape) == [len(values)] else f"{text}.reshape({tuple(shape)!r})"


def _keywords(
    names: dict[str, str],
    absent: dict[str, Any],
    hyper: dict[str, str],
    options: dict[str, Any],
    takes: set[str],
) -> str:
    """The source text of the keyword arguments of a call."""
    values = absent | {q: int(x) if x.isdigit() else float(x) for q, x in hyper.items()}
    values |= {q: bool(options.get(q)) for q in names if q not in values and q in takes & OPTIONS}
    given: dict[str, Any] = {}
    for q, keyword in names.items():
        if q in values and q in takes:
            base = keyword.split("[")[0]
            pair = (*given.get(base, ()), values[q])
            given[base] = values[q] if base == keyword else pair
    return "".join(f", {keyword}={value!r}" for keyword, value in given.items())


def of_program(smallest: Smallest, command: list[str], profile: str) -> str:
    """A Python program that asks a program by ROP/1, and fails."""
    case, first = smallest.case, smallest.first
    ((_, parts),) = rop.questions([Recording(case, {}, {})])
    asked = [rop.hello(suite.optimizer(case.id)), *parts[0].questions[: first.step + 1]]
    asked.append({"op": "bye", "seq": asked[-1]["seq"] + 1})
    said = ["answer = json.loads(done.stdout.splitlines()[-2])  # the last is to bye"]
    return _asking(smallest, command, asked, said, profile)


def of_framework(smallest: Smallest, name: str, python: str, path: str, profile: str) -> str:
    """A Python program that runs a framework, and fails: its adapter, or what torch calls it."""
    torch = TORCH.get(name)
    if torch and path.removesuffix("-foreach") == torch.path and _called(smallest.case, torch):
        return _of_torch(smallest, torch, path, profile)
    case, first = smallest.case.source, smallest.first
    asked = [{**case, "profiles": [path], "steps": first.step, "record": [first.step]}]
    said = [
        'runs = json.loads(done.stdout.splitlines()[-1])["runs"]',
        f'answer = runs["{path}"]["steps"]["{first.step}"]',
    ]
    return _asking(smallest, live.command(name, python), asked, said, profile)


CODES = {
    **{"float16": (">e", 4), "bfloat16": (">f", 4), "float32": (">f", 8), "float64": (">d", 16)},
    **{"int32": (">i", 8), "int64": (">q", 16)},
}
"""How an element is unpacked, and its hexadecimal digits; one of bfloat16 as the half that it is
of a float32."""


def _asking(
    smallest: Smallest, command: list[str], asked: list[Any], said: list[str], profile: str
) -> str:
    """A Python program that writes lines to another and looks at an answer."""
    first, layer = smallest.first, smallest.case.layers.get(smallest.first.layer)
    place = f'answer["{first.quantity}"][{first.parameter}]'
    dtype = smallest.run.dtypes.get(first.quantity, smallest.case.dtypes)[first.parameter]
    rest = ' + "0000"' if dtype == "bfloat16" else ""
    if layer is not None:
        factors = smallest.run.factors[first.step][first.quantity]
        place = f'answer["{first.quantity}"][{[*factors].index(first.layer)}]["bits"]'
        dtype = factors[first.layer].dtype
    code, width = CODES[dtype]
    return "\n".join(
        [
            f'"""{_claim(smallest, profile)}"""',
            "",
            "import json",
            "import struct",
            "import subprocess",
            "",
            f"command = {command!r}",
            "questions = [",
            *(f"    {question!r}," for question in asked),
            "]",
            'text = "".join(json.dumps(question) + "\\n" for question in questions)',
            "keywords = dict(capture_output=True, text=True, check=True)",
            "done = subprocess.run(command, input=text, **keywords)",
            *said,
            f"bits = {place}[{first.element * width} : {(first.element + 1) * width}]{rest}",
            f'(got,) = struct.unpack("{code}", bytes.fromhex(bits))',
            f"assert {first.low!r} <= got <= {first.high!r}, got",
            "",
        ]
    )


class Torch(NamedTuple):
    """What torch calls things."""

    path: str  # the profile of its loop
    made: str
    keywords: dict[str, str]
    state: dict[str, str]


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


TORCH = {
    "torch:NAdam": Torch(
        "torch-2.13",
        "NAdam",
        {
            **{"epsilon": "eps", "beta1": "betas[0]", "beta2": "betas[1]"},
            **_same("lr", "weight_decay", "momentum_decay"),
            **_same("maximize", "decoupled_weight_decay"),
        },
        {"m": "exp_avg", "v": "exp_avg_sq", "product": "mu_product", "t": "step"},
    ),
    "torch:RMSprop": Torch(
        "torch-2.13",
        "RMSprop",
        {
            **{"rho": "alpha", "epsilon": "eps"},
            **_same("lr", "weight_decay", "momentum", "centered", "maximize"),
        },
        {"v": "square_avg", "a": "grad_avg", "buffer": "momentum_buffer", "t": "step"},
    ),
    "torch:SGD": Torch(
        "torch-2.13",
        "SGD",
        _same("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"),
        {"buffer": "momentum_buffer"},
    ),
}


def _called(case: Case, torch: Torch) -> bool:
    """Whether a few lines of torch do what a case asks."""
    asked = [case.source["hyper"], case.options, *case.source.get("changes", {}).values()]
    numbers = all(isinstance(x, str | int) for given in asked for x in given.values())
    known = {name for given in asked for name in given} <= torch.keywords.keys()
    real = case.source["params"][0]["dtype"] in FORMATS
    return (
        len(case.params) == len(case.groups) == 1
        and _dense(case.source)
        and numbers
        and known
        and real
    )


def _of_torch(smallest: Smallest, torch: Torch, path: str, profile: str) -> str:
    """A program that calls an optimizer of torch."""
    case, _, first = smallest
    on = {option for option, x in case.options.items() if x}

    def given(hyper: dict[str, str]) -> str:
        return _keywords(torch.keywords, {}, hyper, case.options, {*hyper, *on})

    def array(values: Any) -> str:
        text = f"torch.tensor({values!r}, dtype=torch.{case.dtypes[0]})"
        shape = case.shapes[0]
        return text if shape == [len(values)] else f"{text}.reshape({shape!r})"

    lines = [
        f'"""{_claim(smallest, profile)}"""',
        "",
        "import torch",
        "",
        f"param = torch.nn.Parameter({array(case.params[0])})",
        f"keywords = dict(foreach={path.endswith('-foreach')}{given(case.source['hyper'])})",
        f"optimizer = torch.optim.{torch.made}([param], **keywords)",
    ]
    for t in range(1, first.step + 1):
        if change := case.source.get("changes", {}).get(str(t)):
            lines.append(f"optimizer.param_groups[0].update({given(change)[2:]})")
        grad = case.gradients(t)[0]
        lines.append(f"param.grad = {None if grad is None else array(grad)}")
        lines.append("optimizer.step()")
    value = "param.detach()"
    if first.quantity != "param":
        value = f'optimizer.state[param]["{torch.state[first.quantity]}"]'
    lines += [
        f"got = {value}.flatten()[{first.element}].item()",
        f"assert {first.low!r} <= got <= {first.high!r}, got",
        "",
    ]
    return "\n".join(lines)
