"""A row that is encoded in parts, with cached keys and cached sinks, has the hidden states of the row encoded at once."""

import pytest
import torch
from tiny_models import rows, sink_config
from transformers import DynamicCache

from lmctr import CTRSinkModel
from lmctr.models.ctr_sink.backbone_call import cache_keyword
from lmctr.models.ctr_sink.sink_attention import SinkCache


def encode_in_parts(model, ids, buckets, cuts, cache_class=SinkCache):
    past, sinks, states = DynamicCache(config=model.config.text_config), cache_class(), []
    for begin, end in zip([0, *cuts], [*cuts, len(ids)]):
        mask = torch.full((end - begin, end), torch.finfo(torch.float32).min).triu(begin + 1)[None, None]
        output = model(
            ids[None, begin:end],
            attention_mask=mask,
            sink_buckets=buckets[None, begin:end],
            position_ids=torch.arange(begin, end)[None],
            past_key_values=past,
            use_cache=True,
            sink_cache=sinks,
        )
        new = (buckets[begin:end, 0] >= 0).nonzero()[:, 0][None] + begin
        sinks.index, sinks.length = new if sinks.index is None else torch.cat([sinks.index, new], dim=1), end
        states.append(output.last_hidden_state[0])
    return torch.cat(states), sinks


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize("cuts", [(7,), (3, 4, 10), (1, 12)])
def test_parts_equal_the_whole(model_type, attn_implementation, cuts):
    config = sink_config(model_type, attn_implementation, sink_bias_layers="all", sink_bias_scale_init=3.0)
    torch.manual_seed(0)
    model = CTRSinkModel(config).eval()
    ids, buckets, _ = rows()[0]  # sinks at 3, 6 and 9
    with torch.no_grad():
        whole = model(ids[None], sink_buckets=buckets[None]).last_hidden_state[0]
        parts, sinks = encode_in_parts(model, ids, buckets, cuts)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    assert sinks.length == len(ids)
    assert sinks.index.tolist() == [[3, 6, 9]]
    assert [keys.shape[2] for keys in sinks.keys.values()] == [3, 3, 3]


class ForgetfulCache(SinkCache):
    def append(self, slot, key, sinks):
        self.keys.pop(slot, None)
        return super().append(slot, key, sinks)


def test_the_cached_sinks_matter():
    """Without the earlier sinks the later rows of the bias differ: the equality above is no accident."""
    torch.manual_seed(0)
    model = CTRSinkModel(sink_config("qwen2", sink_bias_layers="all", sink_bias_scale_init=3.0)).eval()
    ids, buckets, _ = rows()[0]
    with torch.no_grad():
        right, _ = encode_in_parts(model, ids, buckets, (5, 8))
        wrong, _ = encode_in_parts(model, ids, buckets, (5, 8), ForgetfulCache)
    assert torch.equal(right[:5], wrong[:5])
    assert (right[5:] - wrong[5:]).abs().max() > 1e-3


def test_one_row_only():
    model = CTRSinkModel(sink_config("qwen2")).eval()
    with pytest.raises(ValueError, match="sink_cache: 2 rows"):
        model(torch.full((2, 3), 5), sink_buckets=torch.zeros(2, 3, dtype=torch.int64), sink_cache=SinkCache())


def test_the_cache_goes_by_the_name_that_the_backbone_has():
    assert cache_keyword(lambda inputs_embeds, cache=None: None) == "cache"
    assert cache_keyword(lambda inputs_embeds, past_key_values=None: None) == "past_key_values"
