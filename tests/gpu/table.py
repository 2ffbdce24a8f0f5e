"""What only a GPU can show, as one table: bits beside NumPy, a captured graph, and speed.

Speed is compared within each round of an interleaved run, as ratios; the floor is a copy on the
device, of as many bytes as a step has to move.
"""

import importlib.util
import statistics
import sys
import time
from collections import Counter
from datetime import date
from functools import partial

import cupy
import numpy as np
from backends import same_bits
from test_cuda import lines, programs

import refopt
from refopt.bench import FACTORS, LISTS, _factor, factors
from refopt.interp import cuda, fused
from refopt.interp.arrays import namespace_of
from refopt.rules import thor

ROUNDS = 9
LARGE = 100_000_000  # elements: 400 MB an array
MOVED = 28  # bytes that NAdam moves for an element of float32: p, g, m, v read; p, m, v written


def main():
    broken = 0
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    versions = f"CuPy {cupy.__version__}, NumPy {np.__version__}"
    print(f"{date.today()}, {device}, {versions}\n\n| check | result |\n| --- | --- |")
    for check in (kernels, objects, graph, large, tensors, inverses):
        for name, result, fine in check():
            broken += not fine
            print(f"| {name} | {result}{'' if fine else ' **wrong**'} |", flush=True)
    sys.exit(broken > 0)


def kernels():
    """Every profile and dtype: each array of a step, bit for bit, NaN for NaN."""
    wrong, count = [], 0
    for name, (program, dtype) in programs().items():
        numbers = np.random.default_rng(1).uniform(0.01, 0.99, (1, len(program.scalars)))
        numbers = numbers.astype(program.dtype)
        for n, offset in ((7, 1), (1000, 3), (100_001, 0)):
            host = lines(program, dtype, n, n, offset)
            bits = {key: x.view(f"u{x.itemsize}") for key, x in host.items()}
            there = {key: cupy.asarray(np.concatenate([x[:offset], x]))[offset:]
                     for key, x in bits.items()}  # fmt: skip
            plain = fused.Pass([(program, {k: x for k, x in host.items() if k != "grad"})])
            plain.takes([host["grad"]])
            plain.ready()
            plain.run([host["grad"]], [numbers[0]])
            row = [*(x.data.ptr for x in there.values()), n, 0]
            table = cupy.asarray(fused.cut(np.array([row], np.int64), host["grad"].itemsize, 8192))
            launch = cuda.kernel(program, dtype)
            launch((len(table),), (cuda.THREADS,), (table, cupy.asarray(numbers)))
            for key, x in host.items():
                count += x.size
                if not same_bits(there[key].get().view(x.dtype), x):
                    wrong.append(f"{name} {key}")
    yield (
        f"bits of {len(programs())} kernels",
        f"{count:,} elements, {len(wrong)} differ",
        not wrong,
    )
    for name in wrong[:5]:
        yield "differs", name, False


def objects():
    """Both optimizers beside themselves on NumPy."""
    shapes, rng = [(3,), (64, 3, 7, 7), (1000, 512), ()], np.random.default_rng(2)
    for make in (refopt.NAdam, refopt.RMSprop):
        starts = [rng.standard_normal(shape, np.float32) for shape in shapes]
        sides = [[refopt.Variable(put(x)) for x in starts] for put in (np.copy, cupy.asarray)]
        steps = [stepper(make, side) for side in sides]
        for _ in range(20):
            grads = [rng.standard_normal(shape, np.float32) for shape in shapes]
            steps[0](grads)
            steps[1]([cupy.asarray(g) for g in grads])
        fine = all(same_bits(b.data.get(), a.data) for a, b in zip(*sides, strict=True))
        yield f"bits of {make.__name__} after 20 steps", "equal" if fine else "differ", fine


def stepper(make, params, **options):
    """A function that takes gradients and steps."""
    if make is refopt.NAdam:
        optimizer = make(params, **options)

        def step(grads):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()

        return step
    optimizer = make(**options)
    return lambda grads: optimizer.apply_gradients(zip(grads, params, strict=True))


def graph():
    """A captured step, replayed, beside steps that are not captured, and plain operations."""
    rng = np.random.default_rng(3)
    start, grads = rng.standard_normal(1000, np.float32), rng.standard_normal((6, 1000), np.float32)
    sides, stream = [], cupy.cuda.Stream(non_blocking=True)
    with stream:
        grad = cupy.zeros(1000, "float32")
        for captured, foreach in ((False, None), (True, None), (False, False)):
            param = refopt.Parameter(cupy.asarray(start))
            step = stepper(refopt.NAdam, [param], capturable=True, foreach=foreach)
            for warm in grads[:3]:
                grad.set(warm)
                step([grad])
            if captured:
                stream.begin_capture()
                step([grad])
                made = stream.end_capture()
            for later in grads[3:]:
                grad.set(later)
                if captured:
                    made.launch(stream)
                else:
                    step([grad])
            stream.synchronize()
            sides.append(param.data.get())
    fine = all(same_bits(side, sides[0]) for side in sides)
    yield "a captured step, replayed 3 times", "equal" if fine else "differ", fine


def seconds(run):
    """The time of one call on the device."""
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    run()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - start


def ratios(runs):
    """The median of each beside the first, round by round."""
    for run in runs.values():
        for _ in range(3):
            run()
    times = [{name: seconds(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    first = next(iter(runs))
    return {
        name: (
            statistics.median(t[name] for t in times),
            statistics.median(t[name] / t[first] for t in times),
        )
        for name in runs
    }


def nadams(shapes):
    """A step of each peer on tensors of these shapes."""

    def made(**options):
        params = [refopt.Parameter(cupy.ones(shape, "float32")) for shape in shapes]
        grads = [cupy.full(shape, 0.5, "float32") for shape in shapes]
        step = stepper(refopt.NAdam, params, **options)
        return lambda: step(grads)

    runs = {
        "refopt": made(),
        "refopt, capturable": made(capturable=True),
        "plain CuPy": made(foreach=False),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            for name, compiled in (("torch foreach", False), ("torch.compile", True)):
                params = [torch.ones(s, device="cuda", requires_grad=True) for s in shapes]
                for param in params:
                    param.grad = torch.full_like(param, 0.5)
                step = torch.optim.NAdam(params, foreach=True).step
                run = torch.compile(step) if compiled else step

                def waited(run=run):
                    run()
                    torch.cuda.synchronize()

                runs[name] = waited
    return runs


def large():
    """One large tensor: the share of the bandwidth of a copy, and the peers."""
    source = cupy.ones(LARGE, "float32")
    target = cupy.empty_like(source)
    copied = min(seconds(partial(cupy.copyto, target, source)) for _ in range(ROUNDS))
    del source, target
    rate = 2 * 4 * LARGE / copied
    found = ratios(nadams([(LARGE,)]))
    took = found["refopt"][0]
    share = MOVED * LARGE / took / rate
    yield f"a copy on the device, {LARGE:,} elements", f"{rate / 1e12:.2f} TB/s", True
    yield f"NAdam, {LARGE:,} elements", f"{took * 1e3:.3f} ms, {share:.2f} of the copy's rate", True
    for name, (_, ratio) in list(found.items())[1:]:
        yield f"{name} / refopt", f"{ratio:.2f}", True
    cupy.get_default_memory_pool().free_all_blocks()


def tensors():
    """Many tensors in one launch."""
    for name, shapes in LISTS.items():
        found = ratios(nadams(shapes() if callable(shapes) else shapes))
        yield f"NAdam, {name}", f"{found['refopt'][0] * 1e3:.3f} ms", True
        for peer, (_, ratio) in list(found.items())[1:]:
            yield f"{peer} / refopt, {name}", f"{ratio:.2f}", True


def inverses():
    """THOR's refresh of ResNet-50 beside the libraries' own inverses; sizes that recur run once."""
    for name, block in FACTORS.items():
        total, worst = Counter(), 0.0
        for n, count in Counter(factors()).items():
            a = cupy.asarray(_factor(n))
            xp, size = namespace_of(a), block(n, thor.Hyper())
            blocks = a[None] if size == n else xp.diagonal_blocks(a, size).copy()
            runs = {
                "refopt": partial(xp.spd_inverse, blocks),
                "cupy.linalg.inv": partial(cupy.linalg.inv, blocks),
            }
            if importlib.util.find_spec("torch") is not None:
                import torch

                if torch.cuda.is_available():
                    runs["torch.linalg.inv"] = partial(torch.linalg.inv, torch.from_dlpack(blocks))
            for peer, (took, _) in ratios(runs).items():
                total[peer] += count * took
            product = blocks.astype("float64") @ xp.spd_inverse(blocks).astype("float64")
            worst = max(worst, float(abs(product - cupy.eye(size)).sum(-2).max()))
        yield (
            f"THOR refresh, {name}",
            f"{total['refopt'] * 1e3:.1f} ms, residual {worst:.1e}",
            np.isfinite(worst),
        )
        for peer in [*total][1:]:
            yield f"{peer} / refopt, {name}", f"{total[peer] / total['refopt']:.2f}", True


if __name__ == "__main__":
    main()
