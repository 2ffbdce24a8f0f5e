"""The oracle: recordings and vectors, their replay on any interpreter, and the verdict."""
