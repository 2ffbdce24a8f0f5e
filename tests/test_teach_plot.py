"""Pictures draw the numbers of the rules, are readable, and look as they did.

`python tests/test_teach_plot.py` draws the stored pictures anew; look at each.
"""

import itertools
import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from refopt.cli import app
from refopt.errors import Unknown
from refopt.problems import PROBLEMS
from refopt.teach import plot
from refopt.teach.runs import setting, taken

IMAGES = Path(__file__).parent / "images"
PICTURES = {
    "paths": (["nadam:lr=0.25", "rmsprop:lr=0.125", "sgd:momentum=0.9,lr=0.004"], "beale", 40),
    "learning": (["rmsprop:lr=0.1", "rmsprop/keras-3:lr=0.1,epsilon=0.5"], "himmelblau", 30),
    "quantities": (["nadam:lr=0.0625"], "rosenbrock", 40),
    "bands": (["rmsprop/torch-2.13:lr=0.05"], "quadratic", 20),
    "spectra": (["thor"], "digits", 1),
}
every = pytest.mark.parametrize("kind", PICTURES)


def drawn(kind: str):
    pytest.importorskip("matplotlib", reason="needs matplotlib for the plot")
    return plot.picture(kind, *PICTURES[kind])


def small(figure, path: Path) -> None:
    """The picture as it is stored."""
    figure.savefig(path, dpi=50)


# -- the numbers ----------------------------------------------------------------------------------
def lines(figure) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): ([*line.get_xdata()], [*line.get_ydata()])
        for axes in figure.axes
        for line in axes.lines
    }


def test_a_path_is_the_parameter_after_every_step() -> None:
    found = lines(drawn("paths"))
    for text in PICTURES["paths"][0]:
        _, s = plot.parsed(text, PROBLEMS["beale"])
        steps = list(taken(s, PROBLEMS["beale"], 40))
        x, y = np.array([PROBLEMS["beale"].first, *(t.params[0] for t in steps)]).T
        assert found[text] == (x.tolist(), y.tolist())
    assert found["minimum"] == ([3.0], [0.5])


def test_a_learning_curve_is_the_objective_before_and_after_every_step() -> None:
    found = lines(drawn("learning"))
    text = PICTURES["learning"][0][1]
    _, s = plot.parsed(text, PROBLEMS["himmelblau"])
    assert (s.profile.name, s.hyper.epsilon) == ("keras-3", 0.5)
    steps = list(taken(s, PROBLEMS["himmelblau"], 30))
    points = np.array([PROBLEMS["himmelblau"].first, *(t.params[0] for t in steps)]).T
    values = PROBLEMS["himmelblau"].value(points).tolist()
    assert found[text] == (list(range(31)), values)


def test_quantities_are_those_of_the_rule() -> None:
    found = lines(drawn("quantities"))
    steps = list(taken(setting("nadam", given={"lr": 0.0625}), PROBLEMS["rosenbrock"], 40))
    assert found["v"][1] == [float(t.states[0].v[0]) for t in steps]
    assert found["param"][1] == [float(t.params[0][0]) for t in steps]
    named = plot.picture("quantities", ["nadam:lr=0.1"], "beale", 5, ["mu", "v_hat"])
    assert list(lines(named)) == ["mu", "v_hat"]


def test_quantities_of_a_network_are_norms_on_the_steps_that_have_them() -> None:
    names = ["A", "m"]
    found = lines(plot.picture("quantities", ["thor:lr=0.01,frequency=2"], "digits", 4, names))
    s = setting("thor", given={"lr": 0.01, "frequency": 2}, problem=PROBLEMS["digits"])
    steps = list(taken(s, PROBLEMS["digits"], 4))
    assert found["A"][0] == [1, 3]
    assert found["m"] == ([1, 2, 3, 4], [np.linalg.norm(t.states[0].m) for t in steps])
    many = plot.picture("quantities", ["nadam:lr=0.1"], "beale", 2, ["m", "v", "mu", "lr"] * 2)
    assert many.get_figheight() > plot.SIZE[1]


@pytest.mark.parametrize("name", ["rmsprop/torch-2.13:lr=0.05", "nadam:lr=0.05", "sgd:lr=0.01"])
def test_a_float16_run_lies_in_its_band(name: str) -> None:
    found = plot.band(name, PROBLEMS["quadratic"], 20)
    inside = zip(found.low, found.values, found.high, strict=True)
    assert all(low <= x <= high for low, x, high in inside)
    assert found.values == [float(np.float16(x)) for x in found.values]
    assert any(x != true for x, true in zip(found.values, found.true, strict=True))


def test_the_spectrum_of_a_factor_sums_to_its_trace() -> None:
    spectra, damping = plot.spectra("thor:damping=0.25", PROBLEMS["digits"], 1)
    assert [s.label for s in spectra] == [f"{q} of layer {i}" for i in (1, 2) for q in "AG"]
    assert damping == 0.25
    seen = PROBLEMS["digits"].at(PROBLEMS["digits"].start(), 1)
    a = seen.activations[0]
    trace = float(np.sum(a * a)) / len(a)
    # the errors of 64 eigenvalues, each of a few n·u of the largest (LAPACK's bound)
    assert abs(sum(spectra[0].values) - trace) < 64 * 64 * 2.0**-52 * spectra[0].values[0]
    assert spectra[0].values == sorted(spectra[0].values, reverse=True)


def test_without_a_rate_the_best_of_all_is_taken() -> None:
    problem = PROBLEMS["quadratic"]
    (run,) = plot.runs(["sgd:momentum=0.5"], problem, 15)
    assert run.label.startswith("sgd:momentum=0.5, lr = $2^{")

    def left(rate: float) -> float:
        with np.errstate(all="ignore"):
            *_, last = taken(setting("sgd", given={"momentum": 0.5, "lr": rate}), problem, 15)
            return float(problem.value(last.params[0]))

    values = {rate: left(rate) for rate in plot.RATES}
    finite = {rate: x for rate, x in values.items() if math.isfinite(x)}
    assert run.s.hyper.lr == min(finite, key=lambda rate: finite[rate])


def test_a_path_stays_in_the_domain_of_a_saddle_that_has_no_bound() -> None:
    (run,) = plot.runs(["rmsprop"], PROBLEMS["saddle"], 30)
    assert all(abs(x) <= 2.0 for t in run.steps for x in t.params[0])


# -- the pictures ---------------------------------------------------------------------------------
@every
def test_a_picture_is_labelled_and_nothing_overlaps(kind: str) -> None:
    figure = drawn(kind)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert figure.axes[-1].get_xlabel()
    assert figure.axes[0].get_title() or figure.get_suptitle()
    boxes = [axes.get_window_extent(renderer) for axes in figure.axes]
    boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
    boxes += [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    whole = figure.bbox
    for box in boxes:
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            texts = [t for t in axis.get_ticklabels() if t.get_text() and t.get_visible()]
            extents = [t.get_window_extent(renderer) for t in texts]
            shown = [e for e in extents if axes.bbox.padded(20).overlaps(e)]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(shown))


def test_lines_differ_in_colour_and_in_dashes() -> None:
    styles = list(itertools.islice(plot._styles(), 6))
    assert len({style["color"] for style in styles}) == 6
    assert len({str(style["linestyle"]) for style in styles}) == 6


@every
def test_a_picture_looks_as_it_did(kind: str, tmp_path: Path) -> None:
    figure = drawn(kind)
    import matplotlib
    from matplotlib.testing.compare import compare_images
    from PIL import Image

    stored = IMAGES / f"{kind}.png"
    with Image.open(stored) as image:
        made_by = image.text["Software"]
    if f"version{matplotlib.__version__}," not in made_by:
        pytest.skip(f"stored by {made_by}; its numbers are tested with any")
    small(figure, tmp_path / f"{kind}.png")
    assert compare_images(stored, tmp_path / f"{kind}.png", tol=0) is None


def test_another_picture_is_told_apart(tmp_path: Path) -> None:
    drawn("bands")
    from matplotlib.testing.compare import compare_images

    other = plot.picture("bands", ["rmsprop/torch-2.13:lr=0.06"], "quadratic", 20)
    small(other, tmp_path / "bands.png")
    (tmp_path / "stored.png").write_bytes((IMAGES / "bands.png").read_bytes())
    assert compare_images(tmp_path / "stored.png", tmp_path / "bands.png", tol=0) is not None


# -- files ----------------------------------------------------------------------------------------
def test_png_svg_and_gif_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib for the plot")
    from PIL import Image

    for ending in plot.FORMATS:
        path = tmp_path / f"a.{ending}"
        arguments = ["plot", "paths", "sgd:lr=0.01", "--problem", "quadratic", "--steps", "6"]
        done = CliRunner().invoke(app, [*arguments, "-o", str(path)])
        assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == tuple(int(x * plot.DPI) for x in plot.SIZE)
    svg = ET.parse(tmp_path / "a.svg").getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "sgd:lr=0.01" in "".join(svg.itertext())  # words, not outlines
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 7
        first = image.convert("RGB").tobytes()
        image.seek(6)
        assert image.convert("RGB").tobytes() != first


def test_an_svg_is_the_same_file_every_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot.save(drawn("bands"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# -- wrong usage ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["pie", "nadam", "-o", "a.png"], "KIND must be one of paths, learning"),
        (["paths", "adam", "-o", "a.png"], "OPTIMIZER must be one of nadam"),
        (["paths", "nadam/x", "-o", "a.png"], "PROFILE must be one of documented"),
        (
            ["paths", "nadam:lr=x", "-o", "a.png"],
            "a hyperparameter of OPTIMIZER must be NAME=NUMBER, got 'lr=x'",
        ),
        (["paths", "sgd:lr=1", "--problem", "digits", "-o", "a.png"], "two coordinates; got"),
        (["bands", "thor", "--problem", "quadratic", "-o", "a.png"], "a rule without layers; got"),
        (["spectra", "nadam", "-o", "a.png"], "must be thor on digits; got"),
        (["quantities", "sgd:lr=0.01", "--quantity", "x", "-o", "a.png"], "a quantity must be"),
        (["paths", "sgd:lr=0.01", "--steps", "2", "-o", "a.pdf"], "--out must be one of png"),
        (
            ["paths", "sgd:lr=0.01", "--steps", "2", "-o", "no/a.png"],
            "can be written, got no/a.png",
        ),
    ],
)
def test_wrong_usage_says_what_is_required(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib for the plot")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["plot", *arguments])
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_command_says_which_extra_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from refopt.cli import app; from typer.testing import CliRunner\n"
        "for a in (['trace', 'sgd'], ['explain', 'sgd'], ['exercise', 'sgd', '-o', sys.argv[1]],\n"
        "          ['plot', 'paths', 'sgd:lr=0.01', '-o', 'a.png']):\n"
        "    done = CliRunner().invoke(app, a); print(done.exit_code, done.output[-99:])"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes = [line[:2] for line in done.stdout.splitlines() if line[:2] in ("0 ", "2 ", "3 ", "1 ")]
    assert codes == ["0 ", "0 ", "0 ", "2 "]
    assert "a plot must have matplotlib: pip install 'refopt[teach]'" in done.stdout


def test_a_plot_of_nothing_known_is_an_error_of_python_too() -> None:
    with pytest.raises(Unknown, match="KIND must be one of paths"):
        plot.picture("pie", [])


if __name__ == "__main__":
    for kind in PICTURES:
        small(drawn(kind), IMAGES / f"{kind}.png")
