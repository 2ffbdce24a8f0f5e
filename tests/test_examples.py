"""The examples run, on NumPy and with other arrays unchanged."""

import importlib.util
from pathlib import Path

import cupy_standin
import pytest

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
