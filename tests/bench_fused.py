"""What the fused run promises, as ratios to its peers on one thread.

CPU time, so that the machine's other work counts less. Run:
python -m pytest tests/bench_fused.py --benchmark-enable --benchmark-only -s
"""

import time

import pytest

from refopt import bench

bench.limit_threads(1)
bench.clock = time.process_time
ROUNDS = 9
FLOORS = ("floor", "arithmetic")
# optimizer, tensors, contestant, least time of its step over that of refopt's
PROMISES = [
    ("nadam", "1e7", "torch foreach", 4.0),
    ("nadam", "resnet50", "torch foreach", 4.0),
    ("nadam", "1000x1000", "torch foreach", 8.0),
    ("nadam", "1e7", "torch compile", 1.5),
    ("nadam", "1e7", "optax jit", 1.6),
]


def shown(ratio):
    return "{1:.2f} ({0:.2f} to {2:.2f})".format(*ratio)


@pytest.mark.parametrize("tensors", ["1e6", "1e7", "5e7"])
@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop"])
def test_a_step_is_near_the_larger_of_its_floors(benchmark, optimizer, tensors):
    """Memory, or divisions and roots, which a processor does not always do beside it."""
    pytest.importorskip("numba", reason="refopt[fast]")
    wanted = ("refopt numba", *FLOORS)
    found = {t.contestant: t for t in bench.measured(optimizer, tensors, ROUNDS, wanted)}
    for name in FLOORS:
        benchmark.extra_info[name] = found[name].ratio
        print(f"\n{optimizer} {tensors}: {name} / refopt = {shown(found[name].ratio)}", end="")
    benchmark.pedantic(lambda: None)
    assert found["refopt numba"].extra <= 1_000_000
    assert max(found[name].ratio[1] for name in FLOORS) >= 0.85


@pytest.mark.parametrize(("optimizer", "tensors", "peer", "least"), PROMISES)
def test_a_step_is_so_much_faster(benchmark, optimizer, tensors, peer, least):
    _, package = bench.CONTESTANTS[peer]
    pytest.importorskip(package, reason=f"the peer {peer}")
    wanted = ("refopt numba", peer)
    found = {t.contestant: t for t in bench.measured(optimizer, tensors, ROUNDS, wanted)}
    benchmark.extra_info["ratio"] = found[peer].ratio
    print(f"\n{optimizer} {tensors}: {peer} / refopt = {shown(found[peer].ratio)}")
    benchmark.pedantic(lambda: None)
    assert found["refopt numba"].extra <= 1_000_000
    assert found[peer].ratio[1] >= least


@pytest.mark.parametrize(("peer", "least"), [("torch foreach", 1.15), ("refopt numba", 1 / 4.2)])
def test_numpy_alone_is_so_fast(benchmark, peer, least):
    _, package = bench.CONTESTANTS[peer]
    pytest.importorskip(package, reason=f"the peer {peer}")
    steps = bench.contestants("nadam", bench.shapes_of("1e7"), ("refopt tape", peer))
    found = {name: ratio for name, _, ratio in bench.compared(steps, "refopt tape", ROUNDS)}
    benchmark.extra_info["ratio"] = found[peer]
    print(f"\nnadam 1e7: {peer} / refopt on NumPy alone = {shown(found[peer])}")
    benchmark.pedantic(lambda: None)
    assert found[peer][1] >= least


@pytest.mark.parametrize("optimizer", ["nadam", "rmsprop"])
def test_a_step_of_small_tensors_costs_little(benchmark, optimizer):
    def seconds(k):
        step = bench.compiled(optimizer, [(4,)] * k)
        ((_, found, _),) = bench.compared({"own": step}, "own", 99)
        return found[0]

    one, many = seconds(1), seconds(101)
    further = (many - one) / 100
    benchmark.extra_info.update(one=one, further=further)
    print(f"\n{optimizer}: {one * 1e6:.1f} us, and {further * 1e6:.2f} us for each further tensor")
    benchmark.pedantic(lambda: None)
    assert one <= 20e-6
    assert further <= 4e-6
