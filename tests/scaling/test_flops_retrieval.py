"""FLOPs of retrieval models, counted from the modules that ran, against the numbers of the paper (arXiv 2411.13322)."""

import pytest

from lmctr import RetrievalMLPConfig, RetrievalMLPForCTR
from lmctr.scaling.design import DesignGrid, mlp_flops
from lmctr.scaling.flops import measure_flops
from lmctr.scaling.inputs import RequestShape, random_inputs


@pytest.mark.parametrize(
    ("embedding_dim", "hidden_units", "flops", "shown"),
    [(16, [1024, 256, 256, 256], 7_602_688, "7.60"), (25, [1024, 512, 512, 512], 12_600_320, "12.60")],
)
def test_the_models_of_the_paper(embedding_dim, hidden_units, flops, shown):
    """200 sparse features and 128 dense ones: inputs of 3328 and 5128."""
    config = RetrievalMLPConfig(
        user_vocab_sizes=[3] * 120, user_num_numeric=100, ad_vocab_sizes=[3] * 80, ad_num_numeric=28,
        embedding_dim=embedding_dim, hidden_units=hidden_units,
    )  # fmt: skip
    model = RetrievalMLPForCTR(config)
    width = DesignGrid().input_size(embedding_dim)
    found = measure_flops(model, random_inputs(config, RequestShape(3)), num_samples=3, num_requests=1)
    assert mlp_flops([width, *hidden_units, 1]) == flops
    assert f"{flops / 1e6:.2f}" == shown
    assert found.per_sample == flops
    assert found.per_request == 3 * flops
    assert found.embedding_parameters == 200 * 3 * embedding_dim
