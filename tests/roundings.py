"""How far rounding may take a result, from the operations that made it."""

import numpy as np


def gamma(n, dtype="float64"):
    """n roundings to nearest multiply by a factor this near to 1 (Higham 2002, Lemma 3.1).

    A function of the C library counts as two: the libraries in use are off by less than a unit in
    the last place.
    """
    nu = n * float(np.finfo(dtype).eps) / 2
    return nu / (1 - nu)
