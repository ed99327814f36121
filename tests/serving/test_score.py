"""`score` gives the logits of the plain model row by row, whichever path it takes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from serving_models import assert_equal, candidates_of, history_of, make, row_by_row

from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkModel
from lmctr.serving import UserState, packed_attention, score, scorer_for
from lmctr.serving import prefix as prefix_module

SETTINGS = {
    "no sinks": {"sink_kind": "none"},
    "no sinks, inline": {"sink_kind": "none", "feedback": "inline"},
    "plain sinks": {"sink_signal": "none"},
    "recency": {"sink_signal": "recency"},
    "ordinal": {"sink_signal": ["ordinal", "feedback"], "feedback": "sink"},
    "elapsed": {"sink_signal": "elapsed", "feedback": "inline"},
    "several signals": {"sink_signal": ["recency", "elapsed", "feedback"], "feedback": "sink"},
    "groups": {"sink_signal": ["recency", "feedback"], "feedback": "groups", "num_behaviors": 3},
    "no trailing sink": {"sink_signal": "recency", "trailing_sink": False},
}
BIAS = {"bias": {"sink_bias_layers": "all", "sink_bias_scale_init": 3.0}, "no bias": {"sink_bias_layers": []}}

CASES = [(name, bias) for name in SETTINGS for bias in BIAS if "no sinks" not in name or bias == "no bias"]


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("settings", "bias"), CASES)
def test_decoders_share_the_history(model_type, attn, settings, bias):
    model, processor = make(model_type, attn, model=BIAS[bias], **SETTINGS[settings])
    history, candidates = history_of(9), candidates_of(7)
    time = history[-1]["time"] + 50
    assert scorer_for(model, processor).shares_prefix
    found = score(model, processor, history, candidates, time)
    assert_equal(found, row_by_row(model, processor, history, candidates, time))


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOW = {"sliding_window": 256}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "head_dim": 16} | WINDOW
OTHER_DECODERS = {
    "llama": {},
    "mistral": WINDOW,
    "gemma": {"head_dim": 16},
    "gemma2": MIXED | {"attn_logit_softcapping": 1.0},
    "gemma3_text": MIXED,
    "phi3": WINDOW,
    "gpt2": {},
}


@pytest.mark.parametrize("model_type", OTHER_DECODERS)
def test_every_decoder_shares_the_history(model_type):
    attn = "eager" if model_type == "gemma2" else "sdpa"
    text, bias = OTHER_DECODERS[model_type] | SPECIAL, BIAS["bias"]
    model, processor = make(model_type, attn, text_config=text, model=bias, max_length=256)
    history, candidates = history_of(9), candidates_of(7)
    time = history[-1]["time"] + 50
    assert scorer_for(model, processor).shares_prefix
    found = score(model, processor, history, candidates, time)
    assert_equal(found, row_by_row(model, processor, history, candidates, time))
    state = UserState(model, processor, history[:4])
    state.extend(history[4:])
    assert_equal(score(model, processor, state, candidates, time), found)
    if "sliding_window" in text:
        longer = make(model_type, attn, text_config=text, model=bias, max_length=257)[1]
        assert "see 256 tokens back; give the processor max_length=256" in scorer_for(model, longer).reason
        assert_equal(score(model, longer, history, candidates, time), found)


def test_a_bias_that_looks_ahead_is_shared_too():
    model, processor = make(model={"sink_bias_layers": "all", "sink_bias_causal": False, "sink_bias_scale_init": 3.0})
    history, candidates = history_of(5), candidates_of(4)
    assert scorer_for(model, processor).shares_prefix
    found = score(model, processor, history, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


@pytest.mark.parametrize(
    ("model_type", "values", "reason"),
    [
        ("bert", {}, "every position of bert sees the candidate"),
        ("roberta", {"feedback": "inline", "sink_signal": ["recency", "feedback"]}, "every position of roberta"),
        ("qwen2", {"text_config": {"is_causal": False}}, "every position of qwen2 sees the candidate"),
        ("qwen2", {"sink_order": "similarity"}, "order 'similarity' retrieves other behaviours"),
        ("qwen2", {"sink_order": "time", "sink_signal": "similarity"}, "order 'time' retrieves"),
        ("qwen2", {"sink_signal": "similarity"}, "'similarity' depends on the candidate"),
        ("qwen3", {"sink_signal": ["recency", "random"]}, "'random' depends on the candidate"),
    ],
)
def test_other_models_are_batched_by_length(model_type, values, reason):
    model, processor = make(model_type, **values)
    history = history_of(9, similarity=True)
    candidates = candidates_of(7)
    scorer = scorer_for(model, processor)
    assert not scorer.shares_prefix
    assert reason in scorer.reason
    calls = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    found = score(model, processor, history, candidates, 10**6, max_tokens=200)
    hook.remove()
    assert 1 < len(calls) < 7
    assert all(rows * length <= 200 or rows == 1 for rows, length in calls)
    assert [length for _, length in calls] == sorted((length for _, length in calls), reverse=True)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


def test_similarities_of_pairs():
    model, processor = make("bert", sink_order="similarity", sink_signal="similarity", num_behaviors=3)
    history, candidates = history_of(9), candidates_of(5)
    cosines = np.random.default_rng(3).uniform(-1, 1, (5, 9))
    found = score(model, processor, history, candidates, 10**6, similarity=cosines)
    rows = [
        row_by_row(model, processor, [{**b, "similarity": c} for b, c in zip(history, row)], [candidate], 10**6)
        for candidate, row in zip(candidates, cosines)
    ]
    assert_equal(found, torch.cat(rows))
    with pytest.raises(ValueError, match=r"similarity: shape \(9, 5\)"):
        score(model, processor, history, candidates, 10**6, similarity=cosines.T)
    with pytest.raises(ValueError, match=r"history\[0\]: 'similarity' must be a cosine"):
        score(model, processor, history, candidates, 10**6)


@pytest.mark.parametrize("feedback", ["none", "groups"])
def test_truncation_that_depends_on_the_candidate(feedback):
    """A long candidate pushes the oldest behaviours out of its own row only."""
    model, processor = make(feedback=feedback, max_length=90, num_behaviors=12, sink_signal="recency")
    history = history_of(12)
    candidates = candidates_of(6) + [{"text": "Heat Casino Alien " * 4}, {"text": "Toy Story " * 9}]
    batch = processor(histories=[history] * 8, targets=candidates, times=[10**6] * 8, return_num_dropped=True)
    assert len(set(batch["num_dropped"].tolist())) >= 3
    found = score(model, processor, history, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


@pytest.mark.parametrize("max_tokens", [1, 30, 60, 8192])
def test_packs_do_not_change_the_scores(max_tokens, monkeypatch):
    model, processor = make(feedback="inline")
    history, candidates = history_of(6), candidates_of(9)
    passes = []
    original = prefix_module._score_row

    def counted(model, asked, chosen):
        passes.append([len(asked[number].own[place]) for number, place in chosen])
        return original(model, asked, chosen)

    monkeypatch.setattr(prefix_module, "_score_row", counted)
    found = score(model, processor, history, candidates, 10**6, max_tokens=max_tokens)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))
    assert sum(map(len, passes)) == 8  # "Toy Story" stands twice
    assert all(sum(lengths) <= max_tokens or len(lengths) == 1 for lengths in passes)
    assert (len(passes) == 1) == (max_tokens == 8192)


def test_attention_of_packed_candidates_is_that_of_each_alone(monkeypatch):
    """Against a float64 softmax over prefix and own tokens, candidate by candidate, with and without a cap on the scores."""
    torch.manual_seed(0)
    sizes, users, before = [3, 1, 4, 2], [(0, 4), (4, 10)], [5, 0]
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    starts, longest = [0, 3, 4, 8], 4
    place = torch.tensor([[start + i if i < n else 0 for i in range(longest)] for start, n in zip(starts, sizes)])
    real = torch.tensor([[i < n for i in range(longest)] for n in sizes])
    own = torch.tensor([c * longest + i for c, n in enumerate(sizes) for i in range(n)])
    query, key, value = torch.randn(1, 4, 10, 8), torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    prefix = [tuple(torch.randn(1, 2, count, 8) for _ in range(2)) for count in before]
    for causal in (True, False):
        row = packed_attention.PackedRow(users, place, real, own, causal)
        expected = torch.zeros(10, 4, 8, dtype=torch.float64)
        for softcap in (None, 0.7):
            for token in range(10):
                keys, values = prefix[0 if token < 4 else 1]
                seen = [t for t in range(10) if owner[t] == owner[token] and (t <= token or not causal)]
                for head in range(4):
                    all_keys = torch.cat([keys[0, head // 2], key[0, head // 2, seen]]).double()
                    scores = all_keys @ query[0, head, token].double() * 0.3
                    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
                    of = torch.cat([values[0, head // 2], value[0, head // 2, seen]]).double()
                    expected[token, head] = scores.softmax(0) @ of
            module = SimpleNamespace(behind=(row, prefix))
            for flash in (packed_attention._FLASH, None):
                monkeypatch.setattr(packed_attention, "_FLASH", flash)
                found, _ = packed_attention._attend(module, query, key, value, None, scaling=0.3, softcap=softcap)
                torch.testing.assert_close(found[0].double(), expected, atol=1e-6, rtol=0)
            monkeypatch.undo()


@pytest.mark.parametrize("queries", [3, 512])
def test_products_of_bfloat16_are_the_attention_of_the_kernel(monkeypatch, queries):
    """Where the processor has units for it; in blocks of queries, against float64."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, count, 8).bfloat16() for count in (7, 40, 40))
    scores = query.double() @ key.double().transpose(-1, -2) * 0.3
    expected = scores.softmax(-1) @ value.double(), scores.logsumexp(-1)
    called, kernel = [], packed_attention._FLASH
    monkeypatch.setattr(packed_attention, "_FLASH", lambda *own, **named: called.append(own) or kernel(*own, **named))
    monkeypatch.setattr(packed_attention, "_QUERIES", queries)
    for units in (True, False):
        monkeypatch.setattr(packed_attention, "has_bf16_units", lambda device, units=units: units)
        out, total = packed_attention._attention(query, key, value, scale=0.3, softcap=None)
        assert (len(called), out.dtype, total.dtype) == (1 - units, torch.bfloat16, torch.float32)
        torch.testing.assert_close(out.double(), expected[0], atol=0.01, rtol=0.01)
        torch.testing.assert_close(total.double(), expected[1], atol=0.01, rtol=0.01)


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
def test_equal_candidates_are_scored_once(model_type):
    model, processor = make(model_type)
    history = history_of(6)
    different = [{"text": "Heat"}, {"text": "Casino Babe"}, {"text": "Alien (1979)"}]
    positions = []
    model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(kwargs["inputs_embeds"].shape[:2].numel()), with_kwargs=True
    )
    once = score(model, processor, history, different, 10**6)
    needed, positions[:] = sum(positions), []
    order = [2, 0, 0, 1, 2, 0]
    assert_equal(score(model, processor, history, [different[i] for i in order], 10**6), once[order])
    assert sum(positions) == needed
    processor.max_length = 60
    with pytest.raises(ValueError, match=r"candidates\[4\]: the prompt's head and the target alone take"):
        score(model, processor, history, [*["Heat"] * 4, "Alien " * 60], 10**6)


def test_equal_texts_with_other_similarities_are_scored_apart():
    model, processor = make("bert", sink_order="similarity", sink_signal="similarity", num_behaviors=3)
    history, cosines = history_of(9), np.random.default_rng(3).uniform(-1, 1, (3, 9))
    cosines[2] = cosines[0]
    found = score(model, processor, history, ["Heat"] * 3, 10**6, similarity=cosines)
    assert found[0] == found[2]
    assert found[0] != found[1]


def test_the_history_is_encoded_once():
    model, processor = make()
    history, candidates = history_of(6), candidates_of(9)
    shapes = []
    model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    score(model, processor, history, candidates, 10**6)
    assert len(shapes) == 2  # the history, the candidates
    longest = max(processor(histories=[history], targets=[c], times=[10**6])["input_ids"].shape[1] for c in candidates)
    assert sum(shapes) < 3 * longest


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
def test_edges(model_type):
    model, processor = make(model_type)
    history = history_of(3)
    none = score(model, processor, history, [], 10**6)
    assert none.shape == (0,)
    assert none.dtype == torch.float32
    for own in ([], history):  # a new user; texts without tokens
        candidates = ["Casino", {"text": ""}, {"text": None}, {"text": "Heat"}]
        found = score(model, processor, own, candidates, 10**6)
        assert_equal(found, row_by_row(model, processor, own, candidates, 10**6))


def test_a_candidate_without_any_token_of_its_own():
    prompt = {"base": "generic/en", "target": "And now: {item}"}
    model, processor = make(prompt=prompt)
    candidates = ["Heat", "", "Alien"]
    found = score(model, processor, history_of(3), candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history_of(3), candidates, 10**6))
    model, processor = make(prompt={"base": "generic/en", "target": "{item}"})
    with pytest.raises(ValueError, match=r"candidates\[1\]: the target's text is empty"):
        score(model, processor, history_of(3), candidates, 10**6)


def test_the_mode_of_the_model_is_kept_and_does_not_matter():
    model, processor = make(model={"sink_bias_dropout": 0.9})
    candidates = candidates_of(3)
    expected = row_by_row(model, processor, history_of(4), candidates, 10**6)
    model.train()
    found = score(model, processor, history_of(4), candidates, 10**6)
    assert model.training
    assert_equal(found, expected)


def test_half_precision():
    model, processor = make()
    candidates = candidates_of(5)
    expected = row_by_row(model, processor, history_of(6), candidates, 10**6)
    found = score(model.to(torch.bfloat16), processor, history_of(6), candidates, 10**6)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


def test_a_model_with_adapters():
    from peft import LoraConfig, get_peft_model

    model, processor = make()
    lora = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, modules_to_save=["sink_bias", "head"]
    )
    wrapped = get_peft_model(model, lora).eval()
    candidates = candidates_of(4)
    assert_equal(
        score(wrapped, processor, history_of(5), candidates, 10**6),
        row_by_row(wrapped, processor, history_of(5), candidates, 10**6),
    )


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": 5}, r"history: behaviour 0 of the history has time"),
        ({"candidates": [{"title": "x"}]}, r"candidates\[0\]"),
        ({"candidates": {"text": "x"}}, r"candidates must be a list"),
        ({"candidates": ["x", 3]}, r"candidates\[1\]: text must be a text"),
        ({"history": [{"text": "x"}]}, r"history\[0\] has no 'time'"),
        ({"history": [{"text": "x", "time": 1, "feedback": "odd"}]}, r"history\[0\]: feedback 'odd' is not accepted"),
        ({"history": [{"text": "x", "time": 2}, {"text": "x", "time": 1}]}, r"history: behaviour 1 of the history"),
        ({"max_tokens": 0}, r"max_tokens must be"),
    ],
)
def test_errors_name_the_argument(model_type, change, message):
    model, processor = make(model_type, feedback="inline")
    request = {"history": history_of(3), "candidates": ["x"], "time": 10**6} | change
    with pytest.raises(ValueError, match=message):
        score(model, processor, **request)


def test_rows_longer_than_the_backbone_are_refused():
    model, processor = make(text_config={"max_position_embeddings": 40})
    with pytest.raises(ValueError, match="positions for 40; give the processor max_length=40"):
        score(model, processor, history_of(6), ["x"], 10**6)


def test_sliding_layers_are_not_shared():
    model, processor = make(text_config={"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1})
    scorer = scorer_for(model, processor)
    assert not scorer.shares_prefix
    assert "sliding_attention" in scorer.reason
    candidates = candidates_of(4)
    found = score(model, processor, history_of(6), candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history_of(6), candidates, 10**6))


def test_positions_that_turn_by_the_rows_length_are_not_shared():
    """Phi-3's longrope: a row of more tokens has other positions from its first one on, and so would rows padded beside it."""
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    values = {"rope_parameters": rope | {"original_max_position_embeddings": 68}}
    history, candidates = history_of(6), candidates_of(5)
    model, processor = make("llama", text_config=values)
    lengths = processor([history] * 5, candidates, [10**6] * 5)["attention_mask"].sum(1)
    assert lengths.min() < 68 < lengths.max()
    assert "max_length=68" in scorer_for(model, processor).reason
    found = score(model, processor, history, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))
    model, processor = make("llama", text_config=values, max_length=68)
    assert scorer_for(model, processor).shares_prefix
    found = score(model, processor, history, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


@pytest.mark.parametrize("model_type", ["qwen2", "bert"])
def test_the_layout_split_computes_each_text_once(model_type, monkeypatch):
    model, processor = make(model_type, layout="split", feedback="sink", sink_signal=["feedback", "recency"])
    history, candidates = history_of(6), candidates_of(9)
    counts = []
    original = CTRSinkModel.encode_fields

    def counted(model, input_ids, attention_mask):
        counts.append(len(input_ids))
        return original(model, input_ids, attention_mask)

    expected = row_by_row(model, processor, history, candidates, 10**6)
    monkeypatch.setattr(CTRSinkModel, "encode_fields", counted)
    found = score(model, processor, history, candidates, 10**6, max_tokens=300)
    assert_equal(found, expected)
    texts = {entry["text"] for entry in history} | {entry["text"] for entry in candidates}
    assert len(counts) > 1  # several batches
    assert sum(counts) <= len(texts) + 3  # and the prompt's own


def test_models_without_request_scoring():
    with pytest.raises(ValueError, match=r"Linear .* has no request scoring; families that have it: .*ctr_sink"):
        score(torch.nn.Linear(2, 2), None, [], ["x"], 1)


@pytest.mark.parametrize("kind", ["qwen2", "bert"])
def test_defaults_of_torch_for_new_tensors_are_not_those_of_scores(kind):
    model, processor = make(kind)
    asked = history_of(4), candidates_of(3), 10**6
    expected = score(model, processor, *asked)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        found, none = score(model, processor, *asked), score(model, processor, asked[0], [], 10**6)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert none.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_a_shared_history_is_scored_under_autocast(kind):
    model, processor = make(kind)
    assert scorer_for(model, processor).shares_prefix
    asked = history_of(4), candidates_of(3), 10**6
    state = UserState(model, processor, asked[0])
    with torch.autocast("cpu", dtype=torch.float16):
        expected = row_by_row(model, processor, *asked)
        for history in (asked[0], state):
            found = score(model, processor, history, *asked[1:])
            torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
