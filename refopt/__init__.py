"""The reference for optimizers: one source of mathematics, run on any array library."""

from refopt import layers, schedules
from refopt.optim import (
    THOR,
    EMAOption,
    GradientsClipOption,
    GradientTape,
    IndexedSlices,
    NAdam,
    Optimizer,
    Parameter,
    RemovableHandle,
    RMSprop,
    Variable,
    load,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    save,
)

thor = THOR
"""`THOR` under its MindSpore name."""

__all__ = [
    "THOR",
    "EMAOption",
    "GradientTape",
    "GradientsClipOption",
    "IndexedSlices",
    "NAdam",
    "Optimizer",
    "Parameter",
    "RMSprop",
    "RemovableHandle",
    "Variable",
    "layers",
    "load",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "save",
    "schedules",
    "thor",
]
