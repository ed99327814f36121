"""Lists that texts hold as pandas, JSON and databases write them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import ROWS, clicks, table, write

from lmctr.data import load_log
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.guess import guess_log, guess_table
from lmctr.data.texts import are_literals, literal_lists


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("['a', 'b']", ["a", "b"]),
        ('["a", "b, c"]', ["a", "b, c"]),
        ("{a,b}", ["a", "b"]),
        ('{"Action,War",Drama}', ["Action,War", "Drama"]),
        ("[1, 2]", ["1", "2"]),
        ("[1 2  3]", ["1", "2", "3"]),
        ("['New York' 'Paris']", ["New York", "Paris"]),
        ("[New York, Paris]", ["New York", "Paris"]),
        ("[u'a', u'b']", ["a", "b"]),
        ("[np.str_('a'), np.str_(\"Kids' TV\")]", ["a", "Kids' TV"]),
        ("[np.int64(3), np.int64(-4)]", ["3", "-4"]),
        (" [ ] ", []),
        ("{}", []),
        ("['', 'a']", ["", "a"]),
        ("['a', None, 'b']", ["a", "b"]),
        ("[None, 'a']", ["a"]),
        ("[null]", []),
        ("['a', 3]", ["a", "3"]),
        ("[3, 'a']", ["3", "a"]),
        (r'["Caf\u00e9"]', ["Café"]),
        (r"['it\'s', 'b']", ["it's", "b"]),
        ("""["Kids' TV", 'Drama']""", ["Kids' TV", "Drama"]),
        ("""[{'id': 28, 'name': 'Action'}, {'id': 1, 'name': "Kids' TV"}]""", ["Action", "Kids' TV"]),
        ('[{"id": 1, "name": "A, B"}]', ["A, B"]),
        (r'[{"id": 1, "name": "Caf\u00e9"}]', ["Café"]),
        ("{'a': 1}", None),
        ("['a", None),
        ("abc", None),
        (None, None),
    ],
)
def test_lists_are_read_as_they_are_written(text, entries):
    texts = pa.array(["['x']", text], pa.string())
    assert literal_lists(texts).to_pylist() == [["x"], entries]
    assert literal_lists(texts.cast(pa.large_string())).to_pylist() == [["x"], entries]


def test_python_and_json_agree_on_random_lists():
    draw = np.random.default_rng(0)
    signs = ["a", "B", " ", ",", "'", "é", "x y", "1", "|", "(", "\t", "\\", '"']
    lists = [
        ["".join(draw.choice(signs, draw.integers(1, 6))) for _ in range(draw.integers(0, 5))] for _ in range(500)
    ]
    apart = [own for own in lists if not any("', '" in one or '", "' in one for one in own)]
    for written in ([str(own) for own in apart], [json.dumps(own) for own in apart]):
        found = literal_lists(pa.array(written)).to_pylist()
        wrong = [(text, own) for text, own, such in zip(written, found, apart) if own != such]
        assert not wrong, wrong[:3]


def test_what_is_no_list_of_categories():
    assert are_literals(pa.array(["['a']", "['a', 'b']", "[]"]))
    for texts in (
        ["[0.1, 0.25]", "[0.1, 0.25]"],  # a vector
        ["{'a': 1}", "{'a': 1}"],  # an object
        ["[{'id': 3}]", "[{'id': 3}]"],  # objects without a name
        ["[[1, 2], [3]]", "[[1, 2], [3]]"],
        ["['a']", "b"],
        ["['a']", "['b']"],  # nothing comes again
        ["[]", "[]"],
        [],
    ):
        assert not are_literals(pa.array(texts, pa.string())), texts


KINDS = ["Action", "Drama", "Kids' TV", "War, Crime"]
LISTS = [[KINDS[place] for place in range(4) if row >> place & 1] for row in range(16)] * (ROWS // 16)
PYTHON = ['"' + str(own).replace('"', '""') + '"' for own in LISTS]


def test_a_table_with_lists_as_pandas_writes_them(tmp_path):
    path = tmp_path / "e.csv"
    guess = guess_table(write(path, clicks(kinds=PYTHON)))
    assert {found.column: found.why for found in guess.guesses}["kinds"] == "lists"
    field = next(field for field in guess.schema["fields"] if field["name"] == "kinds")
    assert field == {"name": "kinds", "type": "multi_value", "parse": "literal"}
    rows, lists = [{"kinds": str(own)} for own in LISTS[:16]], [{"kinds": own} for own in LISTS[:16]]
    processor = TabularFeatureProcessor([field], label=None).fit(pa.Table.from_pylist(rows))
    assert sorted(processor.state.vocabularies["kinds"].values.to_pylist()) == sorted(KINDS)
    expected = processor(lists, return_tensors="np")["sequence_ids"]
    assert expected.any()
    assert (processor(rows, return_tensors="np")["sequence_ids"] == expected).all()
    assert (processor(rows[5:6], return_tensors="np")["sequence_ids"] == expected[5:6]).all()
    said = r"'kinds': 1 values are no lists \(row 2: 'Drama'\)\. Accepted: texts such as \['a', 'b'\]"
    with pytest.raises(ValueError, match=said):
        processor([rows[0], {"kinds": "Drama"}], return_tensors="np")
    with pytest.raises(ValueError, match=r"field 'kinds': parse='literal' takes the place of separator"):
        TabularFeatureProcessor([field | {"separator": "|"}])
    with pytest.raises(ValueError, match=r"field 'kinds': parse='json'; accepted: 'words', 'literal'"):
        TabularFeatureProcessor([field | {"parse": "json"}])


def test_a_column_of_lists_is_parsed_once_for_a_guess(tmp_path, monkeypatch):
    """Whether it names the item, the user, or rows, and what it is: each asks whether it holds lists."""
    parsed = []
    monkeypatch.setattr("lmctr.data.texts.literal_lists", lambda texts: parsed.append(1) or literal_lists(texts))
    events = {f"nameless{name}" if name == "item_id" else name: own for name, own in table(shown=PYTHON).items()}
    guess = guess_log(write(tmp_path / "e.csv", events))
    assert (guess.schema["columns"]["item"], len(parsed)) == ("namelessitem_id", 1)


def test_a_log_with_lists_as_pandas_writes_them(tmp_path):
    """Of its items and of its events, however many different ones."""
    items = {"item_id": list(range(120)), "kinds": PYTHON[:120]}
    events = table(shown=PYTHON)
    guess = guess_log(write(tmp_path / "e.csv", events), write(tmp_path / "i.csv", items))
    assert guess.schema["catalogue"]["columns"]["kinds"] == {"column": "kinds", "parse": "literal"}
    assert guess.schema["columns"]["context"]["shown"] == {"column": "shown", "parse": "literal"}
    assert "kinds" in guess.item_categories
    log = load_log(tmp_path / "e.csv", **guess.options())
    found = dict(zip(log.catalogue["item_id"].to_pylist(), log.catalogue["kinds"].to_pylist()))
    assert found == {row: LISTS[row] for row in range(120)}
    lists = pa.table({"item_id": list(range(120)), "kinds": LISTS[:120]})
    pq.write_table(lists, tmp_path / "i.parquet")  # a file that has lists is read as it is
    options = guess.options()
    options["catalogue"] = {**options["catalogue"], "path": str(tmp_path / "i.parquet")}
    assert load_log(tmp_path / "e.csv", **options).catalogue["kinds"].to_pylist() == log.catalogue["kinds"].to_pylist()
    (tmp_path / "i.csv").write_text("item_id,kinds\n" + "\n".join(f"{row},Drama" for row in range(120)))
    with pytest.raises(ValueError, match=r"'kinds': 120 of 120 values are no lists \(row 1: 'Drama'"):
        load_log(tmp_path / "e.csv", **guess.options())
