"""The examples run, on NumPy and with other arrays unchanged."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import cupy_standin
import pytest

from refopt.interp import fused

EXAMPLES = Path(__file__).parent.parent / "examples"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn", reason="needs scikit-learn for the digits")
    return loaded("thor_digits")


def test_thor_learns_the_digits_in_fewer_epochs_than_the_others_and_a_plot_shows_it(
    digits, tmp_path, capsys
):
    pytest.importorskip("matplotlib", reason="needs matplotlib for the plot")
    plot = tmp_path / "digits.png"
    curves = digits.main(["--seeds", "1", "--epochs", "6", "--plot", str(plot)])
    epochs = {method: digits.reached(run)[0] for method, (run,) in curves.items()}
    assert epochs["THOR"] < min(epochs["SGD with momentum"], epochs["RMSprop"])
    assert all(run[-1][1] > 0.9 for (run,) in curves.values())
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "THOR" in capsys.readouterr().out


def test_the_same_code_takes_the_same_steps_on_a_device(digits):
    cupy_standin.install()
    for method in digits.RATES:
        on_host, on_device = (
            [share for _, share in digits.train(method, 0, 2, digits.digits(library))]
            for library in ("numpy", "cupy")
        )
        assert on_host == on_device


# -- digits.py ------------------------------------------------------------------------------------
SOURCE = (EXAMPLES / "digits.py").read_text(encoding="utf-8")
each_optimizer = pytest.mark.parametrize("name", ["nadam", "rmsprop", "thor"])


def executed(source):
    """What a script defines."""
    namespace = {"__name__": "digits"}
    exec(compile(source, "digits.py", "exec"), namespace)
    return namespace


def saved(folder):
    """(header, bytes of all arrays) of the one state; the order in a header means nothing."""
    (path,) = folder.glob("*.safetensors")
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


@pytest.mark.parametrize(
    "name", ["nadam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rmsprop", "thor"))]
)
def test_a_run_that_is_killed_goes_on_bit_for_bit(name, tmp_path, capsys):
    pytest.importorskip("sklearn", reason="needs scikit-learn for the digits")
    pytest.importorskip("matplotlib", reason="needs matplotlib for the plot")
    example, whole, parts = executed(SOURCE), tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    example["main"]([name, "--epochs", "4", "--folder", str(whole)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 4

    command = [sys.executable, EXAMPLES / "digits.py", name, "--epochs", "1000", "--folder", parts]
    # THOR's inverses have other last bits where numba computes them
    environment = {"PYTHONPATH": str(EXAMPLES.parent), "REFOPT_ENGINE": fused.engine()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        killed = [process.stdout.readline().rstrip("\n") for _ in range(2)]
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert killed == lines[:2]

    done = len(example["refopt"].load(*parts.glob("*.safetensors"))["curve"])
    example["main"]([name, "--epochs", str(max(done, 4)), "--folder", str(parts)])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"going on after epoch {done} of")
    assert said[-1].startswith("plotted")
    if done > 4:
        example["main"]([name, "--epochs", str(done), "--folder", str(whole)])
    assert saved(parts) == saved(whole)
    assert next(parts.glob("*.png")).read_bytes().startswith(b"\x89PNG")


@each_optimizer
def test_one_changed_line_trains_on_a_device(name, tmp_path):
    pytest.importorskip("sklearn", reason="needs scikit-learn for the digits")
    cupy_standin.install()
    changed, lines = re.subn(r"^import numpy as xp  # on a GPU: (.*)$", r"\1", SOURCE, flags=re.M)
    assert lines == 1
    on_host, on_device = (
        executed(source)["train"](name, 2, tmp_path / f"{i}")
        for i, source in enumerate((SOURCE, changed))
    )
    assert on_host == on_device
    assert on_device[-1][1] > 0.5
