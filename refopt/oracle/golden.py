"""Golden recordings (`refopt-golden/1`): what real releases produced, as typed values."""

from __future__ import annotations

import array
import inspect
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from refopt.errors import CaseError
from refopt.interp.formats import COMPLEX, FORMATS, from_bits
from refopt.oracle.spec import RULES
from refopt.rules.schedules import SCHEDULES

MUST, MUST_REJECT = "must", "must-reject"
"""Classes of vectors: of one the values are owed, the other must be refused and has no runs."""

FORMATS_READ = ("refopt-golden/1", "refopt-vectors/1")

Values = list[float]  # exact values of one array, flat; complex as pairs


class Sparse(NamedTuple):
    """A gradient of some rows of a parameter's first axis, which may repeat."""

    values: Values
    indices: tuple[int, ...]


class Tensor(NamedTuple):
    """An array that says itself what it is."""

    dtype: str
    shape: tuple[int, ...]
    values: Values


class Schedule(NamedTuple):
    """A learning rate that is a schedule: its name and what it was made with."""

    name: str
    config: dict[str, Any]


Gradient = Values | Sparse | None


class Case(NamedTuple):
    """The input of one run; hyperparameters by name, gradients by step."""

    id: str
    comment: str
    tags: list[str]
    hyper: dict[str, Any]  # float, (value, dtype) for a tensor, or a Schedule
    options: dict[str, int]
    groups: list[tuple[list[int], dict[str, Any]]]  # (parameters, overrides)
    changes: dict[int, dict[str, Any]]  # step -> hyperparameters set just before it
    dtypes: list[str]  # dtype of each parameter's real parts
    shapes: list[list[int]]
    params: list[Values]
    steps: int
    grads: list[list[Gradient]]  # cycled
    source: dict[str, Any]  # the JSON object itself
    orders: dict[int, list[int]] = {}  # noqa: RUF012  # step -> in which order parameters are given
    layers: dict[str, Any] = {}  # noqa: RUF012  # by name, the rule's `Layer` of each
    # step that refreshes -> layer -> quantity: "a" and "ds", or "A", "G" and their normalizers
    statistics: dict[int, dict[str, dict[str, Tensor]]] = {}  # noqa: RUF012

    def gradients(self, t: int) -> list[Gradient]:
        """The gradients of step `t`, from 1; one entry a parameter."""
        return self.grads[(t - 1) % len(self.grads)]


class Run(NamedTuple):
    """What one implementation did with a case."""

    profile: str
    steps: dict[int, dict[str, list[Values | None]]]  # step -> quantity -> parameter -> values
    dtypes: dict[str, list[str]]  # quantity -> dtype for each parameter
    error: dict[str, str] | None = None
    finalized: list[Values | None] | None = None  # parameters after finalize_variable_values
    # step that refreshes -> quantity -> layer with factors -> array
    factors: dict[int, dict[str, dict[str, Tensor]]] = {}  # noqa: RUF012
    # step -> quantity -> parameter -> values that the state was set to before it
    before: dict[int, dict[str, list[Values | None]]] = {}  # noqa: RUF012


class Recording(NamedTuple):
    """A case with its runs, and where it came from."""

    case: Case
    runs: dict[str, Run]
    provenance: dict[str, Any]


def root() -> Path:
    """The folder `conformance`: in place in a checkout, else inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "conformance", package / "_data" / "conformance"):
        if folder.is_dir():
            return folder
    msg = "the conformance suite is missing: reinstall refopt, or run from a checkout"
    raise CaseError(msg)


def recordings(optimizer: str = "nadam", folder: Path | None = None) -> Iterator[Recording]:
    """Every recording of an optimizer, file by file."""
    for path in sorted(((folder or root() / "golden") / optimizer).glob("*.json")):
        yield from load(path)


class Deviation(NamedTuple):
    """Where a run first leaves its profile, and why."""

    step: int
    quantity: str
    reason: str


def expected() -> dict[tuple[str, str], Deviation]:
    """Runs that no profile explains, as (case, run)."""
    document = tomllib.loads((root() / "expected.toml").read_text(encoding="utf-8"))
    if document.get("format") != "refopt-expected/1":
        msg = f"expected.toml: format must be 'refopt-expected/1', got {document.get('format')!r}"
        raise CaseError(msg)
    return {
        (d["case"], d["run"]): Deviation(d["step"], d["quantity"], " ".join(why))
        for d in document["deviation"]
        for why in [filter(None, [d["reason"], d.get("link")])]
    }


def retired() -> dict[str, str]:
    """The ids that no vector may have any more, and why."""
    document = json.loads((root() / "vectors" / "retired.json").read_text(encoding="utf-8"))
    return {entry["id"]: entry["reason"] for entry in document["retired"]}


def load(path: Path) -> Iterator[Recording]:
    """The recordings of one file. Raises CaseError where it is malformed."""
    beside = path.with_suffix(".safetensors")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        tensors = _tensors(beside.read_bytes()) if beside.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path}: a JSON file of format refopt-golden/1 is required: {error}"
        raise CaseError(msg) from None
    seen: set[str] = set()
    try:
        optimizer, provenance, cases = _document(_resolved(document, tensors))
        for source in cases:
            refused = isinstance(source, dict) and source.get("class") == MUST_REJECT
            case = _refused(source) if refused else parse(source)
            if case.id.partition(".")[0] != optimizer:
                _refuse(
                    f"case {case.id!r}: the id must begin with '{optimizer}.', as the file says"
                )
            if case.id in seen:
                _refuse(f"case {case.id!r}: an id must occur once")
            seen.add(case.id)
            runs = source.get("runs")
            if refused:
                yield Recording(case, {}, provenance)
                continue
            if not isinstance(runs, dict) or not runs:
                _refuse(f"case {case.id!r}: runs must be an object of one run or more", runs)
            yield Recording(case, {name: parse_run(case, name, runs) for name in runs}, provenance)
    except (CaseError, RecursionError) as error:
        msg = f"{path}: {error}"
        raise CaseError(msg) from error.__cause__


def _document(source: Any) -> tuple[str, dict[str, Any], list[Any]]:
    """(optimizer, provenance, cases) of a file."""
    if not isinstance(source, dict) or source.get("format") not in FORMATS_READ:
        got = source.get("format") if isinstance(source, dict) else source
        _refuse(f"format must be one of {', '.join(FORMATS_READ)}", got)
    optimizer, provenance = source.get("optimizer"), source.get("provenance")
    if not isinstance(optimizer, str) or optimizer not in RULES:
        _refuse(f"optimizer must be one of {', '.join(RULES)}", optimizer)
    made = source["format"] == "refopt-vectors/1"
    wanted = ["arithmetic"] if made else ["framework", "version"]
    if not isinstance(provenance, dict) or not all(
        isinstance(provenance.get(key), str) for key in wanted
    ):
        _refuse(f"provenance must be an object with the texts {', '.join(wanted)}", provenance)
    cases = source.get("cases")
    if not isinstance(cases, list) or not cases:
        _refuse("cases must be a list of one case or more", cases)
    return optimizer, provenance, cases


def _tensors(content: bytes) -> dict[str, str]:
    """The bits of each array of a safetensors file, which is little-endian."""
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    try:
        for key, entry in json.loads(content[8:start]).items():
            first, last = entry["data_offsets"]
            elements = array.array(_CODES[entry["dtype"]], content[start + first : start + last])
            elements.byteswap()
            found[key] = elements.tobytes().hex()
    except (AttributeError, LookupError, TypeError) as error:
        msg = f"the safetensors beside it are malformed: {error!r}"
        raise ValueError(msg) from None
    return found


_CODES = {"F16": "H", "F32": "I", "I32": "I"}


def _resolved(source: Any, tensors: dict[str, str]) -> Any:
    """A document with the bits of every array in place."""
    if isinstance(source, list):
        return [_resolved(x, tensors) for x in source]
    if not isinstance(source, dict):
        return source
    if [*source] == ["tensor"]:
        if source["tensor"] not in [*tensors]:
            _refuse("a tensor must be one of the safetensors beside the file", source["tensor"])
        return tensors[source["tensor"]]
    return {key: _resolved(x, tensors) for key, x in source.items()}


KEYS = {
    *("id", "comment", "tags", "hyper", "options", "groups", "changes", "params", "steps"),
    *("record", "grads", "runs", "profiles", "order", "finalize", "mesh", "clauses", "kills"),
    *("class", "decisive_through", "modes", "kind", "repair"),
}
"""What a case may say; anything else would be passed over."""

LAYERED = {"layers", "data", "statistics"}
"""What else a case may say of an optimizer that has layers."""

BY_LAYER = ("A", "G", "a_inverse", "g_inverse", "scale")
"""What such an optimizer has of each layer with factors, on steps that refresh."""


def parse(source: dict[str, Any]) -> Case:
    """A case from its JSON object. Raises CaseError where it is malformed."""
    try:
        return _case(source)
    except (CaseError, RecursionError) as error:
        named = source.get("id") if isinstance(source, dict) else source
        msg = f"case {named!r:.80}: {error}"
        raise CaseError(msg) from error.__cause__


def _case(source: Any) -> Case:
    id, comment = _get(source, "id", str), _get(source, "comment", str)
    if (rule := RULES.get(id.partition(".")[0])) is None or "." not in id:
        _refuse(f"the id must begin with one of {', '.join(RULES)} and a dot", id)
    if not ID(id):
        _refuse("an id must be of letters, digits, - and _ between dots, at most 200", id)
    _named(source, KEYS | LAYERED if hasattr(rule, "Layer") else KEYS, "keys of a case")
    given, steps = _get(source, "params", list), _get(source, "steps", int)
    if not 1 <= steps <= STEPS or not given:
        _refuse(f"from 1 to {STEPS} steps and a parameter are required", steps, given)
    dtypes, shapes, params = zip(*map(_parameter, given), strict=True)
    everything = list(range(len(given)))
    hyper = _hyper(rule, _get(source, "hyper", dict))
    if missing := [name for name in rule.REQUIRED if name not in hyper]:
        _refuse(f"hyper: {', '.join(missing)} must be stated", *hyper)
    options = _get(source, "options", dict, {})
    _named(options, rule.OPTIONS, "options")
    for name, value in options.items():
        if type(value) is not int or value not in (0, 1):
            _refuse(f"option {name} must be 0 or 1", value)
    groups = [
        (_indices(_get(g, "params", list), "params of a group"), _get(g, "hyper", dict, {}))
        for g in _get(source, "groups", list, [{"params": everything}])
    ]
    if sorted(i for members, _ in groups for i in members) != everything:
        _refuse(f"groups must hold each of {everything} once", [members for members, _ in groups])
    orders = _by_step(source, "order", steps)
    if orders and "order" not in inspect.signature(rule.update).parameters:
        _refuse("order must be absent: this optimizer has none", orders)
    for order in orders.values():
        if sorted(_indices(order, "an order")) != everything:
            _refuse(f"an order must hold each of {everything} once", order)
    record = _indices(_get(source, "record", list, [steps]), "record")
    if not record or len(set(record)) < len(record) or not 1 <= min(record) <= max(record) <= steps:
        _refuse(f"record must be different steps from 1 to {steps}", record)
    layers = _layers(rule, source, shapes) if hasattr(rule, "Layer") else {}
    grads = _get(source, "grads", list)
    if not grads or any(not isinstance(row, list) or len(row) != len(given) for row in grads):
        _refuse(f"grads must be one row or more, each of {len(given)} entries", grads)
    return Case(
        id=id,
        comment=comment,
        tags=_texts(source, "tags"),
        hyper=hyper,
        options=options,
        groups=[(members, _hyper(rule, overrides)) for members, overrides in groups],
        changes={t: _hyper(rule, h) for t, h in _by_step(source, "changes", steps).items()},
        dtypes=[COMPLEX.get(d, d) for d in dtypes],
        shapes=list(shapes),
        params=list(params),
        steps=steps,
        grads=[
            [_gradient(rule, g, *x) for g, *x in zip(row, dtypes, shapes, strict=True)]
            for row in grads
        ],
        source={key: value for key, value in source.items() if key != "runs"},
        orders=orders,
        layers=layers,
        statistics={
            t: {name: _seen(rule, name, layers[name], x) for name, x in _of(layers, given).items()}
            for t, given in _by_step(source, "statistics", steps).items()
        },
    )


def _refused(source: dict[str, Any]) -> Case:
    """A case that must be refused: as it is repaired, but for the `source` that is given."""
    repair, kind = _get(source, "repair", dict), _get(source, "kind", str)
    _named(repair, ("grads", "hyper", "statistics"), "what is repaired")
    case = parse({**source, **repair})
    hyper, grads = _get(source, "hyper", dict), _get(source, "grads", list)
    texts = [x for value in hyper.values() for x in (value if isinstance(value, list) else [value])]
    texts += [x for row in grads if isinstance(row, list) for x in row if x is not None]
    rows = all(isinstance(row, list) and len(row) == len(case.params) for row in grads)
    seen = source.get("statistics", {})
    if not grads or not rows or not all(isinstance(x, str) for x in [kind, *texts]):
        _refuse("what must be refused must have numbers and bits in texts", hyper, grads)
    if not isinstance(seen, dict) or not all(isinstance(x, dict) for x in seen.values()):
        _refuse("statistics must be an object by step", seen)
    return case._replace(source=source)


def _layers(rule: Any, source: dict[str, Any], shapes: tuple[list[int], ...]) -> dict[str, Any]:
    """The layers by name, each with its parameters by number and the shape of its weight."""
    found: dict[str, Any] = {}
    for x in _get(source, "layers", list):
        name, kind = _get(x, "name", str), _get(x, "kind", str)
        members = _indices(_get(x, "params", list), f"params of {name}")
        if name in found or kind not in rule.KINDS or not members or max(members) >= len(shapes):
            _refuse(f"a layer must have a name of its own, a kind of {rule.KINDS}, and params", x)
        rest: dict[str, Any] = {k: _get(x, k, str) for k in ("padding", "target") if k in x}
        if "stride" in x:
            rest["stride"] = tuple(_indices(x["stride"], f"stride of {name}"))
        if "dilation" in x:
            rest["dilation"] = tuple(_indices(x["dilation"], f"dilation of {name}"))
        found[name] = rule.Layer(kind, tuple(members), tuple(shapes[members[0]]), **rest)
        _factored(rule, name, found[name])
    if sorted(i for layer in found.values() for i in layer.params) != [*range(len(shapes))]:
        _refuse("layers must hold each parameter once", *found.values())
    return found


def _factored(rule: Any, name: str, layer: Any) -> None:
    """Refuse a layer whose factors would not fit into memory, or whose weight is none."""
    if layer.kind not in rule.FACTORED:
        return
    inputs = 1 if layer.kind in rule.TABLES else math.prod(layer.shape[1:])
    rank = 4 if len(layer.shape) == 4 and layer.kind not in rule.TABLES else 2
    outputs = layer.shape[1 if layer.kind in rule.TABLES else 0] if layer.shape else 0
    if len(layer.shape) != rank or not 1 <= min(inputs, outputs) <= max(inputs, outputs) <= LARGEST:
        _refuse(f"layer {name}: a weight whose factors have 1 to {LARGEST} rows is required", layer)
    for pair in (layer.stride, layer.dilation):
        if len(pair) != 2 or not all(1 <= n <= LARGEST for n in pair):
            _refuse(f"layer {name}: strides and dilations are two numbers, 1 to {LARGEST}", pair)


def _seen(rule: Any, name: str, layer: Any, source: Any) -> dict[str, Tensor]:
    """What a layer saw, or its factors: each as large as the layer says, and ids in its table."""
    found = _all(source, f"statistics of {name}")
    table, (rows, *rest) = layer.kind in rule.TABLES, layer.shape
    inputs, outputs = (rows, rest[0]) if table else (math.prod(rest), rows)
    place = 1 if len(layer.shape) == 4 else -1  # of the channels
    for q, x in found.items():
        wanted = {"A": [(inputs,)] if table else [(inputs, inputs)], "G": [(outputs, outputs)]}
        fits = x.shape in wanted.get(q, [x.shape])
        if q in ("a", "ds") and not (q == "a" and table):
            channels = outputs if q == "ds" else rest[0] if place == 1 else inputs
            fits = len(x.shape) > 1 and x.shape[place] == channels
            fits &= place == -1 or len(x.shape) == 4
            fits &= math.prod(x.shape) * math.prod(layer.shape[2:]) <= MANY
        if q == "a" and table:
            fits = x.dtype in INTEGERS and all(0 <= i < rows for i in x.values)
        if not fits:
            _refuse(f"{q} of {name} must fit the layer, {layer.kind} of {layer.shape}", x.shape)
    return found


def _of(layers: dict[str, Any], given: Any) -> dict[str, Any]:
    """An object by layer."""
    if not isinstance(given, dict):
        _refuse("an object by layer is required", given)
    _named(given, layers, "layers")
    return given


def _all(source: Any, what: str) -> dict[str, Tensor]:
    """The arrays of an object by quantity."""
    if not isinstance(source, dict):
        _refuse(f"{what} must be an object", source)
    _named(source, ("a", "ds", "A", "G", "a_norm", "g_norm"), what)
    return {key: _tensor(x, f"{key}, {what}") for key, x in source.items()}


def _tensor(source: Any, what: str) -> Tensor:
    dtype, shape = _get(source, "dtype", str), _shape(source)
    if dtype not in FORMATS and dtype not in INTEGERS:
        _refuse(f"{what}: a dtype must be one of {', '.join([*FORMATS, *INTEGERS])}", dtype)
    return Tensor(dtype, tuple(shape), _decoded(source.get("bits"), dtype, math.prod(shape), what))


def parse_run(case: Case, name: str, runs: dict[str, Any]) -> Run:
    """One run of a case from the JSON object of its runs. Raises CaseError where malformed."""
    try:
        return _run(case, name, runs)
    except (CaseError, RecursionError) as error:
        msg = f"case {case.id!r}, run {name!r}: {error}"
        raise CaseError(msg) from error.__cause__


def _run(case: Case, name: str, runs: Any) -> Run:
    passed: list[str] = []
    source = _get(runs, name, dict)
    while "same" in source:
        passed.append(name)
        name = _get(source, "same", str)
        if name in passed or name not in runs:
            _refuse("same must lead to a run of its own", *passed, name)
        source = _get(runs, name, dict)
    name = passed[0] if passed else name
    _named(source, ("dtypes", "steps", "finalized", "error"), "keys of a run")
    if "error" in source:
        error = _get(source, "error", dict)
        return Run(name, {}, {}, {key: _get(error, key, str) for key in ("type", "message")})
    rule = RULES[case.id.partition(".")[0]]
    numbers = {*rule.Clock._fields, "lr"}
    stated = _get(source, "dtypes", dict, {})
    _named(stated, rule.OBSERVABLE, "quantities")
    dtypes = {q: _stated(case, q, stated.get(q), q in numbers) for q in rule.OBSERVABLE}
    sizes = [len(x) for x in case.params]
    steps = _by_step(source, "steps", case.steps)
    if missing := set(case.source.get("record", [case.steps])) - steps.keys():
        _refuse(f"step {min(missing)} is required", *sorted(steps))
    values: dict[int, dict[str, list[Values | None]]] = {}
    factors: dict[int, dict[str, dict[str, Tensor]]] = {}
    for t, columns in sorted(steps.items()):
        if not isinstance(columns, dict):
            _refuse(f"step {t} must be an object", columns)
        if case.layers:
            columns = dict(columns)
            factors[t] = {
                q: _by_layer(rule, case, columns.pop(q), f"step {t}, {q}")
                for q in BY_LAYER
                if q in columns
            }
        _named(columns, rule.OBSERVABLE, "quantities")
        values[t] = {
            q: _values(bits, dtypes[q], [1] * len(sizes) if q in numbers else sizes, q, t)
            for q, bits in columns.items()
        }
        if None in values[t].get("param", [None]):
            _refuse(f"step {t}: every parameter is required", columns.get("param"))
    finalized = None
    if "finalized" in source:
        if "average" not in rule.State._fields:
            _refuse("finalized must be absent: this optimizer averages nothing")
        finalized = _values(source["finalized"], case.dtypes, sizes, "finalized", case.steps)
    shown = {q for columns in values.values() for q in columns}
    return Run(name, values, {q: dtypes[q] for q in shown}, None, finalized, factors)


def _by_layer(rule: Any, case: Case, source: Any, what: str) -> dict[str, Tensor]:
    """The arrays of a quantity by layer, from a list over the layers with factors."""
    names = [name for name, layer in case.layers.items() if layer.kind in rule.FACTORED]
    if not isinstance(source, list) or len(source) != len(names):
        _refuse(f"{what}: one entry for each of {', '.join(names)} is required", source)
    return {n: _tensor(x, f"{what} of {n}") for n, x in zip(names, source, strict=True)}


def _stated(case: Case, quantity: str, dtype: Any, number: bool) -> list[str]:
    """The dtypes of a quantity, from what a run states."""
    if dtype is None:
        return case.dtypes
    allowed = [*FORMATS, *INTEGERS] if number else [*FORMATS, *COMPLEX]
    if dtype not in allowed:
        _refuse(f"the dtype of {quantity} must be one of {', '.join(allowed)}", dtype)
    if not number:
        kinds = {d in COMPLEX for p in case.source["params"] for d in (p["dtype"], dtype)}
        if len(kinds) > 1 or (
            quantity == "param" and {COMPLEX.get(dtype, dtype)} != {*case.dtypes}
        ):
            _refuse(f"the dtype of {quantity} must be that of the parameters", dtype)
    return [COMPLEX.get(dtype, dtype)] * len(case.dtypes)


def _parameter(source: Any) -> tuple[str, list[int], Values]:
    """(dtype, shape, values) of a parameter."""
    dtype = _get(source, "dtype", str)
    if dtype not in FORMATS and dtype not in COMPLEX:
        _refuse(f"a dtype must be one of {', '.join([*FORMATS, *COMPLEX])}", dtype)
    shape = _shape(source)
    layout = source.get("layout", "C")
    if layout not in ("C", "F", "strided") or (layout == "strided" and not shape):
        _refuse("a layout must be C, F or, of at least one axis, strided", layout)
    return dtype, shape, _decoded(source.get("bits"), dtype, math.prod(shape), "a parameter")


def _gradient(rule: Any, source: Any, dtype: str, shape: list[int]) -> Gradient:
    if source is None:
        return None
    if not isinstance(source, dict):
        return _decoded(source, dtype, math.prod(shape), "a gradient")
    if not hasattr(rule, "Rows") or not shape:
        _refuse("a gradient must have every row: this parameter or optimizer has no rows", source)
    indices = _indices(_get(source, "indices", list), "indices of a gradient")
    if any(i >= shape[0] for i in indices):
        _refuse(f"indices of a gradient must be less than {shape[0]}", indices)
    size = math.prod([len(indices), *shape[1:]])
    return Sparse(_decoded(source.get("values"), dtype, size, "a gradient"), tuple(indices))


def _values(
    bits: Any, dtypes: list[str], sizes: list[int], quantity: str, t: int
) -> list[Values | None]:
    if not isinstance(bits, list) or len(bits) != len(sizes):
        _refuse(
            f"step {t}, {quantity}: one entry for each of {len(sizes)} parameters is required", bits
        )
    return [
        None if b is None else _decoded(b, d, n, quantity, t)
        for b, d, n in zip(bits, dtypes, sizes, strict=True)
    ]


def _decoded(bits: Any, dtype: str, size: int, what: str, t: int = 0) -> Values:
    """The `size` elements of a bit string; of a complex dtype as pairs."""
    if dtype in COMPLEX:
        dtype, size = COMPLEX[dtype], 2 * size
    width = INTEGERS.get(dtype) or FORMATS[dtype].width
    if not isinstance(bits, str) or len(bits) * 4 != size * width or not HEX(bits):
        where = f"step {t}, {what}" if t else what
        _refuse(
            f"{where}: {size * width // 4} hexadecimal digits ({size} {dtype}) are required", bits
        )
    if dtype in INTEGERS:  # step counters of some releases, and ids
        digits = width // 4
        return [float(int(bits[i : i + digits], 16)) for i in range(0, len(bits), digits)]
    return from_bits(bits, FORMATS[dtype])


def _hyper(rule: Any, source: Any) -> dict[str, Any]:
    if not isinstance(source, dict):
        _refuse("hyperparameters must be an object", source)
    _named(source, rule.Hyper._fields, "hyperparameters")
    return {name: _hyperparameter(rule, name, x) for name, x in source.items()}


def _hyperparameter(rule: Any, name: str, x: Any) -> Any:
    if isinstance(x, list) and hasattr(rule, "Layer") and name in ("lr", "damping") and x:
        return [_number(y, name) for y in x]
    if not isinstance(x, dict):
        return _number(x, name)
    if "schedule" in x:
        return _schedule(rule, name, x)
    if (dtype := _get(x, "dtype", str)) not in FORMATS:
        _refuse(f"{name}: a dtype must be one of {', '.join(FORMATS)}", dtype)
    return _decoded(x.get("bits"), dtype, 1, name)[0], dtype


def _schedule(rule: Any, name: str, x: dict[str, Any]) -> Schedule:
    if name != "lr" or not hasattr(rule, "scheduled"):
        _refuse(f"{name} must be a number: it cannot be a schedule here", x)
    chosen, config = _get(x, "schedule", str), _get(x, "config", dict)
    if chosen not in SCHEDULES:
        _refuse(f"a schedule must be one of {', '.join(SCHEDULES)}", chosen)
    arguments = {
        key: value
        for key, value in inspect.signature(SCHEDULES[chosen]).parameters.items()
        if value.kind is value.KEYWORD_ONLY
    }
    _named(config, arguments, f"arguments of {chosen}")
    if lacks := [k for k, v in arguments.items() if v.default is v.empty and k not in config]:
        _refuse(f"{chosen}: {', '.join(lacks)} are required", config)
    lists = {key: _get(config, key, list) for key in ("boundaries", "values") if key in config}
    read = {key: _number(value, key) for key, value in config.items() if key not in lists}
    if any(key.endswith("decay_steps") and not value > 0 for key, value in read.items()):
        _refuse(f"{chosen}: a number of steps must be above 0", config)
    if lists and len(lists["boundaries"]) + 1 != len(lists["values"]):
        _refuse(f"{chosen}: one value more than boundaries is required", config)
    numbers = {key: [_number(y, key) for y in values] for key, values in lists.items()}
    return Schedule(chosen, read | numbers)


# -- what JSON may hold ---------------------------------------------------------------------------

INTEGERS = {"int32": 32, "int64": 64}
"""Dtypes of step counters, and their widths in bits."""

STEPS = 10**5
"""The most steps that a case may have."""

AXES, MANY, LARGEST = 32, 2**24, 2048
"""The most axes and elements of an array, and rows of a factor: it has their square."""

ID = re.compile(r"(?=.{1,200}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+").fullmatch
STEP = re.compile("[1-9][0-9]{0,8}").fullmatch
HEX = re.compile("[0-9a-fA-F]*").fullmatch
DECIMAL = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan").fullmatch
JSON = {str: "a text", int: "an integer", list: "a list", dict: "an object"}


def _refuse(required: str, *got: Any) -> NoReturn:
    text = ", ".join(map(repr, got))
    came = f"; got {text if len(text) <= 80 else text[:77] + '...'}" if got else ""
    raise CaseError(required + came)


def _get(source: Any, key: str, kind: type, default: Any = None) -> Any:
    """An entry of an object, of that JSON type; without a default it is required."""
    if not isinstance(source, dict):
        _refuse(f"an object with {key!r} is required", source)
    value = source.get(key, default)
    if type(value) is not kind:
        got = [value] if key in source else []
        _refuse(f"{key!r} must be {JSON[kind]}" if got else f"{key!r} is required", *got)
    return value


def _named(source: dict[str, Any], known: Iterable[str], what: str) -> None:
    if unknown := [name for name in source if name not in known]:
        _refuse(f"{what} must be among {', '.join(sorted(known))}", *unknown)


def _indices(source: Any, what: str) -> list[int]:
    if not isinstance(source, list) or any(type(i) is not int or i < 0 for i in source):
        _refuse(f"{what} must be a list of integers from 0", source)
    return source


def _shape(source: Any) -> list[int]:
    """A shape; also one of no element says nothing that cannot be."""
    shape = _indices(_get(source, "shape", list), "a shape")
    if len(shape) > AXES or math.prod(n for n in shape if n) > MANY:
        _refuse(f"a shape must have at most {AXES} axes and {MANY} elements", shape)
    return shape


def _texts(source: dict[str, Any], key: str) -> list[str]:
    texts: list[str] = _get(source, key, list, [])
    if not all(isinstance(text, str) for text in texts):
        _refuse(f"{key} must be a list of texts", texts)
    return texts


def _by_step(source: dict[str, Any], key: str, last: int) -> dict[int, Any]:
    """An object by step, with integers for its keys."""
    found = _get(source, key, dict, {})
    if outside := [t for t in found if not STEP(t) or int(t) > last]:
        _refuse(f"{key} must name steps from 1 to {last}", *outside)
    return {int(t): x for t, x in found.items()}


def _number(x: Any, name: str) -> float:
    """A decimal in a text."""
    if not isinstance(x, str) or not DECIMAL(x):
        _refuse(f"{name} must be a decimal number in a text", x)
    return float(x)
