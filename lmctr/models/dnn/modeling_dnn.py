"""DNN ("embedding and MLP"): the fields' vectors side by side into an MLP.

Paper: the deep part of Wide & Deep, https://arxiv.org/abs/1606.07792 (section 3.2); FAT and Climber call it DeepCTR.

Shapes: B batch, F fields, d_f width of field f, W width of the last hidden layer.
"""

import torch

from lmctr.models.common.embeddings import FieldEmbedding
from lmctr.models.common.tabular import (
    Encoded,
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
    """Field embeddings and MLP; the representation is the last hidden layer, (B, W), or without layers the vectors side by side.

    Fields may have different widths. `hidden_states`: the fields' vectors, then each layer's output.
    """

    points = ("mlp",)

    def __init__(self, config: DNNConfig):
        super().__init__(config)
        self.embedding = FieldEmbedding(config)
        self.add_mlp(self.embedding.output_size)
        if self.mlp is None:
            self.out_size = self.embedding.output_size
        self.post_init()

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        # a_0 = [e_1; ...; e_F], a_{l+1} = f(W_l a_l + b_l) (Wide & Deep, section 3.2)
        fields = fields.flatten(1)
        return Encoded(fields if self.mlp is None else self.mlp(fields, trace.hidden_states))


class DNNForCTR(TabularForCTRMixin, DNNPreTrainedModel):
    """DNN with its linear head to one logit."""

    base_class = DNNModel
