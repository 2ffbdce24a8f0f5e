"""Optimizer objects shaped like the frameworks'."""

from refopt.optim.hooks import (
    RemovableHandle,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from refopt.optim.nadam import NAdam
from refopt.optim.parameter import Parameter
from refopt.optim.storage import load, save

__all__ = [
    "NAdam",
    "Parameter",
    "RemovableHandle",
    "load",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "save",
]
