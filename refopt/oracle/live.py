"""Installed implementations: an adapter in a process of its own, asked case by case.

The protocol is described in conformance/make.py. A crash, a time-out, a line outside the protocol,
a rejection and a skip are five different things, and none is a verdict; stderr is never judged.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from refopt.errors import AdapterError, CaseError
from refopt.oracle import golden, suite
from refopt.oracle.golden import Recording, Run
from refopt.oracle.suite import BROKEN, CRASHED, SKIPPED, TIMED_OUT, Item, Task


class Implementation(NamedTuple):
    """What can be run live, and the recordings whose cases it is given."""

    packages: str  # that must be importable
    adapter: str  # file in conformance/adapters, without .py
    recordings: str  # file in conformance/golden, without .json


IMPLEMENTATIONS = {
    "torch:NAdam": Implementation("torch", "torch_nadam", "nadam/torch-2.13"),
    "tf2.9:Nadam": Implementation("tensorflow", "keras_legacy_nadam", "nadam/keras-legacy-2.9"),
    "tf2.15:Nadam": Implementation("tensorflow", "keras2_nadam", "nadam/keras-2.15"),
    "keras:Nadam": Implementation("keras jax", "keras3_nadam", "nadam/keras-3"),
    "optax:nadam": Implementation("optax jax", "optax_nadam", "nadam/optax-0.2"),
    "timm:NAdamW": Implementation("timm torch", "timm_nadam", "nadam/timm-nadamw"),
    "paddle:NAdam": Implementation("paddle", "paddle_nadam", "nadam/paddle-3.3"),
    "mindspore:NAdam": Implementation("mindspore", "mindspore_nadam", "nadam/mindspore-2.10"),
    "torch:RMSprop": Implementation("torch", "torch_rmsprop", "rmsprop/torch-2.13"),
    "tf2.9-dtensor:RMSprop": Implementation("tensorflow", "tf29_rmsprop", "rmsprop/tf-2.9"),
    "tf2.9:RMSprop": Implementation("tensorflow", "tf29_rmsprop", "rmsprop/keras-legacy-2.9"),
    "tf2.15:RMSprop": Implementation("tensorflow", "keras2_rmsprop", "rmsprop/keras-2.15"),
    "tf1:RMSProp": Implementation("tensorflow", "tf29_rmsprop", "rmsprop/tf1"),
    "keras:RMSprop": Implementation("keras jax", "keras3_rmsprop", "rmsprop/keras-3"),
    "optax:rmsprop": Implementation("optax jax", "optax_rmsprop", "rmsprop/optax-0.2"),
    "timm:RMSpropTF": Implementation("timm torch", "timm_rmsprop", "rmsprop/timm-rmsprop-tf"),
    "paddle:RMSProp": Implementation("paddle", "paddle_rmsprop", "rmsprop/paddle-3.3"),
    "mindspore:RMSProp": Implementation("mindspore", "mindspore_rmsprop", "rmsprop/mindspore-2.10"),
    "chainer:RMSprop": Implementation("chainer", "chainer_rmsprop", "rmsprop/chainer-7"),
    "mlx:RMSprop": Implementation("mlx", "mlx_rmsprop", "rmsprop/mlx-0.32"),
}

HELLO_SECONDS = 120.0  # until the framework is imported
ATTEMPTS = 3  # failures in a row after which an implementation is given up


class Missing(CaseError):
    """The framework is not installed in the interpreter."""


class Failure(Exception):
    """The process did not answer as the protocol says."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Process:
    """A running adapter; `hello` is what it said first."""

    def __init__(self, command: list[str], log: IO[str]) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._log, self._start = log, log.tell()
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={
                **inherited,
                **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONHASHSEED": "0",
            },
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            message = self._next(HELLO_SECONDS)
            hello = message.get("hello")
            if not isinstance(hello, dict) or not {"framework", "version"} <= hello.keys():
                raise Failure(BROKEN, f"hello is required first, got {message!r:.200}")
            self.hello: dict[str, Any] = hello
        except BaseException:
            self.close()
            raise

    def ask(self, source: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a case."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(source) + "\n")
            self._popen.stdin.flush()
        except OSError:
            raise Failure(CRASHED, self._ended()) from None
        answer = self._next(seconds)
        if answer.get("id") != source["id"]:
            raise Failure(BROKEN, f"an answer to {source['id']} is required, got {answer!r:.200}")
        return answer

    def close(self) -> None:
        """End the process, whatever it does."""
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                continue  # what was written to a dead process is lost, as it must be

    def _read(self) -> None:
        assert self._popen.stdout is not None
        try:
            for line in self._popen.stdout:
                self._lines.put(line)
        except ValueError:
            return  # closed by `close`: nobody waits any more
        self._lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise Failure(TIMED_OUT, f"no answer within {seconds:g} s") from None
        if line is None:
            raise Failure(CRASHED, self._ended())
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise Failure(BROKEN, f"a JSON object is required on each line, got {line!r:.200}")
        return message

    def _ended(self) -> str:
        """How the process ended, and the last it wrote to stderr."""
        code = self._popen.wait()
        end = f"ended by signal {-code}" if code < 0 else f"exited with {code}"
        self._log.seek(self._start)
        return "\n".join([end, *self._log.read().splitlines()[-5:]])


def tasks(
    name: str,
    recordings: Iterable[Recording],
    profile: str | None,
    *,
    python: str,
    seconds: float,
    log: IO[str],
) -> Iterator[Task]:
    """The cases of an implementation with what it does with them here and now.

    Arguments
    ---------
    name: of `IMPLEMENTATIONS`.
    recordings: the cases.
    profile: judge against this one instead of the one that the adapter names.
    python: the interpreter that has the framework.
    seconds: the time for one case.
    log: a text file open for reading and writing; stderr goes there.
    """
    _require(IMPLEMENTATIONS[name].packages.split(), name, python)
    adapter = golden.root() / "adapters" / f"{IMPLEMENTATIONS[name].adapter}.py"
    yield from answers([python, str(adapter)], recordings, profile, seconds=seconds, log=log)


def answers(
    command: list[str],
    recordings: Iterable[Recording],
    profile: str | None,
    *,
    seconds: float,
    log: IO[str],
) -> Iterator[Task]:
    """`tasks`, for an adapter that a command starts; started anew after each failure.

    Raises AdapterError where it fails `ATTEMPTS` times in a row.
    """
    process: Process | None = None
    known, failures = "unknown version", 0
    try:
        for recording in recordings:
            try:
                process = process or Process(command, log)
                known = f"{process.hello['framework']} {process.hello['version']}"
                answer = process.ask(recording.case.source, seconds)
                items = tuple(_items(known, recording, answer, profile))
                failures = 0
            except Failure as failure:
                if process is not None:
                    process.close()
                process, failures = None, failures + 1
                items = (_unjudged(known, profile, failure.status, failure.detail),)
            yield Task(recording.case, items)
            if failures == ATTEMPTS:
                msg = f"{known}: given up after {ATTEMPTS} failures in a row: {items[0].detail}"
                raise AdapterError(msg)
    finally:
        if process is not None:
            process.close()


def cases(name: str) -> Iterator[Recording]:
    """The recordings whose cases an implementation is given."""
    yield from golden.load(golden.root() / "golden" / f"{IMPLEMENTATIONS[name].recordings}.json")


def _items(
    implementation: str, recording: Recording, answer: dict[str, Any], profile: str | None
) -> Iterator[Item]:
    if "skipped" in answer:
        yield _unjudged(implementation, profile, SKIPPED, str(answer["skipped"]))
        return
    try:
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


def _unjudged(implementation: str, profile: str | None, status: str, detail: str) -> Item:
    name = implementation.partition(" ")[0]
    return Item(implementation, name, profile or "", status=status, detail=detail)


def _require(packages: list[str], name: str, python: str) -> None:
    look = (
        "import importlib.util as util, sys; "
        "print(*(p for p in sys.argv[1:] if util.find_spec(p) is None))"
    )
    try:
        found = subprocess.run(
            [python, "-c", look, *packages], capture_output=True, text=True, check=True
        )
    except OSError as error:
        msg = f"{name}: cannot start {python}: {error.strerror}"
        raise Missing(msg) from None
    except subprocess.CalledProcessError as error:
        msg = f"{name}: --python must be a Python interpreter, got {python}: {error.stderr!r:.200}"
        raise Missing(msg) from None
    if missing := found.stdout.split():
        msg = (
            f"{name}: {', '.join(missing)} is not installed in {python}; "
            "install it there, or state with --python an interpreter that has it"
        )
        raise Missing(msg)


def log_file() -> IO[str]:
    """A file for what adapters write to stderr."""
    return tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace")
