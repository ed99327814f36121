"""Numbers that texts write with a unit, groups of thousands or a decimal comma."""

import pyarrow as pa
import pytest

from lmctr.data import load_log
from lmctr.data.amounts import how_written, numbers_in
from lmctr.data.features.processor import TabularFeatureProcessor


@pytest.mark.parametrize(
    ("texts", "written", "numbers"),
    [
        (["$84,835.00", " -$1.5", "$-3", "$0"], {"thousands": ",", "unit": "$"}, [84835, -1.5, -3, 0]),
        (["$12", "$7.5"], {"unit": "$"}, [12, 7.5]),
        (["EUR 1.234,50", "EUR 7"], {"decimal": ",", "thousands": ".", "unit": "EUR"}, [1234.5, 7]),
        (["1.234.567,5 €", "12 €"], {"decimal": ",", "thousands": ".", "unit": "€"}, [1234567.5, 12]),
        (["77.1%", "3 %", "100%"], {"unit": "%"}, [77.1, 3, 100]),
        (["1,234", "56", "1,000,000"], {"thousands": ","}, [1234, 56, 1e6]),
        (["1,234", "11,25"], {"decimal": ","}, [1.234, 11.25]),
        (["1 234,5", "1\u202f234\u202f567,5", "8"], {"decimal": ",", "thousands": " "}, [1234.5, 1234567.5, 8]),
        (["1'234.5", "8"], {"thousands": "'"}, [1234.5, 8]),
        (["162 cm", "7 cm"], {"unit": "cm"}, [162, 7]),
        (["+5 km/h", "-5 km/h"], {"unit": "km/h"}, [5, -5]),
        (["12", "1.5", "2e3"], {}, [12, 1.5, 2000]),
        (["555 123 456", "555 987 654"], None, None),
        (["5 kg", "5 g"], None, None),
        (["1.5k", "2k"], {"unit": "k"}, [1.5, 2]),
        (["1.5k", "900"], None, None),  # 0.9k
        (["$5", "6"], {"unit": "$"}, [5, 6]),
        (["$5", "€5"], None, None),
        (["$5 USD"], None, None),
        (["item_1", "item_2"], None, None),
        (["1,23,456", "7"], None, None),
        (["12.05.2020", "13.05.2020"], None, None),
        (["10:15"], None, None),
        (["1.xml", "2.xml"], None, None),
        (["1-2", "3-4"], None, None),
        (["", "a"], None, None),
        ([], None, None),
    ],
)
def test_how_numbers_are_written(texts, written, numbers):
    texts = pa.array(texts, pa.string())
    assert how_written(texts) == written
    if written is not None:
        assert numbers_in(texts, **written).to_pylist() == pytest.approx(numbers)


def test_what_is_written_otherwise_is_no_number():
    texts = pa.array(
        ["1.5 kg", "1,5kg", "1.234,5 kg", "1,234.5 kg", "12.34,5 kg", "5 kg", "kg", "", None, "--5 kg", "1e3 kg", "5"]
    )
    found = numbers_in(texts, ",", ".", "kg").to_pylist()
    assert found == [None, 1.5, 1234.5, None, None, 5, None, None, None, None, 1000, None]


FIELDS = [
    {"name": "income", "type": "numeric", "thousands": ",", "unit": "$", "transform": "standardize"},
    {"name": "bin", "column": "income", "type": "numeric", "thousands": ",", "unit": "$", "transform": "quantile"},
]
ROWS = [{"income": f"${1000 + 37 * row % 4001:,.2f}", "label": row % 2} for row in range(200)]


def test_a_field_reads_amounts_as_the_numbers_they_are(tmp_path):
    """In fitting, of many rows and of one, from texts and from numbers, and after it was saved."""
    plain = [row | {"income": float(row["income"].replace("$", "").replace(",", ""))} for row in ROWS]
    without = [{key: value for key, value in field.items() if key not in ("thousands", "unit")} for field in FIELDS]
    one, other = TabularFeatureProcessor(FIELDS), TabularFeatureProcessor(without)
    table = pa.Table.from_pylist(ROWS)
    one.fit(table), other.fit(pa.Table.from_pylist(plain))
    one.save_pretrained(tmp_path)
    one = TabularFeatureProcessor.from_pretrained(tmp_path)
    expected = other(plain, return_tensors="np")
    for given in (ROWS, table, plain):
        found = one(given, return_tensors="np")
        for name in ("numeric_values", "input_ids"):
            assert (found[name] == expected[name]).all()
    assert (one(ROWS[3:4], return_tensors="np")["input_ids"] == expected["input_ids"][3:4]).all()
    assert (
        one([{"income": ""}], return_tensors="np")["input_ids"]
        == other([{"income": None}], return_tensors="np")["input_ids"]
    ).all()
    said = r"'income': 1 values are no numbers \(row 2: '€5'\). Accepted: numbers, and texts of them with thousands ',', unit '\$'\.$"
    with pytest.raises(ValueError, match=said):
        one([ROWS[0], {"income": "€5"}], return_tensors="np")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"decimal": ";"}, "decimal=';'; accepted"),
        ({"thousands": ".", "decimal": "."}, "thousands='.'; accepted: .* another sign than decimal"),
        ({"unit": "5"}, "unit='5'; accepted: a text such as"),
        ({"unit": "$", "extract": "days"}, "unit belongs to fields without extract"),
        ({"unit": "$", "type": "categorical"}, "unit"),
    ],
)
def test_signs_that_no_numbers_are_written_with(keys, said):
    field = {"name": "n", "type": "numeric"} | keys
    with pytest.raises(ValueError, match=f"field 'n'.*{said}|'n'.*{said}|{said}.*'n'"):
        TabularFeatureProcessor([field])


def test_a_point_between_thousands_goes_with_a_decimal_comma():
    field = {"name": "n", "type": "numeric", "decimal": ",", "thousands": "."}
    assert TabularFeatureProcessor([field]).fields[0].written == {"decimal": ",", "thousands": "."}


def test_a_log_reads_amounts_of_items_and_events(tmp_path):
    lines = [f'u{row % 7},i{row % 5},{1_600_000_000 + row},{row % 2},"{1000 + row},5 €"' for row in range(40)]
    (tmp_path / "e.csv").write_text("\n".join(["user,item,time,click,paid", *lines]))
    (tmp_path / "i.csv").write_text("\n".join(["item,price", *(f'i{row},"${row},000"' for row in range(1, 5)), "i0,"]))
    paid = {"column": "paid", "type": "number", "decimal": ",", "unit": "€"}
    columns = {"user": "user", "item": "item", "time": "time", "label": "click", "context": {"paid": paid}}
    price = {"column": "price", "type": "number", "thousands": ",", "unit": "$"}
    items = {"path": str(tmp_path / "i.csv"), "item": "item", "columns": {"price": price}}
    log = load_log(tmp_path / "e.csv", columns=columns, catalogue=items)
    assert sorted(log.context["paid"].to_pylist()) == [1000.5 + row for row in range(40)]
    prices = dict(zip(log.catalogue["item_id"].to_pylist(), log.catalogue["price"].to_pylist()))
    assert prices == {"i0": None, "i1": 1000, "i2": 2000, "i3": 3000, "i4": 4000}
    price["unit"] = "€"
    with pytest.raises(ValueError, match=r"'price': 4 of 5 values are no numbers \(row 1: '\$1,000'; .*unit '€'"):
        load_log(tmp_path / "e.csv", columns=columns, catalogue=items)
    del price["type"]
    with pytest.raises(ValueError, match="`thousands` says how numbers are written, and needs `type: number`"):
        load_log(tmp_path / "e.csv", columns=columns, catalogue=items)
