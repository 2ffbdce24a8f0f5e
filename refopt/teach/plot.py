"""Pictures of what the rules compute, for matplotlib (extra `teach`).

Colours are those of M. Okabe and K. Ito, Color Universal Design (2008), which colour-blind eyes
tell apart; lines differ in their dashes as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refopt.errors import MissingExtra, Unknown
from refopt.oracle.replay import Replay
from refopt.problems import Landscape, Problem
from refopt.teach.runs import (
    OnBalls,
    Setting,
    Taken,
    exact,
    known,
    numbers,
    problem_of,
    setting,
    taken,
)
from refopt.teach.trace import case_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)), (0, (3, 1)), "-")
SIZE = (6.4, 4.8)  # inches
DPI = 120
RATES = tuple(2.0**k for k in range(-14, 2))
"""Learning rates that are tried where none is given."""


class Run(NamedTuple):
    """One line of a picture."""

    label: str
    s: Setting
    steps: list[Taken]


class Path2(NamedTuple):
    """The places of a run on a landscape: the start, then after each step."""

    label: str
    x: list[float]
    y: list[float]


class Curve(NamedTuple):
    """Numbers over steps."""

    label: str
    steps: list[int]
    values: list[float]


class Band(NamedTuple):
    """A quantity of a run between the bounds that rounding allows, and its true value."""

    label: str
    steps: list[int]
    low: list[float]
    high: list[float]
    values: list[float]
    true: list[float]


class Spectrum(NamedTuple):
    """The eigenvalues of a factor, falling."""

    label: str
    values: list[float]


# -- data -----------------------------------------------------------------------------------------
def parsed(text: str, problem: Problem) -> tuple[str, Setting]:
    """(label, setting) of OPTIMIZER[/PROFILE][:NAME=VALUE,…].

    Raises
    ------
    Unknown
        Something has no such name.
    ValueError
        A value is no number.
    """
    name, _, rest = text.partition(":")
    optimizer, _, profile = name.partition("/")
    given = numbers("a hyperparameter of OPTIMIZER", filter(None, rest.split(",")))
    return text, setting(optimizer, profile or "documented", given, problem)


def runs(texts: Sequence[str], problem: Problem, steps: int, dtype: str = "float64") -> list[Run]:
    """What each optimizer does on a problem; without a learning rate it takes the best of `RATES`.

    The best leaves the lowest value after all steps, of those whose path stays in the domain.
    """
    found = []
    for text in texts:
        label, s = parsed(text, problem)
        if "lr=" not in text:
            rate = best_rate(s, problem, steps)
            s = s._replace(hyper=s.hyper._replace(lr=rate), given={**s.given, "lr": rate})
            label = f"{label}, lr = {power_of_two(rate)}"
        found.append(Run(label, s, list(taken(s, problem, steps, dtype=dtype))))
    return found


def power_of_two(x: float) -> str:
    """A power of two as mathematics."""
    return f"$2^{{{round(math.log2(x))}}}$"


def best_rate(s: Setting, problem: Problem, steps: int) -> float:
    """The learning rate of `RATES` that does best."""
    results: dict[float, float] = {}
    network = bool(problem.layers)  # which takes longer: fewer rates, fewer steps
    for rate in RATES[::2] if network else RATES:
        tried = s._replace(hyper=s.hyper._replace(lr=rate))
        done = list(taken(tried, problem, min(steps, 20) if network else steps))
        with np.errstate(all="ignore"):
            value = float(np.asarray(problem.at(done[-1].params).value))
        if math.isfinite(value) and all(_inside(problem, x.params) for x in done):
            results[rate] = value
    return min(results, key=lambda rate: results[rate]) if results else RATES[0]


def _inside(problem: Problem, params: list[Any]) -> bool:
    if problem.domain is None:
        return True
    pairs = zip(params[0], problem.domain, strict=True)
    return all(low <= x <= high for x, (low, high) in pairs)


def paths(found: list[Run]) -> list[Path2]:
    """The places of runs."""
    result = []
    for run in found:
        points = [run.steps[0].before[0], *(x.params[0] for x in run.steps)]
        result.append(
            Path2(run.label, [float(p[0]) for p in points], [float(p[1]) for p in points])
        )
    return result


@np.errstate(all="ignore")
def curves(found: list[Run], problem: Problem) -> list[Curve]:
    """The objective of each run: before the first step, and after each.

    Where it changes from step to step, its mean; of a network that of all images, at a dozen steps.
    """
    result = []
    for run in found:
        points = [run.steps[0].before, *(x.params for x in run.steps)]
        every = max(1, len(run.steps) // 12) if problem.layers else 1
        shown = list(range(0, len(points), every))
        values = [float(np.asarray(problem.at(points[t]).value)) for t in shown]
        result.append(Curve(run.label, shown, values))
    return result


def quantities(run: Run, names: Sequence[str], *, norm: bool = False) -> list[Curve]:
    """Named scalars and quantities of the first parameter over steps: element 0, or the norm.

    Raises
    ------
    Unknown
        The rule has no such name.
    """
    result = []
    scalars, arrays = run.steps[0].scalars[0], run.steps[0].quantities[0]
    shown = [q for q, x in arrays._asdict().items() if x is not None]
    table = dict.fromkeys((*scalars._fields, *shown))
    for name in names:
        known("a quantity", table, name)
        found = {}
        for x in run.steps:
            value = getattr(x.scalars[0] if name in scalars._fields else x.quantities[0], name)
            if value is not None:  # factors are new on some steps only
                found[x.step] = float(np.linalg.norm(value) if norm else np.ravel(value)[0])
        result.append(Curve(name, [*found], [*found.values()]))
    return result


def band(
    text: str, problem: Landscape, steps: int, quantity: str = "param", dtype: str = "float16"
) -> Band:
    """The first element of a quantity in a short dtype: where it is, may be, and would be.

    Raises
    ------
    Unknown
        A rule of layers is judged otherwise, and has no such band; or there is no such quantity.
    """
    label, s = parsed(text, problem)
    if hasattr(s.rule, "Layer"):
        raise Unknown(argument="OPTIMIZER", known=("a rule without layers",), got=s.optimizer)
    done = list(taken(s, problem, steps, dtype=dtype))
    case = case_of(s, problem.name, [x.seen for x in done], dtype)
    known("a quantity", dict.fromkeys((*s.rule.State._fields, "param")), quantity)
    low, high = [], []
    seen = [x.seen for x in done]
    with exact(256):
        balls = taken(s, problem, steps, dtype=dtype, seen=seen, on=OnBalls())
        true = [float(_kept(x, quantity)) for x in balls]
        replay = Replay(s.rule, case, s.rule.PROFILES[s.profile.name])
        for _, memory in list(replay.open_loop())[1:]:
            interval = (replay.predicted(0, memory)[quantity][0] or [])[0]
            low.append(-math.inf if interval.low is None else float(interval.low.lower()))
            high.append(math.inf if interval.high is None else float(interval.high.upper()))
    values = [float(_kept(x, quantity)) for x in done]
    return Band(label, [x.step for x in done], low, high, values, true)


def _kept(x: Taken, quantity: str) -> Any:
    return (x.params[0] if quantity == "param" else getattr(x.states[0], quantity))[0]


def spectra(text: str, problem: Problem, steps: int) -> tuple[list[Spectrum], float]:
    """Eigenvalues of the factors of each layer at the last refresh, and the damping.

    Raises
    ------
    Unknown
        The rule has no factors, or the problem no layers.
    """
    _, s = parsed(text, problem)
    if not (hasattr(s.rule, "Layer") and problem.layers):
        raise Unknown(
            argument="OPTIMIZER and PROBLEM",
            known=("thor on digits",),
            got=f"{text} on {problem.name}",
        )
    found: dict[str, list[float]] = {}
    damping = 0.0
    for x in taken(s, problem, steps):
        for i, _ in enumerate(problem.layers):
            q = x.quantities[2 * i]
            if q.A is not None:
                damping = float(x.scalars[0].damping)
                for name in ("A", "G"):
                    values = np.linalg.eigvalsh(getattr(q, name))[::-1]
                    scale = (s.hyper.batch_size / s.hyper.loss_scale) ** 2 if name == "G" else 1.0
                    found[f"{name} of layer {i + 1}"] = [float(v) for v in scale * values]
    return [Spectrum(label, values) for label, values in found.items()], damping


# -- pictures -------------------------------------------------------------------------------------
def figure() -> tuple[Any, Any]:
    """(figure, axes), empty. Raises MissingExtra without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(use="a plot", package="matplotlib", extra="teach") from None
    new = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(new)
    return new, new.add_subplot()


def _styles() -> Iterator[dict[str, Any]]:
    while True:
        for colour, dash in zip(COLOURS, DASHES, strict=True):
            yield {"color": colour, "linestyle": dash}


def _legend(new: Any, axes: Any) -> None:
    """Below the axes, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > 40 or len(labels) < 2 else 2
    new.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def draw_paths(problem: Landscape, found: list[Path2]) -> Any:
    """Paths over the level lines of a landscape; each tenth of the area has its own grey."""
    new, axes = figure()
    (x0, x1), (y0, y1) = problem.domain
    grid = np.stack(np.meshgrid(np.linspace(x0, x1, 161), np.linspace(y0, y1, 161)))
    values = np.asarray(problem.value(grid))
    levels = np.unique(np.quantile(values, np.linspace(0, 1, 11)))
    greys = [str(x) for x in np.linspace(0.98, 0.68, len(levels) - 1)]
    axes.contourf(grid[0], grid[1], values, levels=levels, colors=greys)
    axes.contour(grid[0], grid[1], values, levels=levels, colors="white", linewidths=0.5)
    for path, style in zip(found, _styles(), strict=False):
        axes.plot(
            path.x, path.y, marker=".", markersize=3.5, linewidth=1.4, label=path.label, **style
        )
    axes.plot(*problem.first, "o", color="black", markersize=7, fillstyle="none", label="start")
    if problem.minima:
        x, y = zip(*problem.minima, strict=True)
        axes.plot(x, y, "*", color="black", markersize=11, linestyle="none", label="minimum")
    axes.set(xlim=(x0, x1), ylim=(y0, y1), xlabel="$x$", ylabel="$y$", title=problem.title)
    _legend(new, axes)
    return new


def draw_curves(found: list[Curve], title: str, ylabel: str) -> Any:
    """Curves over steps, on a logarithmic axis where everything is positive."""
    new, axes = figure()
    for curve, style in zip(found, _styles(), strict=False):
        axes.plot(curve.steps, curve.values, linewidth=1.6, label=curve.label, **style)
    values = [x for curve in found for x in curve.values]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel=ylabel, title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, color="0.9")
    _legend(new, axes)
    return new


def draw_panels(found: list[Curve], title: str, what: str) -> Any:
    """Each curve in a panel of its own, since their sizes differ."""
    new, first = figure()
    first.remove()
    new.set_figheight(max(SIZE[1], 1.2 * len(found)))
    panels = new.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axes, curve, style in zip(panels, found, _styles(), strict=False):
        mark = "." if len(curve.steps) < 10 else None
        axes.plot(curve.steps, curve.values, marker=mark, linewidth=1.6, label=curve.label, **style)
        axes.set_ylabel(curve.label)
        axes.grid(visible=True, color="0.9")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    panels[-1].set_xlabel("step")
    new.suptitle(f"{title}\n{what}", fontsize="medium")
    new.align_ylabels()
    return new


def draw_band(found: Band, title: str, ylabel: str) -> Any:
    """A run in its envelope, as the distance from the true value."""
    new, axes = figure()
    shift = [np.asarray(x) - np.asarray(found.true) for x in (found.low, found.high, found.values)]
    low, high, values = shift
    # a wide edge, since an envelope may hold a single number of the dtype
    light = {"color": COLOURS[5], "alpha": 0.45, "linewidth": 5, "label": "envelope"}
    axes.fill_between(found.steps, low, high, **light)
    axes.plot(
        *(found.steps, values),
        marker=".",
        color=COLOURS[1],
        linewidth=1.4,
        label=f"{found.label}, rounded",
    )
    axes.axhline(0.0, color=COLOURS[6], linewidth=1.0, linestyle=DASHES[1], label="true value")
    axes.set(xlabel="step", ylabel=ylabel, title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, color="0.9")
    _legend(new, axes)
    return new


def draw_spectra(found: list[Spectrum], damping: float, title: str) -> Any:
    """Eigenvalues in falling order, and the damping that is added to each."""
    new, axes = figure()
    for spectrum, style in zip(found, _styles(), strict=False):
        least = len(spectrum.values) * 2.0**-52 * spectrum.values[0]  # below, rounding alone
        positive = [x for x in spectrum.values if x > least]
        axes.plot(
            range(1, len(positive) + 1), positive, linewidth=1.6, label=spectrum.label, **style
        )
    axes.axhline(damping, color=COLOURS[6], linewidth=1.0, linestyle=DASHES[2], label="damping")
    axes.set(yscale="log", xlabel="number of the eigenvalue", ylabel="eigenvalue", title=title)
    axes.grid(visible=True, color="0.9")
    _legend(new, axes)
    return new


# -- files ----------------------------------------------------------------------------------------
FORMATS = ("png", "svg", "gif")
FRAMES, SMALL, COLOURED, PAUSE = 25, 80, 128, 80
"""Of an animation: pictures at most, dots per inch, colours, and milliseconds of a picture."""
STILL = ("start", "minimum", "true value", "damping")
"""What an animation shows from the first frame on."""


def picture(
    kind: str,
    texts: Sequence[str],
    problem: str = "rosenbrock",
    steps: int = 50,
    names: Sequence[str] = (),
) -> Any:
    """The figure of a kind.

    Arguments
    ---------
    kind: of `KINDS`.
    texts: what is drawn, each OPTIMIZER[/PROFILE][:NAME=VALUE,…].
    problem: by name.
    steps: how many.
    names: quantities; all that `m`, `v` and parameters are, by default.

    Raises
    ------
    Unknown
        Something has no such name, or cannot be drawn so.
    MissingExtra
        matplotlib is not installed.
    """
    known("KIND", KINDS, kind)
    return KINDS[kind](texts, problem_of(problem), steps, names)


def _paths(texts: Sequence[str], problem: Problem, steps: int, names: Sequence[str]) -> Any:
    return draw_paths(_landscape(problem), paths(runs(texts, problem, steps)))


def _learning(texts: Sequence[str], problem: Problem, steps: int, names: Sequence[str]) -> Any:
    found = curves(runs(texts, problem, steps), problem)
    return draw_curves(found, problem.title, "objective")


def _quantities(texts: Sequence[str], problem: Problem, steps: int, names: Sequence[str]) -> Any:
    (run, *_) = runs(texts[:1], problem, steps)
    chosen = names or [
        q for q in run.s.rule.State._fields if getattr(run.steps[0].states[0], q) is not None
    ]
    norm = bool(problem.layers)  # one weight of many says little
    found = quantities(run, [*chosen] if names else [*chosen, "param"], norm=norm)
    what = f"{'norm' if norm else 'element 0'} of parameter 0"
    return draw_panels(found, f"{run.label}, on {problem.name}", what)


def _bands(texts: Sequence[str], problem: Problem, steps: int, names: Sequence[str]) -> Any:
    (quantity,) = names or ("param",)
    found = band(texts[0], _landscape(problem), steps, quantity)
    title = f"{quantity} of {problem.name} in float16"
    return draw_band(found, title, "distance from the true value")


def _spectra(texts: Sequence[str], problem: Problem, steps: int, names: Sequence[str]) -> Any:
    found, damping = spectra(texts[0], problem, steps)
    return draw_spectra(found, damping, f"factors of {texts[0]} on {problem.name}")


def _landscape(problem: Problem) -> Landscape:
    if not isinstance(problem, Landscape):
        raise Unknown(argument="PROBLEM", known=("a problem of two coordinates",), got=problem.name)
    return problem


KINDS: dict[str, Callable[..., Any]] = {
    "paths": _paths,
    "learning": _learning,
    "quantities": _quantities,
    "bands": _bands,
    "spectra": _spectra,
}
"""Every kind of picture."""


def save(new: Any, path: Path) -> None:
    """Write a figure as PNG, SVG or GIF, by the ending of its name.

    A GIF draws the lines step by step. Raises Unknown for another ending.
    """
    kind = path.suffix.removeprefix(".").lower()
    known("the ending of --out", dict.fromkeys(FORMATS), kind)
    if kind == "gif":
        _animated(new, path)
        return
    if kind == "svg":
        from matplotlib import rc_context

        # the same picture is the same file
        with rc_context({"svg.hashsalt": "refopt", "svg.fonttype": "none"}):
            new.savefig(path, metadata={"Date": None})
        return
    new.savefig(path)


def _animated(new: Any, path: Path) -> None:
    from PIL import Image

    new.set_dpi(SMALL)
    for axes in new.axes:
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    drawn = [line for axes in new.axes for line in axes.lines if line.get_label() not in STILL]
    lines = [(line, *map(list, line.get_data())) for line in drawn]
    longest = max((len(x) for _, x, _ in lines), default=1)
    for line in drawn:
        line.set_animated(True)
    new.canvas.draw()
    still = new.canvas.copy_from_bbox(new.bbox)  # what no frame changes is drawn once
    pictures = []
    for n in np.unique(np.linspace(1, longest, min(longest, FRAMES)).astype(int)):
        new.canvas.restore_region(still)
        for line, x, y in lines:
            line.set_data(x[:n], y[:n])
            line.axes.draw_artist(line)
        pixels = np.array(new.canvas.buffer_rgba())[..., :3]
        pictures.append(Image.fromarray(pixels))
    palette = pictures[-1].quantize(COLOURED)  # has every line
    first, *others = (x.quantize(palette=palette, dither=Image.Dither.NONE) for x in pictures)
    first.save(path, save_all=True, append_images=others, duration=PAUSE, loop=0)
