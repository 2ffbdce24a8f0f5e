"""Installed implementations: an adapter in a process of its own, asked case by case.

The protocol is described in conformance/make.py. A crash, a time-out, a line outside the protocol,
a rejection and a skip are five different things, and none is a verdict; stderr is never judged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from refopt.errors import AdapterError, CaseError
from refopt.oracle import golden, suite
from refopt.oracle.golden import Recording, Run
from refopt.oracle.process import Failure, Process
from refopt.oracle.suite import BROKEN, SKIPPED, Item, Task


class Implementation(NamedTuple):
    """What can be run live, and the recordings whose cases it is given."""

    packages: str  # that must be importable
    adapter: str  # file in conformance/adapters, without .py
    recordings: str  # file in conformance/golden, without .json
    environment: str = ""  # table in conformance/environments.toml
    argument: str = ""  # of the adapter, where it runs more than one class


IMPLEMENTATIONS = {
    "torch:NAdam": Implementation("torch", "torch_nadam", "nadam/torch-2.13", "torch-2_13"),
    "tf2.9:Nadam": Implementation(
        "tensorflow", "keras_legacy_nadam", "nadam/keras-legacy-2.9", "keras-2_9"
    ),
    "tf2.15:Nadam": Implementation("tensorflow", "keras2_nadam", "nadam/keras-2.15", "keras-2_15"),
    "keras:Nadam": Implementation("keras jax", "keras3_nadam", "nadam/keras-3", "keras-3_15"),
    "optax:nadam": Implementation("optax jax", "optax_nadam", "nadam/optax-0.2", "optax-0_2"),
    "timm:NAdamW": Implementation("timm torch", "timm_nadam", "nadam/timm-nadamw", "timm-1_0"),
    "paddle:NAdam": Implementation("paddle", "paddle_nadam", "nadam/paddle-3.3", "paddle-3_3"),
    "mindspore:NAdam": Implementation(
        "mindspore", "mindspore_nadam", "nadam/mindspore-2.10", "mindspore-2_10"
    ),
    "torch:RMSprop": Implementation("torch", "torch_rmsprop", "rmsprop/torch-2.13", "torch-2_13"),
    "tf2.9-dtensor:RMSprop": Implementation(
        "tensorflow", "tf29_rmsprop", "rmsprop/tf-2.9", "keras-2_9"
    ),
    "tf2.9:RMSprop": Implementation(
        "tensorflow", "tf29_rmsprop", "rmsprop/keras-legacy-2.9", "keras-2_9"
    ),
    "tf2.15:RMSprop": Implementation(
        "tensorflow", "keras2_rmsprop", "rmsprop/keras-2.15", "keras-2_15"
    ),
    "tf1:RMSProp": Implementation("tensorflow", "tf29_rmsprop", "rmsprop/tf1", "keras-2_9"),
    "keras:RMSprop": Implementation("keras jax", "keras3_rmsprop", "rmsprop/keras-3", "keras-3_15"),
    "optax:rmsprop": Implementation("optax jax", "optax_rmsprop", "rmsprop/optax-0.2", "optax-0_2"),
    "timm:RMSpropTF": Implementation(
        "timm torch", "timm_rmsprop", "rmsprop/timm-rmsprop-tf", "timm-1_0"
    ),
    "paddle:RMSProp": Implementation(
        "paddle", "paddle_rmsprop", "rmsprop/paddle-3.3", "paddle-3_3"
    ),
    "mindspore:RMSProp": Implementation(
        "mindspore", "mindspore_rmsprop", "rmsprop/mindspore-2.10", "mindspore-2_10"
    ),
    "chainer:RMSprop": Implementation(
        "chainer", "chainer_rmsprop", "rmsprop/chainer-7", "chainer-7_8"
    ),
    "mlx:RMSprop": Implementation("mlx", "mlx_rmsprop", "rmsprop/mlx-0.32", "mlx-0_32"),
    "torch:SGD": Implementation("torch", "torch_sgd", "sgd/torch-2.13", "torch-2_13"),
    "keras:SGD": Implementation("keras jax", "keras3_sgd", "sgd/keras-3", "keras-3_15"),
    "optax:sgd": Implementation("optax jax", "optax_sgd", "sgd/optax-0.2", "optax-0_2"),
    "mindspore:thor": Implementation(
        "mindspore", "mindspore_thor", "thor/mindspore-2.10", "mindspore-2_10-numpy-1"
    ),
    "tf2.15-legacy:Nadam": Implementation(
        "tensorflow", "keras_legacy_nadam", "nadam/keras-legacy-2.9", "keras-2_15"
    ),
    "keras-torch:Nadam": Implementation(
        "keras torch", "keras3_nadam", "nadam/keras-3-torch", "keras-3_15-torch", "torch"
    ),
    "keras-tensorflow:Nadam": Implementation(
        *("keras tensorflow", "keras3_nadam", "nadam/keras-3-tensorflow"),
        *("keras-3_15-tensorflow", "tensorflow"),
    ),
    "torch-differentiable:RMSprop": Implementation(
        "torch", "torch_rmsprop", "rmsprop/torch-2.13", "torch-2_13", "differentiable"
    ),
    "tf2.15-legacy:RMSprop": Implementation(
        "tensorflow", "tf29_rmsprop", "rmsprop/keras-legacy-2.9", "keras-2_15", "legacy"
    ),
    "keras-torch:RMSprop": Implementation(
        "keras torch", "keras3_rmsprop", "rmsprop/keras-3-torch", "keras-3_15-torch", "torch"
    ),
    "keras-tensorflow:RMSprop": Implementation(
        *("keras tensorflow", "keras3_sparse", "rmsprop/keras-3-tensorflow"),
        "keras-3_15-tensorflow",
    ),
}

HELLO_SECONDS = 120.0  # until the framework is imported
ATTEMPTS = 3  # failures in a row after which an implementation is given up


def folder() -> Path:
    """Where pinned environments are: $REFOPT_ENVS."""
    return Path(os.environ.get("REFOPT_ENVS", Path.home() / ".cache" / "refopt" / "envs"))


def interpreters(name: str) -> list[str]:
    """Those that may have a framework: the one that runs refopt, and its pinned environment."""
    home = folder() / IMPLEMENTATIONS[name].environment
    built = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return [sys.executable, *([str(built)] if built.exists() else [])]


class Missing(CaseError):
    """The framework is not installed in the interpreter."""


def interpreter(name: str) -> str | None:
    """The first of `interpreters` that has the framework; None where none has."""
    packages = IMPLEMENTATIONS[name].packages.split()
    able = (python for python in interpreters(name) if not _lacks(packages, python))
    return next(able, None)


class Adapter(Process):
    """A running adapter; `hello` is what it said first."""

    def __init__(self, command: list[str], seconds: float) -> None:
        # a framework may leave files where it runs (MindSpore: rank_0/)
        self._folder = TemporaryDirectory(prefix="refopt-", ignore_cleanup_errors=True)
        try:
            super().__init__(command, self._folder.name)
        except Failure:
            self._folder.cleanup()
            raise
        self._seconds = seconds
        try:
            said = self.hear(HELLO_SECONDS)
            hello = said.get("hello")
            if not isinstance(hello, dict) or not {"framework", "version"} <= hello.keys():
                raise Failure(BROKEN, f"hello is required first, got {said!r:.200}")
        except BaseException:
            self.close()
            raise
        self.known = f"{hello['framework']} {hello['version']}"
        self.paths: list[str] | None = hello.get("profiles")

    def close(self) -> None:
        """End it, and remove what it left behind."""
        super().close()
        self._folder.cleanup()

    def items(self, recording: Recording, profile: str | None) -> tuple[Item, ...]:
        """What it does with a case; a path that it does not have is passed over."""
        if self.paths is not None:
            runs = {name: run for name, run in recording.runs.items() if name in self.paths}
            recording = recording._replace(runs=runs)
        source = recording.case.source
        answer = self.ask(source, self._seconds)
        if answer.get("id") != source["id"]:
            raise Failure(BROKEN, f"an answer to {source['id']} is required, got {answer!r:.200}")
        return tuple(_items(self.known, recording, answer, profile))


def tasks(
    name: str, found: Iterable[Recording], profile: str | None, *, python: str, seconds: float
) -> Iterator[Task]:
    """The cases of an implementation with what it does with them here and now.

    Arguments
    ---------
    name: of `IMPLEMENTATIONS`.
    found: the cases, as recordings.
    profile: judge against this one instead of the one that the adapter names.
    python: the interpreter that has the framework.
    seconds: the time for one case.
    """
    yield from answers(starter(name, python, seconds), found, profile)


def starter(name: str, python: str, seconds: float) -> Callable[[], Adapter]:
    """What starts the adapter of an implementation. Raises Missing where it cannot run."""
    _require(IMPLEMENTATIONS[name].packages.split(), name, python)
    return lambda: Adapter(command(name, python), seconds)


def command(name: str, python: str) -> list[str]:
    """What starts an adapter."""
    row = IMPLEMENTATIONS[name]
    adapter = golden.root() / "adapters" / f"{row.adapter}.py"
    # whole, since it starts elsewhere; not resolved, since a link names its environment
    found = str(Path(shutil.which(python) or python).absolute())
    return [found, str(adapter), *filter(None, [row.argument])]


class Talker(Protocol):
    """A running program that is given cases."""

    known: str  # what it is, and its version

    def items(self, recording: Recording, profile: str | None) -> tuple[Item, ...]:
        """What it does with a case."""

    def close(self) -> None:
        """End it."""


class Asking:
    """A program that is asked case by case, and started anew after each failure."""

    def __init__(self, start: Callable[[], Talker], profile: str | None) -> None:
        self._start, self._profile = start, profile
        self._talker: Talker | None = None
        self._known, self._failures = "unknown version", 0

    def talker(self) -> Talker:
        """The program, which runs from now on."""
        self._talker = self._talker or self._start()
        self._known = self._talker.known
        return self._talker

    def task(self, recording: Recording) -> Task:
        """What it does with a case."""
        try:
            items = self.talker().items(recording, self._profile)
            self._failures = 0
        except Failure as failure:
            self.close()
            self._failures += 1
            items = (unjudged(self._known, self._profile, failure.status, failure.detail),)
        return Task(recording.case, items)

    def more(self, task: Task) -> None:
        """Raises AdapterError where it failed `ATTEMPTS` times in a row, `task` the last time."""
        if self._failures == ATTEMPTS:
            detail = task.items[0].detail
            msg = f"{self._known}: given up after {ATTEMPTS} failures in a row: {detail}"
            raise AdapterError(msg)

    def others(self, more: Callable[[Talker], Iterable[Recording]]) -> Iterator[Recording]:
        """What else is asked, if it runs."""
        try:
            talker = self.talker()
        except Failure:  # it could not be started for a case before, which says so
            return
        yield from more(talker)

    def close(self) -> None:
        """End it."""
        if self._talker is not None:
            self._talker.close()
        self._talker = None


def answers(
    start: Callable[[], Talker],
    found: Iterable[Recording],
    profile: str | None,
    more: Callable[[Talker], Iterable[Recording]] = lambda talker: (),
) -> Iterator[Task]:
    """What a program does with each case, and then with what else is asked of such a program.

    Raises AdapterError where it fails `ATTEMPTS` times in a row.
    """
    asking = Asking(start, profile)
    try:
        for recording in chain(found, asking.others(more)):
            yield (task := asking.task(recording))
            asking.more(task)
    finally:
        asking.close()


def cases(name: str) -> Iterator[Recording]:
    """The recordings whose cases an implementation is given."""
    yield from golden.load(golden.root() / "golden" / f"{IMPLEMENTATIONS[name].recordings}.json")


def _items(
    implementation: str, recording: Recording, answer: dict[str, Any], profile: str | None
) -> Iterator[Item]:
    if "skipped" in answer:
        yield unjudged(implementation, profile, SKIPPED, str(answer["skipped"]))
        return
    try:
        computed: dict[str, Any] = {}  # by the framework's own network
        for run in answer["runs"].values():
            computed |= run.pop("inputs", {})
        if computed != {key: recording.case.source.get(key) for key in computed}:
            detail = "its network computes other gradients here than when they were recorded"
            yield unjudged(implementation, profile, SKIPPED, detail)
            return
        if lacks := [name for name in recording.runs if name not in answer["runs"]]:
            raise Failure(BROKEN, f"runs of {', '.join(lacks)} are required, as recorded")
        runs = {
            name: golden.parse_run(recording.case, name, answer["runs"]) for name in answer["runs"]
        }
        for name, run in runs.items():
            before = recording.runs.get(name, run)
            if not run.error and (lacks := sorted(_shown(before) - _shown(run))):
                raise Failure(BROKEN, f"{name}: {', '.join(lacks)} are required, as recorded")
            item = suite.recorded(implementation, name, profile or name, run)
            if before.error and not run.error:
                item = item._replace(stale=f"is no longer rejected with {before.error['type']}")
            elif run.error and not before.error:
                item = item._replace(stale=f"was not rejected when recorded; now {item.detail}")
            yield item
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Failure(BROKEN, f"runs of typed values are required, got {error!r}") from None


def _shown(run: Run) -> set[str]:
    """What a run shows, by name."""
    quantities = {q for step in run.steps.values() for q in step}
    return quantities | ({"finalized"} if run.finalized is not None else set())


def unjudged(implementation: str, profile: str | None, status: str, detail: str) -> Item:
    """The item of a run that cannot be judged."""
    name = implementation.partition(" ")[0]
    return Item(implementation, name, profile or "", status=status, detail=detail)


def _require(packages: list[str], name: str, python: str) -> None:
    try:
        missing = _lacks(packages, python)
    except OSError as error:
        msg = f"{name}: cannot start {python}: {error.strerror}"
        raise Missing(msg) from None
    except subprocess.CalledProcessError as error:
        msg = f"{name}: --python must be a Python interpreter, got {python}: {error.stderr!r:.200}"
        raise Missing(msg) from None
    if missing:
        msg = (
            f"{name}: {', '.join(missing)} is not installed in {python}; "
            "install it there, state one that has it with --python, or let --build make one"
        )
        raise Missing(msg)


def _lacks(packages: list[str], python: str) -> list[str]:
    """The packages that an interpreter does not have."""
    look = (
        "import importlib.util as util, sys; "
        "print(*(p for p in sys.argv[1:] if util.find_spec(p) is None))"
    )
    command = [python, "-c", look, *packages]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.split()
