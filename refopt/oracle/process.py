"""A program in a process of its own that is asked in JSON Lines, whatever it does.

It may crash, hang, end in the middle of a line, or write without end: each is a `Failure` with a
status of its own, and none costs more than a bounded memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, Any, NoReturn

from refopt.oracle.suite import BROKEN, CRASHED, TIMED_OUT

LONGEST = 2**24  # characters of a line: a vector's longest answer has thousands
TAIL = 2**16  # bytes of stderr that are kept


class Failure(Exception):
    """The process did not answer as the protocol says."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def message(line: str) -> dict[str, Any]:
    """The JSON object of a line. Raises Failure where it is none."""
    try:
        found = json.loads(line, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Failure(
            BROKEN, f"JSON is required on each line, got {line!r:.200}: {error}"
        ) from None
    if not isinstance(found, dict):
        raise Failure(BROKEN, f"a JSON object is required on each line, got {line!r:.200}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that occurs twice has no meaning that all readers share."""
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = f"a key occurs twice: {', '.join(key for key, _ in pairs)}"
        raise ValueError(msg)
    return found


def _no_number(token: str) -> NoReturn:
    msg = f"{token} is no JSON"
    raise ValueError(msg)


class Process:
    """A running program; what it writes to stderr is kept to its end, and never judged.

    `folder`: where it starts, the current one if None.
    """

    def __init__(self, command: Sequence[str], folder: str | None = None) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        try:
            self._popen = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={
                    **inherited,
                    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONHASHSEED": "0",
                },
                start_new_session=True,  # what it starts ends with it
            )
        except OSError as error:
            raise Failure(CRASHED, f"cannot start {command[0]}: {error.strerror}") from None
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._streams = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        self._said: deque[bytes] = deque()
        self._lines: queue.Queue[bytes] = queue.Queue(4)
        self._questions: queue.Queue[bytes] = queue.Queue()
        self._begun = False
        self._threads = [
            threading.Thread(target=self._read, args=(self._popen.stdout,), daemon=True),
            threading.Thread(target=self._keep, args=(self._popen.stderr,), daemon=True),
            threading.Thread(target=self._write, args=(self._popen.stdin,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The next line after a question; it is written aside, since it may never be read."""
        if self._begun and not self._lines.empty():
            if not (line := self._lines.get()):
                raise Failure(CRASHED, self._ended())
            raise Failure(BROKEN, f"a question is answered once, and got {line!r:.200} as well")
        self._begun = True
        self._questions.put(json.dumps(question).encode() + b"\n")
        return self.hear(seconds)

    def hear(self, seconds: float) -> dict[str, Any]:
        """The next line."""
        try:
            heard = self._lines.get(timeout=seconds)
            line = heard.decode()
        except queue.Empty:
            raise Failure(TIMED_OUT, f"no answer within {seconds:g} s") from None
        except UnicodeDecodeError:
            raise Failure(BROKEN, f"UTF-8 is required, got {heard!r:.200}") from None
        if not line:
            raise Failure(CRASHED, self._ended())
        if not line.endswith("\n"):
            raise Failure(BROKEN, f"a whole line is required, got {line!r:.200}")
        return message(line)

    def close(self) -> None:
        """End the process and all that it started, whatever it does."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except (AttributeError, OSError):  # Windows has no groups of processes; or all have ended
            self._popen.kill()
        self._popen.wait()
        self._questions.put(b"")
        end = time.monotonic() + 1.0
        for thread, stream in zip(self._threads, self._streams[1:], strict=False):
            while thread.is_alive() and time.monotonic() < end:
                self._drain()  # it may wait for room
            if not thread.is_alive():  # else whoever fled its group holds the stream
                stream.close()

    def _drain(self) -> None:
        try:
            self._lines.get(timeout=0.01)
        except queue.Empty:
            return

    def _write(self, stdin: IO[bytes]) -> None:
        with contextlib.suppress(OSError):  # what a dead process was asked is lost, as it must be
            while question := self._questions.get():
                stdin.write(question)
                stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()

    def _read(self, stdout: IO[bytes]) -> None:
        while line := stdout.readline(LONGEST):
            self._lines.put(line)
        self._lines.put(b"")

    def _keep(self, stderr: IO[bytes]) -> None:
        size = 0
        while part := stderr.read1(TAIL):  # type: ignore[attr-defined]
            self._said.append(part)
            size += len(part)
            while size - len(self._said[0]) >= TAIL:
                size -= len(self._said.popleft())

    def _ended(self) -> str:
        """How the process ended, and the last it wrote to stderr."""
        try:
            code = self._popen.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "closed its output"
        self._threads[1].join(timeout=5.0)
        end = f"ended by signal {-code}" if code < 0 else f"exited with {code}"
        said = b"".join(self._said).decode("utf-8", "replace")
        return "\n".join([end, *said.splitlines()[-5:]])
