"""The verdict on a run of an optimizer of layers (THOR): factors, inverses, and what follows them.

Each step is judged from what the run shows of the step before, and inside a step from what it shows
of that step: an inverse that it shows is what the envelope of its gradient begins with (ENV-20).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from refopt.interp.arrays import Floats, namespace_of
from refopt.interp.balls import precision
from refopt.interp.bands import Band, Bands
from refopt.interp.envelope import ROUNDINGS
from refopt.interp.formats import FORMATS
from refopt.oracle.golden import BY_LAYER, Case, Run, Tensor
from refopt.oracle.search import Beside, Changes
from refopt.oracle.verdict import FORCED, Finding, Judge, Measured
from refopt.typing import Profile

Key = tuple[int, str, int]  # step, quantity, parameter (of a layer: its weight)


class Memory(NamedTuple):
    """What is carried from step to step, one entry a parameter."""

    params: list[Any]
    states: list[Any]
    clocks: list[Any]


class Arrays:
    """NumPy arrays, in the dtypes of a case."""

    def __init__(self) -> None:
        self.numbers = Floats()

    def array(self, values: Any, dtype: str) -> Any:
        """The values in a dtype."""
        return np.asarray(values, dtype)


class Layered:
    """One case under one record of choices, on ranges or on arrays.

    `changed`: choices put in place of the profile's own. `shown`: what a run has of each quantity,
    which is taken in place of what was computed.
    """

    def __init__(
        self,
        rule: ModuleType,
        case: Case,
        profile: Profile,
        changed: Mapping[str, Any] | None = None,
        *,
        space: Any,
        shown: dict[Key, Any] | None = None,
    ) -> None:
        self.rule, self.case, self.profile, self.space = rule, case, profile, space
        self.net = [*case.layers.values()]
        changed = dict(changed or {})
        self.given = changed.pop("given", lambda h: h)  # what a mistake makes of hyperparameters
        hypers = self.hypers()
        decays = next((h for h in hypers if h.weight_decay != 0), hypers[0])
        self.choices = self.configured(decays, **changed)
        self.shown = shown or {}

    def hypers(self) -> list[Any]:
        """The hyperparameters of each parameter."""
        own = {i: overrides for members, overrides in self.case.groups for i in members}
        kinds = {"lr": tuple, "damping": tuple, "split_dim": int}
        return [
            self.given(
                self.profile.hyper._replace(
                    **{
                        q: kinds[q](x) if isinstance(x, list) or q == "split_dim" else x
                        for q, x in named.items()
                    }
                )
            )
            for i in range(len(self.case.params))
            for named in [{**self.case.hyper, **own[i]}]
        ]

    def _decays(self, i: int) -> bool:
        """Whether parameter `i` decays, by its name where no group says so (THO-7.2)."""
        name = self.case.source["params"][i].get("name", "")
        return "groups" in self.case.source or self.choices.decayed(name)

    def configured(self, hyper: Any, **changed: Any) -> Any:
        """The profile's choices for the case's options, some of them changed."""
        choices = self.profile.choices._replace(**changed)
        return self.rule.configured(choices, hyper, self.case.options)._replace(**changed)

    def steps(self) -> Iterator[tuple[int, dict[Key, Any], Memory]]:
        """(step, what is computed in it by quantity, what is carried after it)."""
        case, rule, num = self.case, self.rule, self.space.numbers
        params = [
            self.space.array(np.asarray(values).reshape(shape), dtype)
            for values, shape, dtype in zip(case.params, case.shapes, case.dtypes, strict=True)
        ]
        xp = namespace_of(*params) if isinstance(self.space, Arrays) else self.space
        pairs = [rule.init(p, self.choices, xp=xp, num=num) for p in params]
        memory = Memory(params, [state for state, _ in pairs], [clock for _, clock in pairs])
        hypers = [
            h if self._decays(i) else h._replace(weight_decay=0.0)
            for i, h in enumerate(self.hypers())
        ]
        settled = [rule.settle(h, self.choices, num=num) for h in hypers]
        for t in range(1, case.steps + 1):
            params, states, clocks = memory
            grads = [
                self.space.array(np.asarray(values).reshape(shape), dtype)
                for values, shape, dtype in zip(
                    case.gradients(t), case.shapes, case.dtypes, strict=True
                )
            ]
            ticked = rule.ticks(params, grads, clocks, hypers, self.choices, num=num)
            scalars = [s for s, _ in ticked]
            given = [self._given(t, layer, s) for layer, s in self._with(scalars)]
            fresh = rule.refresh(self.net, given, states, scalars, settled, self.choices, xp=xp)
            computed: dict[Key, Any] = {}
            for layer, new in zip(self.net, fresh, strict=True):
                if new is not None:
                    values = (*new.factors[:2], *new.inverse[:2], new.inverse.stale)
                    names = ("A", "G", "a_inverse", "g_inverse", "scale")
                    computed |= {
                        (t, q, layer.params[0]): x
                        for q, x in zip(names, values, strict=True)
                        if x is not None
                    }
            fresh = [self._as_shown(t, *pair) for pair in zip(self.net, fresh, strict=True)]
            quantities, states, clocks = rule.update(
                *(params, grads, states, clocks, hypers, self.choices),
                xp=xp,
                num=num,
                net=self.net,
                fresh=fresh,
                ticked=ticked,
            )
            for i, q in enumerate(quantities):
                computed |= {
                    (t, "t", i): clocks[i].t,
                    (t, "gradient", i): q.gradient,
                    (t, "m", i): q.m,
                    (t, "param", i): q.param,
                }
            params = [self._shown(t, "param", i, q.param) for i, q in enumerate(quantities)]
            states = [s._replace(m=self._shown(t, "m", i, s.m)) for i, s in enumerate(states)]
            memory = Memory(params, states, clocks)
            yield t, computed, memory

    def _with(self, scalars: list[Any]) -> Iterator[tuple[tuple[str, Any], Any]]:
        return zip(self.case.layers.items(), (scalars[x.params[0]] for x in self.net), strict=True)

    def _given(self, t: int, named: tuple[str, Any], scalars: Any) -> Any:
        """What a layer saw at a step that refreshes, or its factors; None where there is none."""
        name, layer = named
        found = self.case.statistics.get(t, {}).get(name) if scalars.refresh else None
        if found is None:
            return None
        dtype = self.case.dtypes[layer.params[0]]
        arrays = {
            q: np.asarray(x.values, np.int64).reshape(x.shape)
            if x.dtype.startswith(("int", "uint"))
            else self.space.array(np.reshape(x.values, x.shape), dtype)
            for q, x in found.items()
        }
        if "ds" in arrays:
            return self.rule.Statistics(arrays["a"], arrays["ds"])
        ids = sum(found["A"].values) if layer.kind in self.rule.TABLES else 1.0  # counts add up
        norms = [
            float(found[q].values[0]) if q in found else absent
            for q, absent in (("a_norm", ids), ("g_norm", 1.0))
        ]
        return self.rule.Factors(arrays["A"], arrays["G"], *norms)

    def _as_shown(self, t: int, layer: Any, new: Any) -> Any:
        """What a refresh gives, with what the run shows of it in its place."""
        if new is None:
            return None
        w = layer.params[0]
        factors, inverse = new.factors, new.inverse
        factors = factors._replace(
            A=self._passed(t, "A", w, factors.A), G=self._passed(t, "G", w, factors.G)
        )
        inverse = inverse._replace(
            A=self._passed(t, "a_inverse", w, inverse.A),
            G=self._passed(t, "g_inverse", w, inverse.G),
        )
        return new._replace(factors=factors, inverse=inverse)

    def _passed(self, t: int, quantity: str, i: int, computed: Any) -> Any:
        """What a run shows, if the range that was computed holds it; else that range."""
        values = self.shown.get((t, quantity, i))
        if values is None or not isinstance(computed, Band):
            return computed
        values = _blocks(values, computed.shape)
        holds = self.space.beside_shown(computed, values).holds(values)
        return self.space.array(values, computed.dtype) if np.all(holds) else computed

    def _shown(self, t: int, quantity: str, i: int, computed: Any) -> Any:
        values = self.shown.get((t, quantity, i))
        if values is None:
            return computed
        return self.space.array(_blocks(values, computed.shape), computed.dtype)


def _blocks(values: Any, shape: tuple[int, ...]) -> Any:
    """What a run shows, in the shape of what was computed; a matrix of blocks as its blocks.

    What has another number of elements is no number.
    """
    if values.ndim == 2 and len(shape) == 3 and values.size != np.prod(shape):
        count, size, _ = shape
        if count * size >= len(values) > (count - 1) * size:
            whole = np.eye(count * size)
            whole[: len(values), : len(values)] = values
            tiles = whole.reshape(count, size, count, size)
            return tiles[np.arange(count), :, np.arange(count), :]
    return np.reshape(values, shape) if values.size == np.prod(shape) else np.full(shape, np.nan)


def observed(rule: ModuleType, case: Case, run: Run) -> dict[Key, Any]:
    """Everything that a run shows, by step, quantity and parameter."""
    found: dict[Key, Any] = {
        (t, q, i): np.asarray(values, np.float64)
        for t, columns in run.steps.items()
        for q, column in columns.items()
        for i, values in enumerate(column)
        if values is not None
    }
    for t, by_quantity in run.factors.items():
        for q, by_layer in by_quantity.items():
            for name, tensor in by_layer.items():
                key = (t, q, case.layers[name].params[0])
                found[key] = np.reshape(tensor.values, tensor.shape)
    return found


def numpy_run(
    rule: ModuleType,
    case: Case,
    profile: Profile,
    changed: Mapping[str, Any] | None = None,
    *,
    space: Any = None,
) -> Run:
    """Run a case by the rule of a profile; `changed`: choices put in place of what it asks for.

    `space`: other operations on NumPy arrays.
    """
    wanted = case.source.get("record") or range(1, case.steps + 1)
    steps: dict[int, Any] = {}
    factors: dict[int, Any] = {}
    names = {layer.params[0]: name for name, layer in case.layers.items()}
    course = Layered(rule, case, profile, changed, space=space or Arrays()).steps()
    with np.errstate(all="ignore"):
        try:
            every = list(course)
        except IndexError as error:  # a schedule ended
            return Run(profile.name, {}, {}, {"type": "IndexError", "message": str(error)})
    for t, computed, _ in every:
        if t not in wanted:
            continue
        steps[t], factors[t] = {}, {}
        for (_, q, i), x in computed.items():
            array = np.asarray(x)
            values = [float(value) for value in array.ravel()]
            if q in ("t", "gradient", "m", "param"):
                steps[t].setdefault(q, [None] * len(case.params))[i] = values
            else:
                tensor = Tensor(case.dtypes[i], array.shape, values)
                factors[t].setdefault(q, {})[names[i]] = tensor
    dtypes = dict.fromkeys(("gradient", "m", "param"), case.dtypes)
    dtypes["t"] = ["float64"] * len(case.params)
    return Run(profile.name, steps, dtypes, None, None, factors)


def judging(rule: ModuleType) -> type[Judge]:
    """The judge for the runs of a rule."""
    return LayerJudge if hasattr(rule, "Layer") else Judge


class LayerJudge(Judge):
    """One run against one profile, and against that profile with choices changed."""

    MOST = 3

    def __init__(
        self,
        rule: ModuleType,
        case: Case,
        run: Run,
        profile: Profile,
        *,
        k: int = ROUNDINGS,
    ) -> None:
        self.rule, self.case, self.run, self.profile = rule, case, run, profile
        self._space = Bands(k)
        self.kept: set[str] = set()  # factors and inverses are shown, or computed open-loop
        self._decides: dict[Key, Any] | None = None  # elements with bounds, or outside
        self._observed = observed(rule, case, run)

    def holds(self, changed: dict[str, Any]) -> bool:
        """As `Judge.holds`, an array at a time."""
        with precision():
            return all(self._passed(*compared) for compared in self._compared(changed))

    def _passed(self, key: Key, band: Band, values: Any) -> bool:
        holds = band.holds(values)
        if self._decides is None and not np.all(holds):
            self._measured()
        decides = np.True_ if self._decides is None else self._decides.get(key, np.True_)
        return bool(np.all(holds | ~decides if decides.shape in ((), holds.shape) else holds))

    def settings(self) -> list[tuple[Any, Any]]:
        """As `Judge.settings`, of each parameter."""
        layered = Layered(self.rule, self.case, self.profile, space=self._space)
        return [(hyper, layered.choices) for hyper in layered.hypers()]

    def matters(self, axis: str) -> bool:
        """As `Judge.matters`."""
        matters = self.rule.MATTERS.get(axis)
        net, hypers = [*self.case.layers.values()], [hyper for hyper, _ in self.settings()]
        given = [x for layers in self.case.statistics.values() for x in layers.values()]
        asked = self.rule.Asked(net, hypers, self.case.steps, any("ds" in x for x in given))
        return matters is None or matters(asked)

    def _measured(self) -> Measured:
        flow = {q: place for place, q in enumerate(self.rule.OBSERVABLE)}
        checks = unbounded = 0
        first: Finding | None = None
        ulps = share = 0.0
        self._decides = {}
        compared = sorted(self._compared({}), key=lambda x: (x[0][0], flow[x[0][1]]))
        for key, band, values in compared:
            holds, decides = band.holds(values), band.bounded
            self._decides[key] = decides | ~holds
            checks += values.size
            unbounded += int(np.sum(~decides))
            for (j,) in np.argwhere(~holds)[: first is None]:
                first = self._finding(key, band, values, int(j))
            within = holds & decides
            with np.errstate(invalid="ignore"):  # elsewhere are infinities
                away, radius = abs(values - band.middle), (band.high - band.low) / 2
                wide = within & (radius > 0)
                share = max(share, np.max(away[wide] / radius[wide], initial=0.0))
                if key[1] == "param":
                    distances = self._distances(key, values, away, radius)
                    ulps = max(ulps, np.max(distances[within], initial=0.0))
        return Measured(checks, unbounded, first, float(ulps), min(float(share), 1.0))

    def _distances(self, key: Key, values: Any, away: Any, radius: Any) -> Any:
        """As `Verdict.worst_ulp`, of each element of a parameter."""
        t, q, i = key
        before = self.case.params[i] if t == 1 else self._observed.get((t - 1, q, i), values)
        dtype = self.case.dtypes[i]
        update = abs(values - np.ravel(before))
        places = np.spacing(np.maximum(abs(values), update).astype(dtype)).astype(float)
        known = radius * 2.0 ** (FORMATS[dtype].precision / 2) <= update
        with np.errstate(over="ignore"):  # of what is not known, or beyond all numbers
            return np.where(known, away / places, 0.0)

    def beside(self, changes: Changes, step: int = 0) -> Iterator[Beside]:
        """As `Judge.beside`, an array at a time."""
        flow = {q: place for place, q in enumerate(self.rule.OBSERVABLE)}
        changed = {axis: self.rule.AXES[axis][name] for axis, name in changes}
        for t, compared in groupby(self._compared(changed), key=lambda x: x[0][0]):
            if step not in (0, t):
                continue
            for key, band, values in sorted(compared, key=lambda x: (flow[x[0][1]], x[0][2])):
                passed = self._passed(key, band, values) if changes else np.all(band.holds(values))
                decides = bool(np.any(band.bounded & np.isfinite(values)))
                number = bool(np.any(np.isfinite(self._observed[key])))  # in whatever shape
                place = t, flow[key[1]], key[2]
                yield Beside(place, key, bool(passed), band, decides, values, FORCED, number)

    def finding(self, beside: Beside) -> Finding:
        """As `Judge.finding`: of an array its first element."""
        ((j, *_), *_) = np.argwhere(~beside.range.holds(beside.observed))
        return self._finding(beside.key, beside.range, beside.observed, int(j))

    def _finding(self, key: Key, band: Band, values: Any, j: int) -> Finding:
        ends = (float(end[j]) for end in (band.low, band.high))
        low, high = (end if math.isfinite(end) else math.nan for end in ends)
        layers = (name for name, x in self.case.layers.items() if x.params[0] == key[2])
        layer = next(layers) if key[1] in BY_LAYER else ""
        return Finding(*key, j, float(values[j]), low, high, FORCED, layer)

    def _compared(self, changed: dict[str, Any]) -> Iterator[tuple[Key, Band, Any]]:
        """Every quantity that the run shows: its envelope beside its elements, flat.

        Where the rule gives no value for a step there is nothing that a parameter may be; an array
        of another shape is no number.
        """
        space = self._space
        layered = Layered(
            *(self.rule, self.case, self.profile, changed), space=space, shown=self._observed
        )
        last = max(self.run.steps)
        t = 0
        try:
            for t, computed, _ in layered.steps():
                for key, x in computed.items():
                    values = self._observed.get(key)
                    if values is None:
                        continue
                    band = x if isinstance(x, Band) else space.beside(x)
                    values = _blocks(values, band.shape)
                    band = space.beside_shown(band, values)
                    yield key, space.reshape(band, (-1,)), values.reshape(-1)
                if t == last:
                    break
        except IndexError:
            key = (t + 1, "param", 0)
            values = np.ravel(self._observed[key])
            none = np.full(values.shape, np.inf)
            yield key, Band(none, -none, self.case.dtypes[0], space), values
