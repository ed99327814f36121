"""The table bank: the one module that holds rows of vectors by id and looks them up.

Every table of values (fields, users, items and their features) is a [`TableBank`]; no other code reads its weight by row. So a bank whose
rows lie on several processes is a bank like any other to the models.

Shapes: V rows, d vector width, B batch, n sequences, L longest sequence.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig
from transformers import initialization as init

__all__ = ["TableBank"]


class TableBank(nn.Embedding):
    """The rows of one vocabulary, or of several one after the other, as vectors of one width.

    Args:
        num_embeddings: V. embedding_dim: d. sparse: whether the weight's gradient is COO, with the rows that were looked up.
        padding_idx: a row of zeros that is never trained; None: every row is learned, row 0 of a field too, because that a value
            is missing is information.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, sparse: bool = False):
        super().__init__(num_embeddings, embedding_dim, padding_idx=padding_idx, sparse=sparse)

    def init_parameters(self, config: PreTrainedConfig) -> None:
        init.normal_(self.weight, std=config.initializer_range)
        if self.padding_idx is not None and not getattr(self.weight, "_is_hf_initialized", False):
            init.zeros_(self.weight[self.padding_idx])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (...) to their vectors (..., d)."""
        return self._look_up(rows, self.padding_idx)

    def sequence_vectors(self, ids: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, n, L) ids of sequences and the (n, 1) first rows of their vocabularies to vectors (B, n, L, d) and a bool mask (B, n, L)."""
        mask = ids != 0
        # Padding reads the first row of the table, which no id of a sequence can mean: ids from 1 lie above it. Its
        # vectors are masked; as padding the row stays out of the gradient.
        rows = (ids.to(starts.dtype) + starts) * mask
        return self._look_up(rows, 0), mask

    def _look_up(self, rows: torch.Tensor, padding: int | None) -> torch.Tensor:
        return F.embedding(rows, self.weight, padding_idx=padding, sparse=self.sparse)
