"""The reference for optimizers: one source of mathematics, run on any array library."""

__all__: list[str] = []
