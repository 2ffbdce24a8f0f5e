"""THOR on several workers: what they send each other, and that they do as one alone."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import thor_worker
from backends import same_bits

from refopt import layers, thor
from refopt.parallel.mpi import Sums, shares

# Of four layers; those after the last index are a group of their own.
MESSAGES = [(None, 1), ([0], 2), ([0, 1], 3), ([1, 3], 2)]


class Recorder:
    """A communicator of workers that all hold what this one does, and a list of its messages."""

    def __init__(self, size=1):
        self.size, self.messages = size, []

    def Get_size(self):  # noqa: N802
        return self.size

    def Allreduce(self, given, total):  # noqa: N802
        self.messages.append(given.copy())
        total[...] = self.size * given

    def Bcast(self, array, root):  # noqa: N802
        assert root == 0

    Get_rank = Send = Recv = Get_size  # what a communicator has, and nobody asks here


def test_an_index_is_the_last_layer_of_its_group_and_26_53_cut_54_factors_in_half():
    factors = [(np.full((2, 2), float(i)), np.full(3, float(i))) for i in range(54)]
    comm = Recorder()
    sums = Sums(comm, [26, 53], ordered=False)
    result = sums([factors])
    groups = [sorted({int(x) for x in message}) for message in comm.messages]
    assert groups == [list(range(27)), list(range(27, 54))]
    assert [len(message) for message in comm.messages] == [27 * 7] * 2
    assert sums.messages == 2
    for own, new in zip(factors, result, strict=True):
        assert all(same_bits(x, y) for x, y in zip(own, new, strict=True))


@pytest.mark.parametrize(
    ("bounds", "groups"),
    [
        ((), [[0, 1, 2, 3]]),
        ((3,), [[0, 1, 2, 3]]),
        ((0,), [[0], [1, 2, 3]]),
        ((0, 2), [[0], [1, 2], [3]]),
        ((0, 1, 2, 3), [[0], [1], [2], [3]]),
    ],
)
def test_layers_after_the_last_index_are_one_more_group(bounds, groups):
    comm = Recorder(3)
    result = Sums(comm, bounds, ordered=False)([[(np.full(2, float(i)),) for i in range(4)]])
    assert [[int(x) for x in message[::2]] for message in comm.messages] == groups
    assert [x.tolist() for (x,) in result] == [[3.0 * i] * 2 for i in range(4)]


def test_a_message_has_the_widest_dtype_of_its_group_and_at_least_single_precision():
    comm = Recorder()
    arrays = [(np.ones(1, "f2"),), (np.ones(1, "f4"), np.ones(1, "f8"))]
    Sums(comm, [0], ordered=False)([arrays])
    assert [str(message.dtype) for message in comm.messages] == ["float32", "float64"]


def test_parts_are_added_from_the_first_to_the_last():
    parts = [[(np.asarray([x]),)] for x in (1.0, 2.0**53, 1.0, 1.0)]  # other orders round otherwise
    (total,) = Sums(None, (), ordered=True)(parts)[0]
    assert total.tolist() == [((1.0 + 2.0**53) + 1.0) + 1.0]
    assert total.tolist() != [((1.0 + 1.0) + 1.0) + 2.0**53]


def test_shares_must_fill_the_samples():
    assert shares("fc", 6, 3) == [slice(0, 3), slice(3, 6)]
    with pytest.raises(
        ValueError, match=r"fixed_order: a divisor of the 6 samples of 'fc'.* got 4"
    ):
        shares("fc", 6, 4)


class Pair(Recorder):
    """A communicator of two workers, of which the other one's messages are known."""

    def __init__(self, others):
        super().__init__(2)
        self.others = others

    def Allreduce(self, given, total):  # noqa: N802
        self.messages.append(given.copy())
        total[...] = given + self.others.pop(0)


def test_workers_with_unequal_samples_step_alike():
    random = np.random.default_rng(3)
    seen = [
        (random.integers(0, 4, n), random.normal(size=(n, 2)), random.normal(size=(n, 3)))
        for n in (2, 6)
    ]

    def stepped(rank, others):
        comm = Pair(others)
        net = [layers.Embedding("emb", np.zeros((4, 2))), layers.Dense("fc", np.ones((3, 2)))]
        optimizer = thor(net, 0.5, 0.5, 0.5, batch_size=4, comm=comm)
        ids, d, e = seen[rank]
        gradients = (np.ones((4, 2)), np.ones((3, 2)))
        inputs, outputs = {"emb": ids, "fc": d}, {"emb": d, "fc": e}
        optimizer(gradients, activations=inputs, output_gradients=outputs)
        return comm.messages, [p.data for p in optimizer.parameters]

    sent = [stepped(rank, [0.0])[0] for rank in (0, 1)]
    one, other = (stepped(rank, sent[1 - rank])[1] for rank in (0, 1))
    assert all(same_bits(x, y) for x, y in zip(one, other, strict=True))
    counts = np.bincount(np.concatenate([ids for ids, *_ in seen]), minlength=4)
    g = np.mean([d.T @ d / len(d) for _, d, _ in seen], axis=0) * 16 + 0.5 * np.eye(2)
    solved = np.diag(counts / 8 + 0.5) @ (-2 * one[0]) @ g  # the gradient
    # 8 n u of the inverse (spd_inverse), 4 u of the diagonal, 2 n u of both products; two moments
    sizes = np.mean([abs(d).T @ abs(d) / len(d) for _, d, _ in seen], axis=0) * 16
    norms = (10 * 2 + 4) * np.abs(g).sum(0).max() + 4 * (6 + 2) * sizes.sum(0).max()
    allowed = 2.0**-53 * norms * np.abs(np.linalg.inv(g)).sum(0).max() * np.ones((4, 2)).sum()
    assert np.abs(solved - 1).sum() <= allowed


def test_a_worker_with_a_number_of_its_own_is_refused_when_it_is_made():
    """Its inverses would be others than those of the first, and so would its parameters."""

    class Second(Recorder):
        def Bcast(self, array, root):  # noqa: N802
            array[...] = given

    given = [0.5, 0.0, 1.0, 4, 128, 1.0, 100, 0.95]  # in the order of the arguments
    net = [layers.Dense("fc", np.ones((3, 2)))]
    thor(net, 0.5, 0.5, 0.5, batch_size=4, comm=Second(2))
    for name, x in [("batch_size", 2), ("loss_scale", 8.0), ("frequency", 5), ("split_dim", 4)]:
        with pytest.raises(ValueError, match=f"{name}: .* of the first worker, is required, got"):
            thor(net, 0.5, 0.5, 0.5, **{"batch_size": 4, name: x}, comm=Second(2))


@pytest.mark.parametrize(
    ("profile", "own"), [("documented", False), ("kfac", False), ("mindspore-gpu", True)]
)
def test_a_normalization_takes_the_samples_of_all_workers_where_factors_are_reduced(profile, own):
    """The gradient is the mean over all of them; a release takes those of a worker."""
    gradients = (np.array([1.5, -0.25]), np.array([3.0, 0.125]))

    def stepped(batch_size, comm):
        net = [layers.LayerNorm("ln", np.ones(2), np.ones(2))]
        rate, damping = np.array([0.5]), np.array([0.25])
        optimizer = thor(net, rate, damping, 0.5, profile=profile, batch_size=batch_size, comm=comm)
        optimizer(gradients)
        return [p.data for p in optimizer.parameters]

    four, alone, small = stepped(4, Recorder(4)), stepped(16, None), stepped(4, None)
    for x, whole, part in zip(four, alone, small, strict=True):
        assert same_bits(x, part if own else whole)
        assert not same_bits(whole, part)


# -- workers under mpiexec ------------------------------------------------------------------------
@cache
def launcher():
    pytest.importorskip("mpi4py", reason="needs mpi4py: install refopt[mpi]")
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip("needs mpiexec: install mpich")
    return found


EXACT = [{"exact": True, "split_indices": split} for split, _ in MESSAGES]
ROUNDED = [{"split_indices": [0]}, {"split_indices": [1, 3]}]
ORDERED = {"fixed_order": 4, "split_indices": [1]}
MEAN = {"reduction": "mean-of-factors"}
COUNTED = [
    {"profile": profile, **MEAN, "exact": True, "convolution": False, **own}
    for profile in ("corrected", "mindspore-gpu")
    for own in ({}, {"fixed_order": 2})
]
CORRECTED = [
    {"profile": "corrected", **own} for own in ({}, {"reduction": "sum-of-inverses"}, MEAN)
]
FAULTS = [{"fails": True, **MEAN}, {"fails": True, "reduction": "mean-of-inverses"}]
UNEQUAL = {"unequal": True}
TASKS = {
    1: [ORDERED, *COUNTED],
    2: [ORDERED, *COUNTED],
    4: [ORDERED, *EXACT, *ROUNDED, *CORRECTED, *FAULTS, UNEQUAL],
}


def workers(size, task):
    """What each of `size` workers ends with."""
    return started(size)[TASKS[size].index(task)]


@cache
def started(size):
    """The same for all their tasks, which one start of them does."""
    command = [launcher(), "-n", str(size), sys.executable, thor_worker.__file__]
    root = str(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/"
        done = subprocess.run(
            [*command, json.dumps(TASKS[size]), path],
            env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [
            [dict(np.load(f"{path}{number}.{rank}.npz")) for rank in range(size)]
            for number in range(len(TASKS[size]))
        ]


def alone(**task):
    """What one worker with the whole batch ends with."""
    return thor_worker.result_of(thor_worker.trained(None, 0, 1, **task))


def arrays(result):
    return {k: np.asarray(x) for k, x in result.items() if k not in ("messages", "error")}


@pytest.mark.parametrize(
    ("task", "messages"), [(task, n) for task, (_, n) in zip(EXACT, MESSAGES, strict=True)]
)
def test_four_workers_do_bit_for_bit_as_one_where_sums_are_exact(task, messages):
    wanted = alone(**task)
    assert wanted["messages"] == 0
    for own in workers(4, task):
        assert own["messages"] == messages
        assert all(same_bits(x, arrays(own)[name]) for name, x in arrays(wanted).items())


@pytest.mark.parametrize("task", ROUNDED)
def test_four_workers_do_as_one_to_rounding(task):
    optimizer = thor_worker.trained(None, 0, 1)
    wanted, report = thor_worker.result_of(optimizer), optimizer.report()["parameters"]
    start = thor_worker.data(False)[0]
    rows = thor_worker.SAMPLES * thor_worker.POSITIONS
    first, *others = workers(4, task)
    assert {own["rule"] for own in report.values()} == {"inverses of step 0", "diagonal", "none"}
    for name, own in report.items():
        assert all(same_bits(first[name], other[name]) for other in others)
        if own["rule"] != "inverses of step 0":
            assert same_bits(first[name], wanted[name])
            continue
        # two sums of at most so many rows differ by 2 rows u, two inverses by 8 n u, times the
        # condition (spd_inverse); the update is a product of both
        condition = max(own["a_condition"]) + max(own["g_condition"])
        allowed = (2 * rows + 2 * 8 * 8) * 2.0**-53 * condition
        change = np.linalg.norm(wanted[name] - start[name])
        assert np.linalg.norm(first[name] - wanted[name]) <= allowed * change


def test_a_fixed_order_gives_the_same_bits_for_any_number_of_workers():
    wanted = arrays(alone(fixed_order=4))
    for size in (1, 2, 4):
        for own in workers(size, ORDERED):
            assert own["messages"] == 2
            assert all(same_bits(x, arrays(own)[name]) for name, x in wanted.items()), size
    whole = arrays(alone())  # in one sum of 16 rows: other bits
    assert not all(same_bits(x, whole[name]) for name, x in wanted.items())


@pytest.mark.parametrize(("plain", "ordered"), [COUNTED[:2], COUNTED[2:]])
def test_a_fixed_order_counts_what_a_worker_has_and_not_a_part_of_it(plain, ordered):
    for size in (1, 2):
        # the release divides A of fc2 by its 3 inputs, which rounds; that of fc1 by 4
        first, *_ = workers(size, plain)
        wanted = {k: x for k, x in arrays(first).items() if "fc2" not in k}
        assert any("fc1" in name for name in wanted)
        for own in workers(size, ordered):
            assert all(same_bits(x, arrays(own)[name]) for name, x in wanted.items()), size


def test_inverses_are_summed_or_averaged_where_the_profile_or_the_user_says_so():
    mean, total, factors = (arrays(workers(4, task)[3]) for task in CORRECTED)
    for name, x in mean.items():
        if name.endswith("_inverse"):
            assert same_bits(4 * x, total[name])
        else:  # biases and LayerNorm have no inverse
            assert same_bits(x, total[name]) != name.endswith("weight"), name
    assert not same_bits(factors["fc1.weight"], mean["fc1.weight"])


def test_a_batch_size_of_its_own_is_told_to_the_worker_that_has_it():
    told = [str(own["error"]) for own in workers(4, UNEQUAL)]
    wanted = "batch_size: 16, that of the first worker, is required, got 17"
    assert told == ["", "", wanted, ""]


@pytest.mark.parametrize("task", FAULTS)
def test_a_fault_on_one_worker_ends_the_step_of_all_and_changes_nothing(task):
    found = workers(4, task)
    weights = thor_worker.data(False)[0]
    for rank, own in enumerate(found):
        own_fault = task["reduction"] == "mean-of-factors" or rank == 2
        where = "that is not, after damping" if own_fault else "another one from another worker"
        assert "layer 'fc1', factor A, block 0 of 1" in str(own["error"])
        assert where in str(own["error"])
        assert all(same_bits(own[name], x) for name, x in weights.items())
