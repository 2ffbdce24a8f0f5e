"""Optimizer objects shaped like the frameworks'."""

from refopt.optim.hooks import (
    RemovableHandle,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from refopt.optim.keras import EMAOption, GradientsClipOption, IndexedSlices, Optimizer
from refopt.optim.nadam import NAdam
from refopt.optim.parameter import Parameter
from refopt.optim.rmsprop import RMSprop
from refopt.optim.storage import load, save
from refopt.optim.tape import GradientTape
from refopt.optim.thor import THOR

Variable = Parameter
"""`Parameter` under its Keras name."""

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
    "load",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "save",
]
