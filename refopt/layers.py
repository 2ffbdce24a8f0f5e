"""Descriptions of layers, for `refopt.thor`."""

from refopt.optim.layers import (
    Conv2d,
    Dense,
    Embedding,
    EmbeddingLookup,
    Factors,
    Layer,
    LayerNorm,
    Norm,
    Other,
)

__all__ = [
    "Conv2d",
    "Dense",
    "Embedding",
    "EmbeddingLookup",
    "Factors",
    "Layer",
    "LayerNorm",
    "Norm",
    "Other",
]
