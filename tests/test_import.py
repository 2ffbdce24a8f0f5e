"""What `import refopt` loads, seen from a fresh process."""

import json
import subprocess
import sys

import pytest

PROBE = "import json, sys; import {}; print(json.dumps(sorted(sys.modules)))"
ARRAY_LIBRARIES = {"array_api_strict", "cupy", "dask", "jax", "jaxlib", "torch"}
LATE = {"flint", "ml_dtypes", "numba", "rich", "safetensors", "typer"}


def loaded_by(module: str) -> set[str]:
    """The top-level modules in a fresh process after `import module`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module)], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_import_loads_no_array_library_but_numpy() -> None:
    loaded = loaded_by("refopt")
    assert "refopt" in loaded
    assert loaded & ARRAY_LIBRARIES == set()


def test_import_loads_no_package_that_only_some_uses_need() -> None:
    assert loaded_by("refopt") & LATE == set()


@pytest.mark.parametrize("module", ["array_api_strict", "dask", "flint", "ml_dtypes", "rich"])
def test_the_probe_sees_what_is_loaded(module: str) -> None:
    assert module in loaded_by(f"refopt, {module}")
