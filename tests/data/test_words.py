"""Texts of a table that are read as their words."""

import numpy as np
import pyarrow as pa
import pytest
from guess_logs import ROWS, clicks, write

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.guess import guess_table

TEXTS = ["Buy NOW, don't wait!", "Größe: 42 — बिक्री", "", None, "now_or never 42", "  ", "ΣΊΣΥΦΟΣ now"]
WORDS = [["buy", "now", "don", "t", "wait"], ["größe", "42", "बिक्री"], [], None, ["now", "or", "never", "42"], []]
WORDS += [[str(pa.compute.utf8_lower("ΣΊΣΥΦΟΣ")), "now"]]
FIELD = {"name": "title", "type": "multi_value", "parse": "words", "max_length": 4}


def test_words_are_runs_of_letters_and_digits_in_lower_case(tmp_path):
    """Of many rows, of each alone, after the processor was saved, and where lists of words are given."""
    rows = [{"title": text} for text in TEXTS]
    processor = TabularFeatureProcessor([FIELD], label=None).fit(pa.Table.from_pylist(rows))
    known = processor.state.vocabularies["title"]
    assert set(known.values.to_pylist()) == {word for words in WORDS for word in words or ()}
    plain = {"name": "title", "type": "multi_value", "max_length": 4}
    lists = [{"title": words} for words in WORDS]
    expected = TabularFeatureProcessor([plain], label=None).fit(pa.Table.from_pylist(lists))(
        lists, return_tensors="np"
    )
    processor.save_pretrained(tmp_path)
    for own in (processor, TabularFeatureProcessor.from_pretrained(tmp_path)):
        assert own.fields[0].parse == "words"
        for given in (rows, lists, pa.Table.from_pylist(rows)):
            assert (own(given, return_tensors="np")["sequence_ids"] == expected["sequence_ids"]).all()
        for place, row in enumerate(rows):
            alone = own([row], return_tensors="np")["sequence_ids"]
            assert (alone == expected["sequence_ids"][place : place + 1]).all()


@pytest.mark.parametrize("keys", [{"separator": " "}, {"weight_separator": ":"}])
def test_words_have_no_separator(keys):
    with pytest.raises(ValueError, match=r"field 'title': parse='words' takes the place of separator; leave that out"):
        TabularFeatureProcessor([FIELD | keys])


def test_texts_whose_words_come_again_are_fields_and_names_of_rows_are_not(tmp_path):
    draw = np.random.default_rng(0)
    nouns = ["shoe", "red hat", "blue watch", "old book", "new phone"]
    title = [f"{nouns[draw.integers(5)].title()} for {nouns[draw.integers(5)]}, no {row}" for row in range(ROWS)]
    title[7] = "!?"  # without a word
    columns = {
        "title": [f'"{text}"' for text in title],
        "page": [f"https://shop.example/red/hat/{row}" for row in range(ROWS)],
        "mail": [f"red.hat.{row}@shop.example" for row in range(ROWS)],
        "key": [f"{row:08x}-{row * 7919:08x}" for row in range(ROWS)],
        "tail": [f"N{row}" for row in range(ROWS)],
    }
    guess = guess_table(write(tmp_path / "e.csv", clicks(**columns)))
    said = {found.column: f"{found.role}: {found.why}" for found in guess.guesses}
    assert said["title"] == "field: texts, read as their words"
    fields = {field["name"]: field for field in guess.schema["fields"]}
    assert fields["title"] == {
        "name": "title",
        "type": "multi_value",
        "parse": "words",
        "min_count": 3,
        "max_length": 7,
    }
    for name in ("page", "mail", "key", "tail"):
        assert said[name] == "left out: another value on (almost) every row"
