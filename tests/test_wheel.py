"""The wheel carries the suite: an installed refopt checks without a checkout."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.glob("refopt-*.whl")
    return built


def test_wheel_holds_every_file_of_the_suite(wheel: Path) -> None:
    suite = {
        f"refopt/_data/{file.relative_to(ROOT).as_posix()}"
        for folder in ("spec", "conformance")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert "refopt/_data/conformance/environments.toml" in suite
    assert suite - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_installed_wheel_checks_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    base = tmp_path / "env"
    venv.create(base, with_pip=False)
    paths = sysconfig.get_paths("venv", {"base": str(base), "platbase": str(base)})
    scripts, site = Path(paths["scripts"]), Path(paths["purelib"])
    subprocess.run([*PIP, "--python", base, "install", "--no-deps", wheel], check=True)
    # The dependencies come from the running environment. Its own .pth files are not read along
    # this path, so that its editable refopt stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()

    origin = [scripts / "python", "-c", "import refopt; print(refopt.__file__)"]
    found = subprocess.run(origin, cwd=empty, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(site)

    done = subprocess.run(
        [scripts / "refopt", "check"], cwd=empty, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(empty.iterdir()) == []
