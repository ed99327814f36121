"""What FAT learned about field pairs: its modulation weights w, by field name (arXiv 2511.12081, Sec. 5.4).

Shapes: L layers, H heads, F fields. w[i, j] scales what a token of field i (query) reads from one of field j (key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn


@dataclass(frozen=True, eq=False)
class FieldInteractions:
    """Modulation weights of a model.

    Args:
        weights: (L, H, F, F) float64, [layer, head, query field, key field].
        field_names: F names.
    """

    weights: np.ndarray
    field_names: tuple[str, ...]

    @property
    def num_layers(self) -> int:
        """L."""
        return self.weights.shape[0]

    def matrix(self, layer: int | None = None, scaled: bool = False) -> np.ndarray:
        """(F, F) mean of w over the heads of a layer.

        Args:
            layer: 0 = first, -1 = last; `None`: mean over all layers.
            scaled: min-max scaled to 0..1 over the matrix, as in the paper's Fig. 2 and Tab. 3. All 0.5 where every
                weight is the same.

        Raises:
            ValueError: no such layer.
        """
        if layer is not None and not -self.num_layers <= layer < self.num_layers:
            raise ValueError(f"layer: {layer} is not there; the model has layers 0 to {self.num_layers - 1}")
        heads = self.weights.mean(axis=1)
        matrix = heads.mean(axis=0) if layer is None else heads[layer]
        if not scaled:
            return matrix
        low, high = matrix.min(), matrix.max()
        return (matrix - low) / (high - low) if high > low else np.full_like(matrix, 0.5)

    def table(self, layer: int | None = None) -> list[dict[str, Any]]:
        """A row per ordered field pair: query, key, weight, scaled; the largest weights first."""
        raw, scaled = self.matrix(layer), self.matrix(layer, scaled=True)
        order = np.argsort(-raw, axis=None, kind="stable")
        names = self.field_names
        return [
            {"query": names[i], "key": names[j], "weight": float(raw[i, j]), "scaled": float(scaled[i, j])}
            for i, j in zip(*np.unravel_index(order, raw.shape))
        ]

    def asymmetry(
        self, layer: int | None = None, top: int | None = None, scaled: bool = False
    ) -> list[dict[str, Any]]:
        """Field pairs by how differently they read each other, the most different first (the paper's Tab. 3).

        Args:
            layer: as in [`matrix`][FieldInteractions.matrix].
            top: how many pairs; `None`: all F (F - 1) / 2.
            scaled: compare the min-max scaled weights.

        Returns:
            Rows with query, key, weight (query reads key), reverse (key reads query), difference = weight - reverse >= 0.
        """
        matrix = self.matrix(layer, scaled)
        first, second = np.triu_indices(len(matrix), 1)
        gap = matrix[first, second] - matrix[second, first]
        swap = gap < 0
        query, key = np.where(swap, second, first), np.where(swap, first, second)
        order = np.argsort(-np.abs(gap), kind="stable")[:top]
        return [
            {
                "query": self.field_names[query[n]],
                "key": self.field_names[key[n]],
                "weight": float(matrix[query[n], key[n]]),
                "reverse": float(matrix[key[n], query[n]]),
                "difference": float(abs(gap[n])),
            }
            for n in order
        ]


def field_interactions(model: nn.Module) -> FieldInteractions:
    """The modulation weights of a FAT model with the names of its fields.

    Raises:
        ValueError: a model of another family, or one without modulation weights (`use_pair_modulation=False`).
    """
    if not hasattr(model, "field_interactions"):
        raise ValueError(
            f"{type(model).__name__} has no field interactions; only models of the family 'fat' have them"
        )
    weights = model.field_interactions().detach().cpu().double().numpy()
    return FieldInteractions(weights, tuple(model.config.field_names))
