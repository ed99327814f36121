"""Fields of the layout "fields" from the processor, against texts that are put together by hand."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from test_processing import as_input, history_of
from text_tokenizers import KINDS, make
from tiny_models import sink_config

from lmctr import AutoModelForCTR, CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

TARGETS = [
    "Title of the movie: Heat\nGenres of the movie: Crime, Drama",
    "Title of the movie: Casino\nGenres of the movie: ",
]


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make(kind) for kind in KINDS}


def processor_of(tokenizer, **options):
    settings = {"prompt": "movielens_fields/en", "layout": "fields", "feedback": "groups", "num_behaviors": 3}
    return CTRSinkProcessor(tokenizer, **(settings | options))


def pieces(tokenizer, *texts):
    """Ids of texts that are tokenised one by one; a blank at a text's end belongs to the next."""
    ids, blank = [], ""
    for text in texts:
        whole, blank = blank + text if text else "", ""
        if whole.endswith(" "):
            whole, blank = whole[:-1], " "
        ids += tokenizer(whole, add_special_tokens=False, split_special_tokens=True)["input_ids"] if whole else []
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    return [token for token in ids if token not in special]


def field_of(processor, header, shown, trailing):
    """Ids and recency buckets of one history; `shown`: (text, distance to the target)."""
    tokenizer, ids, buckets, texts = processor.tokenizer, [], {}, [header]
    for number, (text, distance) in enumerate(shown):
        texts += [text, ", "]
        if trailing or number < len(shown) - 1:
            ids = pieces(tokenizer, *texts)
            buckets[len(ids) + len(buckets)] = distance
    ids = pieces(tokenizer, *texts)
    for place in sorted(buckets):
        ids.insert(place, processor.sink_token_id)
    return ids, buckets


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("trailing", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_texts_of_their_own(tokenizers, kind, trailing, side):
    processor = processor_of(tokenizers[kind], trailing_sink=trailing)
    processor.tokenizer.padding_side = side
    rng = np.random.default_rng(0)
    histories = [history_of(rng, n, known_feedback=True) for n in (0, 1, 2, 5, 12)]
    made = [as_input(history) for history in histories]
    assert {entry["feedback"] for history in made for entry in history} == {1, 2}
    targets = [TARGETS[n % 2] for n in range(len(made))]
    batch = processor(histories=made, targets=targets, times=[10**8] * len(made), return_num_dropped=True)
    assert sorted(processor.model_input_names) == sorted(set(batch) - {"num_dropped"})
    probe = processor.tokenizer("a", add_special_tokens=True)["input_ids"]
    alone = processor.tokenizer("a", add_special_tokens=False)["input_ids"]
    start = next(i for i in range(len(probe)) if probe[i : i + len(alone)] == alone)
    opening, closing = probe[:start], probe[start + len(alone) :]
    for row, history in enumerate(made):
        wanted = []
        for code, header in ((2, "Movies that the user rated high: "), (1, "Movies that the user rated low: ")):
            own = [
                (entry["text"].strip(), len(history) - 1 - i)
                for i, entry in enumerate(history)
                if entry["feedback"] == code
            ]
            wanted.append(field_of(processor, header, own[-3:], trailing))
        wanted += [(pieces(processor.tokenizer, line.strip()), {}) for line in targets[row].split("\n")]
        for number, (ids, buckets) in enumerate(wanted):
            inside = batch["field_ids"][row] == number
            assert batch["input_ids"][row][inside].tolist() == [*opening, *ids, *closing], (row, number)
            expected = [-1] * (len(opening) + len(ids) + len(closing))
            for place, bucket in buckets.items():
                expected[len(opening) + place] = bucket
            assert batch["sink_buckets"][row][inside].tolist() == expected
            assert batch["attention_mask"][row][inside].all()
            assert batch["target_mask"][row][inside].any() == (number > 1)
        rest = batch["field_ids"][row] < 0
        assert not batch["attention_mask"][row][rest].any()
        assert not batch["target_mask"][row][rest].any()
        assert (batch["input_ids"][row][rest] == processor.tokenizer.pad_token_id).all()


def test_truncation_drops_whole_behaviours(tokenizers):
    rng = np.random.default_rng(1)
    history = as_input(history_of(rng, 12, known_feedback=True))
    call = {"histories": [history], "targets": [TARGETS[0]], "times": [10**8], "return_num_dropped": True}
    whole = processor_of(tokenizers["bert"], num_behaviors=12, trailing_sink=False)(**call)
    length = whole["input_ids"].shape[1]
    for shorter in (1, 9, 30):
        processor = processor_of(
            tokenizers["bert"], num_behaviors=12, trailing_sink=False, max_length=length - shorter
        )
        cut = processor(**call)
        assert cut["input_ids"].shape[1] <= length - shorter
        dropped = int(cut["num_dropped"][0])
        assert dropped > 0
        assert (cut["sink_buckets"] >= 0).sum() == (whole["sink_buckets"] >= 0).sum() - dropped
        for number in (2, 3):
            assert (cut["field_ids"] == number).sum() == (whole["field_ids"] == number).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_processor_to_a_score(tokenizers, kind, tmp_path):
    backbone = {"bert": "bert", "roberta": "roberta", "qwen": "qwen2"}[kind]
    torch.manual_seed(0)
    config = sink_config(backbone, layout="fields", feedback="groups", num_sink_buckets=100)
    config.text_config.vocab_size, config.text_config.max_position_embeddings = 600, 400
    CTRSinkForCTR(config).save_pretrained(tmp_path)
    processor_of(tokenizers[kind]).save_pretrained(tmp_path)
    processor, model = CTRSinkProcessor.from_pretrained(tmp_path), AutoModelForCTR.from_pretrained(tmp_path)
    assert processor.layout == model.config.layout == "fields"
    rng = np.random.default_rng(1)
    histories = [as_input(history_of(rng, n, known_feedback=True)) for n in (0, 2, 9)]
    targets = [TARGETS[0], TARGETS[1], TARGETS[0]]
    with torch.no_grad():
        together = model(**processor(histories=histories, targets=targets, times=[10**8] * 3)).logits
        for row in range(3):
            alone = processor(histories=histories[row : row + 1], targets=targets[row : row + 1], times=[10**8])
            torch.testing.assert_close(model(**alone).logits[0], together[row], atol=1e-5, rtol=0)
    assert len(set(together.tolist())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_items_have_the_lines_of_the_template_whatever_their_columns_hold(tokenizers, kind):
    """Breaks in a title make no field, and a title or genres that are missing lose none; requests without text read alike."""
    prompt = {"base": "movielens_fields/en", "item": "Title: {title}\nGenres: {genres}[ by {author}]"}
    processor = processor_of(tokenizers[kind], prompt=prompt)
    catalogue = pa.table(
        {
            "title": ["Heat\n(1995)", None, "Casino"],
            "genres": [None, "Crime", "Crime\r\nDrama"],
            "author": [None, None, "A\nB"],
        }
    )
    texts = processor.item_texts(catalogue)
    assert texts == [
        "Title: Heat (1995)\nGenres:",
        "Title:\nGenres: Crime",
        "Title: Casino\nGenres: Crime\r Drama by A B",
    ]
    assert processor.behavior_texts(catalogue) == ["Heat (1995)", "", "Casino"]
    history = [{"text": "\nHeat\n(1995)\n", "time": 1, "feedback": "liked"}]
    batch = processor(histories=[history] * 3, targets=[*texts[:2], f"\n{texts[2]}\n"], times=[2] * 3)
    history = [{**history[0], "text": "Heat (1995)"}]
    alone = processor(histories=[history], targets=[texts[2]], times=[2])
    assert (batch["field_ids"].amax(1) == 3).all()
    read = [one["input_ids"][row][one["field_ids"][row] >= 0].tolist() for one, row in ((batch, 2), (alone, 0))]
    assert read[0] == read[1]


def test_a_title_or_a_line_that_is_empty_is_a_field(tokenizers):
    prompt = {"base": "movielens_fields/en", "item": "{title}\n{genres}"}
    processor = processor_of(tokenizers["bert"], prompt=prompt)
    columns = {"title": [None, "Heat", None], "genres": ["Crime", None, None]}
    texts = processor.item_texts(pa.table(columns))
    assert texts == ["\nCrime", "Heat\n", "\n"]
    call = {"histories": [[]] * 5, "times": [2] * 5}
    batch = processor(targets=[*texts, None, {"text": ""}], **call)
    inside = [[int((row == field).sum()) for field in (2, 3)] for row in batch["field_ids"]]
    words = {title: len(pieces(processor.tokenizer, title)) for title in ("Crime", "Heat")}
    assert inside == [
        [2, 2 + words["Crime"]],
        [2 + words["Heat"], 2],
        [2, 2],
        [2, 2],
        [2, 2],
    ]  # [CLS] and [SEP] of each
    decoder = processor_of(tokenizers["qwen"], prompt=prompt)
    with pytest.raises(ValueError, match=r"row 1: text field 3 of 4 is empty, .*; write some text before the column"):
        decoder(targets=["Heat\nCrime", "Heat\n"], histories=[[]] * 2, times=[2] * 2)


def test_errors(tokenizers):
    with pytest.raises(ValueError, match="feedback='inline' is not accepted; use 'groups' with layout='fields'"):
        processor_of(tokenizers["bert"], feedback="inline")
    processor = processor_of(tokenizers["bert"])
    call = {"histories": [[{"text": "Heat", "time": 1, "feedback": "liked"}]], "times": [2]}
    with pytest.raises(
        ValueError, match="row 0: its texts make 3 fields, but the prompt makes 4: 2 histories and a target of 2 lines"
    ):
        processor(targets=["Heat"], **call)
    with pytest.raises(ValueError, match="row 0: its texts make 5 fields"):
        processor(targets=[f"{TARGETS[0]}\nmore"], **call)
    with pytest.raises(
        ValueError, match=r"writes behaviours of several lines, .*; give it a `behavior_item` of one line"
    ):
        processor_of(tokenizers["bert"], prompt={"base": "generic/en", "item": "{title}\n{genres}"})
