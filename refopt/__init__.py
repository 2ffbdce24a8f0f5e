"""The reference for optimizers: one source of mathematics, run on any array library."""

from refopt import schedules
from refopt.optim import (
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

__all__ = [
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
    "load",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "save",
    "schedules",
]
