"""Errors with one meaning each."""

from __future__ import annotations


class RefoptError(Exception):
    """Base of the errors that are refopt's own."""


class CaseError(RefoptError, ValueError):
    """A vector, recording or specification is malformed: our data is wrong."""


class AdapterError(RefoptError, RuntimeError):
    """An implementation's process broke: crash, time-out, or a line outside the protocol."""
