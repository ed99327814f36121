"""What several tests of runs share."""

import pytest
import torch

import lmctr


@pytest.fixture(scope="module")
def tabular():
    """A model that is not trained and its processor, over one field and one number."""
    fields = [{"name": "ad", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    processor = lmctr.TabularFeatureProcessor(fields, label=None)
    processor.fit([{"ad": f"a{number % 5}", "price": number} for number in range(50)])
    torch.manual_seed(0)
    values = processor.model_config_values() | {"processor_fingerprint": processor.fingerprint}
    config = lmctr.DeepFMConfig(**values, embedding_dim=4, hidden_units=[8], initializer_range=0.5)
    return lmctr.DeepFMForCTR(config), processor
