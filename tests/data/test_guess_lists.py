"""Which texts `lmctr init` takes for lists by what they hold, whatever their column is called; and which it never does."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import ROWS, clicks, guessed, table

from lmctr.data import load_log
from lmctr.data.guess import guess_log, guess_table, sample_file
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.statistics.table import context_names

GENRES = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
TOWNS = [first + last for first in ("Oak", "Green", "Lake", "Stone") for last in ("field", "ton", "ville", "wood")]
WORDS = [
    "the",
    "a",
    "river",
    "ran",
    "over",
    "stones",
    "and",
    "fell",
    "into",
    "deep",
    "green",
    "water",
    "while",
    "birds",
    "sang",
    "near",
    "old",
    "trees",
    "nobody",
    "had",
    "seen",
]
RNG = np.random.default_rng(0)


def lists(vocabulary, separator, most=4, in_order=False):
    """Texts of one to `most` parts; in order, as catalogues of films have them."""
    drawn = [RNG.choice(vocabulary, RNG.integers(1, most + 1), replace=False).astype(str) for _ in range(ROWS)]
    return [separator.join(sorted(parts) if in_order else parts) for parts in drawn]


def some(*made):
    """One of several texts, or of functions that make them, a row."""
    return [one() if callable(one := made[RNG.integers(len(made))]) else one for _ in range(ROWS)]


def town():
    return RNG.choice(TOWNS)


def prose():
    clauses = [" ".join(RNG.choice(WORDS, RNG.integers(1, 7))) for _ in range(RNG.integers(1, 5))]
    return ", ".join(clauses) + "."


def address():
    parts = [f"{RNG.integers(1, 90)} {town()} St", *[f"Apt {RNG.integers(1, 9)}"] * RNG.integers(2), town()]
    return ", ".join([*parts, RNG.choice(["AL", "AK", "NY"])])


def day():
    return f"{RNG.choice(['Jan', 'Feb', 'Mar'])} {RNG.integers(1, 29)}, {RNG.integers(1990, 2024)}"


def whole():
    return f"{int(RNG.lognormal(8, 4)):,}"


def browser():
    system = RNG.choice(["Windows NT 10.0; Win64; x64", "X11; Linux x86_64", "iPhone; CPU like Mac OS X"])
    return f"Mozilla/5.0 ({system}) AppleWebKit/{RNG.integers(500, 540)}.36 (KHTML, like Gecko)"


LISTS = {
    "films": (lists(GENRES, ", ", in_order=True), ", "),
    "no_blanks": (lists(GENRES, ","), ","),
    "semicolons": (lists(GENRES, ";"), ";"),
    "semicolons_and_blanks": (lists(GENRES, "; ", in_order=True), "; "),
    "bars_between_blanks": (lists(GENRES, " | "), " | "),
    "commas_of_chinese": (lists(GENRES, "、"), "、"),
    "segments": (lists(range(10_000, 10_050), ",", most=9), ","),
    "small_ids": (lists(range(30), ",", most=6), ","),
}
TEXTS = {
    "prose": some(prose),
    "prose_of_items": [*map(str, some(prose)[:20])] * (ROWS // 20),
    "address": some(address),
    "town_and_state": some(lambda: f"{town()}, {RNG.choice(['AL', 'NY', 'TX'])}"),
    "place": some(town, lambda: f"{town()}, UK", lambda: f"{town()}, USA", "UK", "USA", "London, UK"),
    "person": some(lambda: f"{town()}, {RNG.choice(['Ann', 'Ben'])}", lambda: f"{town()}, Cy, Jr.", "Ann", "Ben"),
    "birthday": some(day),
    "day_of_week": some(lambda: f"Monday, {day()}", day),
    "thousands": some(whole),
    "rounded": some(lambda: ",".join(RNG.choice(["100", "250", "500", "750"], RNG.integers(1, 5)))),
    "money": some(lambda: f"${whole()}"),
    "decimals": some(lambda: f"{RNG.integers(0, 100) / 10:g}".replace(".", ",")),
    "coordinates": some(lambda: f"{RNG.uniform(-90, 90):.1f}, {RNG.uniform(-180, 180):.1f}"),
    "vector": some(lambda: ",".join(map(str, RNG.integers(0, 9, 4)))),
    "route": some(lambda: f"{town()}; {town()}"),
    "json": some(lambda: json.dumps({"a": int(RNG.integers(5)), "b": town()})),
    "browser": some(browser),
    "company": some(town, lambda: f"{town()}, Inc.", lambda: f"{town()}, Co., Ltd."),
    "shelf": some("Books", lambda: f"Books, {town()}", lambda: f"Toys, {town()}", "Toys"),
    "answer": some("Yes, I agree", "No, thanks", "Maybe", "Maybe, later"),
    "weighted": some(lambda: f"red:{RNG.random():.2f}", lambda: f"red:{RNG.random():.2f};blue:{RNG.random():.2f}"),
    "product": some(
        lambda: f"Shirt {RNG.integers(99)}, {RNG.choice(['Red', 'Blue'])}", lambda: f"Cap {RNG.integers(99)}"
    ),
}


def written(path, columns):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([tuple(columns), *zip(*columns.values())])
    return sample_file(path)


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_a_table_are_seen_by_what_they_hold(name, tmp_path):
    texts, separator = LISTS[name]
    guess = guess_table(written(tmp_path / "e.csv", clicks(**{name: texts})))
    found = [field for field in guess.schema["fields"] if field["name"] == name]
    assert found == [{"name": name, "type": "multi_value", "separator": separator}]
    store = TabularStore.build(table_source(tmp_path / "e.csv", **guess.options()))
    known = store.processor.state.vocabularies[name].values.to_pylist()
    assert {*map(str, known)} == {part for text in texts for part in text.split(separator)}


@pytest.mark.parametrize("name", TEXTS)
def test_other_texts_with_commas_and_semicolons_are_no_lists(name, tmp_path):
    guess = guess_table(written(tmp_path / "e.csv", clicks(**{name: TEXTS[name]})))
    assert not [entry.why for entry in guess.guesses if entry.column == name and "lists" in entry.why]


def test_lists_of_a_log_and_of_a_column_that_is_called_so(tmp_path):
    """Blanks behind the commas are no part of the words."""
    columns = table(
        genres=lists(GENRES[:5], ", "), mood=lists(["sad", "glad", "mad", "bad", "calm", "odd"], ", ", most=6)
    )
    path = tmp_path / "e.tsv"
    guess, log = guessed(path, columns, "\t")
    context = guess.schema["columns"]["context"]
    assert context == {name: {"column": name, "separator": ", "} for name in ("genres", "mood")}
    words = {word for words in log.context["mood"].to_pylist() for word in words}
    assert words == {"sad", "glad", "mad", "bad", "calm", "odd"}


def test_vectors_are_no_lists_of_categories(tmp_path):
    """Numbers with places behind the point; whole ones may be, whatever their type and length."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 9, 2 * ROWS)
    columns = {
        "vector": pa.array(rng.random((ROWS, 3)).tolist(), pa.list_(pa.float32(), 3)),
        "vectors": pa.array(rng.random((ROWS, 2)).tolist()),
        "codes": pa.FixedSizeListArray.from_arrays(pa.array(whole), 2),
        "floats": pa.array(whole.reshape(ROWS, 2).astype(float).tolist()),
    }
    for rows, guess_of in ((clicks(), guess_table), (table(), guess_log)):
        pq.write_table(pa.table(rows | columns), tmp_path / "e.parquet")
        guess = guess_of(sample_file(tmp_path / "e.parquet"))
        said = {entry.column: (entry.role, entry.why) for entry in guess.guesses}
        for name in ("vector", "vectors"):
            assert said[name][0] == "left out"
            assert said[name][1].startswith("vectors, which are no lists of categories; data.pretrained takes")
        assert said["codes"][1] == said["floats"][1] == "lists"
    log = load_log(tmp_path / "e.parquet", columns=guess.schema["columns"])
    assert log.context.column_names == ["codes", "floats"]
    assert context_names(guess.events.table.select(["codes", "floats"])) == []


def test_a_list_that_mostly_has_one_part_is_seen_by_its_name(tmp_path):
    """Most problems exercise one skill."""
    skills = [f"{n % 9}|{n % 7 + 2}" if n % 8 == 0 else f"{n % 9}" for n in range(ROWS)]
    for name, known in (
        ("skills", {"column": "skills", "separator": "|"}),
        ("kind", {"column": "kind", "type": "text"}),
    ):
        guess, _ = guessed(tmp_path / "e.csv", table(**{name: skills}))
        assert guess.schema["columns"]["context"][name] == known
