"""The processor against a plain-Python reference, and its handling of odd input."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from ctr_sink_reference import sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_tokenizers import KINDS, make, plain_fast, roberta, wordpiece

from lmctr.models.ctr_sink import processing_ctr_sink
from lmctr.models.ctr_sink.piece_tokens import TokenCache
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.utils.ragged import Ragged

TEXTS = ["Heat (1995)", "Casino (Crime, Drama)", "Alien", "", "[SINK] [SEP] <s>", "  Toy  Story ", "星战", "a"]


def history_of(rng, length, known_feedback=False):
    times = np.sort(rng.integers(0, 10**8, length))
    return [
        (
            TEXTS[rng.integers(len(TEXTS))],
            int(time),
            int(rng.integers(1 if known_feedback else 0, 3)),
            round(float(rng.uniform(-1, 1)), 1),
        )
        for time in times
    ]


def as_input(history):
    return [{"text": t, "time": s, "feedback": c, "similarity": m} for t, s, c, m in history]


def reference_of(processor, history, target, time):
    return sample(
        processor.tokenizer,
        processor.prompt.to_dict(),
        history,
        target,
        time,
        sink_id=processor.settings.sink_id,
        num_behaviors=processor.num_behaviors,
        order=processor.sink_order,
        signals=processor.signals,
        num_buckets=processor.num_sink_buckets,
        feedback=processor.feedback,
        trailing_sink=processor.trailing_sink,
        max_length=processor.effective_max_length,
    )


def assert_equals_reference(processor, histories, targets, times, **options):
    batch = processor(
        histories=[as_input(h) for h in histories],
        targets=[{"text": t} for t in targets],
        times=times,
        return_num_dropped=True,
        **options,
    )
    width = batch["input_ids"].shape[1]
    wanted = [reference_of(processor, *row) for row in zip(histories, targets, times)]
    assert width >= max(len(ids) for ids, *_ in wanted)
    left = processor.tokenizer.padding_side == "left"
    for row, (ids, buckets, mask, dropped) in enumerate(wanted):
        place = slice(width - len(ids), width) if left else slice(0, len(ids))
        real = np.zeros(width, dtype=bool)
        real[place] = True
        assert batch["input_ids"][row][place].tolist() == ids
        assert (batch["input_ids"][row][~torch.from_numpy(real)] == processor.tokenizer.pad_token_id).all()
        assert batch["attention_mask"][row].tolist() == real.astype(int).tolist()
        got = batch["sink_buckets"][row].reshape(width, len(buckets))
        assert got[place].T.tolist() == buckets
        assert (got[~torch.from_numpy(real)] == -1).all()
        assert batch["target_mask"][row][place].tolist() == mask
        assert not batch["target_mask"][row][~torch.from_numpy(real)].any()
        assert batch["num_dropped"][row] == dropped
    return batch


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make(kind) for kind in KINDS}


VARIANTS = [
    {"sink_kind": "none"},
    {"sink_kind": "none", "feedback": "inline"},
    {"sink_kind": "sink"},
    {"sink_signal": "elapsed", "num_sink_buckets": 7},
    {"sink_signal": "random", "trailing_sink": False},
    {"sink_signal": ["ordinal", "recency"], "num_sink_buckets": 60},
    {"sink_signal": "ordinal", "sink_order": "similarity", "num_sink_buckets": 9},
    {"sink_signal": "none"},
    {"sink_signal": ["recency", "feedback"], "feedback": "sink"},
    {"sink_signal": ["similarity", "recency", "random"], "num_sink_buckets": 3},
    {"sink_order": "similarity", "sink_signal": "similarity"},
    {"sink_order": "time", "sink_signal": ["similarity", "elapsed"]},
    {"sink_order": "time", "feedback": "inline", "sink_signal": ["feedback", "random"]},
    {"feedback": "groups"},
    {"feedback": "groups", "sink_order": "similarity", "sink_signal": ["similarity", "feedback"]},
    {"feedback": "groups", "trailing_sink": False},
    {"feedback": "inline", "sink_signal": "feedback"},
    {"prompt": "movielens/zh", "feedback": "inline"},
    {"prompt": "generic/zh", "feedback": "groups"},
    {"prompt": "generic/en"},
]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_equals_the_plain_reference(tokenizers, kind, options, side):
    processor = CTRSinkProcessor(tokenizers[kind], num_behaviors=4, **options)
    no_sinks = options.get("sink_kind") == "none"
    assert processor.max_sinks == (None if no_sinks else 8 if options.get("feedback") == "groups" else 4)
    processor.tokenizer.padding_side = side
    rng = np.random.default_rng(0)
    histories = [history_of(rng, n, processor.feedback == "groups") for n in (0, 1, 3, 4, 5, 12)]
    targets = ["Heat (1995)", None, "Toy Story", "Alien", "Casino", "Heat"]
    batch = assert_equals_reference(processor, histories, targets, [10**8 + i for i in range(6)])
    shape = batch["input_ids"].shape
    expected = shape if len(processor.signals) == 1 else (*shape, len(processor.signals))
    assert batch["sink_buckets"].shape == expected
    types = {key: batch[key].dtype for key in ("input_ids", "attention_mask", "sink_buckets", "target_mask")}
    assert types == dict.fromkeys(list(types)[:3], torch.int64) | {"target_mask": torch.bool}


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_cls_sinks_are_the_tokenizers_own(tokenizers, kind):
    processor = CTRSinkProcessor(tokenizers[kind], sink_kind="cls", num_behaviors=3)
    assert processor.signals == ("none",)
    assert "[SINK]" not in processor.tokenizer.get_vocab()
    history = history_of(np.random.default_rng(1), 6)
    batch = assert_equals_reference(processor, [history], ["Heat"], [10**8])
    sinks = batch["sink_buckets"][0] == 0
    assert sinks.sum() == 3
    assert (batch["input_ids"][0][sinks] == tokenizers[kind].cls_token_id).all()
    assert batch["sink_buckets"][0, 0] == -1  # the opening token is no sink


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    feedback=st.sampled_from(["none", "inline", "groups"]),
    order=st.sampled_from(["recent", "similarity", "time"]),
    trailing_sink=st.booleans(),
    sink_kind=st.sampled_from(["none", "sink"]),
    room=st.integers(0, 120),
)
def test_truncation_equals_the_plain_reference(
    tokenizers, seed, kind, feedback, order, trailing_sink, sink_kind, room
):
    options = {"feedback": feedback, "sink_order": order, "trailing_sink": trailing_sink, "sink_kind": sink_kind}
    rng = np.random.default_rng(seed)
    least = CTRSinkProcessor(tokenizers[kind], **options)
    history = history_of(rng, int(rng.integers(0, 15)), known_feedback=feedback == "groups")
    target = TEXTS[rng.integers(3)]
    empty = least(histories=[[]], targets=[target], times=[10**8])["input_ids"].shape[1]
    processor = CTRSinkProcessor(tokenizers[kind], max_length=empty + room, num_behaviors=6, **options)
    assert_equals_reference(processor, [history, history[:2]], [target, target], [10**8, 10**8])


def test_truncation_drops_whole_behaviours_and_counts_them(tokenizers):
    history = [("Heat (1995)", i, 2, 0.0) for i in range(10)]
    full = CTRSinkProcessor(tokenizers["bert"], num_behaviors=10)
    batch = full(histories=[as_input(history)], targets=["Casino"], times=[99], return_num_dropped=True)
    assert batch["num_dropped"].tolist() == [0]
    positions = torch.where(batch["sink_buckets"][0] >= 0)[0]
    one = int(positions[1] - positions[0])
    for less in (1, one, one + 1):
        short = CTRSinkProcessor(tokenizers["bert"], num_behaviors=10, max_length=batch["input_ids"].shape[1] - less)
        cut = short(histories=[as_input(history)], targets=["Casino"], times=[99], return_num_dropped=True)
        gone = -(-less // one)
        assert cut["num_dropped"].tolist() == [gone]
        kept = cut["sink_buckets"][0][cut["sink_buckets"][0] >= 0]
        assert kept.tolist() == list(range(10 - gone))[::-1]  # the oldest are gone, the distances stay
        assert cut["target_mask"].sum() == batch["target_mask"].sum()


def test_a_target_that_does_not_fit_is_an_error_that_names_the_row(tokenizers):
    processor = CTRSinkProcessor(tokenizers["bert"], max_length=20)
    with pytest.raises(ValueError, match=r"row 1: .*head and the target alone take \d+ tokens.*max_length=20"):
        processor(histories=[[], []], targets=["a", "Heat " * 30], times=[1, 1])


def test_the_limit_of_the_tokenizer_is_the_default():
    assert CTRSinkProcessor(roberta(max_length=64)).effective_max_length == 64
    assert CTRSinkProcessor(roberta(max_length=64), max_length=48).effective_max_length == 48
    assert CTRSinkProcessor(wordpiece()).effective_max_length is None


@pytest.mark.parametrize("kind", KINDS)
def test_n_behaviours_have_n_sinks(tokenizers, kind):
    for trailing, less in ((True, 0), (False, 1)):
        processor = CTRSinkProcessor(tokenizers[kind], num_behaviors=5, trailing_sink=trailing)
        history = as_input([(None, 1, 0, 0.0), ("", 2, 0, 0.0), ("Heat", 3, 0, 0.0)])
        batch = processor(histories=[history], targets=["Casino"], times=[5])
        assert (batch["sink_buckets"] >= 0).sum() == 3 - less  # behaviours without a text have theirs too
        assert (batch["input_ids"] == processor.sink_token_id).sum() == 3 - less


@pytest.mark.parametrize("kind", KINDS)
def test_user_text_is_never_read_as_a_special_token(tokenizers, kind):
    nasty = "[SINK] [SEP] [CLS] <s> </s> <pad> <|endoftext|> [PAD]"
    for processor in (CTRSinkProcessor(tokenizers[kind]), CTRSinkProcessor(tokenizers[kind], sink_kind="none")):
        batch = processor(histories=[[{"text": nasty, "time": 1}]], targets=[nasty], times=[2])
        plain = processor(histories=[[{"text": "x", "time": 1}]], targets=["x"], times=[2])
        special = set(processor.tokenizer.all_special_ids) - {processor.tokenizer.unk_token_id}
        special |= {processor.tokenizer.pad_token_id, processor.tokenizer.eos_token_id} - {None}

        def counts(batch, special=special):
            return {token: int((batch["input_ids"] == token).sum()) for token in special}

        assert counts(batch) == counts(plain)
        assert (batch["attention_mask"] == 1).all()


def test_half_a_character_is_an_error_that_shows_the_text(tokenizers):
    with pytest.raises(ValueError, match=r"an item's text: the text 'cut \\ud83d' holds half of a surrogate pair at"):
        CTRSinkProcessor(tokenizers["bert"])(histories=[[{"text": "cut \ud83d", "time": 1}]], targets=["x"], times=[2])


def test_special_ids_that_a_tokenizer_yields_for_plain_text_are_dropped():
    assert 3 in plain_fast()("heat [SEP]", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    processor = CTRSinkProcessor(plain_fast())
    batch = processor(histories=[[{"text": "heat [SEP] casino", "time": 1}]], targets=["[SEP] heat"], times=[2])
    assert (batch["input_ids"] == 3).sum() == 1  # the closing one
    tokens = processor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    assert tokens[tokens.index("heat") + 1] == "casino"


def test_pieces_of_byte_level_tokenizers_carry_the_blank(tokenizers):
    processor = CTRSinkProcessor(tokenizers["roberta"])
    history = [{"text": "Heat (1995)", "time": 1}, {"text": "Heat (1995)", "time": 2}]
    ids = processor(histories=[history], targets=["Heat (1995)"], times=[3])["input_ids"][0]
    text = processor.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == (
        "<s>Movies the user has rated: Heat (1995);[SINK] Heat (1995);[SINK] Will the user like Heat (1995)?</s>"
    )
    chinese = CTRSinkProcessor(tokenizers["qwen"], prompt="movielens/zh", sink_kind="none")
    ids = chinese(histories=[history[:1]], targets=["Heat"], times=[3])["input_ids"][0]
    assert chinese.tokenizer.decode(ids) == "用户评价过的电影：Heat (1995)；用户会喜欢这部电影吗：Heat？"


def test_a_row_does_not_depend_on_its_batch(tokenizers):
    processor = CTRSinkProcessor(tokenizers["qwen"], sink_signal=["random", "elapsed"], num_behaviors=4)
    rng = np.random.default_rng(3)
    rows = [(as_input(history_of(rng, n)), "Heat", 10**8 + n) for n in (2, 9, 0)]
    whole = processor(*(list(column) for column in zip(*rows)))
    for number, row in enumerate(rows):
        alone = processor(*([value] for value in row))
        width = alone["input_ids"].shape[1]
        for key in whole:
            assert torch.equal(whole[key][number, :width], alone[key][0])


def test_random_buckets_depend_on_the_sample_only(tokenizers):
    processor = CTRSinkProcessor(tokenizers["bert"], sink_signal="random", num_sink_buckets=10**6)
    history = [{"text": "Heat", "time": i} for i in range(5)]

    def draw(history=history, target="Casino", time=50):
        batch = processor(histories=[history], targets=[target], times=[time])
        return batch["sink_buckets"][batch["sink_buckets"] >= 0].tolist()

    assert draw() == draw()
    assert len(set(draw())) == 5
    others = [draw(time=51), draw(target="Heat"), draw(history=history[1:])]
    assert all(draw()[-1] != other[-1] for other in others)
    wide = CTRSinkProcessor(tokenizers["bert"], sink_signal="random", num_sink_buckets=10, num_behaviors=5000)
    long = [{"text": "", "time": i} for i in range(5000)]
    counts = torch.bincount(wide(histories=[long], targets=["a"], times=[9999])["sink_buckets"][0].clamp(min=-1) + 1)[
        1:
    ]
    assert len(counts) == 10
    assert counts.min() > 400
    assert counts.max() < 600


def test_long_histories(tokenizers):
    history = [("Heat (1995)", i, 2, (i % 7) / 10) for i in range(10_000)]
    recent = CTRSinkProcessor(tokenizers["bert"], num_behaviors=50)
    batch = assert_equals_reference(recent, [history], ["Alien"], [10_000])
    assert (batch["sink_buckets"] >= 0).sum() == 50
    similar = CTRSinkProcessor(
        tokenizers["bert"], num_behaviors=50, sink_order="similarity", sink_signal=["similarity", "recency"]
    )
    assert_equals_reference(similar, [history], ["Alien"], [10_000])
    everything = CTRSinkProcessor(tokenizers["qwen"], num_behaviors=10_000)
    batch = everything(histories=[as_input(history)], targets=["Alien"], times=[10_000])
    buckets = batch["sink_buckets"][batch["sink_buckets"] >= 0]
    assert len(buckets) == 10_000
    assert (buckets == 99).sum() == 10_000 - 99  # farther than the last bucket


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": [5]}, r"row 0: behaviour 1 .*time 5, not before the target's time 5"),
        ({"times": [3]}, r"row 0: behaviour 1 .*time 5, not before"),
        (
            {"histories": [[{"text": "a", "time": 2}, {"text": "b", "time": 1}]]},
            r"row 0: behaviour 1 .*sort the history",
        ),
        ({"histories": [[{"text": "a"}]]}, r"histories\[0\]\[0\] has no 'time'"),
        ({"histories": [[{"time": 1}]]}, r"histories\[0\]\[0\] has no 'text'"),
        ({"histories": [[{"text": 3, "time": 1}]]}, r"histories\[0\]\[0\]: text must be a text or None, got 3"),
        ({"histories": [[{"text": "a", "time": "x"}]]}, r"histories\[0\]\[0\]\['time'\] must be a number of seconds"),
        ({"histories": [[{"text": "a", "time": float("nan")}]]}, r"must be a number of seconds, got nan"),
        ({"histories": [[{"text": "a", "time": 1, "fedback": 1}]]}, r"unknown key 'fedback'.*did you mean 'feedback'"),
        ({"histories": [["a"]]}, r"histories\[0\]\[0\] must hold 'text' and 'time'"),
        ({"targets": [{"txt": "a"}]}, r"unknown key 'txt' in targets\[0\].*did you mean 'text'"),
        ({"targets": [{"text": 1}]}, r"targets\[0\]: text must be a text"),
        ({"targets": []}, r"one entry per row, got 1, 0 and 1"),
        ({"times": [None]}, r"times\[0\] must be a number of seconds, got None"),
        ({"times": [1_700_000_000_000]}, r"times\[0\] must be .* outside the years up to 9999. Is it in milliseconds"),
        ({"times": 17}, r"times: expected a list of times, one per row, got 17"),
        ({"targets": {"text": "c"}}, r"targets: expected a list of targets, one per row, got \{'text': 'c'\}"),
        ({"histories": [{"text": "a", "time": 1}]}, r"histories\[0\]: expected a list of behaviours, oldest first"),
        ({"histories": [], "targets": [], "times": []}, r"batch is empty"),
        ({"return_tensors": "tf"}, r"return_tensors must be 'pt' or 'np'"),
    ],
)
def test_bad_rows_are_named(tokenizers, changes, message):
    processor = CTRSinkProcessor(tokenizers["bert"])
    good = {
        "histories": [[{"text": "a", "time": 1}, {"text": "b", "time": 5}]],
        "targets": [{"text": "c"}],
        "times": [9],
    }
    processor(**good)
    with pytest.raises(ValueError, match=message):
        processor(**{**good, **changes})


def test_equal_times_inside_a_history_are_legal(tokenizers):
    processor = CTRSinkProcessor(tokenizers["bert"])
    batch = processor(histories=[[{"text": "a", "time": 1}, {"text": "b", "time": 1}]], targets=["c"], times=[2])
    assert (batch["sink_buckets"] >= 0).sum() == 2


@pytest.mark.parametrize(
    ("value", "code"),
    [(True, 2), (False, 1), (None, 0), (0, 0), (1, 1), (2, 2), ("liked", 2), ("disliked", 1), ("unknown", 0)]
    + [("positive", 2), ("negative", 1), (np.int8(2), 2), (np.bool_(True), 2)],
)
def test_feedback_may_be_given_in_several_ways(tokenizers, value, code):
    processor = CTRSinkProcessor(tokenizers["bert"], feedback="sink", sink_signal="feedback")
    for key in ("feedback", "group"):
        batch = processor(histories=[[{"text": "a", "time": 1, key: value}]], targets=["c"], times=[2])
        assert batch["sink_buckets"][batch["sink_buckets"] >= 0].tolist() == [code]


@pytest.mark.parametrize("value", [3, -1, 1.5, "loved"])
def test_other_feedback_is_an_error(tokenizers, value):
    processor = CTRSinkProcessor(tokenizers["bert"], feedback="inline")
    with pytest.raises(ValueError, match=r"histories\[0\]\[0\]: feedback .* is not accepted; use a code from 0 to 2"):
        processor(histories=[[{"text": "a", "time": 1, "feedback": value}]], targets=["c"], times=[2])


def test_groups_need_known_feedback(tokenizers):
    processor = CTRSinkProcessor(tokenizers["bert"], feedback="groups")
    with pytest.raises(ValueError, match=r"row 1: 1 behaviours have unknown feedback"):
        processor(histories=[[], [{"text": "a", "time": 1}]], targets=["c", "c"], times=[2, 2])


@pytest.mark.parametrize("value", [None, "0.3", float("nan"), 1.5])
def test_similarity_must_be_a_cosine(tokenizers, value):
    processor = CTRSinkProcessor(tokenizers["bert"], sink_order="similarity")
    with pytest.raises(ValueError, match="similarity"):
        processor(histories=[[{"text": "a", "time": 1, "similarity": value}]], targets=["c"], times=[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_behavior": 3}, "unknown key 'num_behavior'.*did you mean 'num_behaviors'"),
        ({"num_behaviors": 0}, "num_behaviors=0 is not accepted"),
        ({"num_behaviors": True}, "num_behaviors=True is not accepted"),
        ({"max_length": 0}, "max_length=0 is not accepted"),
        ({"sink_kind": "SINK"}, "sink_kind='SINK' is not accepted; use one of none, cls, sink"),
        ({"sink_order": "old"}, "sink_order='old' is not accepted"),
        ({"feedback": "words"}, "feedback='words' is not accepted"),
        ({"sink_signal": "age"}, "sink_signal='age' is not accepted"),
        ({"sink_signal": []}, "sink_signal="),
        ({"sink_signal": ["recency", "recency"]}, "list of different ones"),
        ({"sink_signal": ["recency", "none"]}, '"none" alone'),
        ({"sink_kind": "none", "sink_signal": "recency"}, "\"none\" with sink_kind='none'"),
        ({"sink_kind": "cls", "sink_signal": "recency"}, "\"none\" with sink_kind='cls'"),
        ({"feedback": "sink"}, "sink_signal='recency' is not accepted; use one that holds 'feedback'"),
        (
            {"sink_signal": ["recency", "feedback"]},
            "feedback='none' is not accepted; use 'sink' .*'groups' with sink_signal=.'recency', 'feedback'",
        ),
        ({"sink_signal": "feedback", "feedback": "sink", "num_sink_buckets": 2}, "less than the 3 feedback codes"),
        ({"sink_token": " "}, "sink_token"),
        ({"prompt": "movielens/em"}, "did you mean 'movielens/en'"),
        ({"prompt": {"base": "generic/en", "feedback": []}, "feedback": "inline"}, "describes no feedback"),
        ({"prompt": {"base": "generic/en", "head": "Shown [SINK]: "}}, "head holds the sink token"),
        ({"prompt": {"base": "generic/en", "separator": ";"}}, "some end with a blank and some do not"),
    ],
)
def test_bad_settings(tokenizers, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        CTRSinkProcessor(tokenizers["bert"], **options)


def test_tokenizers_that_cannot_be_used(tokenizers):
    with pytest.raises(
        ValueError, match=r"sink_kind='cls' needs a tokenizer with a \[CLS\] token, and Qwen2Tokenizer"
    ):
        CTRSinkProcessor(tokenizers["qwen"], sink_kind="cls")
    bare = make("bert")
    bare.pad_token = None
    with pytest.raises(ValueError, match="no padding token"):
        CTRSinkProcessor(bare)


def test_the_callers_tokenizer_is_not_changed(tokenizers):
    before = len(tokenizers["bert"])
    first, second = CTRSinkProcessor(tokenizers["bert"]), CTRSinkProcessor(tokenizers["bert"])
    assert len(tokenizers["bert"]) == before
    assert first.sink_token_id == second.sink_token_id == before


def test_a_vocabulary_with_the_sink_token(tokenizers):
    taken = CTRSinkProcessor(tokenizers["bert"]).tokenizer
    with pytest.raises(ValueError, match=r"already holds '\[SINK\]' \(id \d+\).*sink_token='\[CTR_SINK\]'"):
        CTRSinkProcessor(taken)
    other = CTRSinkProcessor(taken, sink_token="[CTR_SINK]")
    assert other.sink_token_id == taken.convert_tokens_to_ids("[SINK]") + 1
    batch = other(histories=[[{"text": "[CTR_SINK] [SINK]", "time": 1}]], targets=["a"], times=[2])
    assert (batch["input_ids"] >= len(tokenizers["bert"])).sum() == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_save_and_load(tokenizers, kind, side, tmp_path):
    options = {
        "prompt": {"base": "movielens/en", "head": "Seen: "},
        "feedback": "inline",
        "sink_signal": ["recency", "random"],
        "num_behaviors": 3,
        "max_length": 40,
    }
    processor = CTRSinkProcessor(tokenizers[kind], **options)
    processor.tokenizer.padding_side = side
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "processor_config.json").read_text())
    assert saved["prompt"]["head"] == "Seen: "  # the whole prompt is there, no prompts/ folder is needed
    loaded = CTRSinkProcessor.from_pretrained(tmp_path)
    assert loaded.to_dict() == processor.to_dict()
    history = as_input(history_of(np.random.default_rng(5), 9))
    for each in (loaded, CTRSinkProcessor.from_pretrained(tmp_path, sink_signal=["recency", "random"])):
        rows = {"histories": [history, []], "targets": ["Heat", "星战"], "times": [10**8, 1]}
        for key, value in processor(**rows).items():
            assert torch.equal(each(**rows)[key], value)
    loaded.save_pretrained(tmp_path / "again")
    assert CTRSinkProcessor.from_pretrained(tmp_path / "again").to_dict() == processor.to_dict()


@pytest.mark.parametrize("setting", ["prompt", "feedback", "tokens"])
def test_what_is_set_after_use_is_read_from_then_on(tokenizers, setting, tmp_path):
    processor = CTRSinkProcessor(tokenizers["bert"], num_behaviors=3)
    rows = [as_input(history_of(np.random.default_rng(5), 9, known_feedback=True))], ["Heat"], [10**8]
    before = processor(*rows)["input_ids"]
    if setting == "prompt":
        processor.prompt = Prompt.load({"base": "movielens/en", "target": "And {item}?"})
    elif setting == "feedback":
        processor.feedback = "groups"
    else:
        processor.tokenizer.add_tokens(["Heat"])
    found = processor(*rows)["input_ids"]
    assert not torch.equal(found, before)
    processor.save_pretrained(tmp_path)
    assert torch.equal(found, CTRSinkProcessor.from_pretrained(tmp_path)(*rows)["input_ids"])


def test_settings_can_be_changed_on_loading_and_misspelt_ones_are_errors(tokenizers, tmp_path):
    CTRSinkProcessor(tokenizers["bert"]).save_pretrained(tmp_path)
    changed = CTRSinkProcessor.from_pretrained(tmp_path, num_behaviors=7, padding_side="left")
    assert changed.num_behaviors == 7
    assert changed.tokenizer.padding_side == "left"
    with pytest.raises(ValueError, match="did you mean 'num_behaviors'"):
        CTRSinkProcessor.from_pretrained(tmp_path, num_behavior=7)
    config = tmp_path / "processor_config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "colour": "red"}))
    with pytest.raises(ValueError, match=r"unknown key 'colour' in processor_config\.json"):
        CTRSinkProcessor.from_pretrained(tmp_path)
    config.write_text(json.dumps({**values, "sink_token_id": 5}))
    with pytest.raises(ValueError, match="the tokenizer files do not belong to this processor"):
        CTRSinkProcessor.from_pretrained(tmp_path)


def test_padding_to_a_multiple(tokenizers):
    processor = CTRSinkProcessor(tokenizers["bert"])
    batch = processor(histories=[[]], targets=["a"], times=[1], pad_to_multiple_of=64, return_tensors="np")
    assert batch["input_ids"].shape == (1, 64)
    assert isinstance(batch["input_ids"], np.ndarray)
    assert processor.model_input_names == list(batch)
    for wrong in ("abc", 0, 2.5, True, [8]):
        with pytest.raises(ValueError, match="pad_to_multiple_of must be a whole number of at least 1, or None, got "):
            processor(histories=[[]], targets=["a"], times=[1], pad_to_multiple_of=wrong)
    short = CTRSinkProcessor(tokenizers["bert"], max_length=30)  # of a backbone with so many positions
    batch = short(histories=[[]], targets=["a"], times=[1], pad_to_multiple_of=64, return_tensors="np")
    assert batch["input_ids"].shape == (1, 30)


def test_a_target_without_any_text_is_an_error(tokenizers):
    prompt = Prompt.from_dict({"base": "generic/en", "target": "{item}"})
    processor = CTRSinkProcessor(tokenizers["bert"], prompt=prompt)
    with pytest.raises(ValueError, match="row 1: the target's text is empty"):
        processor(histories=[[], []], targets=["a", None], times=[1, 1])


def test_texts_are_tokenised_once_and_forgotten_in_bounds(monkeypatch):
    processor, fresh = (CTRSinkProcessor(make("bert")) for _ in range(2))
    asked = []
    original = processing_ctr_sink.tokenize
    monkeypatch.setattr(
        processing_ctr_sink, "tokenize", lambda tokenizer, texts: asked.extend(texts) or original(tokenizer, texts)
    )
    history = [{"text": "Heat", "time": 1}, {"text": None, "time": 2}, {"text": "Toy Story", "time": 3}]
    processor([history], ["Casino"], [9])
    assert len(asked) == 3  # an empty text has no tokens
    again = processor([history], ["Alien (1979)"], [9])
    assert len(asked) == 4
    monkeypatch.undo()
    wanted = fresh([history], ["Alien (1979)"], [9])
    assert all(torch.equal(again[key], wanted[key]) for key in wanted)

    cache = TokenCache(max_tokens=100)
    for number in range(50):
        rows = cache.rows(
            [str(number), "kept"], lambda texts: Ragged.from_rows([[len(text), ord(text[0])] for text in texts])
        )
        assert rows.values.tolist() == [len(str(number)), ord(str(number)[0]), 4, ord("k")]
        assert len(cache) <= 4
    assert len(copy.deepcopy(cache)) == len(pickle.loads(pickle.dumps(cache))) == 0
    assert len(cache.rows([], None)) == 0
