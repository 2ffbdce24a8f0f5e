"""Errors with one meaning each."""

from __future__ import annotations

from collections.abc import Iterable


class RefoptError(Exception):
    """Base of the errors that are refopt's own."""


class CaseError(RefoptError, ValueError):
    """A vector, recording or specification is malformed: our data is wrong."""


class AdapterError(RefoptError, RuntimeError):
    """An implementation's process broke: crash, time-out, or a line outside the protocol."""


class Misused(RefoptError, ValueError):
    """An implementation that is named is not there, or cannot be called."""


class MissingExtra(RefoptError, ImportError):
    """A package that only some uses need is not installed; the message says how to get it."""

    def __init__(self, use: str, package: str, extra: str) -> None:
        super().__init__(f"{use} must have {package}: pip install 'refopt[{extra}]'")


class Unknown(RefoptError, ValueError):
    """A name that stands for nothing."""

    def __init__(self, argument: str, known: Iterable[str], got: object) -> None:
        several = [*known]
        of = "one of " if len(several) > 1 else ""
        super().__init__(f"{argument} must be {of}{', '.join(several)}; got {got!r}")
