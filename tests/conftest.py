"""Strict settings for every test: the same examples on every run, and no time limit on one."""

from hypothesis import settings

settings.register_profile("strict", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("strict")
