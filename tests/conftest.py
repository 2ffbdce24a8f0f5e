"""Strict settings for every test: the same examples on every run, no time limit on one."""

import os

from hypothesis import settings

# a test that wants compiled loops asks for them: compiling takes a second for each
os.environ.setdefault("REFOPT_ENGINE", "tape")
os.environ.setdefault("REFOPT_SEED", "1")  # a test draws the same cases on every run

settings.register_profile("strict", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("strict")
