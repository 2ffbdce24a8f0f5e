"""A net as a list of layers and of parameter groups, and what its layers saw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from array_api_compat import device

from refopt.interp.arrays import dtype_name
from refopt.interp.host import is_array, near, same_library
from refopt.interp.measures import bounds, positions
from refopt.optim.arguments import flag, real, schedule
from refopt.optim.layers import Factors, Layer
from refopt.optim.parameter import Parameter, _check_like, kind
from refopt.rules import thor as rule

KEYS = ("params", "lr", "weight_decay", "grad_centralization")
"""Of a group."""

Group = Mapping[str, Any]


def separated(net: Any) -> tuple[list[Layer], dict[Parameter, Group | None]]:
    """The layers of a net, and its parameters in order, each with its group or None."""
    layers: dict[Layer, None] = {}
    groups: dict[str, Group] = {}
    order = None
    items = _listed("net", net)
    for i, item in enumerate(items):
        where = f"net[{i}]"
        if isinstance(item, Layer):
            layers[item] = None
        elif not isinstance(item, Mapping):
            msg = f"{where}: a layer or a dict is required, got {kind(item)}"
            raise TypeError(msg)
        elif "order_params" in item:
            if len(item) > 1 or order is not None:
                msg = f"{where}: order_params alone and once is required, got {sorted(item)}"
                raise ValueError(msg)
            order = _listed(f"{where}: order_params", item["order_params"])
        else:
            groups[where] = _group(where, item)
            layers.update({x: None for x in groups[where]["params"] if isinstance(x, Layer)})
    owners = _owners([*layers])
    group_of: dict[Parameter, Group] = {}
    for where, group in groups.items():
        for p in _parameters(f"{where}: params", group["params"], owners):
            if p in group_of:
                msg = f"{where}: a parameter in one group, once, is required, got {p.name} again"
                raise RuntimeError(msg)
            if group.get("grad_centralization") and not _is_kernel(p, owners[p]):
                msg = (
                    f"{where}: grad_centralization=False is required of what is no weight of a "
                    f"convolution, got True for {p.name}"
                )
                raise ValueError(msg)
            group_of[p] = group
    ordered = [*owners] if order is None else _parameters("order_params", order, owners)
    if sorted(map(id, ordered)) != sorted(map(id, owners)):
        msg = (
            f"order_params: each of {[p.name for p in owners]} once is required, "
            f"got {[p.name for p in ordered]}"
        )
        raise ValueError(msg)
    return [*layers], {p: group_of.get(p) for p in ordered}


def _listed(where: str, x: Any) -> list[Any]:
    if isinstance(x, str | Mapping | Layer | Parameter) or is_array(x) or not _iterates(x):
        msg = f"{where}: a list is required, got {kind(x)}"
        raise TypeError(msg)
    items = list(x)
    if not items:
        msg = f"{where}: at least one item is required, got none"
        raise ValueError(msg)
    return items


def _iterates(x: Any) -> bool:
    return isinstance(x, Iterable)


def _group(where: str, group: Group) -> Group:
    if "params" not in group or not set(group) <= set(KEYS):
        msg = f"{where}: params, and of {', '.join(KEYS[1:])}, are required, got {[*group]}"
        raise KeyError(msg)
    if "lr" in group:
        schedule(f"{where}: lr", group["lr"])
    if "weight_decay" in group:
        real(f"{where}: weight_decay", group["weight_decay"])
    flag(f"{where}: grad_centralization", group.get("grad_centralization", False))
    return {**group, "params": _listed(f"{where}: params", group["params"])}


def _owners(layers: list[Layer]) -> dict[Parameter, Layer]:
    """All parameters, each with its layer; of one library, with names and memory of their own."""
    names: dict[str, Layer] = {}
    named: dict[str, Parameter] = {}
    owners: dict[Parameter, Layer] = {}
    for layer in layers:
        if names.setdefault(layer.name, layer) is not layer:
            msg = f"net: a name of its own is required of each layer, got {layer.name!r} twice"
            raise ValueError(msg)
        for name, p in zip(layer.names, layer.parameters, strict=True):
            if owners.setdefault(p, layer) is not layer or layer.parameters.count(p) > 1:
                msg = f"net: a parameter in one layer, once, is required, got {name} again"
                raise ValueError(msg)
            if named.setdefault(name, p) is not p:
                msg = f"net: a name of its own is required of each parameter, got {name!r} twice"
                raise ValueError(msg)
            first = next(iter(owners))
            if not same_library(p.data, first.data):
                msg = (
                    f"{p.name}: an array of the library of {first.name}, {kind(first.data)}, is "
                    f"required, got {kind(p.data)}"
                )
                raise TypeError(msg)
            if not near(p.data, first.data):
                msg = (
                    f"{p.name}: device {device(first.data)}, that of {first.name}, is required, "
                    f"got {device(p.data)}"
                )
                raise ValueError(msg)
    return owners


def _parameters(where: str, items: list[Any], owners: Mapping[Parameter, Layer]) -> list[Parameter]:
    """The parameters of a list of layers and parameters of the net."""
    found: list[Parameter] = []
    for i, item in enumerate(items):
        own = item.parameters if isinstance(item, Layer) else [item]
        for p in own:
            if not isinstance(p, Parameter) or p not in owners:
                got = repr(p.name) if isinstance(p, Parameter) else kind(p)
                msg = (
                    f"{where}[{i}]: a layer of the net or a parameter of one is required, got {got}"
                )
                raise ValueError(msg) if isinstance(p, Parameter) else TypeError(msg)
            found.append(p)
    return found


def _is_kernel(p: Parameter, layer: Layer) -> bool:
    return layer.kind == rule.CONV and p is layer.parameters[0]


# -- statistics -----------------------------------------------------------------------------------
def check_statistics(own: Layer, layer: rule.Layer, a: Any, ds: Any) -> None:
    """Raise unless these are the input and the output gradient of a layer."""
    here, there = f"activations[{own.name!r}]", f"output_gradients[{own.name!r}]"
    for where, x in ((here, a), (there, ds)):
        if not is_array(x) or not same_library(x, own.parameters[0].data):
            msg = f"{where}: {kind(own.parameters[0].data)} is required, got {kind(x)}"
            raise TypeError(msg)
    weight, shape = own.parameters[0].data, tuple(a.shape)
    if layer.kind in rule.TABLES:
        ids, width = layer.shape
        if not dtype_name(a).startswith(("int", "uint")):
            msg = f"{here}: integers are required, got {dtype_name(a)}"
            raise TypeError(msg)
        _check_rows(here, shape)
        if not near(a, weight):
            msg = f"{here}: device {device(weight)} is required, got {device(a)}"
            raise ValueError(msg)
        low, high = bounds(a)
        if low < 0 or high >= ids:
            msg = f"{here}: ids in [0, {ids}) are required, got {low if low < 0 else high}"
            raise ValueError(msg)
        _check_like(there, weight, ds, (*shape, width))
        return
    if layer.kind == rule.DENSE:
        outputs, inputs = layer.shape
        rows = shape[:-1]
        _check_rows(here, rows)
        _check_like(here, weight, a, (*rows, inputs))
        _check_like(there, weight, ds, (*rows, outputs))
        return
    outputs, inputs, *kernel = layer.shape
    if len(shape) != 4:
        msg = f"{here}: shape (samples, {inputs}, height, width) is required, got {shape}"
        raise ValueError(msg)
    samples, _, *sizes = shape
    windows = [rule.of_the_layer(layer, axis, size) for axis, size in enumerate(sizes)]
    places = tuple(map(positions, sizes, kernel, windows))
    if samples and 0 in places:
        msg = f"{here}: an image as large as the kernel is required, got {sizes[0]} x {sizes[1]}"
        raise ValueError(msg)
    _check_rows(here, (samples, *places))
    _check_like(here, weight, a, (samples, inputs, *sizes))
    _check_like(there, weight, ds, (samples, outputs, *places))


def _check_rows(where: str, rows: tuple[int, ...]) -> None:
    if not rows or 0 in rows:
        msg = f"{where}: at least one row is required, got rows of shape {rows}"
        raise ValueError(msg)


def checked_factors(own: Layer, layer: rule.Layer, given: Any) -> rule.Factors:
    """Factors as the rule takes them; raises unless they are those of a layer."""
    where = f"factors[{own.name!r}]"
    if not isinstance(given, Factors | rule.Factors):
        msg = f"{where}: refopt.layers.Factors are required, got {kind(given)}"
        raise TypeError(msg)
    m, n = rule.matrix_of(layer)
    table = layer.kind in rule.TABLES
    shapes = {"A": (m,), "G": (n, n)} if table else {"A": (n, n), "G": (m, m)}
    weight = own.parameters[0].data
    for name, shape in shapes.items():
        x = getattr(given, name)
        if not is_array(x) or not same_library(x, weight):
            msg = f"{where}.{name}: {kind(weight)} is required, got {kind(x)}"
            raise TypeError(msg)
        _check_like(f"{where}.{name}", weight, x, shape)
    read = {
        "a_normalizer": table or layer.kind == rule.CONV,
        "g_normalizer": layer.kind == rule.CONV,
    }
    rows = {
        name: real(f"{where}.{name}", x, above=True)
        for name, needed in read.items()
        if (x := getattr(given, name)) is not None or needed
    }
    return rule.Factors(given.A, given.G, **rows)
