"""Layers of a net as THOR sees them: names, parameters, and how an input became an output."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from refopt.interp.arrays import dtype_name
from refopt.interp.formats import FORMATS
from refopt.interp.host import is_array
from refopt.optim.arguments import INTEGERS
from refopt.optim.parameter import Parameter, kind
from refopt.rules import thor as rule


class Factors(NamedTuple):
    """Second moments of a layer, computed by the user (THO-3).

    A is that of the input, (n, n) with n = in·kh·kw; of a table how often each id occurred, (V,).
    G is that of the gradient of the scaled loss for the output before the bias, (out, out).
    """

    A: Any
    G: Any
    a_normalizer: float | None = None  # rows behind A; required of a convolution and of a table
    g_normalizer: float | None = None  # rows behind G; required of a convolution


class Layer:
    """A layer: its name and its parameters, the weight first.

    An array becomes a `Parameter`; a `Parameter` takes the name that the layer gives it.
    `layer["bias"]` is the parameter of that name.

    Attributes
    ----------
    name : str
        Under which statistics are supplied; cannot be changed.
    parameters : tuple of Parameter
        The weight first.
    names : tuple of str
        Theirs, `<layer>.<parameter>`.

    """

    kind: ClassVar[str]

    def __init__(self, name: str, **parameters: Any) -> None:
        if not hasattr(self, "kind"):
            msg = f"{name}: a layer of a kind is required, as Dense or Other, got {kind(self)}"
            raise TypeError(msg)
        if not isinstance(name, str) or not name:
            msg = f"name: a text is required, got {name!r}"
            raise TypeError(msg)
        self._name, self._keys = name, tuple(parameters)
        self.names = tuple(f"{name}.{key}" for key in parameters)
        self.parameters = tuple(map(_parameter, self.names, parameters.values()))
        self._check()
        for own, parameter in zip(self.names, self.parameters, strict=True):
            parameter.name = own

    @property
    def name(self) -> str:
        """Under which statistics are supplied."""
        return self._name

    def _check(self) -> None:
        """Raise unless the shapes fit each other."""

    def __getitem__(self, key: str) -> Parameter:
        if key not in self._keys:
            msg = f"{self.name}: one of {', '.join(self._keys)} is required, got {key!r}"
            raise KeyError(msg)
        return self.parameters[self._keys.index(key)]

    def described(self, numbers: tuple[int, ...]) -> rule.Layer:
        """The layer as the rule knows it, its parameters by number."""
        return rule.Layer(self.kind, numbers, self.parameters[0].shape)

    def __repr__(self) -> str:
        pairs = zip(self.names, self.parameters, strict=True)
        own = ", ".join(f"{name}: {p.shape}" for name, p in pairs)
        return f"{type(self).__name__}({own})"


class _Weighted(Layer):
    """A layer with a weight, and maybe a bias."""

    shape: ClassVar[str]  # of the weight

    def __init__(self, name: str, weight: Any, bias: Any = None) -> None:
        super().__init__(name, **_weight_and("weight", weight, "bias", bias))

    @property
    def weight(self) -> Parameter:
        """The first parameter."""
        return self.parameters[0]

    @property
    def bias(self) -> Parameter | None:
        """The second parameter, if there is one."""
        return self.parameters[1] if len(self.parameters) > 1 else None

    def _check(self) -> None:
        wanted = self.shape.split(", ")
        if len(self.weight.shape) != len(wanted) or 0 in self.weight.shape:
            msg = f"{self.name}: a weight ({self.shape}) is required, got shape {self.weight.shape}"
            raise ValueError(msg)
        out = self.weight.shape[:1]
        if self.bias is not None and self.bias.shape != out:
            msg = f"{self.name}: a bias of shape {out} is required, got {self.bias.shape}"
            raise ValueError(msg)


class Dense(_Weighted):
    """y = x wᵀ + b.

    Parameters
    ----------
    name : str
        The parameters are `<name>.weight` and `<name>.bias`.
    weight : array or Parameter
        Shape (out, in).
    bias : array or Parameter, optional
        Shape (out,) (default: None).

    Statistics: input (..., in), output gradient (..., out), the same leading axes.
    """

    kind = rule.DENSE
    shape = "out, in"


class Conv2d(_Weighted):
    """A convolution over two axes, of one group: grouped and depthwise ones are none of these.

    Parameters
    ----------
    name : str
        The parameters are `<name>.weight` and `<name>.bias`.
    weight : array or Parameter
        Shape (out, in, kh, kw).
    bias : array or Parameter, optional
        Shape (out,) (default: None).
    stride, dilation : int or pair of int
        Down and across, at least 1 (default: 1).
    padding : str, int, two or four of int
        "same": zeros so that ceil(size / stride) positions result, the odd one behind; "valid":
        none; a number for all sides, for (down, across), or for (top, bottom, left, right)
        (default: "same").

    Statistics: input (samples, in, height, width), output gradient (samples, out, down, across).
    """

    kind = rule.CONV
    shape = "out, in, kh, kw"

    def __init__(
        self,
        name: str,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = "same",
        dilation: Any = 1,
    ) -> None:
        self.stride = _pair(f"{name}: stride", stride)
        self.dilation = _pair(f"{name}: dilation", dilation)
        self.padding = _padding(f"{name}: padding", padding)
        super().__init__(name, weight, bias)

    def described(self, numbers: tuple[int, ...]) -> rule.Layer:
        """The layer as the rule knows it, its parameters by number."""
        layer = super().described(numbers)
        return layer._replace(stride=self.stride, padding=self.padding, dilation=self.dilation)


class Embedding(_Weighted):
    """Rows of a table, by their ids.

    Parameters
    ----------
    name : str
        The parameter is `<name>.weight`.
    weight : array or Parameter
        The table, shape (ids, width).

    Statistics: input, the ids, integers of any shape (...); output gradient (..., width).
    """

    kind = rule.EMBEDDING
    shape = "ids, width"

    def __init__(self, name: str, weight: Any) -> None:
        super().__init__(name, weight)


class EmbeddingLookup(Embedding):
    """As `Embedding`; under the profiles of MindSpore what its layer of this name does (THO-3.6).

    Parameters
    ----------
    name : str
        The parameter is `<name>.weight`.
    weight : array or Parameter
        The table, shape (ids, width).
    target : str
        Where MindSpore keeps the table, "CPU" or "DEVICE" (default: "CPU", as there).
    """

    kind = rule.LOOKUP

    def __init__(self, name: str, weight: Any, target: str = "CPU") -> None:
        if target not in ("CPU", "DEVICE"):
            msg = f"{name}: target must be 'CPU' or 'DEVICE', got {target!r}"
            raise ValueError(msg)
        self.target = target
        super().__init__(name, weight)

    def described(self, numbers: tuple[int, ...]) -> rule.Layer:
        """The layer as the rule knows it, its parameters by number."""
        return super().described(numbers)._replace(target=self.target)


class LayerNorm(Layer):
    """A normalisation whose scale and offset are divided by their own second moments (THO-6.3).

    Parameters
    ----------
    name : str
        The parameters are `<name>.gamma` and `<name>.beta`.
    weight : array or Parameter
        Scale γ; `layer.gamma`.
    bias : array or Parameter, optional
        Offset β, of the same shape; `layer.beta` (default: None).

    """

    kind = rule.NORM

    def __init__(self, name: str, weight: Any, bias: Any = None) -> None:
        super().__init__(name, **_weight_and("gamma", weight, "beta", bias))

    @property
    def gamma(self) -> Parameter:
        """The scale."""
        return self.parameters[0]

    @property
    def beta(self) -> Parameter | None:
        """The offset, if there is one."""
        return self.parameters[1] if len(self.parameters) > 1 else None

    def _check(self) -> None:
        if self.beta is not None and self.beta.shape != self.gamma.shape:
            msg = (
                f"{self.name}: a bias of the shape of the weight, {self.gamma.shape}, is required, "
                f"got {self.beta.shape}"
            )
            raise ValueError(msg)


Norm = LayerNorm


class Other(Layer):
    """Parameters that step by their plain gradient: of BatchNorm, say, or without a layer.

    Parameters
    ----------
    name : str
        The parameters are `<name>.0`, `<name>.1` and so on, and `<name>.<key>`; `layer["0"]` and
        `layer["<key>"]` are these.
    *parameters, **named : array or Parameter
        At least one.

    """

    kind = rule.OTHER

    def __init__(self, name: str, *parameters: Any, **named: Any) -> None:
        if not (parameters or named):
            msg = f"{name}: at least one parameter is required, got none"
            raise ValueError(msg)
        counted = {str(i): x for i, x in enumerate(parameters)}
        if twice := sorted(counted.keys() & named.keys()):
            msg = f"{name}: a name of its own is required of each parameter, got {twice[0]!r} twice"
            raise ValueError(msg)
        super().__init__(name, **counted, **named)


def _weight_and(first: str, weight: Any, second: str, bias: Any) -> dict[str, Any]:
    if weight is None:
        msg = "weight: an array or a Parameter is required, got None"
        raise TypeError(msg)
    return {first: weight, **({} if bias is None else {second: bias})}


def _parameter(name: str, x: Any) -> Parameter:
    if not isinstance(x, Parameter) and not is_array(x):
        msg = f"{name}: an array or a Parameter is required, got {kind(x)}"
        raise TypeError(msg)
    if dtype_name(x) not in FORMATS:
        msg = f"{name}: a real floating-point array is required, got {dtype_name(x)}"
        raise TypeError(msg)
    return x if isinstance(x, Parameter) else Parameter(x)


def _pair(where: str, x: Any) -> tuple[int, int]:
    down, across = x if isinstance(x, tuple | list) and len(x) == 2 else (x, x)
    if not (_is_count(down) and _is_count(across) and down >= 1 and across >= 1):
        msg = f"{where}: one or two integers >= 1 are required, got {x!r}"
        raise ValueError(msg)
    return int(down), int(across)


def _padding(where: str, x: Any) -> Any:
    if isinstance(x, str) and x in ("same", "valid"):
        return x
    sides = list(x) if isinstance(x, tuple | list) else [x]
    if len(sides) in (1, 2, 4) and all(_is_count(side) for side in sides):
        match [*map(int, sides)]:
            case [n]:
                return (n, n), (n, n)
            case [down, across]:
                return (down, down), (across, across)
            case [top, bottom, left, right]:
                return (top, bottom), (left, right)
    msg = f"{where}: 'same', 'valid', or 1, 2 or 4 integers >= 0 are required, got {x!r}"
    raise ValueError(msg)


def _is_count(x: Any) -> bool:
    return isinstance(x, INTEGERS) and not isinstance(x, bool) and bool(x >= 0)
