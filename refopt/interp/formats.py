"""The floating-point formats of IEEE 754, and bfloat16: limits, bit patterns, rounding."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple


class Format(NamedTuple):
    """A binary format of `precision` bits whose exponents run from `emin` to `emax`."""

    name: str
    width: int  # bits stored
    precision: int  # bits of the significand, the hidden one included
    emin: int  # exponent of the smallest normal number, 2**emin
    emax: int  # exponent of the largest finite number, (2 - 2**(1 - precision)) * 2**emax

    @property
    def unit(self) -> float:
        """Unit roundoff u = 2**-precision: a rounding moves a normal number by at most u|x|."""
        return 2.0**-self.precision

    @property
    def spacing(self) -> int:
        """Exponent of the smallest subnormal number."""
        return self.emin - self.precision + 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return math.ldexp(2.0**self.precision - 1, self.emax - self.precision + 1)


FORMATS = {
    f.name: f
    for f in (
        Format("float16", 16, 11, -14, 15),
        Format("bfloat16", 16, 8, -126, 127),
        Format("float32", 32, 24, -126, 127),
        Format("float64", 64, 53, -1022, 1023),
    )
}
"""The formats by dtype name."""

COMPLEX = {"complex64": "float32", "complex128": "float64"}
"""Complex dtypes and the dtype of their parts."""


def nearest(mantissa: int, exponent: int, f: Format) -> tuple[int, int] | None:
    """mantissa * 2**exponent rounded to nearest, ties to even; None where that overflows."""
    shift = max(mantissa.bit_length() - f.precision, f.spacing - exponent)
    if shift > 0:
        half, low = 1 << (shift - 1), abs(mantissa) & ((1 << shift) - 1)
        size = abs(mantissa) >> shift
        size += low > half or (low == half and size & 1)
        mantissa, exponent = (size if mantissa > 0 else -size), exponent + shift
    if mantissa and mantissa.bit_length() + exponent - 1 > f.emax:
        return None
    return mantissa, exponent


def rounded(x: float, f: Format) -> float:
    """`x` rounded to the format, ties to even; infinity where that overflows."""
    if f.name == "float64" or not math.isfinite(x) or x == 0:
        return x
    numerator, denominator = x.as_integer_ratio()
    result = nearest(numerator, 1 - denominator.bit_length(), f)
    return math.copysign(math.inf if result is None else math.ldexp(*result), x)


def ulp(x: float, f: Format) -> float:
    """The distance between the two numbers of the format next to |x| (unit in the last place)."""
    if x == 0 or not math.isfinite(x):
        return math.ldexp(1.0, f.spacing)
    return math.ldexp(1.0, max(math.frexp(x)[1] - f.precision, f.spacing))


_CODES = {"float16": ">e", "float32": ">f", "float64": ">d"}


def to_bits(values: list[float], f: Format) -> str:
    """Values as big-endian hexadecimal bit patterns, one after the other; NaN is the quiet one."""
    if f.name == "bfloat16":
        return "".join(struct.pack(">f", x).hex()[:4] if x == x else "7fc0" for x in values)
    quiet = {"float16": "7e00", "float32": "7fc00000", "float64": "7ff8000000000000"}[f.name]
    return "".join(struct.pack(_CODES[f.name], x).hex() if x == x else quiet for x in values)


def from_bits(bits: str, f: Format) -> list[float]:
    """The values of concatenated bit patterns, as Python floats (exact)."""
    n = f.width // 4
    words = [bits[i : i + n] for i in range(0, len(bits), n)]
    if f.name == "bfloat16":
        return [struct.unpack(">f", bytes.fromhex(w + "0000"))[0] for w in words]
    return [struct.unpack(_CODES[f.name], bytes.fromhex(w))[0] for w in words]
