"""User states: always the scores of the full history, and no more work than the new behaviours need."""

import copy
import json

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.helpers import rescale_adapter_scale
from peft.utils.hotswap import hotswap_adapter
from safetensors import safe_open
from safetensors.torch import save_file
from serving_models import assert_equal, candidates_of, history_of, make, row_by_row
from test_score import SETTINGS
from tokenizers.normalizers import Lowercase

from lmctr.serving import UserState, register_scorer, score, scorer_for
from lmctr.serving.fingerprint import settings_fingerprint

BIAS = {"sink_bias_layers": "all", "sink_bias_scale_init": 3.0}


def encoded_by(model, call):
    """Lengths of the language model's forward passes during a call."""
    lengths = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    call()
    hook.remove()
    return lengths


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_growing_state_scores_like_the_full_history(model_type, settings):
    """Behaviours come one by one, then three at once, beyond the window of six; scores at uneven times between them."""
    values = SETTINGS[settings]
    model, processor = make(model_type, model={} if "no sinks" in settings else BIAS, **values)
    history, candidates = history_of(12), candidates_of(4)
    state = UserState(model, processor, history[:2])
    for seen in (3, 4, 5, 8, 9, 12):
        state.extend(history[state.num_seen : seen])
        time = history[seen - 1]["time"] + seen**4
        found = score(model, processor, state, candidates, time)
        assert_equal(found, row_by_row(model, processor, history[:seen], candidates, time))
        assert state.num_seen == seen
    # Kept is what later scores need: with groups all since the oldest behaviour shown, and all that ordinals count.
    assert state.num_kept <= 6 or processor.feedback == "groups" or settings == "ordinal"


def test_graded_feedback_grows_with_the_state(tmp_path):
    """Stars in sinks and words; a state that was saved goes on; behaviours without a value are unknown, not the same."""
    words = [{"name": n, "word": n + "[ {value} stars] ", "header": ""} for n in ("disliked", "liked")]
    prompt = {"base": "movielens/en", "feedback": words}
    model, processor = make(
        model=BIAS, sink_signal="feedback_value", feedback="inline", prompt=prompt, value_levels=[1, 3, 5]
    )
    plain, candidates = history_of(9), candidates_of(4)
    history = [b | ({"value": 1 + 4 * (i % 2)} if i % 3 else {}) for i, b in enumerate(plain)]
    state = UserState(model, processor, history[:4])
    state.extend(history[4:7])
    state = UserState.load(state.save(tmp_path / "state.safetensors"), model, processor)
    state.extend(history[7:])
    found = score(model, processor, state, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))
    assert (found - row_by_row(model, processor, plain, candidates, 10**6)).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"behaviors\[0\]: 'value' must be graded feedback"):
        state.extend([history[-1] | {"value": "five"}])


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("signal", ["none", "feedback", "ordinal"])
def test_new_behaviours_alone_are_encoded(signal, attn):
    model, processor = make(attn=attn, sink_signal=signal, feedback="inline", num_behaviors=50, model=BIAS)
    history, candidates = history_of(14), candidates_of(4)
    state = UserState(model, processor, history[:10])
    assert state.reencoded == 0
    before = state.num_encoded
    new = encoded_by(model, lambda: state.extend(history[10:12]))
    assert state.reencoded == 0
    prompt = len(processor._prompt_ids["target_prefix"])
    assert new == [state.num_encoded - before + prompt]  # the prompt of the target moves along
    found = []
    calls = encoded_by(model, lambda: found.append(score(model, processor, state, candidates, 10**6)))
    assert len(calls) == 1  # only the candidates
    assert_equal(found[0], row_by_row(model, processor, history[:12], candidates, 10**6))


def test_recency_keeps_only_what_stays_in_the_last_bucket():
    model, processor = make(sink_signal="recency", num_behaviors=50, num_sink_buckets=4, model=BIAS)
    history = history_of(20)
    state = UserState(model, processor, history[:12])
    rows = processor(histories=[history[:12], history[:12][:-4]], targets=["x"] * 2, times=[10**6] * 2)
    lengths = rows["attention_mask"].sum(1).tolist()
    new = encoded_by(model, lambda: state.extend(history[12:13]))
    # Of 12 behaviours the first 9 have bucket 3 (distance 3 and more) and keep it; the tenth moves into it, from its sink on.
    last_three = lengths[0] - lengths[1] - behaviour_tokens(processor, history[8])
    assert 0 < state.reencoded <= last_three
    assert sum(new) < state.num_encoded / 2
    assert_equal(
        score(model, processor, state, candidates_of(4), 10**6),
        row_by_row(model, processor, history[:13], candidates_of(4), 10**6),
    )


def behaviour_tokens(processor, behaviour):
    pieces = processor.encode_items([behaviour["text"]])
    return int(pieces.item_length[0]) + pieces.tail_length


def test_elapsed_depends_on_the_time_of_the_request():
    model, processor = make(sink_signal="elapsed", num_behaviors=50, num_sink_buckets=100, model=BIAS)
    history, candidates = history_of(10), candidates_of(4)
    state = UserState(model, processor, history)
    assert state.num_encoded == 0  # at which time is not known yet
    last = history[-1]["time"]
    state.extend([], time=last + 60)
    assert state.num_encoded > 0
    assert len(encoded_by(model, lambda: score(model, processor, state, candidates, last + 60))) == 1
    for time in (last + 61, last + 5_000, last + 10**7):
        found = score(model, processor, state, candidates, time)
        assert_equal(found, row_by_row(model, processor, history, candidates, time))
    assert state.reencoded > 0
    score(model, processor, state, candidates, last + 10**7)
    assert state.reencoded == 0


def test_the_window_moves():
    model, processor = make(sink_signal="none", num_behaviors=4, model=BIAS)
    history, candidates = history_of(6), candidates_of(4)
    state = UserState(model, processor, history[:3])
    state.extend(history[3:4])
    assert state.reencoded == 0
    body = state._encoded.body
    state.extend(history[4:5])  # the first behaviour leaves: all but the prompt's head is encoded again
    assert 0 < body - state.reencoded < body / 2
    assert state.num_kept == 4
    found = score(model, processor, state, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history[:5], candidates, 10**6))


def test_groups_grow_at_their_ends():
    model, processor = make(sink_signal="feedback", feedback="groups", num_behaviors=4, model=BIAS)
    base = [{"text": "Heat", "time": t, "feedback": ("disliked", "liked")[t % 2]} for t in range(4)]
    state = UserState(model, processor, base)
    state.extend([{"text": "Babe", "time": 5, "feedback": "liked"}])  # the last group of the text
    assert state.reencoded == 0
    state.extend([{"text": "Alien", "time": 6, "feedback": "disliked"}])
    assert state.reencoded > 0


def test_a_bias_that_looks_ahead_encodes_all_again():
    model, processor = make(sink_signal="none", num_behaviors=9, model=BIAS | {"sink_bias_causal": False})
    history, candidates = history_of(5), candidates_of(4)
    state = UserState(model, processor, history[:4])
    assert_equal(state.score(candidates, 10**6), row_by_row(model, processor, history[:4], candidates, 10**6))
    assert state.reencoded == 0
    body = state._encoded.body
    state.extend(history[4:])
    assert state.reencoded == body
    assert_equal(state.score(candidates, 10**6), row_by_row(model, processor, history, candidates, 10**6))


@pytest.mark.parametrize("values", [{}, {"sink_signal": "random", "sink_order": "time"}])
def test_models_that_share_nothing_keep_the_behaviours(values):
    model, processor = make("bert", **values)
    history, candidates = history_of(9, similarity=True), candidates_of(4)
    state = UserState(model, processor, history[:3])
    state.extend(history[3:])
    assert (state.num_seen, state.num_kept) == (9, 6 if not values else 9)
    assert state.num_encoded == state.reencoded == 0
    found = score(model, processor, state, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


def test_an_empty_state_begins():
    model, processor = make(model=BIAS)
    state, candidates = UserState(model, processor), candidates_of(4)
    assert_equal(state.score(candidates, 10), row_by_row(model, processor, [], candidates, 10))
    history = history_of(2)
    state.extend(history)
    assert_equal(state.score(candidates, 10**6), row_by_row(model, processor, history, candidates, 10**6))


def test_truncation_in_a_state():
    model, processor = make(max_length=80, num_behaviors=12, sink_signal="none", model=BIAS)
    history = history_of(12)
    candidates = [*candidates_of(5), {"text": "Toy Story " * 8}]
    state = UserState(model, processor, history[:5])
    for seen in range(6, 13):
        state.extend(history[seen - 1 : seen])
        found = state.score(candidates, 10**6)
        assert_equal(found, row_by_row(model, processor, history[:seen], candidates, 10**6))


# files


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "bert"])
def test_saved_and_loaded(model_type, tmp_path):
    values = {"sink_signal": ["feedback", "elapsed"], "feedback": "inline"}
    model, processor = make(model_type, model=BIAS, **values)
    history, candidates = history_of(7), candidates_of(4)
    history[0]["time"] = np.int64(history[0]["time"])
    state = UserState(model, processor, history[:5])
    state.score(candidates, history[4]["time"] + 9)
    path = state.save(tmp_path / "user.safetensors")
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    model = type(model).from_pretrained(tmp_path / "model").eval()
    processor = type(processor).from_pretrained(tmp_path / "model")
    again = UserState.load(path, model, processor)
    assert (again.num_seen, again.history) == (5, state.history)
    assert again.num_encoded == state.num_encoded
    calls = encoded_by(model, lambda: again.score(candidates, history[4]["time"] + 9))
    if model_type != "bert":
        assert len(calls) == 1  # nothing of the history
    again.extend(history[5:])
    found = score(model, processor, again, candidates, 10**6)
    assert_equal(found, row_by_row(model, processor, history, candidates, 10**6))


def test_no_pickle_and_nothing_left_behind(tmp_path):
    model, processor = make()
    UserState(model, processor, history_of(3)).save(tmp_path / "user.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["user.safetensors"]
    with safe_open(tmp_path / "user.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "lmctr user state 1"
    assert json.loads(metadata["history"]) == history_of(3)


def test_a_state_of_another_model_is_refused(tmp_path):
    model, processor = make()
    history = history_of(3)
    path = UserState(model, processor, history).save(tmp_path / "user.safetensors")
    other, _ = make(seed=1)
    with pytest.raises(ValueError, match=r"user.safetensors: the state was made with another model \(fingerprint"):
        UserState.load(path, other, processor)
    other, _ = make(model={"sink_bias_causal": False})  # the same weights
    with pytest.raises(ValueError, match="with another model"):
        UserState.load(path, other, processor)
    for values in ({"num_behaviors": 7}, {"prompt": "generic/en"}, {"max_length": 99}, {"trailing_sink": False}):
        _, other = make(**values)
        with pytest.raises(ValueError, match="with another processor"):
            UserState.load(path, model, other)
    _, same = make()
    assert UserState.load(path, model, same).num_seen == 3


def test_damaged_and_foreign_files(tmp_path):
    model, processor = make()
    with pytest.raises(FileNotFoundError, match=r"nobody.safetensors does not exist"):
        UserState.load(tmp_path / "nobody.safetensors", model, processor)
    path = UserState(model, processor, history_of(3)).save(tmp_path / "user.safetensors")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"user.safetensors is no whole safetensors file"):
        UserState.load(path, model, processor)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="no user state of this version: its format is None"):
        UserState.load(path, model, processor)


# mistakes


@pytest.mark.parametrize("fused", [None, False, True])
def test_changed_weights_are_noticed(tmp_path, fused):
    """By hand, or by an optimiser, whose fused kernels count no version."""
    model, processor = make()
    state = UserState(model, processor, history_of(3))
    if fused is None:
        with torch.no_grad():
            model.head.out.bias.add_(1.0)
    else:
        model.head.out.bias.grad = torch.ones(1)
        torch.optim.AdamW([model.head.out.bias], fused=fused).step()
    for call in (
        lambda: score(model, processor, state, ["x"], 10**6),
        lambda: state.extend([]),
        lambda: state.save(tmp_path / "x"),
    ):
        with pytest.raises(ValueError, match="weights were changed or moved since the UserState was made"):
            call()


def test_adapters_that_act_are_noticed():
    """Of a model that is being trained the kept copy, of any the kept state, is that of the adapters that act."""
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    model, processor = make()
    history, candidates = history_of(4), candidates_of(3)
    plain = row_by_row(model, processor, history, candidates, 10**6)
    adapted = get_peft_model(model, LoraConfig(**settings))
    adapted.add_adapter("other", LoraConfig(**settings))

    def expected():
        adapted.eval()
        found = row_by_row(adapted, processor, history, candidates, 10**6)
        adapted.train()
        return found

    def found():
        return score(adapted, processor, history, candidates, 10**6)

    first = expected()
    torch.testing.assert_close(found(), first)
    with adapted.disable_adapter():
        torch.testing.assert_close(found(), plain)
    state = UserState(adapted, processor, history)
    adapted.set_adapter("other")
    second = expected()
    assert min((one - two).abs().max() for one, two in ((first, second), (first, plain))) > 1e-3
    torch.testing.assert_close(found(), second)
    with pytest.raises(ValueError, match="or other adapters act; make a new one from the history"):
        score(adapted, processor, state, candidates, 10**6)
    adapted.set_adapter("default")
    torch.testing.assert_close(score(adapted, processor, state, candidates, 10**6), first)
    with rescale_adapter_scale(adapted, 3.0):
        scaled = expected()
        torch.testing.assert_close(found(), scaled)
        with pytest.raises(ValueError, match="or other adapters act; make a new one from the history"):
            score(adapted, processor, state, candidates, 10**6)
    assert (scaled - first).abs().max() > 1e-3
    adapted.merge_adapter()
    torch.testing.assert_close(found(), first, atol=1e-4, rtol=1e-4)


def test_adapters_that_were_swapped_in_place_are_noticed(tmp_path):
    """By PEFT, which copies into `.data`: torch counts no change of the weights."""
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    model, processor = make()
    history, candidates = history_of(4), candidates_of(3)
    get_peft_model(copy.deepcopy(model), LoraConfig(**settings)).save_pretrained(tmp_path)
    adapted = get_peft_model(model, LoraConfig(**settings)).eval()
    state = UserState(adapted, processor, history)
    first = score(adapted, processor, state, candidates, 10**6)
    hotswap_adapter(adapted, tmp_path, adapter_name="default", torch_device="cpu")
    second = row_by_row(adapted, processor, history, candidates, 10**6)
    assert (first - second).abs().max() > 1e-3
    with pytest.raises(ValueError, match="or other adapters act; make a new one from the history"):
        score(adapted, processor, state, candidates, 10**6)


def test_the_state_belongs_to_its_model_and_processor():
    model, processor = make()
    state = UserState(model, processor, history_of(3))
    with pytest.raises(ValueError, match="made with another model object"):
        score(make()[0], processor, state, ["x"], 10**6)
    with pytest.raises(ValueError, match="made with another processor"):
        score(model, make(num_behaviors=7)[1], state, ["x"], 10**6)
    assert score(model, make()[1], state, ["x"], 10**6).shape == (1,)  # one of equal settings
    processor.num_behaviors = 7  # more than the state keeps
    with pytest.raises(ValueError, match="the processor's settings were changed since the UserState was made"):
        score(model, processor, state, ["x"], 10**6)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"text": "x", "time": 1, "feedback": "liked"}, r"behaviors\[0\] has time 1, before the one ahead of it"),
        ({"text": "x", "time": 10**6, "feedback": "odd"}, r"behaviors\[0\]: feedback 'odd' is not accepted"),
        ({"text": "x"}, r"behaviors\[0\] has no 'time'"),
        ({"text": "x", "time": 10**6}, r"behaviors\[0\] has unknown feedback"),
        ("x", r"behaviors\[0\] must hold 'text' and 'time'"),
    ],
)
def test_a_refused_behaviour_changes_nothing(behaviour, message):
    model, processor = make(feedback="groups")
    state = UserState(model, processor, history_of(3))
    before = state.score(["x"], 10**6)
    with pytest.raises(ValueError, match=message):
        state.extend([behaviour])
    assert (state.num_seen, state.num_kept) == (3, 3)
    assert torch.equal(state.score(["x"], 10**6), before)


def test_scorers_are_registered_by_family():
    with pytest.raises(ValueError, match="'module:class'"):
        register_scorer("ctr_sink", "lmctr.serving")
    with pytest.raises(ValueError, match=r"is scored by lmctr.serving.ctr_sink:CTRSinkScorer already"):
        register_scorer("ctr_sink", "other:Scorer")
    register_scorer("ctr_sink", "lmctr.serving.ctr_sink:CTRSinkScorer")
    assert type(scorer_for(*make())).__name__ == "CTRSinkScorer"


def test_what_a_call_of_the_tokenizer_left_in_it_is_no_other_processor(tmp_path):
    """A fast tokenizer remembers to what its last call cut and padded."""
    model, processor = make("qwen2")
    history, candidates = history_of(5), candidates_of(3)
    settings_before = settings_fingerprint(processor)
    UserState(model, processor, history).save(tmp_path / "state.safetensors")
    _, other = make("qwen2")
    other.tokenizer(["a", "a b c"], truncation=True, max_length=2, padding=True)
    assert settings_fingerprint(other) == settings_before
    loaded = UserState.load(tmp_path / "state.safetensors", model, other)
    assert_equal(loaded.score(candidates, 10**9), row_by_row(model, processor, history, candidates, 10**9))
    other.tokenizer.backend_tokenizer.normalizer = Lowercase()
    assert settings_fingerprint(other) != settings_before, "of the same length, by other rules"
