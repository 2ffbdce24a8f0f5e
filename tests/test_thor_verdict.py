"""Verdicts on THOR: each defect of a release is seen in isolation and named, and inverses are."""

import math

import numpy as np
import pytest

from refopt.interp.balls import MatrixSpace, one_norm, precision, residual
from refopt.interp.formats import FORMATS
from refopt.oracle import golden, suite, vectors
from refopt.oracle import layered as layered_module
from refopt.oracle.golden import Tensor
from refopt.oracle.layered import Layered, LayerJudge, numpy_run, observed
from refopt.oracle.report import paragraph
from refopt.oracle.suite import REJECTED, Item, Task
from refopt.oracle.verdict import INCONCLUSIVE, VIOLATION
from refopt.rules import thor

PROFILES = thor.PROFILES
GPU, ASCEND = "mindspore-gpu", "mindspore-ascend"
RECORDED = {r.case.id.removeprefix("thor.mindspore-"): r for r in golden.recordings("thor")}
VECTORS = {r.case.id.removeprefix("thor."): r for r in golden.load(vectors.path("thor"))}
RUNS = [
    pytest.param(name, id=name)
    for name, r in RECORDED.items()
    if not any(run.error for run in r.runs.values())
]


def recorded(name):
    """(case, run, profile) of a recording."""
    case, runs, _ = RECORDED[name]
    ((profile, run),) = runs.items()
    return case, run, PROFILES[profile]


def judge(case, run, profile):
    return LayerJudge(thor, case, run, profile)


# ------------------------------------------------------------------------- defects, each by itself

SHOWN_BY = {  # an input for each axis: recorded, and a vector's where no recorded one tells
    "past_end": "2-0.past-the-end",
    "decayed": "vector.decay.f32",
    "dense": "2-10.mlp",
    "patches=always-same": "vector.conv-valid.f32",
    "patches=same-and-square": "2-10.conv-strides",
    "conv": "2-10.conv-norm-dense",
    "lookup": "2-0.embedding-lookup",
    "counts": "2-10.embedding-norm",
    "positions": "2-10.conv-norm-dense",
    "damping": "2-10.mlp",
    "block": "vector.whole.f32",
    "product": "vector.whole.f32",  # by blocks of 2, of which there are 3
    "table=untransposed": "2-10.embedding-norm",
    "pair": "2-10.mlp-two-classes",
    "extremes": "2-10.ascend-conv",
    "weighting": "2-10.conv-norm-dense",
    "precision": "2-10.mlp",
    "beside_conv": "vector.conv-beside.f32",
    "decay": "2-10.mlp-decay",
    "nesterov": "2-10.mlp-nesterov",
}
UNSHOWN = {
    "scalars=float32",  # rounding, within what is allowed where numbers meet arrays
    "reduction=mean-of-inverses",  # one worker is its own mean
    "reduction=sum-of-inverses",
    "table=as-others",  # differs from one block for widths above a block's, which none has
    "table=one-block",
    "stale=unweighted",  # of a scale, which corrected has not; see the test after this
}


def differing(base, other):
    """(axis, alternative) of each choice of a profile that is not another's."""
    return [
        (axis, name)
        for axis, named in thor.AXES.items()
        for name, choice in named.items()
        if choice is getattr(PROFILES[other].choices, axis)
        and choice is not getattr(PROFILES[base].choices, axis)
    ]


DEFECTS = sorted(
    {
        (base, axis, name)
        for base, other in (("corrected", GPU), ("corrected", ASCEND), ("documented", "corrected"))
        for axis, name in differing(base, other)
    }
)


@pytest.mark.parametrize(("base", "axis", "name"), DEFECTS)
def test_a_profile_with_one_choice_of_another_is_a_violation_and_that_choice_is_named(
    base, axis, name
):
    profile, change = PROFILES[base], f"{axis}={name}"
    if change in UNSHOWN:
        for input_ in ("2-10.embedding-norm", "2-10.conv-norm-dense"):
            case, _, _ = recorded(input_)
            changed = {axis: thor.AXES[axis][name]}
            mine = judge(case, numpy_run(thor, case, profile, changed), profile)
            assert mine.verdict(axes=False).first is None
        return
    input_ = SHOWN_BY.get(change) or SHOWN_BY[axis]
    case = (VECTORS if input_ in VECTORS else RECORDED)[input_].case
    if axis == "product":
        case = case._replace(hyper=case.hyper | {"split_dim": 2.0})
    plain = numpy_run(thor, case, profile)
    assert plain.error or judge(case, plain, profile).verdict(axes=False).first is None
    mine = judge(case, numpy_run(thor, case, profile, {axis: thor.AXES[axis][name]}), profile)
    assert mine.verdict(axes=False).status == VIOLATION
    alone = [((axis, name),)]
    if axis == "nesterov":  # a plain move is the same
        alone = [(("move", "heavy-ball"),), *alone]
    assert mine.named() == alone


def test_a_scale_that_stale_steps_lose_is_named_where_there_is_one():
    case, _, profile = recorded("2-10.ascend-conv-last")
    changed = {"stale": thor.same_scale}
    mine = judge(case, numpy_run(thor, case, profile, changed), profile)
    first = mine.verdict(axes=False).first
    assert (first.step, first.quantity, first.layer) == (1, "scale", "conv2")
    assert mine.named() == [(("stale", "same"),)]


BUGS = {
    "conv-valid": {("dense", "features"), ("patches", "always-same")},
    "embedding-norm": {("dense", "features"), ("table", "untransposed")},
    "embedding-norm-scaled": {("dense", "features"), ("table", "untransposed")},
    "embedding-lookup": {("dense", "features"), ("table", "untransposed"), ("lookup", "by-target")},
    "past-the-end": {("dense", "features"), ("past_end", "zero")},
}


@pytest.mark.parametrize(
    "name",
    [p for p in RUNS if "2-10" in p.id and "ascend" not in p.id and "wide" not in p.id]
    + ["2-0.embedding-lookup", "2-0.past-the-end"],  # the others are on the same inputs
)
def test_a_recording_of_the_gpu_path_names_its_defects_against_corrected(name):
    case, run, _ = recorded(name)
    mine = judge(case, run, PROFILES["corrected"])
    assert mine.verdict(axes=False).status == VIOLATION
    wanted = BUGS.get(name.partition(".")[2], {("dense", "features")})
    named = [set(changes) for changes in mine.named()]
    assert wanted in named
    # where strides do not differ, square patches are the same patches
    assert all(
        {(a, n.replace("same-and-square", "always-same")) for a, n in changes} == wanted
        for changes in named
    )


def test_a_report_names_defects_and_the_layer_whose_factor_shows_them():
    case, run, _ = recorded("2-10.embedding-norm")
    item = Item("MindSpore", "mine", "corrected", run, axes=False)
    (result,) = suite.work(Task(case, (item,)))
    text = "\n".join(paragraph(result))
    assert "step 1, A[0] of layer fc" in text
    assert "np.float64" not in text
    assert "dense=features (THO-3.2b)" in text
    assert "and table=untransposed (THO-5.3c)" in text


@pytest.mark.parametrize(
    ("name", "error"), [("dense-first", "ValueError"), ("conv-two-outputs", "IndexError")]
)
def test_where_the_release_fails_it_shows_no_value_and_the_profile_has_one(name, error):
    case, run, profile = recorded(f"2-10.ascend-{name}")
    assert run.error["type"] == error
    assert not run.steps
    assert not run.factors
    assert judge(case, numpy_run(thor, case, profile), profile).verdict(axes=False).first is None


# --------------------------------------------------------------------------- answers that are wrong


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 0.123])
def test_a_made_up_answer_is_a_violation(value):
    case, run, profile = recorded("2-10.mlp")
    assert judge(case, run, profile).verdict(axes=False).first is None
    steps = {
        t: {
            q: column if q == "t" else [[value] * len(x) for x in column] for q, column in s.items()
        }
        for t, s in run.steps.items()
    }
    assert judge(case, run._replace(steps=steps), profile).verdict().status == VIOLATION


def test_an_array_of_another_shape_is_a_violation_and_nothing_after_it_is_decided_by_it():
    case, run, profile = recorded("2-10.mlp")
    tensor = run.factors[1]["a_inverse"]["fc1"]
    less = Tensor(tensor.dtype, (1, 2, 2), tensor.values[:4])
    shown = run.factors[1] | {"a_inverse": run.factors[1]["a_inverse"] | {"fc1": less}}
    wrong = run._replace(factors=run.factors | {1: shown})
    first = judge(case, wrong, profile).verdict(axes=False).first
    assert (first.step, first.quantity, first.layer) == (1, "a_inverse", "fc1")
    assert math.isnan(first.observed)


def test_steps_past_the_end_of_a_schedule_are_a_violation_of_the_documented_rule_and_refused():
    case, run, _ = recorded("2-0.past-the-end")
    choices = PROFILES[GPU].choices._replace(past_end=thor.an_error)
    first = judge(case, run, PROFILES[GPU]._replace(choices=choices)).verdict().first
    assert (first.step, first.quantity) == (7, "param")
    assert math.isnan(first.low)
    (refused,) = suite.work(Task(case, (Item("NumPy", "refopt", "documented"),)))
    assert refused.status == REJECTED
    assert refused.item.detail == "IndexError: a value for step 7 is required, got 6 values"


@pytest.mark.parametrize("name", RUNS)
def test_every_recording_lies_inside_an_envelope_that_bounds_every_element(name):
    verdict = judge(*recorded(name)).verdict(axes=False)
    assert verdict.first is None
    assert verdict.open == 0
    assert verdict.worst_share <= 1


def test_what_no_recorded_input_tells_apart_is_inconclusive():
    case, run, profile = recorded("2-10.mlp")
    nothing = run._replace(factors={}, steps={t: {"t": s["t"]} for t, s in run.steps.items()})
    assert judge(case, nothing, profile).verdict().status == INCONCLUSIVE


# ---------------------------------------------------------------- inverses by their residuals

U = 2.0 ** -FORMATS["float32"].precision


class Matrices(MatrixSpace):
    """Balls that keep the matrices whose inverses are asked for."""

    def __init__(self):
        self.asked = []

    def spd_inverse(self, x):
        self.asked.append(x)
        return x

    def inverse_cholesky(self, x):
        return self.spd_inverse(x)


def share(b, x):
    """‖B X − I‖₁ as a share of 8 n u ‖B‖₁ ‖X‖₁, rounded up."""
    return (
        float(residual(b, x)) / (8 * len(b) * U * float(one_norm(b) * one_norm(x))) * (1 + 2**-40)
    )


def inverses(name):
    """(layer, "a_inverse" or "g_inverse", damped factors, recorded inverses) of a recording.

    The damped factors come from the factors that are recorded, exactly; the weight of a convolution
    is taken out again.
    """
    case, run, profile = recorded(name)
    space = Matrices()
    layered = Layered(thor, case, profile, space=space)
    seen, c, num = observed(thor, case, run), layered.choices, space.numbers
    for t in (t for t, shown in run.factors.items() if shown):
        for key, layer in case.layers.items():
            if layer.kind not in thor.FACTORED:
                continue
            w = layer.params[0]
            hyper = layered.hypers()[w]
            scalars, _ = thor.tick(thor.Clock(num(t - 1)), hyper, c, num=num)
            h = thor.settle(hyper, c, num=num)
            given = case.statistics[t][key]
            norms = [float(given[q].values[0]) if q in given else 1.0 for q in ("a_norm", "g_norm")]
            if "ds" in given:
                rows = thor.statistics(
                    layer,
                    *(space.array(np.zeros(given[q].shape), "") for q in ("a", "ds")),
                    c._replace(lookup=thor.as_embedding),
                    xp=Counting(),
                )
                norms = rows[2:]
            shown = [seen.get((t, q, w), given.get(q)) for q in ("A", "G")]
            arrays = [x if isinstance(x, np.ndarray) else np.reshape(x.values, x.shape)
                      for x in shown]  # fmt: skip
            space.asked = []
            factors = thor.Factors(*(space.array(x, "float32") for x in arrays), *norms)
            thor.invert(layer, factors, scalars.damping, h, c, xp=space)
            both = ["g_inverse"] if layer.kind in thor.TABLES else ["a_inverse", "g_inverse"]
            weight = 1.0
            if layer.kind == thor.CONV and c.weighting is thor.half_each:
                weight = math.sqrt(c.positions(norms[0], h))
            for quantity, blocks in zip(both, space.asked, strict=True):
                x = layered_module._blocks(seen[t, quantity, w], blocks.shape)
                yield layer, quantity, blocks, space.array(weight * x, "")


class Counting(MatrixSpace):
    """Balls; ids that are no numbers occur nowhere."""

    def counts(self, ids, size, like):
        return self.array(np.zeros(size), "")


def is_an_inverse(layer, quantity, blocks, c, net):
    """Whether a release's profile says that it takes the inverse itself."""
    if layer.kind in thor.TABLES:
        return c.table is not thor.untransposed
    if c.extremes is not thor.undivided and any(x.kind == thor.CONV for x in net):
        return False
    if quantity == "g_inverse" and layer.shape[0] == 2 and layer.kind == thor.DENSE:
        return c.pair is thor.inverted
    return c.product is thor.exact or len(blocks) in thor.ASCEND_BLOCKS


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_inverse_keeps_the_bound_of_its_residual_and_what_is_none_does_not(name):
    case, _, profile = recorded(name)
    found = 0
    with precision(128):
        for layer, quantity, blocks, x in inverses(name):
            shares = [share(*pair) for pair in zip(blocks, x, strict=True)]
            net = case.layers.values()
            assert (max(shares) <= 1) == is_an_inverse(
                layer, quantity, blocks, profile.choices, net
            ), (quantity, layer, shares)
            found += 1
    assert found


def moved(name, share):
    """A recording whose first inverse is moved until its residual is so large a share of the bound.

    Along the eigenvector in which the inverse is largest, which the gradient feels most; every
    element stays inside the range of its own.
    """
    case, run, profile = recorded(name)
    with precision(128):
        layer, quantity, (block,), _ = next(inverses(name))
    assert quantity == "a_inverse"
    b = np.array([[float(e.mid()) for e in row] for row in block])
    key = next(key for key, x in case.layers.items() if x == layer)
    tensor = run.factors[1][quantity][key]
    x = np.reshape(tensor.values, b.shape)
    v = np.linalg.eigh(b)[1][:, 0]
    bound = 8 * len(b) * U * np.linalg.norm(b, 1) * np.linalg.norm(x, 1)
    along = np.outer(v, v)
    x = x + share * bound / np.linalg.norm(b @ along, 1) * along
    new = Tensor(tensor.dtype, tensor.shape, np.float32(x).ravel().tolist())
    shown = run.factors[1] | {quantity: run.factors[1][quantity] | {key: new}}
    return case, run._replace(factors=run.factors | {1: shown}), profile


SMALL = "2-10.mlp-small-damping"


def test_an_inverse_is_judged_by_its_residual_and_not_by_its_elements():
    case, run, profile = moved(SMALL, 20)
    first = judge(case, run, profile).verdict(axes=False).first
    assert (first.step, first.quantity) == (1, "a_inverse")
    assert math.isnan(first.low)  # no element is outside: no inverse of this residual is possible


def test_what_follows_an_inverse_begins_with_the_one_that_is_shown():
    case, run, profile = moved(SMALL, 0.9)
    first = judge(case, run, profile).verdict(axes=False).first
    assert first.quantity == "gradient"
