"""DNN ("embedding and MLP"): the fields' vectors side by side into an MLP.

Paper: the deep part of Wide & Deep, https://arxiv.org/abs/1606.07792 (section 3.2); FAT and Climber call it DeepCTR.

Shapes: B batch, F fields, d_f width of field f, W width of the last hidden layer.
"""

import torch
from torch import nn

from lmctr.models.common.embeddings import FieldEmbedding
from lmctr.models.common.layers import MLP
from lmctr.models.common.tabular import (
    LogitHead,
    TabularForCTRMixin,
    TabularInputs,
    TabularModelMixin,
    TabularPreTrainedModel,
    Trace,
)

from .configuration_dnn import DNNConfig

__all__ = ["DNNForCTR", "DNNModel", "DNNPreTrainedModel"]


class DNNPreTrainedModel(TabularPreTrainedModel):
    """Base class of the DNN models."""

    config_class = DNNConfig


class DNNModel(TabularModelMixin, DNNPreTrainedModel):
    """Field embeddings and MLP; the representation is the last hidden layer, (B, W).

    Fields may have different widths. `hidden_states`: the fields' vectors, then each layer's output.
    """

    def __init__(self, config: DNNConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.mlp = MLP(
            self.embedding.output_size, config.hidden_units, config.hidden_act, config.dropout, config.use_batch_norm
        )
        self.post_init()

    def encode(
        self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        # a_0 = [e_1; ...; e_F], a_{l+1} = f(W_l a_l + b_l) (Wide & Deep, section 3.2)
        return self.mlp(fields.flatten(1), trace.hidden_states), None, None

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """The fields' vectors and each layer of the MLP."""
        return {"embedding": self.embedding} | self.mlp_points()


class DNNForCTR(TabularForCTRMixin, DNNPreTrainedModel):
    """DNN with its linear head to one logit."""

    def __init__(self, config: DNNConfig):
        super().__init__(config)
        self.model = DNNModel(config)
        self.head = LogitHead(self.model.mlp.out_size)
        self.post_init()
