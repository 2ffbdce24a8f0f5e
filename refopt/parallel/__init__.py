"""Sums over workers, on an engine that exists."""
