"""THOR as an object: the surface of `mindspore.nn.thor` around `refopt.rules.thor`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from refopt.interp.arrays import Floats, dtype_name, init, passage, recording, run
from refopt.interp.host import is_array, placed
from refopt.interp.measures import (
    any_beyond,
    conditions,
    fault_of,
    finite,
    hold,
    integers,
    invertible,
    invertible_blocks,
    norm,
    on_host,
)
from refopt.optim.arguments import (
    check_communicator,
    check_split,
    count,
    flag,
    now,
    real,
    schedule,
)
from refopt.optim.groups import deep
from refopt.optim.layers import Factors, Layer
from refopt.optim.net import check_statistics, checked_factors, separated
from refopt.optim.parameter import (
    Parameter,
    _check_like,
    assign,
    check_apart,
    check_gradient,
    kind,
)
from refopt.parallel.mpi import Sums, agree, shares
from refopt.rules import thor as rule

FIELDS = {
    "moment": "m",
    "a_factor": "A",
    "g_factor": "G",
    "a_inverse": "a_inverse",
    "g_inverse": "g_inverse",
    "scale": "scale",
}
"""Keys of a parameter's state, and the fields of the rule that they hold."""

NUMBERS = (
    *("momentum", "weight_decay", "loss_scale", "batch_size", "split_dim", "clip_norm"),
    *("frequency", "factor_decay"),
)
"""In which workers agree."""

STAGES = {
    "g": "its gradient, unscaled, centralized and decayed,",
    "preconditioned": "its preconditioned gradient",
    "gradient": "its gradient, decayed and clipped,",
    "m": "its momentum",
    "param": "its value",
}
"""What a step computes one after the other."""


class THOR:
    """The gradient of each weight between the inverses of two second moments of its layer.

    The equations are `refopt.rules.thor`, clauses THO-2 to THO-10. The user computes the forward
    and the backward pass, on arrays of any one library, and hands over what the layers saw.

    Parameters
    ----------
    net : list
        Layers (`refopt.layers`), and dicts that make parameter groups: `params`, a list of layers
        or of their parameters, and of `lr`, `weight_decay`, `grad_centralization` what differs for
        these. A layer may stand in a group alone, or beside it. In a group every parameter decays,
        by the group's `weight_decay` or else by the optimizer's. `grad_centralization=True`
        subtracts from a gradient its mean over all axes but the first; for weights of convolutions
        only. A dict `{"order_params": […]}` gives all parameters, or layers, in the order that
        `gradients` shall have.
    learning_rate : float, 1-D array or callable
        γ; an array has one value a step, a callable takes the number of steps done. Under a
        profile of MindSpore an array is required.
    damping : float, 1-D array or callable
        λ ≥ 0, likewise. Under "documented" a step is at most λ⁻² times the plain gradient: start
        with a γ of λ² times a rate of SGD, and go up; a larger λ brings it nearer to SGD.
    momentum : float
        μ ≥ 0.
    weight_decay : int or float
        w ≥ 0 (default: 0).
    loss_scale : float
        s > 0, which the loss was multiplied by (default: 1).
    batch_size : int
        b ≥ 1, the samples that the loss is a mean of (default: 32).
    use_nesterov : bool
        Nesterov's momentum (default: False).
    decay_filter : callable
        Which parameters outside of groups decay, a function of a `Parameter`; not asked where
        `weight_decay` is 0 (default, written `...`: the profile's, under "documented" those
        without "beta" or "gamma" in their name).
    split_indices : list of int, optional
        The last layer of each message between workers, counted over `factored`; the layers after
        the last one make one more (default: None, one message).
    enable_clip_grad : bool
        Limit the norm of each preconditioned gradient to `clip_norm` (default: False).
    frequency : int
        f ≥ 2: inverses are renewed at steps 0, f, 2f and so on (default: 100).
    profile : str
        Whose rule: "documented", or another of `refopt.rules.thor.PROFILES`.
    comm : mpi4py communicator, optional
        Of the workers among whom factors or inverses are reduced; gradients are the user's to
        reduce. All make the optimizer at the same time, with the same numbers, `batch_size` among
        them, the samples of one. Where one has more samples in a step all count alike, but for
        ids, each of which counts. A worker that raises before it has sent leaves the others
        waiting: `mpiexec -n 4 python -m mpi4py script.py` ends all (default: None).
    reduction : str, optional
        "mean-of-factors", "mean-of-inverses" or "sum-of-inverses" (default: the profile's).
    fixed_order : int, optional
        Factors are taken of this many samples at a time and added one after the other, over all
        workers by rank: for any number of workers the same bits. Needs a reduction of factors, and
        no convolution whose factors are those of a mean sample (default: None).
    keep_inverse : bool
        Where a factor is not positive definite or not finite: warn, and keep the layer's previous
        inverse, if there is one (default: False, an error).
    split_dim : int
        Size of the blocks where a profile inverts by blocks (default: 128).
    clip_norm : float
        See `enable_clip_grad` (default: 1).
    factor_decay : float
        ρ in [0, 1], where a profile averages factors over time (default: 0.95).

    Attributes
    ----------
    parameters : tuple of Parameter
        In the order of `gradients`: that of `net`, the weight before the bias, or `order_params`.
    factored : tuple of str
        The layers that need statistics, in the order of `net`.
    messages : int
        Reductions between workers so far.

    Raises
    ------
    TypeError, ValueError, KeyError
        An argument of another kind or out of its range, a malformed group; the message names it.

    Layers that share a parameter, tied weights, are an error, as each would need factors of its
    own. On dask a step computes what it leaves behind.

    Example
    -------
    >>> import numpy as np
    >>> from refopt import layers, thor
    >>> w, x = np.zeros((1, 2)), np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> opt = thor([layers.Dense("fc", weight=w)], 1.0, 0.5, 0.0, batch_size=2)
    >>> ds = (x @ w.T - [[1.0], [2.0]]) / 2  # of half the mean squared error
    >>> opt((ds.T @ x,), activations={"fc": x}, output_gradients={"fc": ds})
    (True,)
    >>> w
    array([[0.16666667, 0.33333333]])

    Source: M. Chen et al., "THOR, Trace-based Hardware-driven layer-Oriented Natural Gradient
    Descent Computation" (AAAI 2021); mindspore.nn.thor, 2022.

    """

    def __init__(
        self,
        net: Any,
        learning_rate: Any,
        damping: Any,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        batch_size: int = 32,
        use_nesterov: bool = False,
        decay_filter: Any = ...,
        split_indices: Any = None,
        enable_clip_grad: bool = False,
        frequency: int = 100,
        *,
        profile: str = "documented",
        comm: Any = None,
        reduction: str | None = None,
        fixed_order: int | None = None,
        keep_inverse: bool = False,
        split_dim: int = 128,
        clip_norm: float = 1.0,
        factor_decay: float = 0.95,
    ) -> None:
        if not isinstance(profile, str) or profile not in rule.PROFILES:
            msg = f"profile: one of {', '.join(rule.PROFILES)} is required, got {profile!r}"
            raise ValueError(msg)
        release = profile.startswith("mindspore")
        if release and not is_array(learning_rate):
            msg = f"learning_rate: an array is required under {profile!r}, got {learning_rate!r}"
            raise TypeError(msg)
        hyper = rule.Hyper(
            momentum=real("momentum", momentum, floats=True),
            weight_decay=real("weight_decay", weight_decay),
            # the page asks for a float; its release takes an integer too
            loss_scale=real("loss_scale", loss_scale, floats=not release, above=True),
            batch_size=count("batch_size", batch_size, 1),
            split_dim=count("split_dim", split_dim, 1),
            clip_norm=real("clip_norm", clip_norm, above=True),
            frequency=count("frequency", frequency, 2),
            factor_decay=real("factor_decay", factor_decay, most=1),
        )
        flags = {"use_nesterov": use_nesterov, "enable_clip_grad": enable_clip_grad}
        for name, x in {**flags, "keep_inverse": keep_inverse}.items():
            flag(name, x)
        if decay_filter is not ... and not callable(decay_filter):
            msg = f"decay_filter: a callable is required, got {decay_filter!r}"
            raise TypeError(msg)
        choices = rule.PROFILES[profile].choices
        if reduction is not None:
            if not isinstance(reduction, str) or reduction not in rule.AXES["reduction"]:
                known = ", ".join(rule.AXES["reduction"])
                msg = f"reduction: one of {known} is required, got {reduction!r}"
                raise ValueError(msg)
            choices = choices._replace(reduction=rule.AXES["reduction"][reduction])
        if fixed_order is not None:
            fixed_order = count("fixed_order", fixed_order, 1)
            if choices.reduction.factors is rule.kept:
                msg = f"fixed_order: a reduction of factors is required, got {fixed_order!r}"
                raise ValueError(msg)
        check_communicator(comm)
        self._damping = schedule("damping", damping, least=0.0)
        rate = schedule("learning_rate", learning_rate)
        self._layers, groups = separated(net)
        if fixed_order is not None and choices.conv is rule.mean_sample:
            for own in self._layers:
                if own.kind == rule.CONV:
                    msg = (
                        f"fixed_order: None is required beside a convolution, {own.name!r}, where "
                        f"its samples are averaged before its factors, got {fixed_order!r}"
                    )
                    raise ValueError(msg)
        self.parameters = tuple(groups)
        names = {
            p: n for own in self._layers for n, p in zip(own.names, own.parameters, strict=True)
        }
        self._names = [names[p] for p in self.parameters]
        check_apart(names)

        def decay(parameter: Parameter) -> float:
            if (group := groups[parameter]) is not None:
                return float(group.get("weight_decay", weight_decay))
            if weight_decay == 0:
                return 0.0
            name = names[parameter]
            own = choices.decayed(name) if decay_filter is ... else decay_filter(parameter)
            if is_array(own):
                msg = f"decay_filter: a bool is required for {name}, got {kind(own)}"
                raise TypeError(msg)
            return float(weight_decay) if own else 0.0

        self._options = [
            _Options(
                "lr" if group and "lr" in group else "learning_rate",
                schedule("lr", group["lr"]) if group and "lr" in group else rate,
                decay(p),
                bool(group and group.get("grad_centralization")),
            )
            for p, group in groups.items()
        ]
        lengths = sorted({len(o.rate) for o in self._options if isinstance(o.rate, tuple)})
        if len(lengths) > 1:
            msg = f"lr: as many values in each group are required, got {lengths}"
            raise ValueError(msg)
        number_of = {p: i for i, p in enumerate(self.parameters)}
        self._net = [
            layer.described(tuple(number_of[p] for p in layer.parameters)) for layer in self._layers
        ]
        self.factored = tuple(x.name for x in self._layers if x.kind in rule.FACTORED)
        check_split(split_indices, len(self.factored))
        self._hyper = hyper._replace(weight_decay=max(own.weight_decay for own in self._options))
        choices = rule.configured(choices, self._hyper, flags)
        self.profile, self._rule = profile, rule.PROFILES[profile]._replace(choices=choices)
        self._fixed_order, self._keep_inverse = fixed_order, keep_inverse
        self._reduces = comm is not None or fixed_order is not None
        self._sums = Sums(comm, split_indices or (), fixed_order is not None)
        agree(comm, {q: getattr(hyper, q) for q in NUMBERS})
        self.messages = 0
        arrays = [p.data for p in self.parameters]
        with recording(False, *arrays):
            self._states = [init(rule, self._rule, array)[0] for array in arrays]
        self._steps = 0
        self._refreshed: dict[str, int] = {}
        self._seen: _Seen | None = None

    @property
    def moments(self) -> tuple[Any, ...]:
        """The momentum of each parameter, in the order of `parameters`."""
        return tuple(state.m for state in self._states)

    @property
    def needs_statistics(self) -> bool:
        """Whether the next step renews the inverses."""
        renews = self._rule.choices.frequency(self._steps, self._hyper)
        return bool(self.factored) and bool(renews)

    def __call__(
        self,
        gradients: Any,
        *,
        activations: Mapping[str, Any] | None = None,
        output_gradients: Mapping[str, Any] | None = None,
        factors: Mapping[str, Factors] | None = None,
    ) -> tuple[bool, ...]:
        """Take one step. Everything is checked and computed before anything changes.

        Statistics are needed on steps where `needs_statistics` is True, for each layer of
        `factored` in one of two forms; on other steps they are ignored.

        Parameters
        ----------
        gradients : sequence of arrays
            Of the scaled loss, one for each parameter, like it.
        activations, output_gradients : mapping from layer to array
            Input of the layer, and gradient of the scaled loss for its output before the bias;
            `refopt.layers` says their shapes. Of the parameter's library and dtype.
        factors : mapping from layer to `refopt.layers.Factors`
            Second moments, ready made.

        Returns
        -------
        True for each parameter.

        Raises
        ------
        TypeError, ValueError, KeyError
            What does not fit; the message names it.
        IndexError
            `learning_rate` or `damping` has no value for this step.
        numpy.linalg.LinAlgError
            A factor that is not positive definite after damping, or not finite.

        """
        refresh = self.needs_statistics
        self._check_gradients(gradients)
        hypers = self._hypers()
        given = [None] * len(self._net)
        if refresh:
            named = {
                "activations": activations,
                "output_gradients": output_gradients,
                "factors": factors,
            }
            given = self._given({k: {} if x is None else x for k, x in named.items()})
        arrays = [p.data for p in self.parameters]
        refreshed = dict(self._refreshed)
        self._sums.messages = self.messages
        with recording(False, *arrays):
            quantities, states, clocks = run(
                _Rule(self._stepped),
                self._rule,
                arrays,
                list(gradients),
                self._states,
                [rule.Clock(self._steps)] * len(arrays),
                hypers,
                given=given,
                refreshed=refreshed,
            )
            hold([x for q in [*quantities, *states] for x in q])
            self._check_results(arrays, quantities, hypers)
            with ExitStack() as undo:
                for parameter, q in zip(self.parameters, quantities, strict=True):
                    assign(parameter, q.param, False, undo)
                undo.pop_all()
        hold([p.data for p in self.parameters])
        self._seen = _Seen(
            self._steps, hypers, [(q.g, q.preconditioned, q.gradient) for q in quantities]
        )
        self._states, self._refreshed = states, refreshed
        self.messages = self._sums.messages
        self._steps = int(float(clocks[0].t))
        return (True,) * len(arrays)

    # -- what a step is made of -------------------------------------------------------------------
    def _check_gradients(self, gradients: Any) -> None:
        """Raise unless there is a gradient for each parameter, like it and finite."""
        if not isinstance(gradients, tuple | list):
            msg = f"gradients: a tuple of arrays is required, got {kind(gradients)}"
            raise TypeError(msg)
        if len(gradients) != len(self.parameters):
            msg = f"gradients: {len(self.parameters)} arrays are required, got {len(gradients)}"
            raise ValueError(msg)
        named = zip(self.parameters, self._names, strict=True)
        places = {p: f"gradients[{i}] ({name})" for i, (p, name) in enumerate(named)}
        for state, name, p in zip(self._states, self._names, self.parameters, strict=True):
            _check_like(f"{name}: data, as when the optimizer was made", state.m, p.data)
        for (p, where), gradient in zip(places.items(), gradients, strict=True):
            check_gradient(where, p.data, gradient)
        check_apart(places)
        for where, good in zip(places.values(), finite(gradients), strict=True):
            if not good:
                msg = f"{where}: finite numbers are required, got a NaN or an infinity"
                raise ValueError(msg)

    def _hypers(self) -> list[rule.Hyper]:
        """The hyperparameters of each parameter for the next step."""
        ends = self._rule.choices.past_end is rule.an_error
        damping = now("damping", self._damping, self._steps, ends=ends, least=0.0)
        rates = {  # each once: a callable may count its calls
            key: now(own.name, own.rate, self._steps, ends=ends)
            for key, own in {id(own.rate): own for own in self._options}.items()
        }
        return [
            self._hyper._replace(
                lr=rates[id(own.rate)],
                damping=damping,
                weight_decay=own.weight_decay,
                grad_centralization=own.centralizes,
            )
            for own in self._options
        ]

    def _given(self, named: dict[str, Any]) -> list[Any]:
        """What each layer saw, or its factors, checked; None for a layer that needs none."""
        known = ", ".join(self.factored)
        for argument, mapping in named.items():
            if not isinstance(mapping, Mapping):
                msg = f"{argument}: a mapping from layers is required, got {kind(mapping)}"
                raise TypeError(msg)
            for name in mapping:
                if name not in self.factored:
                    msg = (
                        f"{argument}: names of factored layers are required ({known}), got {name!r}"
                    )
                    raise KeyError(msg)
        activations, output_gradients, factors = named.values()
        for argument in ("activations", "output_gradients"):
            missing = [n for n in self.factored if n not in factors and n not in named[argument]]
            if missing:
                msg = (
                    f"{argument}: {', '.join(missing)} required at step {self._steps}, which "
                    f"renews the inverses, got {', '.join(named[argument]) or 'no layer'}"
                )
                raise ValueError(msg)
        result: list[Any] = []
        for own, layer in zip(self._layers, self._net, strict=True):
            if layer.kind not in rule.FACTORED:
                result.append(None)
            elif own.name not in factors:
                a = activations[own.name]
                x = rule.Statistics(integers(a) if is_array(a) else a, output_gradients[own.name])
                check_statistics(own, layer, *x)
                result.append(x)
            else:
                for argument in ("activations", "output_gradients"):
                    if own.name in named[argument]:
                        msg = f"factors: {own.name!r} in one form is required, got {argument} too"
                        raise ValueError(msg)
                result.append(checked_factors(own, layer, factors[own.name]))
        return result

    def _stepped(
        self,
        params: Sequence[Any],
        grads: Sequence[Any],
        states: Sequence[rule.State],
        clocks: Sequence[rule.Clock],
        hypers: Sequence[rule.Hyper],
        choices: rule.Choices,
        *,
        xp: Any,
        num: Any,
        given: list[Any],
        refreshed: dict[str, int],
    ) -> Any:
        """The rule's step, with new inverses looked at before they are used."""
        ticked = rule.ticks(params, grads, clocks, hypers, choices, num=num)
        scalars = [s for s, _ in ticked]
        fresh: list[Any] = [None] * len(given)
        if self.factored and scalars[0].refresh:
            settled = [rule.settle(h, choices, num=num) for h in hypers]
            parts = self._parts(given, choices, xp)

            def total(arrays: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
                rest = [[tuple(f) for f in part if f is not None] for part in parts[1:]]
                return on_host(self._sums)([arrays, *rest])

            fresh = rule.refresh(
                *(self._net, parts[0], states, scalars, settled, choices),
                xp=xp,
                total=total if self._reduces else None,
                workers=self._sums.workers(len(parts)),
            )
            fresh = self._proved(fresh, states, scalars, settled, choices, xp)
            for own, new in zip(self._layers, fresh, strict=True):
                if new is not None:
                    refreshed[own.name] = self._steps
        arguments = (params, grads, states, clocks, hypers, choices)
        return rule.update(
            *arguments,
            xp=xp,
            num=num,
            net=self._net,
            fresh=fresh,
            workers=self._sums.workers(1),
            ticked=ticked,
        )

    def _parts(self, given: list[Any], choices: rule.Choices, xp: Any) -> list[list[Any]]:
        """What is given, as the rule takes it; with a fixed order as factors, part by part."""
        columns: list[list[Any]] = []
        for own, layer, x in zip(self._layers, self._net, given, strict=True):
            if x is None:
                columns.append([None])
                continue
            enter = passage(own.parameters[0].data, self._rule.half).enter
            if isinstance(x, rule.Factors):
                columns.append([x._replace(A=enter(x.A), G=enter(x.G))])
                continue
            x = rule.Statistics(x.a if layer.kind in rule.TABLES else enter(x.a), enter(x.ds))
            if self._fixed_order is None:
                columns.append([x])
                continue
            rows = shares(own.name, xp.length(x.ds), self._fixed_order)
            seen = [(_rows(x.a, share, xp), _rows(x.ds, share, xp)) for share in rows]
            found = [rule.statistics(layer, a, ds, choices, xp=xp) for a, ds in seen]
            columns.append([rule.part_of(layer, f, len(found), choices) for f in found])
        most = max(len(column) for column in columns)
        for own, layer, column in zip(self._layers, self._net, columns, strict=True):
            if layer.kind not in rule.FACTORED:
                column[:] = [None] * most
            elif len(column) != most:
                msg = f"fixed_order: {most} parts are required of {own.name!r}, got {len(column)}"
                raise ValueError(msg)
        return [list(part) for part in zip(*columns, strict=True)]

    def _proved(
        self,
        fresh: list[Any],
        states: Sequence[rule.State],
        scalars: Sequence[rule.Scalars],
        hypers: Sequence[rule.Hyper],
        choices: rule.Choices,
        xp: Any,
    ) -> list[Any]:
        """The new inverses; None, or an error, for those that are not finite as they are stored."""
        stored = [
            [self._leave(own)(x) for x in new.inverse[:2]]
            for own, new in zip(self._layers, fresh, strict=True)
            if new is not None
        ]
        good = iter(invertible([x for pair in stored for x in pair]))
        proved = []
        for own, layer, new in zip(self._layers, rule.placed(self._net), fresh, strict=True):
            if new is None or all([next(good), next(good)]):
                proved.append(new)
                continue
            w = layer.params[0]
            fault = self._fault(own, layer, new, float(scalars[w].damping), hypers[w], choices, xp)
            if not self._keep_inverse or states[w].a_inverse is None:
                raise np.linalg.LinAlgError(fault)
            warnings.warn(f"{fault}; the previous inverse is kept", UserWarning, stacklevel=5)
            proved.append(None)
        return proved

    def _fault(
        self,
        own: Layer,
        layer: rule.Layer,
        new: rule.Fresh,
        damping: float,
        hyper: rule.Hyper,
        choices: rule.Choices,
        xp: Any,
    ) -> str:
        """Which factor of a layer has no inverse, and why."""
        leave, dtype = self._leave(own), dtype_name(own.parameters[0].data)
        c = choices._replace(extremes=rule.undivided)  # these spread a fault to all blocks
        inverse = rule.invert(layer, new.factors, damping, hyper, c, xp=xp)
        damped = rule.damped(layer, new.factors, damping, hyper, c, xp=xp)
        found, elsewhere = [], []
        for i, name in enumerate("AG"):
            blocks = invertible_blocks(leave(inverse[i]))
            if False in blocks:
                block = blocks.index(False)
                got = "a NaN or an infinity in it"
                if finite([leave(new.factors[i])])[0]:
                    size = xp.shape(inverse[i])[-1]
                    got = fault_of(damped[i], block, size, dtype)
                found.append((name, block, len(blocks), got))
            blocks = invertible_blocks(leave(new.inverse[i]))
            if False in blocks:
                got = "another one from another worker"
                elsewhere.append((name, blocks.index(False), len(blocks), got))
        # what overflows may do so by the fault of the other factor
        name, block, count, got = min(found or elsewhere, key=lambda x: "overflows" in x[3])
        return (
            f"layer {own.name!r}, factor {name}, block {block} of {count}: a positive definite "
            f"matrix of finite numbers is required, got {got} (damping λ = {damping:g})"
        )

    def _leave(self, own: Layer) -> Callable[[Any], Any]:
        """An array of the rule as it is stored beside the weight of a layer."""
        leave = passage(own.parameters[0].data, self._rule.half).leave
        return lambda x: leave(x, True)

    def _check_results(
        self, arrays: list[Any], quantities: Sequence[rule.Quantities], hypers: list[rule.Hyper]
    ) -> None:
        """Raise where a step gives what is no number, or a clipped gradient that is lost."""
        norms = {i for layer in self._net if layer.kind == rule.NORM for i in layer.params}
        stages = ("g", "preconditioned", "gradient", "m", "param")
        good = finite([x for q in quantities for x in (q.m, q.param)])
        if not all(good):
            pairs = zip(good[::2], good[1::2], strict=True)
            i = [all(pair) for pair in pairs].index(False)
            q, name, damping = quantities[i], self._names[i], hypers[i].damping
            (stage, *_) = (x for x in stages if not finite([getattr(q, x)])[0])
            if i in norms and stage == "preconditioned" and _at(damping, self._steps) == 0:
                msg = (
                    f"damping: a number > 0 is required where a gradient of {name} is 0, "
                    f"got 0 at step {self._steps}"
                )
            else:
                msg = (
                    f"{name}: finite numbers are required, got a NaN or an infinity in "
                    f"{STAGES[stage]} at step {self._steps}"
                )
            raise ValueError(msg)
        c = self._rule.choices
        if c.clip is not rule.by_norm or self.profile.startswith("mindspore"):
            return
        before = [
            c.decay.after(q.preconditioned, p, h)
            for q, p, h in zip(quantities, arrays, hypers, strict=True)
        ]
        was = any_beyond(float(self._hyper.clip_norm), before)
        stays = any_beyond(0.0, [q.gradient for q in quantities])
        for name, large, left in zip(self._names, was, stays, strict=True):
            if large and not left:
                msg = (
                    f"{name}: a preconditioned gradient that can be squared is required where its "
                    f"norm is clipped, got one that over- or underflows at step {self._steps}"
                )
                raise ValueError(msg)

    # -- what is kept -----------------------------------------------------------------------------
    def report(self) -> dict[str, Any]:
        """What the last step did; for this its gradients are kept until the next.

        Returns
        -------
        `step`, its number from 0; `messages`, see there; and `parameters`, by name: `rule`, what
        preconditioned its gradient; `lr`, `damping`, `weight_decay`; the Euclidean norms of
        `gradient` (of the loss, centralized and decayed, as it is preconditioned),
        `preconditioned`, `update` (decayed and clipped), `moment` and `param`; and for weights of
        factored layers `a_condition` and `g_condition`, the condition number of each block of the
        damped factors.

        Raises
        ------
        RuntimeError
            No step was taken since the optimizer was made or loaded.

        """
        if self._seen is None:
            msg = "report: a step is required before, got none"
            raise RuntimeError(msg)
        step, hypers, arrays = self._seen
        found: dict[str, Any] = {}
        for own, layer in zip(self._layers, rule.placed(self._net), strict=True):
            for name, parameter, i in zip(own.names, own.parameters, layer.params, strict=True):
                hyper, clock = hypers[i], rule.Clock(step)
                scalars, _ = rule.tick(clock, hyper, self._rule.choices, num=Floats())
                inverts = layer.kind in rule.FACTORED and i == layer.params[0]
                norms = ("gradient", "preconditioned", "update")
                found[name] = {
                    "rule": self._fired(own, layer, inverts),
                    "lr": float(scalars.lr),
                    "damping": float(scalars.damping),
                    "weight_decay": hyper.weight_decay,
                    **{key: norm(x) for key, x in zip(norms, arrays[i], strict=True)},
                    "moment": norm(self._states[i].m),
                    "param": norm(parameter.data),
                    **(_conditions(layer, self._states[i]) if inverts else {}),
                }
        return {"step": step, "messages": self.messages, "parameters": found}

    def _fired(self, own: Layer, layer: rule.Layer, inverts: bool) -> str:
        """What preconditions a gradient."""
        c = self._rule.choices
        if c.beside_conv(layer):
            if inverts:
                return f"inverses of step {self._refreshed[own.name]}"
            if layer.kind == rule.NORM and c.norm is not rule.plain:
                return "diagonal"
        return "none"

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on besides arguments and parameters; arrays are copies.

        `refopt.save` writes it to a file without loss, and a run that loads it goes on bit for bit.
        """
        state = {
            name: {key: deep(x) for key, f in FIELDS.items() if (x := getattr(own, f)) is not None}
            for name, own in zip(self._names, self._states, strict=True)
        }
        return {
            "profile": self.profile,
            "split_dim": self._hyper.split_dim,
            "step": self._steps,
            "refreshed": dict(self._refreshed),
            "state": state,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; parameters are the caller's to restore.

        Arrays of any library are copied to library and device of their parameter.

        Raises
        ------
        KeyError
            Something is absent.
        TypeError
            No mapping, no array, another dtype.
        ValueError
            Another profile or `split_dim`, other parameters or layers, another shape, what is not
            finite. Nothing is loaded then.

        """
        own = {"profile": self.profile, "split_dim": self._hyper.split_dim}
        _check_mapping("state_dict", state_dict, (*own, "step", "refreshed", "state"))
        for key, wanted in own.items():
            if not isinstance(state_dict[key], type(wanted)) or state_dict[key] != wanted:
                msg = f"state_dict: {key} {wanted!r} is required, got {state_dict[key]!r}"
                raise ValueError(msg)
        steps = count("state_dict: step", state_dict["step"], 0)
        states, refreshed = state_dict["state"], state_dict["refreshed"]
        _check_names("state", states, self._names)
        _check_names("refreshed", refreshed, self.factored if steps else ())
        renewed = {name: count(f"refreshed[{name!r}]", x, 0) for name, x in refreshed.items()}
        if late := [name for name, x in renewed.items() if x >= steps]:
            msg = f"refreshed[{late[0]!r}]: a step before {steps} is required, got {steps}"
            raise ValueError(msg)
        weights = {
            layer.params[0]: layer
            for layer in rule.placed(self._net)
            if layer.kind in rule.FACTORED and steps
        }
        c = self._rule.choices
        loaded = []
        for i, (name, p) in enumerate(zip(self._names, self.parameters, strict=True)):
            more = rule.shapes_of(weights[i], self._hyper, c) if i in weights else {}
            loaded.append(_fitted(f"state of {name}", states[name], p.data, more))
        self._states, self._steps, self._refreshed, self._seen = loaded, steps, renewed, None

    def __repr__(self) -> str:
        return f"THOR({list(self._layers)!r}, profile={self.profile!r})"


class _Rule(NamedTuple):
    """A rule as `run` takes it."""

    update: Callable[..., Any]


class _Seen(NamedTuple):
    """What the last step was."""

    step: int
    hypers: list[rule.Hyper]
    arrays: list[tuple[Any, Any, Any]]


class _Options(NamedTuple):
    """What holds for one parameter."""

    name: str  # of the argument that the rate is
    rate: Any
    weight_decay: float
    centralizes: bool


def _at(values: Any, t: int) -> Any:
    """A schedule's value at step t."""
    return rule.the_last(values, t) if isinstance(values, tuple) else values


def _rows(x: Any, rows: slice, xp: Any) -> Any:
    """Some rows of an array, of all lengths along the other axes."""
    return xp.cut(x, (rows, *[slice(None)] * len(xp.shape(x)[1:])))


def _conditions(layer: rule.Layer, state: rule.State) -> dict[str, list[float]]:
    """Condition numbers of the damped factors of a layer, from their inverses."""
    m, n = rule.matrix_of(layer)
    a, g = (m, n) if layer.kind in rule.TABLES else (n, m)
    return {
        "a_condition": conditions(state.a_inverse, a),
        "g_condition": conditions(state.g_inverse, g),
    }


def _check_mapping(where: str, x: Any, keys: Sequence[str]) -> None:
    """Raise unless `x` is a mapping with these keys."""
    if not isinstance(x, Mapping):
        msg = f"{where}: a mapping is required, got {kind(x)}"
        raise TypeError(msg)
    for key in keys:
        if key not in x:
            msg = f"{where}: {key} is required, got {[*x]}"
            raise KeyError(msg)


def _check_names(where: str, x: Any, names: Sequence[str]) -> None:
    """Raise unless `x` is a mapping with these keys and no others."""
    _check_mapping(f"state_dict: {where}", x, ())
    if set(x) != set(names):
        msg = f"state_dict: {where}: {[*names]} are required, got {[*x]}"
        raise ValueError(msg)


def _fitted(where: str, state: Any, array: Any, more: dict[str, tuple[int, ...]]) -> rule.State:
    """A loaded state in the library and on the device of its parameter."""
    shapes = {"m": tuple(array.shape), **more}
    keys = {key: f for key, f in FIELDS.items() if f in shapes}
    _check_names(where, state, [*keys])
    fields: dict[str, Any] = dict.fromkeys(FIELDS.values())
    for key, f in keys.items():
        x = state[key]
        if f == "scale" and isinstance(x, float):
            fields[f] = real(f"{where}: {key}", x, above=True)
            continue
        if not is_array(x):
            msg = f"{where}: {key}: an array is required, got {kind(x)}"
            raise TypeError(msg)
        if f != "scale" and dtype_name(x) != dtype_name(array):
            wanted = dtype_name(array)
            msg = f"{where}: {key}: dtype {wanted} is required, got {dtype_name(x)}"
            raise TypeError(msg)
        if tuple(x.shape) != shapes[f]:
            msg = f"{where}: {key}: shape {shapes[f]} is required, got {tuple(x.shape)}"
            raise ValueError(msg)
        inverse = f in ("a_inverse", "g_inverse")
        if not (invertible if inverse else finite)([x])[0]:
            wanted = "finite numbers" + (", above 0 on the diagonal," if inverse else "")
            msg = f"{where}: {key}: {wanted} are required, got others"
            raise ValueError(msg)
        fields[f] = placed(x, array)
    return rule.State(**fields)
