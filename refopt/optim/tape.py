"""Gradients of a loss with respect to variables: by a function, or by a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from array_api_compat import is_torch_array

from refopt.interp.gradients import METHODS, gradients
from refopt.interp.host import copied
from refopt.interp.recorded import Operators, Recorded, recording_on
from refopt.optim.parameter import Parameter, array_of, is_parameter, kind


class GradientTape:
    """Records operations on variables; gives gradients of what they led to.

    Recorded are operators, methods of their results, and functions of NumPy and torch, with what
    the variables held: gradients are taken there, whatever is assigned later. Functions of other
    libraries take `variable.data`, which the tape does not see: put them into a function, which
    `gradient` takes as well, where the variables are when it is called.

    Parameters
    ----------
    method : str, optional
        How: "torch", "jax", "complex-step" or "autograd" (default: torch's or JAX's own for their
        arrays; else a complex step, and for many elements autograd where it is installed).

    Example
    -------
    >>> from refopt import GradientTape, Variable
    >>> w = Variable([1.0, 2.0])
    >>> with GradientTape() as tape:
    ...     loss = (w * w).sum()
    >>> tape.gradient(loss, w)
    array([2., 4.], dtype=float32)

    """

    def __init__(self, method: str | None = None) -> None:
        if method is not None and method not in METHODS:
            msg = f"method: one of {', '.join(METHODS)} is required, got {method!r}"
            raise ValueError(msg)
        self._method = method
        self._nodes: list[Recorded] = []
        self._open: Any = None

    def __enter__(self) -> GradientTape:
        if self._open is not None:
            msg = "tape: one block at a time is required, got an open one"
            raise RuntimeError(msg)
        self._nodes = []
        self._open = recording_on(self._nodes)
        self._open.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        opened, self._open = self._open, None
        opened.__exit__(*exception)

    def gradient(self, loss: Any, sources: Any) -> Any:
        """The gradient of the sum of `loss` with respect to `sources`.

        Parameters
        ----------
        loss : recorded value or callable
            What a `with` block of this tape computed, or a function without arguments.
        sources : variable or sequence of variables

        Returns
        -------
        An array, or a list of them; None for a variable that the loss does not read.

        Raises
        ------
        ValueError
            `loss` was not recorded by this tape; a loss that is no analytic function or not finite,
            or too many elements, where a complex step is taken.
        TypeError
            `sources` are no variables or of several libraries, `method` does not know theirs, or
            the loss is neither array nor number.

        """
        single = is_parameter(sources)
        variables = [sources] if single else listed("sources", sources)
        if isinstance(loss, Recorded) and any(node is loss for node in self._nodes):
            node, held = loss, {v: copied(v.data) for v in variables if isinstance(v, Parameter)}
            loss = lambda: node.again(held)  # noqa: E731
        elif not callable(loss) or isinstance(loss, Operators):
            msg = f"loss: a value that this tape recorded is required, got {kind(loss)}"
            raise ValueError(msg)
        found = differentiated(loss, variables, self._method)
        return found[0] if single else found


def listed(name: str, variables: Any) -> list[Any]:
    """`variables` as a list; TypeError unless it is an iterable of them."""
    if is_parameter(variables) or not isinstance(variables, Iterable):
        msg = f"{name}: a list of variables is required, got {kind(variables)}"
        raise TypeError(msg)
    result = list(variables)
    for i, variable in enumerate(result):
        if not is_parameter(variable):
            hint = "; wrap it: refopt.Variable(array)" if hasattr(variable, "dtype") else ""
            msg = (
                f"{name}[{i}]: a refopt.Variable or a torch tensor is required, "
                f"got {kind(variable)}{hint}"
            )
            raise TypeError(msg)
    return result


def compute_gradients(loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
    """See `refopt.Optimizer.compute_gradients`."""
    variables = listed("var_list", var_list)
    function = callable(loss) and not isinstance(loss, Operators)
    if not function and tape is None:
        msg = f"tape: the tape that recorded the loss is required where the loss is {kind(loss)}"
        raise ValueError(msg)
    if tape is None:
        found = differentiated(loss, variables, None)
    elif isinstance(tape, GradientTape) or not function:
        found = tape.gradient(loss, variables)
    else:
        with tape:
            value = loss()
        found = tape.gradient(value, variables)
    return list(zip(found, variables, strict=True))


def differentiated(
    loss: Callable[[], Any], variables: Sequence[Any], method: str | None
) -> list[Any]:
    """The gradient of a function with respect to each variable; None where it is not read."""
    once = [*dict.fromkeys(variables)]
    read: set[Any] = set()

    def value(arrays: Sequence[Any]) -> Any:
        with holding(once, arrays), recording_on(None):
            for variable in once:
                variable.was_read = False
            result = loss()
            result = result.operand if isinstance(result, Operators) else result
            if not (hasattr(result, "dtype") or isinstance(result, int | float | complex)):
                msg = f"loss: an array or a number is required, got {kind(result)}"
                raise TypeError(msg)
            read.update(v for v in once if v.was_read or is_torch_array(v))
            return result

    found = dict(zip(once, gradients(value, [array_of(v) for v in once], method), strict=True))
    return [found[variable] if variable in read else None for variable in variables]


@contextmanager
def holding(variables: Sequence[Any], arrays: Sequence[Any]) -> Iterator[None]:
    """Within, the variables hold these arrays."""
    own = [array_of(variable) for variable in variables]
    try:
        for variable, array in zip(variables, arrays, strict=True):
            if isinstance(variable, Parameter):
                variable.data = array
        yield
    finally:
        for variable, array in zip(variables, own, strict=True):
            if isinstance(variable, Parameter):
                variable.data = array
