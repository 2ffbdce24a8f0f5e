"""What every optimizer shaped like torch's shares: groups, per-parameter state, saving, loading."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, TypeAlias

from array_api_compat import size

from refopt.interp.host import converts, copied, is_array, to_numpy
from refopt.optim.hooks import Hooked
from refopt.optim.parameter import is_parameter, kind, zero_grad

Group: TypeAlias = dict[str, Any]
StateDict: TypeAlias = dict[str, Any]


def deep(value: Any) -> Any:
    """A copy of `value` and of every array in it, without the graph of gradients."""
    if isinstance(value, dict):
        return {key: deep(item) for key, item in value.items()}
    return copied(value) if is_array(value) else copy.deepcopy(value)


def turns(params: list[Any]) -> Iterator[list[Any]]:
    """Lists without duplicates: a parameter that appears twice steps again in the next one."""
    while params:
        once: dict[Any, None] = {}
        again = []
        for param in params:
            if param in once:
                again.append(param)
            once[param] = None
        yield [*once]
        params = again


def require(name: str, value: Any, below: float | None = None) -> None:
    """Raise ValueError unless 0 <= value (< below), TypeError for what is no number; NaN fails."""
    x = number(name, value)
    if not (x >= 0.0 and (below is None or x < below)):
        wanted = ">= 0" if below is None else f"in [0, {below:g})"
        msg = f"{name}: a number {wanted} is required, got {value!r}"
        raise ValueError(msg)


def number(name: str, value: Any) -> float:
    """`value` as a float; TypeError for what is no real number, a string of digits too.

    ValueError for an integer that overflows.
    """
    one = not is_array(value) or size(value) == 1
    real = not hasattr(value, "dtype") or converts(value, "float64")
    if not (one and real and hasattr(value, "__float__")):
        msg = f"{name}: a number is required, got {value!r}"
        raise TypeError(msg)
    try:
        return float(to_numpy(value).reshape(()) if is_array(value) else value)
    except OverflowError as error:
        msg = f"{name}: a number of float64 is required, got {value!r}"
        raise ValueError(msg) from error


class Optimizer(Hooked):
    """Groups of parameters with their options, and a state for each parameter.

    Attributes
    ----------
    param_groups : list of dict
        Options of each group; `params` holds its parameters. May be changed between steps.
    state : defaultdict
        `state[parameter]` is that parameter's state: a dict, empty until its first step.
    defaults : dict
        Options of a group that states none.

    """

    # What an option means that the groups of an older state dict lack.
    absent: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, params: Any, defaults: dict[str, Any], *, like_torch: bool) -> None:
        super().__init__()
        self.defaults = defaults
        self.like_torch = like_torch
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        if is_parameter(params) or not isinstance(params, Iterable) or hasattr(params, "dtype"):
            hint = "; wrap it: refopt.Parameter(array)" if is_array(params) else ""
            msg = (
                "params: an iterable of parameters or of dicts is required, "
                f"got {kind(params)}{hint}"
            )
            raise TypeError(msg)
        groups = list(params)
        if not groups:
            msg = "params: at least one parameter or group is required, got an empty iterable"
            raise ValueError(msg)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters.

        Parameters
        ----------
        param_group : dict
            `params`: a parameter, an iterable of parameters, or of (name, parameter) pairs; other
            keys set options, and those absent take the optimizer's defaults. The dict is copied;
            under a torch profile it becomes the group itself, with its missing keys filled in.

        Raises
        ------
        KeyError
            `params` is absent.
        TypeError
            Not a dict, a set of parameters (it has no order), or an item that is no parameter.
        ValueError
            Names for some parameters or groups only, a torch tensor that is no leaf, or a
            parameter of an earlier group. A parameter twice in one group is a UserWarning.

        """
        if not isinstance(param_group, dict):
            msg = f"param_group: a dict is required, got {kind(param_group)}"
            raise TypeError(msg)
        group = param_group if self.like_torch else dict(param_group)
        params = group["params"]
        if isinstance(params, set):
            msg = "params: an ordered collection is required, got a set"
            raise TypeError(msg)
        items = [params] if is_parameter(params) else list(params)
        names = [item[0] for item in items if isinstance(item, tuple)]
        group["params"] = [item[1] if isinstance(item, tuple) else item for item in items]
        if names:
            group["param_names"] = names
            if len(names) != len(items):
                msg = (
                    "params: names for all or for none are required, "
                    f"got {len(names)} names for {len(items)} parameters"
                )
                raise ValueError(msg)
        for i, param in enumerate(group["params"]):
            self._check_parameter(i, param)
        for option, default in self.defaults.items():
            group.setdefault(option, default)
        self._check_group(group)
        self.param_groups.append(group)

    def _check_parameter(self, i: int, param: Any) -> None:
        if not is_parameter(param):
            hint = "; an array has no .grad: wrap it, refopt.Parameter(array)"
            msg = (
                f"params[{i}]: a refopt.Parameter or a torch tensor is required, "
                f"got {kind(param)}{hint if hasattr(param, 'dtype') else ''}"
            )
            raise TypeError(msg)
        leaf = getattr(param, "is_leaf", True) or param.retains_grad
        if not (leaf or self.defaults.get("differentiable")):
            msg = f"params[{i}]: a leaf tensor is required, got the result of an operation"
            raise ValueError(msg)

    def _check_group(self, group: Group) -> None:
        params = group["params"]
        if len(params) != len(set(params)):
            msg = "params: a parameter appears twice in a group and is stepped twice"
            warnings.warn(msg, UserWarning, stacklevel=3)
        for i, other in enumerate(self.param_groups):
            if ("param_names" in group) != ("param_names" in other):
                state = "with" if "param_names" in group else "without"
                msg = (
                    f"params: names for all groups or for none are required, got one {state} names"
                )
                raise ValueError(msg)
            if not set(params).isdisjoint(other["params"]):
                msg = f"params: a parameter in one group only is required, got one of group {i}"
                raise ValueError(msg)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients: to None (a parameter without gradient is skipped), or to zeros.

        Parameters
        ----------
        set_to_none : bool
            False zeroes the present gradients in place instead (default: True).

        """
        for param in self._params():
            if param.grad is not None:
                zero_grad(param, set_to_none)

    def state_dict(self) -> StateDict:
        """The state as `{"state": {id: {…}}, "param_groups": [{…, "params": [id, …]}]}`.

        Ids number the parameters over all groups. Arrays are copies: a later step of this optimizer
        leaves them alone.
        """
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self)
        ids = {param: i for i, param in enumerate(self._params())}
        groups = []
        for group in self.param_groups:
            packed = {key: deep(value) for key, value in group.items() if key != "params"}
            groups.append({**packed, "params": [ids[param] for param in group["params"]]})
        state = {ids.get(key, key): deep(value) for key, value in self.state.items()}
        result: StateDict = {"state": state, "param_groups": groups}
        for hook in list(self._state_dict_post_hooks.values()):
            replaced = hook(self, result)
            result = result if replaced is None else replaced
        return result

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what `state_dict` returned, here or by `torch.optim`; nothing is aliased.

        States go to parameters by position; beyond the number of groups and their sizes nothing is
        checked, and the next step names a state that does not fit. Options of the saved groups
        replace the present ones. An array takes library and device of its parameter. It keeps its
        dtype, unless the parameter's dtype holds it exactly; under a torch profile moments and
        product take the parameter's dtype, as torch does it.

        Raises
        ------
        KeyError
            `state` or `param_groups` is absent, or of a group `params` or an option that has not
            always been one. Nothing is loaded then.
        TypeError
            No dict of these kinds. Nothing is loaded then.
        ValueError
            Another number of groups, or a group of another size. Nothing is loaded then.

        """
        state_dict = dict(entry("state_dict", state_dict, Mapping))
        for hook in list(self._load_state_dict_pre_hooks.values()):
            replaced = hook(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        options = [key for key in self.defaults if key not in self.absent]
        groups, states = _loadable(state_dict, options)
        own, saved = ([len(g["params"]) for g in gs] for gs in (self.param_groups, groups))
        if own != saved:
            msg = f"state_dict: groups of {own} parameters are required, got {saved}"
            raise ValueError(msg)
        owners = {}
        for group, new in zip(self.param_groups, groups, strict=True):
            new.update({key: value for key, value in self.absent.items() if key not in new})
            for key, param in zip(new["params"], group["params"], strict=True):
                owners[key] = (param, new)
            new["params"] = group["params"]
            if "param_names" in group:
                new.setdefault("param_names", group["param_names"])
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for key, value in states.items():
            if key in owners:
                param, group = owners[key]
                state[param] = self._fitted(param, group, value)
            else:
                state[key] = deep(value)
        self.state, self.param_groups = state, groups
        for hook in list(self._load_state_dict_post_hooks.values()):
            hook(self)

    def _fitted(self, param: Any, group: Group, state: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a loaded state in the library, on the device and in the dtype of `param`."""
        raise NotImplementedError

    def _params(self) -> Iterator[Any]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def __repr__(self) -> str:
        text = f"{type(self).__name__} ("
        for i, group in enumerate(self.param_groups):
            text = f"{text}\nParameter Group {i}\n"
            for key in sorted(key for key in group if key != "params"):
                text = f"{text}    {key}: {group[key]}\n"
        return f"{text})"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.endswith("_hooks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Hooked.__init__(self)
        vars(self).update(state)


def _loadable(state_dict: Any, options: Iterable[str]) -> tuple[list[Group], Mapping[Any, Any]]:
    """Copies of the groups in a state dict, and its states; raises unless it has the structure."""
    name = "state_dict"
    entry(name, state_dict, Mapping)
    groups = []
    for i, group in enumerate(entry(name, state_dict, Sequence, "param_groups")):
        where = f"{name}['param_groups'][{i}]"
        entry(where, entry(where, group, Mapping), Sequence, "params")
        for option in sorted(options):
            entry(where, group, object, option)
        groups.append({key: deep(value) for key, value in group.items()})
    states: Mapping[Any, Any] = entry(name, state_dict, Mapping, "state")
    ids = {key for group in groups for key in group["params"]}
    for key in ids & states.keys():
        entry(f"{name}['state'][{key!r}]", states[key], Mapping)
    return groups, states


def entry(where: str, value: Any, wanted: type, key: str | None = None) -> Any:
    """`value`, or what it has under `key`; raises unless that is there and of the kind wanted."""
    if key is not None:
        if key not in value:
            msg = f"{where}: {key!r} is required, got {sorted(map(str, value))}"
            raise KeyError(msg)
        where, value = f"{where}[{key!r}]", value[key]
    if not isinstance(value, wanted) or (wanted is Sequence and isinstance(value, str)):
        msg = f"{where}: a {_NAMES[wanted]} is required, got {kind(value)}"
        raise TypeError(msg)
    return value


_NAMES: dict[type, str] = {Mapping: "dict", Sequence: "list"}
