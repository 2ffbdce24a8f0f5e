"""Hooks around `step`, `state_dict` and `load_state_dict`, and the handles that remove them."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Hook: TypeAlias = Callable[..., Any]
Hooks: TypeAlias = "OrderedDict[int, Hook]"
Step = TypeVar("Step", bound=Callable[..., Any])

_global_pre: Hooks = OrderedDict()
_global_post: Hooks = OrderedDict()
_ids = itertools.count()


class RemovableHandle:
    """Removes one hook: by `remove()`, or at the end of a `with` block.

    Attributes
    ----------
    id : int
        Unique over all hooks of the process.

    """

    def __init__(self, hooks: Hooks) -> None:
        # weak: a handle that outlives its optimizer keeps no parameter alive
        self._hooks = weakref.ref(hooks)
        self.id = next(_ids)

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __getstate__(self) -> tuple[Hooks | None, int]:
        return self._hooks(), self.id

    def __setstate__(self, state: tuple[Hooks | None, int]) -> None:
        # as in torch: a copy removes from the same hooks while something holds them, else nothing
        hooks, self.id = state
        self._hooks = weakref.ref(OrderedDict() if hooks is None else hooks)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def _register(hooks: Hooks, hook: Hook, prepend: bool = False) -> RemovableHandle:
    if not callable(hook):
        msg = f"hook: a callable is required, got {hook!r}"
        raise TypeError(msg)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Register a hook before `step` of every optimizer; see `register_step_pre_hook`."""
    return _register(_global_pre, hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Register a hook after `step` of every optimizer; see `register_step_post_hook`."""
    return _register(_global_post, hook)


def hooked(step: Step) -> Step:
    """Run the step hooks around `step`: global, own, the step, own, global.

    Hooks see `args` with the optimizer in front, as the call passed it, and the caller's grad mode.
    They are listed before the first one runs, so that a hook may remove itself.
    """

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        self = args[0]
        for hook in [*_global_pre.values(), *self._step_pre_hooks.values()]:
            result = hook(self, args, kwargs)
            if result is None:
                continue
            if not (isinstance(result, tuple) and len(result) == 2):
                msg = f"step pre-hook: None or (new_args, new_kwargs) is required, got {result!r}"
                raise RuntimeError(msg)
            args, kwargs = result
        if args == ():
            msg = "step pre-hook: new_args that begin with the optimizer are required, got ()"
            raise IndexError(msg)
        out = step(*args, **kwargs)
        for hook in [*self._step_post_hooks.values(), *_global_post.values()]:
            hook(self, args, kwargs)
        return out

    return wrapper  # type: ignore[return-value]


class Hooked:
    """The six registrations; hooks run in the order of registration, `prepend` puts one in front.

    Every registration returns a `RemovableHandle` and raises TypeError where `hook` is no callable.
    Pickling and copying drop the hooks, as `torch.optim` does.
    """

    def __init__(self) -> None:
        self._step_pre_hooks: Hooks = OrderedDict()
        self._step_post_hooks: Hooks = OrderedDict()
        self._state_dict_pre_hooks: Hooks = OrderedDict()
        self._state_dict_post_hooks: Hooks = OrderedDict()
        self._load_state_dict_pre_hooks: Hooks = OrderedDict()
        self._load_state_dict_post_hooks: Hooks = OrderedDict()

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Before `step`: `hook(optimizer, args, kwargs) -> None | (new_args, new_kwargs)`.

        `args` begins with the optimizer. Any other return value: RuntimeError, and no step.
        """
        return _register(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """After a `step` that succeeded: `hook(optimizer, args, kwargs) -> None`."""
        return _register(self._step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Before `state_dict`: `hook(optimizer) -> None`."""
        return _register(self._state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """After `state_dict`: `hook(optimizer, state_dict) -> state_dict | None`.

        What it returns, unless None, replaces the result.
        """
        return _register(self._state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Before `load_state_dict`: `hook(optimizer, state_dict) -> state_dict | None`.

        It gets a shallow copy of the caller's dict; what it returns, unless None, is loaded.
        """
        return _register(self._load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """After `load_state_dict`: `hook(optimizer) -> None`."""
        return _register(self._load_state_dict_post_hooks, hook, prepend)
