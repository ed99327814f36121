"""Encoders whose history does not see the target: the mask, and requests that encode the history once."""

import numpy as np
import pytest
import torch
from serving_models import assert_equal, candidates_of, history_of, make, row_by_row
from test_score import SETTINGS
from test_user_state import encoded_by

from lmctr import CTRSinkForCTR
from lmctr.models.ctr_sink.configuration_ctr_sink import PREFIX_ENCODERS
from lmctr.models.ctr_sink.sink_attention import prefix_mask
from lmctr.serving import UserState, score, scorer_for

BIAS = {"sink_bias_layers": "all", "sink_bias_scale_init": 3.0}


def make_encoder(model_type="bert", attn="sdpa", bias=True, **values):
    has_bias = bias and values.get("sink_kind") != "none"
    return make(model_type, attn, model={"encoder_prefix": True} | (BIAS if has_bias else {}), **values)


def test_the_mask_lets_the_history_see_itself_and_the_target_see_all():
    real = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    target = torch.tensor([[0, 0, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0]], dtype=torch.bool)
    mask = prefix_mask(real, target, torch.float32)[:, 0]
    for row, first in ((0, 4), (1, 1)):
        for i in range(6):
            for j in range(6):
                sees = bool(real[row, j]) and (i >= first or j < first)
                assert (mask[row, i, j] == 0) == sees
                assert sees or mask[row, i, j] < -1e38


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", PREFIX_ENCODERS)
def test_states_of_the_history_are_those_without_the_target(model_type, attn):
    """Against the plain encoder on the history alone, and on both sides of the padding."""
    model, processor = make_encoder(model_type, attn)
    history, targets = history_of(5), [{"text": "Heat"}, {"text": "Casino Alien (1979)"}]
    batch = processor(histories=[history] * 2, targets=targets, times=[10**6] * 2)
    first = int(batch["target_mask"][0].long().argmax())
    with torch.no_grad():
        states = model.model(**batch).last_hidden_state
        alone = {key: batch[key][:1, :first] for key in ("input_ids", "attention_mask", "sink_buckets")}
        plain = CTRSinkForCTR(type(model.config).from_dict(model.config.to_dict() | {"encoder_prefix": False})).eval()
        plain.load_state_dict(model.state_dict())
        assert_equal(states[0, :first], plain.model(**alone).last_hidden_state[0])
        assert_equal(states[1, :first], states[0, :first])
        assert (
            plain.model(**{k: batch[k] for k in alone}).last_hidden_state[0, :first] - states[0, :first]
        ).abs().max() > 1e-2
        other = processor(histories=[history[1:]] * 2, targets=targets, times=[10**6] * 2)
        assert (model(**other).logits - model(**batch).logits).abs().max() > 1e-3
        processor.tokenizer.padding_side = "left"
        left = processor(histories=[history] * 2, targets=targets, times=[10**6] * 2)
        assert_equal(model(**left).logits, model(**batch).logits)
        assert_equal(row_by_row(model, processor, history, targets, 10**6), model(**batch).logits)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_candidates_share_the_history(model_type, attn, settings):
    model, processor = make_encoder(model_type, attn, **SETTINGS[settings])
    history, candidates = history_of(9), candidates_of(7) + ["", {"text": None}]
    scorer = scorer_for(model, processor)
    assert scorer.shares_prefix
    assert "the history does not see the candidate" in scorer.reason
    found = score(model, processor, history, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


@pytest.mark.parametrize("prompt", ["movielens/en", {"base": "generic/en", "head": "", "target": "{item} ?"}])
def test_new_users_and_targets_without_text(prompt):
    model, processor = make_encoder(prompt=prompt)
    for own in ([], history_of(3)):
        candidates = ["Casino", {"text": ""}, "Heat"]
        found = score(model, processor, own, candidates, 10**6)
        assert_equal(found, row_by_row(model, processor, own, candidates, 10**6))


def test_truncation_that_depends_on_the_candidate():
    model, processor = make_encoder(max_length=90, num_behaviors=12)
    candidates = candidates_of(6) + [{"text": "Heat Casino Alien " * 4}, {"text": "Toy Story " * 9}, ""]
    found = score(model, processor, history_of(12), candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history_of(12), candidates, 10**6))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_growing_state_scores_like_the_full_history(settings, tmp_path):
    model, processor = make_encoder(**SETTINGS[settings])
    history, candidates = history_of(12), candidates_of(4)
    state = UserState(model, processor, history[:2])
    for seen in (3, 8, 12):
        state.extend(history[state.num_seen : seen])
        time = history[seen - 1]["time"] + seen**4
        found = score(model, processor, state, candidates, time)
        assert_equal(found, row_by_row(model, processor, history[:seen], candidates, time))
        state = UserState.load(state.save(tmp_path / "state.safetensors"), model, processor)
    own = sum(encoded_by(model, lambda: score(model, processor, state, candidates, time)))
    assert own < 4 * 20  # the candidates alone


def test_one_user_with_a_hundred_candidates_and_thirty_behaviours():
    model, processor = make_encoder(num_behaviors=30)
    draw = np.random.default_rng(0)
    letters = list("abcdefghijklmnop")
    candidates = sorted({"".join(draw.choice(letters, 4)) for _ in range(120)})[:100]
    positions = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(kwargs["inputs_embeds"].shape[:2].numel()), with_kwargs=True
    )
    history = history_of(30)
    found = score(model, processor, history, candidates, 10**6)
    hook.remove()
    lengths = processor([history] * 100, candidates, [10**6] * 100)["attention_mask"].sum()
    assert lengths > 10_000
    assert sum(positions) <= 2500
    torch.testing.assert_close(
        found[::20], row_by_row(model, processor, history, candidates[::20], 10**6), atol=1e-5, rtol=0
    )


def test_models_that_cannot():
    for values, message in (
        ({"model_type": "qwen2"}, "encoder_prefix=True is not accepted; use false; true needs"),
        ({"layout": "split"}, "encoder_prefix=True"),
    ):
        with pytest.raises(ValueError, match=message):
            make_encoder(bias=False, **values)
    model, processor = make_encoder()
    batch = processor([history_of(2)], ["Heat"], [10**6])
    del batch["target_mask"]
    with pytest.raises(ValueError, match="target_mask is needed with encoder_prefix"):
        model(**batch)
    model, processor = make_encoder(sink_order="similarity", sink_signal="similarity")
    assert "order 'similarity' retrieves other behaviours" in scorer_for(model, processor).reason
