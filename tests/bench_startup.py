"""What the first use costs in a fresh process, as CPU time; the least of five.

Run: python -m pytest tests/bench_startup.py --benchmark-enable --benchmark-only -s
"""

import os
import subprocess
import sys

import pytest

ROUNDS = 5
IMPORT = "before = time.process_time(); import refopt; assert 'numba' not in sys.modules"
STEP = """
import numba, numpy, refopt
p = refopt.Parameter(numpy.ones(1000, "f4"))
p.grad = numpy.ones(1000, "f4")
optimizer = refopt.NAdam([p])
before = time.process_time()
optimizer.step()
"""


def seconds(code, **env):
    """CPU time of what comes after `before` is set."""
    code = f"import sys, time\n{code}\nprint(time.process_time() - before)"
    env = {**os.environ, "REFOPT_ENGINE": "numba", **env}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    return float(done.stdout)


def report(benchmark, what, found, most):
    benchmark.extra_info[what] = found
    print(f"\n{what}: {min(found):.2f} s ({len(found)} processes, at most {max(found):.2f})")
    benchmark.pedantic(lambda: None)
    assert min(found) <= most


def test_refopt_is_imported_at_once_and_without_numba(benchmark):
    report(benchmark, "import refopt", [seconds(IMPORT) for _ in range(ROUNDS)], 0.25)


def test_a_first_step_compiles_soon_and_the_next_process_loads(benchmark, tmp_path):
    pytest.importorskip("numba", reason="refopt[fast]")
    folders = [str(tmp_path / str(k)) for k in range(ROUNDS)]
    first = [seconds(STEP, REFOPT_CACHE=folder) for folder in folders]
    again = [seconds(STEP, REFOPT_CACHE=folder) for folder in folders]
    report(benchmark, "first step, from cache", again, 0.6)
    assert min(first) <= 2.5, first
    print(f"first step, compiled: {min(first):.2f} s (at most {max(first):.2f})")
