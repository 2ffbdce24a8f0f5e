"""The reference for optimizers: one source of mathematics, run on any array library."""

from refopt.optim import (
    NAdam,
    Parameter,
    RemovableHandle,
    load,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    save,
)

__all__ = [
    "NAdam",
    "Parameter",
    "RemovableHandle",
    "load",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "save",
]
