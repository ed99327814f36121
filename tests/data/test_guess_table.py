"""What `lmctr init` takes columns of a table for."""

from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import ROWS, clicks, table, write

from lmctr.data import load_log, load_tabular
from lmctr.data.features.columns import label_columns_of
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.times import seconds_of
from lmctr.data.guess import NoLogError, guess_files, guess_log, guess_table, sample_file
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore


def test_words_for_bounds_that_are_none(tmp_path):
    file = write(
        tmp_path / "e.csv", {"plays": [place % 40 for place in range(ROWS)], "size": ["big", "small"] * (ROWS // 2)}
    )
    with pytest.raises(ValueError, match="--label plays>many: expected a number after >, got 'many'"):
        guess_table(file, {"label": "plays>many"})
    with pytest.raises(ValueError, match=r"--label size: expected 0 and 1, .* the column holds 'big', 'small'"):
        guess_table(file, {"label": "size>3"})
    file = write(tmp_path / "e.csv", {"plays": range(ROWS), "size": [None] * ROWS})
    with pytest.raises(ValueError, match=r"--label size: no row has a value there; name another column$"):
        guess_table(file, {"label": "size"})


@pytest.mark.parametrize("kind", ["table", "log"])
def test_weights_that_are_stated(tmp_path, kind):
    given, weights = {"weight": "w"}, [1 + place % 3 for place in range(ROWS)]
    columns = (clicks if kind == "table" else table)(w=weights, sample_weight=weights[::-1])
    file = write(tmp_path / "e.csv", columns)
    if kind == "table":
        guess = guess_table(file, given)
        source = load_tabular(tmp_path / "e.csv", **guess.options())
        found = TabularStore.build(source).weight
        assert not any(field["name"].startswith("w") for field in guess.schema["fields"])
    else:
        guess = guess_log(file, given=given)
        found = load_log(tmp_path / "e.csv", **guess.options()).weight
    assert [(entry.column, entry.why) for entry in guess.guesses if entry.role == "weight"] == [("w", "as stated")]
    assert sorted(found.tolist()) == sorted(weights)
    with pytest.raises(ValueError, match=r"--weight: .* no column 'x'"):
        guess_files(tmp_path / "e.csv", given={"weight": "x"}, kind=kind)


def test_grades_of_a_table(tmp_path):
    columns = {"user": [place % 50 for place in range(ROWS)], "book": [place % 7 for place in range(ROWS)]}
    columns |= {"is_read": [place % 2 for place in range(ROWS)], "rating": [1 + place % 10 for place in range(ROWS)]}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "rating", "at_least": 5.5}
    assert "rating" not in {entry.get("column", entry["name"]) for entry in guess.schema["fields"]}
    table = pa.concat_tables(rows.table for rows in load_tabular(tmp_path / "e.csv", **guess.options()).rows())
    assert table["rating"].to_pylist()[:6] == [0, 0, 0, 0, 0, 1]
    assert guess_table(write(tmp_path / "f.csv", columns), {"label": "is_read"}).schema["label"] == "is_read"
    ends = columns | {"gone": columns["is_read"]}  # where labels often stand
    assert guess_table(write(tmp_path / "h.csv", ends)).schema["label"] == "gone"
    assert guess_table(write(tmp_path / "g.csv", columns), {"label": "book"}).schema["label"]["at_least"] == 3


def test_grades_of_which_most_are_the_middle_one_and_others_given_with_them(tmp_path):
    """Of 0, 1 and 2 the click is 2, where more are about half; a grade of the food tells that of the place, the place's stars of a guide do not.
    Of stars that are four or five nearly always, the click is five."""
    grades, food = ([[0, 1, 2, 2, 1][row % size] for row in range(ROWS)] for size in (5, 4))
    columns = {"user": [row % 50 for row in range(ROWS)], "size": food, "rating": grades, "food_rating": food}
    stars = {"kind": list("abcd") * (ROWS // 4), "stars": [*[5] * 12, *[4] * 7, 1] * (ROWS // 20)}
    assert guess_table(write(tmp_path / "s.csv", stars)).schema["label"] == {"column": "stars", "at_least": 5}
    columns |= {"rating_of_guide": [3.5, 4.5, 2.5, 1.5] * (ROWS // 4)}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "rating", "greater_than": 1}
    assert {field.get("column", field["name"]) for field in guess.schema["fields"]} == {
        "user",
        "size",
        "rating_of_guide",
    }
    assert (
        next(entry.why for entry in guess.guesses if entry.column == "food_rating")
        == "other grades than rating, given with it"
    )
    log = guess_log(write(tmp_path / "f.csv", table(click=None, rating=grades, food_rating=food)))
    assert "context" not in log.schema["columns"]


def test_the_only_numbers_beside_ids_are_grades(tmp_path):
    columns = {"User_ID": [row % 50 for row in range(ROWS)], "Game_ID": [row % 7 for row in range(ROWS)]}
    hours = {"Hours": [0.5 + row % 40 for row in range(ROWS)]}
    guess = guess_table(write(tmp_path / "e.csv", columns | hours))
    assert guess.schema["label"] == {"column": "Hours", "at_least": 20.0}
    assert [entry.why[:28] for entry in guess.guesses if not entry.sure] == ["the only numbers beside ids:"]
    for name, more in (("f", {"price": hours["Hours"]}), ("g", {"place": ["a", "b"] * (ROWS // 2)})):
        with pytest.raises(ValueError, match="no column looks like the label"):
            guess_table(write(tmp_path / f"{name}.csv", columns | hours | more | {"kind": list("abcd") * (ROWS // 4)}))


def test_a_table_of_clicks(tmp_path):
    rows, of_64_bits = ([10**19 + 10**6 * (row % count) for row in range(ROWS)] for count in (ROWS, 9))
    columns = clicks(converted=[0, 1] * (ROWS // 2), id=rows, CLIENTNUM=rows, advertiser_id=of_64_bits)
    sample = write(tmp_path / "e.csv", columns, ";")
    with pytest.raises(NoLogError, match="like the time"):
        guess_log(sample)
    guess = guess_table(sample)
    schema = dict(guess.schema)
    assert schema.pop("events") == {"path": str(tmp_path / "e.csv"), "delimiter": ";"}
    assert schema.pop("label") == "clicked"
    fields = {field["name"]: {key: field[key] for key in field if key != "name"} for field in schema.pop("fields")}
    assert schema == {}
    codes = {"type": "categorical", "min_count": 2, "value_type": "integer"}
    bins = {"type": "numeric", "transform": "quantile", "num_bins": 32, "missing": "own_id"}
    assert fields == {
        "visits": codes,
        "visits_number": {"column": "visits", "type": "numeric", "before": "log1p", "transform": "standardize"},
        "visits_bin": bins | {"column": "visits"},
        "price": {"type": "numeric", "transform": "standardize"},
        "price_bin": bins | {"column": "price"},
        "site_id": codes,
        "slot": codes,
        "slot_number": {"column": "slot", "type": "numeric", "before": "log1p", "transform": "standardize"},
        "browser": codes | {"value_type": "text"},
        "topics": {"type": "multi_value", "separator": "|"},
        "advertiser_id": codes | {"value_type": "text"},
    }
    left = {entry.column: entry.why for entry in guess.guesses if entry.role == "left out"}
    assert left == {
        "same": "one value only",
        "converted": "another reaction: told later than the label",
        "id": "another value on (almost) every row",
        "CLIENTNUM": "another value on (almost) every row",
    }
    source = table_source(tmp_path / "e.csv", guess.schema["label"], guess.schema["fields"], delimiter=";")
    assert [field["name"] for field in source.fields] == [field["name"] for field in guess.schema["fields"]]


def test_the_time_and_the_users_of_a_table(tmp_path):
    times = list(range(1_700_000_000, 1_700_000_000 + ROWS))
    users = [row % 40 for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(ts=times, user_id=users)))
    assert (guess.schema["time"], guess.schema["group"]) == ("ts", "user_id")
    names = [field["name"] for field in guess.schema["fields"]]
    assert "ts" not in names
    assert "user_id" in names


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ({"clicked": ["many", "few"] * (ROWS // 2)}, {}, r"like the label \(0 and 1, yes and no, or numbers.*--label"),
        ({}, {"label": "browser"}, r"--label browser: .* holds ('\w+', ){2}'\w+'; .*--label browser=VALUE"),
        (
            {"clicked": ["<=50K", ">50K"] * (ROWS // 2)},
            {"label": "clicked"},
            r"whose upper half are clicks; the column .* is a click: --label 'clicked=<=50K' or --label 'clicked=>50K'$",
        ),
        ({}, {"label": "browser=cat"}, r"--label browser=cat: no row has that value; the column holds '"),
        (
            {},
            {"label": "brewser=owl"},
            r"--label: .* has no column 'brewser=owl'; did you mean 'browser'\? its columns: ",
        ),
        ({}, {"time": "slot"}, "--time slot: holds no times"),
    ],
)
def test_errors_of_tables(tmp_path, columns, given, says):
    with pytest.raises(ValueError, match=says):
        guess_table(write(tmp_path / "e.csv", clicks(**columns)), given)


@pytest.mark.parametrize(
    ("words", "given", "rule"),
    [
        (["yes", "no"], {}, {"column": "clicked", "equals": "yes", "otherwise": "no"}),
        (["True", "False"], {}, "clicked"),
        (["Canceled", "Not_Canceled"], {}, {"column": "clicked", "equals": "Canceled", "otherwise": "Not_Canceled"}),
        (
            ["Attrited Customer", "Existing Customer"],
            {},
            {"column": "clicked", "equals": "Attrited Customer", "otherwise": "Existing Customer"},
        ),
        (["many", "few"], {"label": "clicked=few"}, {"column": "clicked", "equals": "few"}),
        ([1, 2], {"label": "clicked=2"}, {"column": "clicked", "equals": 2}),
        ([1, 0], {"label": "clicked=0"}, {"column": "clicked", "equals": 0}),
    ],
)
def test_labels_of_a_table_in_words(tmp_path, words, given, rule):
    """The rule that the guess writes gives the labels; another column of yes and no is a field."""
    yes = words[1 if given else 0]
    columns = clicks(clicked=words * (ROWS // 2), member=["no", "yes", "no", "no", "no"] * (ROWS // 5))
    guess = guess_table(write(tmp_path / "e.csv", columns), given)
    assert guess.schema["label"] == rule
    assert "member" in [field["name"] for field in guess.schema["fields"]]
    source = table_source(tmp_path / "e.csv", guess.schema["label"], guess.schema["fields"])
    labels = np.concatenate([label_columns_of(rows, ["clicked"]) for rows in source.rows({"clicked": "number"})])
    assert labels.tolist() == [float(word == yes) for word in columns["clicked"]]
    kept = np.concatenate([rows.table["clicked"].to_numpy() for rows in source.rows()])  # all columns
    assert kept.astype(float).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("values", "types"),
    [
        (lambda rng: rng.integers(0, 60, ROWS), ["categorical", "numeric", "numeric"]),  # codes, or counts
        (lambda rng: rng.integers(0, 15, ROWS), ["categorical", "numeric"]),  # few: ages, stars, or codes
        (lambda rng: rng.integers(1, 3, ROWS), ["categorical"]),
        (lambda rng: rng.integers(10**6, 10**9, ROWS // 8).repeat(8), ["categorical", "numeric", "numeric"]),
        (lambda rng: rng.integers(0, 10**6, ROWS), ["numeric", "numeric"]),  # hardly met again
        (lambda rng: rng.normal(size=ROWS), ["numeric", "numeric"]),
    ],
)
def test_what_numbers_are_read_as(tmp_path, values, types):
    guess = guess_table(write(tmp_path / "e.csv", clicks(amount=values(np.random.default_rng(3)))))
    found = [field for field in guess.schema["fields"] if field.get("column", field["name"]) == "amount"]
    assert [field["type"] for field in found] == types


def test_things_that_are_named_are_codes_only(tmp_path):
    brands = np.random.default_rng(3).integers(10**6, 10**9, ROWS // 8).repeat(8)
    guess = guess_table(write(tmp_path / "e.csv", clicks(ad_brand=brands, worth=brands, app=brands, user_ip=brands)))
    types = [(field.get("column", field["name"]), field["type"]) for field in guess.schema["fields"]]
    assert [kind for name, kind in types if name in ("ad_brand", "app", "user_ip")] == ["categorical"] * 3
    assert [kind for name, kind in types if name == "worth"] == ["categorical", "numeric", "numeric"]


def test_fields_have_names_that_no_column_has(tmp_path):
    columns = clicks(price_bin=list("ab") * (ROWS // 2), visits_number=list("cd") * (ROWS // 2))
    names = [field["name"] for field in guess_table(write(tmp_path / "e.csv", columns)).schema["fields"]]
    assert len(names) == len(set(names))
    assert {"price_bin", "price_bin_", "visits_number", "visits_number_"} <= {*names}


def test_counts_of_many_sizes_are_numbers_and_names_without_gaps_are_codes_too(tmp_path):
    rng = np.random.default_rng(4)
    rows = {"counts": np.floor(rng.exponential(150, 6000)), "names": rng.integers(0, 300, 6000)}
    columns = {"clicked": rng.integers(0, 2, 6000), **{name: values.astype(int) for name, values in rows.items()}}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    found = [(field["name"], field["type"]) for field in guess.schema["fields"]]
    numbers = [("names_number", "numeric"), ("names_bin", "numeric")]
    assert found == [("counts", "numeric"), ("counts_bin", "numeric"), ("names", "categorical"), *numbers]


def test_the_last_column_may_be_the_label_and_the_users_come_again(tmp_path):
    """Among several columns of two values none of which has a label's name; a kind of visitor is no user, nor an id that never comes again."""
    words = ["no", "yes", "no", "no"] * (ROWS // 4)
    columns = {"weekend": [0, 1] * (ROWS // 2), "member": words, "visitor_type": list("ab") * (ROWS // 2)}
    days = [
        f"{1 + row % 28}{'/' if row % 28 < 12 else '-'}{1 + row % 7}{'/' if row % 28 < 12 else '-'}2013"
        for row in range(ROWS)
    ]
    columns |= {"account_length": [row % 90 for row in range(ROWS)], "dt_customer": days}
    columns |= {
        "customer_id": [f"c{row}" for row in range(ROWS)],
        "insured": ["no", "no", "no", "yes", "no"] * (ROWS // 5),
    }
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "insured", "equals": "yes", "otherwise": "no"}
    assert "group" not in guess.schema
    assert next(entry.why for entry in guess.guesses if entry.column == "dt_customer").endswith(
        "; dates, but written in more than one way: '1/1/2013', '13-6-2013'"
    )
    assert not next(entry for entry in guess.guesses if entry.role == "label").sure
    columns_of_numbers = {"equals": [0, 1] * (ROWS // 2), "member": columns["insured"]}
    assert guess_table(write(tmp_path / "h.csv", columns_of_numbers), {"label": "equals"}).schema["label"] == "equals"
    blanks = {f" {name}": values for name, values in columns.items()}
    stated = guess_table(write(tmp_path / "f.csv", blanks), {"label": "member=no"})
    assert stated.schema["label"] == {"column": " member", "equals": "no"}
    with pytest.raises(ValueError, match=r"like the label \(0 and 1, yes and no, or numbers.*--label"):
        guess_table(write(tmp_path / "g.csv", columns | {"note": list("abcd") * (ROWS // 4)}))


@pytest.mark.parametrize("missing", ["?", " "])
def test_numbers_of_a_table_as_spreadsheets_write_them(tmp_path, missing):
    price = ["3,5", missing, "1,2E+01", "7,25"] * (ROWS // 4)
    guess = guess_table(write(tmp_path / "e.csv", clicks(price=price, browser=["owl", missing] * (ROWS // 2)), ";"))
    reading = {"path": "", "delimiter": ";", "decimal": ",", "na_values": [missing]}
    assert guess.schema["events"] | {"path": ""} == reading
    found = {field["name"]: field["type"] for field in guess.schema["fields"]}
    assert found["price"] == "numeric"
    source = load_tabular(tmp_path / "e.csv", **guess.options())
    (rows,) = source.rows({"price": "number", "browser": "text"})
    assert rows.table.to_pydict() == {
        "price": [3.5, None, 12.0, 7.25] * (ROWS // 4),
        "browser": ["owl", None] * (ROWS // 2),
    }


def test_small_numbers_beside_words_for_missing_ones(tmp_path):
    rate = ["2.5e-05", "?", "0.1", "+3"] * (ROWS // 4)
    fields = guess_table(write(tmp_path / "e.csv", clicks(rate=rate))).schema["fields"]
    assert next(field["type"] for field in fields if field["name"] == "rate") == "numeric"


@pytest.mark.parametrize(("unit", "per_second"), [("ms", 1000), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("given", [{}, {"time": "timestamp"}])
def test_the_unit_of_a_tables_times(tmp_path, unit, per_second, given):
    times = [(1_700_000_000 + row) * per_second + per_second - 1 for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(timestamp=times)), given)
    assert (guess.schema["time"], guess.schema["time_format"]) == ("timestamp", unit)
    assert "timestamp" not in [field["name"] for field in guess.schema["fields"]]
    (rows,) = table_source(tmp_path / "e.csv", **guess.options()).rows()
    assert seconds_of(rows, "timestamp", unit).tolist() == list(range(1_700_000_000, 1_700_000_000 + ROWS))


def test_rows_of_people_are_not_parted_by_their_birth_dates(tmp_path):
    rng = np.random.default_rng(2)
    births = [f"19{year:02d}-03-01" for year in rng.integers(50, 99, ROWS)]
    assert "time" not in guess_table(write(tmp_path / "e.csv", clicks(birth_date=births))).schema
    assert guess_table(write(tmp_path / "f.csv", clicks(order_date=sorted(births)))).schema["time"] == "order_date"
    assert (
        guess_table(write(tmp_path / "g.csv", clicks(birth_date=births)), {"time": "birth_date"}).schema["time"]
        == "birth_date"
    )


def test_rows_in_the_order_of_a_time_of_any_name_are_parted_by_it(tmp_path):
    """In the order of the times, which that of their texts is not."""
    start = datetime(2023, 11, 14)
    times = [f"{start + timedelta(hours=7 * row):%d.%m.%Y %H:%M}" for row in range(ROWS)]
    schema = guess_table(write(tmp_path / "e.csv", clicks(tijdstip=times))).schema
    assert (schema["time"], schema["time_format"]) == ("tijdstip", "%d.%m.%Y %H:%M")
    mixed = np.random.default_rng(0).permutation(times).tolist()
    assert "time" not in guess_table(write(tmp_path / "f.csv", clicks(tijdstip=mixed))).schema
    for per_second, keys in ((1, {}), (1000, {"time_format": "ms"})):
        seconds = [(1_600_000_000 + 400 * row + row % 7) * per_second for row in range(ROWS)]
        schema = guess_table(write(tmp_path / "g.csv", clicks(tijdstip=seconds))).schema
        assert {key: schema[key] for key in ("time", "time_format") if key in schema} == {"time": "tijdstip"} | keys
        mixed = np.random.default_rng(0).permutation(seconds).tolist()
        guess = guess_table(write(tmp_path / "h.csv", clicks(tijdstip=mixed)))
        assert "time" not in guess.schema
        (found,) = (found for found in guess.guesses if found.column == "tijdstip")
        assert found.why == "numbers; perhaps times: --time tijdstip parts the rows by them"
        assert not found.sure
    for ids in ([1_600_000_000 + row for row in range(ROWS)], [1_600_000_000 + 3 * row for row in range(ROWS)]):
        assert "time" not in guess_table(write(tmp_path / "i.csv", clicks(zahl=ids))).schema  # less than a day


@pytest.mark.parametrize(
    ("name", "values", "yes"),
    [
        ("Recommended IND", [0, 1], 1),
        ("isFraud", [0, 1], 1),
        ("success_flag", [0, 1], 1),
        ("Output", ["No", "Yes"], "Yes"),
        ("Status", ["N", "Y"], "Y"),
        ("deal_stage", ["Lost", "Won"], "Won"),
        ("loan", ["Rejected", "Approved"], "Approved"),
        ("transaction", ["legit", "fraud"], "fraud"),
        ("Churn?", ["False.", "True."], "True."),
    ],
)
def test_outcomes_by_their_names_and_values(tmp_path, name, values, yes):
    """Before other columns of two values, the last one and one of an earlier outcome among them."""
    draw = np.random.default_rng(5)
    words = np.array(values, dtype=object)[(draw.random(ROWS) < 0.3).astype(int)]
    before = draw.choice(["success", "failure"], ROWS)
    columns = {"age": draw.integers(18, 70, ROWS), "previous_outcome": before, name: words}
    columns |= {"member": draw.choice(["no", "yes"], ROWS), "income": draw.normal(size=ROWS)}
    columns |= {"smoker": draw.integers(0, 2, ROWS)}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    rule = name if values == [0, 1] else {"column": name, "equals": yes, "otherwise": values[0]}
    assert guess.schema["label"] == rule
    found = {field.get("column", field["name"]) for field in guess.schema["fields"]}
    assert found == {*columns} - {name}


def test_a_rating_that_tells_whether_its_user_recommends_is_no_field(tmp_path):
    draw = np.random.default_rng(5)
    rating = draw.integers(1, 6, ROWS)
    columns = {
        "age": draw.integers(18, 70, ROWS),
        "rating": rating,
        "recommended": (rating > 3) ^ (draw.random(ROWS) < 0.02),
    }
    columns = {name: own.astype(int) for name, own in columns.items()} | {"division": draw.choice(["a", "b"], ROWS)}
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == "recommended"
    assert {field.get("column", field["name"]) for field in guess.schema["fields"]} == {"age", "division"}


def test_everyday_words_are_no_sure_labels(tmp_path):
    bits, others = ([row % size % 2 for row in range(ROWS)] for size in (3, 5))
    for word in ("treatment", "is_control"):  # the arms of an experiment
        with pytest.raises(ValueError, match=f"no column looks like the label .*of two values: '{word}'"):
            guess_table(write(tmp_path / "j.csv", {"spent": [row % 30 for row in range(ROWS)], word: bits}))
        assert guess_table(sample_file(tmp_path / "j.csv"), {"label": word}).schema["label"] == word
    for word in ("Exited", "Attrition", "is_canceled", "has churned", "Attrition_Flag"):  # of no other meaning
        guess = guess_table(write(tmp_path / "i.csv", {"is_new": others, word: bits, "is_member": others}))
        assert guess.schema["label"] == word
        assert next(found for found in guess.guesses if found.role == "label").sure
    for name, word in (("e", "share"), ("f", "click_position"), ("g", "bought_last_week")):
        columns = {"amount": list(range(ROWS)), word: bits, "is_rural": others}
        guess = guess_table(write(tmp_path / f"{name}.csv", columns))
        assert guess.schema["label"] == "is_rural"
        assert word in [field["name"] for field in guess.schema["fields"]]
        assert not next(found for found in guess.guesses if found.role == "label").sure
    columns = {
        "ad_click": bits,
        "share": others,
        "size": [2, 3, 5, 7] * (ROWS // 4),
        "is_new": bits,
        "previous_click": others,
    }
    guess = guess_table(write(tmp_path / "h.csv", columns))
    assert guess.schema["label"] == "ad_click"
    names = [field["name"] for field in guess.schema["fields"]]
    assert "share" not in names  # another reaction
    assert "previous_click" in names
    guess = guess_table(write(tmp_path / "k.csv", columns | {"auction_won": others}))
    assert "auction_won" not in [
        field["name"] for field in guess.schema["fields"]
    ]  # of a bid, told as late as a click


def test_a_label_of_words_that_is_empty_is_not_known(tmp_path):
    """An empty cell of a text file is no 'no'."""
    columns = clicks(clicked=["yes", "no", "yes", ""] * (ROWS // 4), member=["a", "b"] * (ROWS // 2))
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert guess.schema["label"] == {"column": "clicked", "equals": "yes", "otherwise": "no", "missing": "drop"}
    says = next(entry.why for entry in guess.guesses if entry.role == "label")
    assert says == f"two values, 'yes' in 66.7% of the rows; {ROWS // 4} rows without a value are left out"
    options = guess.options() | {"fields": [{"name": "slot", "type": "categorical"}]}
    source = table_source(tmp_path / "e.csv", **options)
    assert source.info.label_rule == "clicked = yes, rows without it left out"
    (rows,) = source.rows({"slot": "number"})  # also where the label is not read
    assert rows.numbers.tolist() == [row + 1 for row in range(ROWS) if row % 4 != 3]
    assert TabularStore.build(source).labels.ravel().tolist() == [1, 0, 1] * (ROWS // 4)
    del options["label"]["missing"]
    with pytest.raises(ValueError, match=r"'clicked': \d+ values are missing .*column: clicked, missing: drop"):
        TabularStore.build(table_source(tmp_path / "e.csv", **options))
    rules = [{"column": "clicked", "equals": "yes"}, {"column": "member", "in": ["a"]}]
    fields = [field for field in guess.schema["fields"] if field["name"] not in ("member", "clicked")]
    source = table_source(tmp_path / "e.csv", labels=rules, fields=fields)
    (rows,) = source.rows()
    assert label_columns_of(rows, ["clicked", "member"])[:4].tolist() == [[1, 1], [0, 0], [1, 1], [-100, 0]]


def test_columns_that_number_the_rows_are_left_out(tmp_path):
    columns = {"": list(range(ROWS)), "RowNumber": list(range(1, ROWS + 1)), **clicks()}
    columns["Row"] = np.random.default_rng(0).permutation(ROWS)  # of rows that were mixed since
    guess = guess_table(write(tmp_path / "e.csv", columns))
    assert {"", "RowNumber", "Row"}.isdisjoint(field["name"] for field in guess.schema["fields"])
    TabularStore.build(table_source(tmp_path / "e.csv", **guess.options()))


def test_the_index_that_pandas_wrote_is_left_out_and_said_to_be(tmp_path):
    mixed = np.random.default_rng(0).permutation(ROWS).tolist()
    guess = guess_table(write(tmp_path / "e.csv", {"": mixed, **clicks()}))
    assert "has no name, as an index that pandas wrote" in "".join(guess.lines())
    items = write(
        tmp_path / "i.csv", {"": range(30), "item_id": range(30), "kind": [place % 4 for place in range(30)]}
    )
    events = write(tmp_path / "log.csv", {"": mixed, **table()})
    log = guess_log(events, items)
    assert log.schema["catalogue"]["columns"] == {"kind": {"column": "kind", "type": "integer"}}
    assert [entry.role for entry in log.guesses if not entry.column] == ["left out", "items left out"]
    source = table_source(tmp_path / "e.csv", "clicked")
    assert "" not in {field["name"] for field in source.fields}
    assert source.info.notes == "Column 1, which has no name and numbers the rows, is left out."
    TabularStore.build(source)


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        (lambda: {"": [row % 9 for row in range(ROWS)], **clicks()}, 1),
        (lambda: {"": [f"row{row}" for row in range(ROWS)], **clicks()}, 1),
        (lambda: {"clicked": clicks()["clicked"], " ": list(range(ROWS)), "slot": clicks()["slot"]}, 2),
    ],
)
def test_another_column_without_a_name_is_named_by_its_place(columns, place, tmp_path):
    path = tmp_path / "e.csv"
    write(path, columns())
    with pytest.raises(ValueError, match=rf"{path}: column {place} has no name; write one into the line of names"):
        table_source(path, "clicked")


def test_what_is_called_a_time_and_is_none_is_said(tmp_path):
    guess = guess_table(write(tmp_path / "e.csv", clicks(date=["noon", "later"] * (ROWS // 2))))
    assert "called like a time" in {found.column: found.why for found in guess.guesses}["date"]


def test_numbers_with_signs_are_read_as_numbers(tmp_path):
    """And lists of three-digit numbers are lists, plain numbers with blanks around them no amounts."""
    columns = {
        "income": ['"$84,835.00"', '"$1.50 "'] * (ROWS // 2),
        "cost": [f'"{1000 + 7 * row:,}"' for row in range(ROWS)],
        "preis": [f'"{1000 + row},42"' for row in range(ROWS)],
        "years": [f"{18 + row % 40} years" for row in range(ROWS)],
        "tags": ['"100,250"', '"250,500,750"', '"500"', '"750,100"'] * (ROWS // 4),
        "plain": ['" 12"', '"7 "'] * (ROWS // 2),
    }
    guess = guess_table(write(tmp_path / "e.csv", clicks(**columns)))
    said = {found.column: f"{found.role}: {found.why}" for found in guess.guesses}
    fields = {field["name"]: field for field in guess.schema["fields"]}
    assert said["income"] == "field: numbers; written as '$84,835.00'"
    number = {"type": "numeric", "before": "log1p", "transform": "standardize"}
    assert fields["income"] == {"name": "income", "unit": "$", "thousands": ",", **number}
    assert fields["cost_bin"]["thousands"] == ","
    assert fields["preis"] == {"name": "preis", "decimal": ",", **number}
    assert fields["years_number"] == {"name": "years_number", "column": "years", "unit": "years", **number}
    assert fields["years"]["type"] == "categorical"
    assert said["tags"] == "field: lists, parted by ','"
    assert "written as" not in said["plain"]


def test_times_of_day_in_a_text_file_are_hours_and_parts_of_a_day(tmp_path):
    of_day = [f"{row % 24}:{row * 7 % 60:02d}" for row in range(ROWS)]
    path = tmp_path / "e.csv"
    sample = write(path, clicks(opens=of_day, shuts=[f"{one}:30" for one in of_day]))
    fields = {field["name"]: field for field in guess_table(sample).schema["fields"]}
    keys = ("column", "extract", "time_format")
    assert [fields["opens_hour"][key] for key in keys] == ["opens", "hour", "%H:%M"]
    assert [fields["opens_of_day"][key] for key in keys] == ["opens", "days", "%H:%M"]
    assert fields["shuts_of_day_bin"]["time_format"] == "%H:%M:%S"
    read = [fields["opens_hour"], fields["opens_of_day"] | {"transform": "raw"}]
    source = table_source(path, "clicked", fields=read)
    batch = TabularFeatureProcessor(read, label="clicked").fit(source)(
        [{"opens": "0:00"}, {"opens": "18:00"}], return_tensors="np"
    )
    assert np.diff(batch["numeric_values"][:, 0]).item() == pytest.approx(0.75, abs=2e-3)  # float32 of days since 1970


def test_what_is_filled_after_the_label_is_no_field(tmp_path):
    """In any language: what tells the label, and what is one value, or empty, wherever the label is 0."""
    rng = np.random.default_rng(6)
    bits, words = rng.integers(0, 2, ROWS), rng.choice(["kauf", "korb", "nichts"], ROWS)
    columns = clicks(
        clicked=bits,
        ergebnis=np.where(bits, "ja", "nein"),
        aktion=np.where(bits, words, "nichts"),
        sekunden=np.where(bits & (words != "nichts"), rng.integers(1, 9, ROWS).astype(str), ""),
        grund=np.where(bits | (rng.random(ROWS) < 0.3), rng.choice(list("abcdefgh"), ROWS), ""),
        anlass=np.where(rng.random(ROWS) < 0.5, "", "a"),  # and empty where `grund` is
        laune=np.where(rng.random(ROWS) < 0.9, np.where(bits, "gut", "trist"), "ruhig"),  # tells much, not all
        leer=[""] * ROWS,
    )
    columns["anlass"] = [own if reason else "" for own, reason in zip(columns["anlass"], columns["grund"])]
    guess = guess_table(write(tmp_path / "e.csv", columns))
    left = {entry.column: entry.why for entry in guess.guesses if entry.role == "left out"}
    assert left["anlass"] == "empty wherever grund is, which seems to come after the label"
    assert left["leer"] == "empty"
    assert left["ergebnis"] == "alone tells the label (AUC 1.00): it seems to come after it"
    zeros, others = (bits == 0).sum(), (bits & (words != "nichts")).sum()
    says = "in all {} rows of label 0, and not in {} of the others: it seems to come after it"
    assert left["aktion"] == f"'nichts' {says.format(zeros, others)}"
    assert left["sekunden"] == f"empty {says.format(zeros, others)}"
    empty = columns["grund"].count("")
    assert left["grund"] == f"filled {says.format(ROWS - zeros, empty).replace('label 0', 'label 1')}"
    assert "laune" in {field["name"] for field in guess.schema["fields"]}
    with pytest.raises(
        ValueError, match=r"no column is left to read \(ja: alone tells .*; eins: one value only\); name `fields`"
    ):
        guess_table(write(tmp_path / "g.csv", {"clicked": bits, "ja": bits, "eins": [1] * ROWS}))
    guess = guess_table(write(tmp_path / "f.csv", clicks(clicked=bits, fest=bits & (rng.random(ROWS) < 0.05))))
    assert "fest" in {field["name"] for field in guess.schema["fields"]}  # so rare that chance may do it


def test_columns_of_two_values_are_named_where_no_label_is_found(tmp_path):
    columns = {
        "storno": [0, 1] * (ROWS // 2),
        "art": ["gut", "übel"] * (ROWS // 2),
        "": [1.5, 2.5, 3.5, 4] * (ROWS // 4),
    }
    columns |= {"mal": [0, 0, 1, 0] * (ROWS // 4), "price": clicks()["price"]}
    says = (
        r"\(0 and 1, .* are clicks; where every row .*--negatives 2; of two values: 'storno' \(0, 1\), 'art' \('gut', 'übel'\), 'mal' \(0, 1\)\); state it: "
        r"--label COLUMN, COLUMN=VALUE or 'COLUMN>=NUMBER'; the columns are storno, art, mal, price\."
    )
    with pytest.raises(ValueError, match=says):
        guess_table(write(tmp_path / "e.csv", columns))


def test_prose_that_holds_the_sign_of_lists_is_no_list(tmp_path):
    """Texts of language models end in `<|endoftext|>`; authors, of whom few come again, are a list."""
    rng = np.random.default_rng(7)
    words = rng.choice(["the", "bright", "river", "ran", "over", "stones", "and", "fell"], (ROWS, 12))
    prose = [" ".join(row) + "<|endoftext|>" + " ".join(row[::-1]) for row in words]
    authors = [f"Smith {row}|Jones {row}" for row in range(ROWS)]
    longest = ["Small electric appliances for the kitchen", "Paper, printed matter and fine stationery"]
    kinds = [longest[row % 2] + "|" + longest[row % 3 % 2] for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(prose=prose, authors=authors, kinds=kinds), ";"))
    fields = {field["name"]: field for field in guess.schema["fields"]}
    assert fields["prose"]["parse"] == "words"
    assert fields["authors"]["separator"] == fields["kinds"]["separator"] == "|"


def test_line_ends_inside_a_text_and_columns_without_names(tmp_path):
    path = tmp_path / "e.csv"
    path.write_bytes(b'click,text,x\r\n0,"one \\""\rtwo""",1\r\n1,three,2\r\n')
    assert sample_file(path).table.column_names == ["click", "text", "x"]
    path.write_bytes(b"kind,text,,\r\nham,one,,\r\nspam,two,,\r\n")
    with pytest.raises(ValueError, match=r"duplicate columns \[''\]; give each column a name of its own.$"):
        sample_file(path)


def test_grades_whose_name_holds_the_word(tmp_path):
    columns = {"User-ID": [row % 50 for row in range(400)], "Shelf": [f"{row % 90}X" for row in range(400)]}
    grades = [row % 11 for row in range(400)]
    guess = guess_table(write(tmp_path / "e.csv", {**columns, "Book-Rating": grades}))
    assert guess.schema["label"] == {"column": "Book-Rating", "at_least": 5}
    assert not next(entry for entry in guess.guesses if entry.role == "label").sure
    bought = [row % 2 for row in range(400)]  # which comes before it
    guess = guess_table(write(tmp_path / "e.csv", {**columns, "bought": bought, "Book-Rating": grades}))
    assert guess.schema["label"] == "bought"
    with pytest.raises(ValueError, match="no column looks like the label"):
        guess_table(write(tmp_path / "e.csv", {**columns, "Book-Rating": [row % 40 for row in range(400)]}))


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.jsonl", "e.parquet"])
def test_ids_that_64_bits_do_not_tell_apart(tmp_path, name):
    """Hashes of 64 bits without a sign: floats, as a reader of texts makes them, are one and the same for all."""
    own = [2**64 - 1 - row * 7 % 60 for row in range(ROWS)]
    path = tmp_path / name
    if name == "e.parquet":
        plain = {key: values for key, values in clicks().items() if key == "clicked"}
        pq.write_table(pa.table(plain | {"device": pa.array(own, pa.uint64())}), path)
    else:
        write(
            path,
            {key: [*map(int, values)] for key, values in clicks(device=own).items() if key in ("clicked", "device")},
        )
    guess = guess_table(sample_file(path))
    assert [(guess.role, guess.why) for guess in guess.guesses if guess.column == "device"] == [
        ("field", "60 categories")
    ]
    source = table_source(path, **guess.options())
    processor = TabularFeatureProcessor(source.fields, label="clicked").fit(source)
    ids = processor.transform(source)["input_ids"][:, 0]
    assert len({*ids.tolist()}) == 60
    assert (
        processor([{"device": own[0]}])["input_ids"][0, 0]
        == processor([{"device": str(own[0])}])["input_ids"][0, 0]
        == ids[0]
    )
    floats = {"clicked": clicks()["clicked"], "worth": [1e17 + row * 2.0**40 for row in range(ROWS)]}
    guess = guess_table(write(tmp_path / "f.csv", floats))
    assert [field["type"] for field in guess.schema["fields"]] == ["numeric", "numeric"]


def test_whole_numbers_with_zeros_in_front_are_codes(tmp_path):
    codes = [("07", "7", "0012", "12", "99")[place % 5] for place in range(ROWS)]
    told = [("01", "00", "NA")[place % 3] for place in range(ROWS)]
    plain = [(7, 12, 99)[place % 3] for place in range(ROWS)]
    columns = clicks(zip=codes, gaps=["" if place % 9 == 0 else code for place, code in enumerate(codes)])
    sample = write(tmp_path / "e.csv", columns | {"told": told, "plain": plain})
    assert sample.table["zip"].to_pylist() == codes
    assert sample.table["gaps"].null_count == len([place for place in range(ROWS) if place % 9 == 0])
    assert sample.reading["na_values"] == ["NA"]
    guess = guess_table(sample)
    types = {entry["name"]: entry.get("value_type") for entry in guess.schema["fields"]}
    assert (types["zip"], types["gaps"], types["told"], types["plain"]) == ("text", "text", "integer", "integer")
    store = TabularStore.build(load_tabular(tmp_path / "e.csv", **guess.options()))
    assert len(store.processor.state.vocabularies["zip"]) == 5


@pytest.mark.parametrize("price", [[1.5, 2.5], [3, 4]], ids=["texts and fractions", "whole numbers"])
def test_a_text_file_tells_whether_all_of_its_rows_were_read(tmp_path, price, monkeypatch):
    """A label that holds one value in the first rows may hold others in those that were not read."""
    own = {"price": price * (ROWS // 2), "color": ["red", "blue"] * (ROWS // 2), "clicked": ["no"] * ROWS}
    file = write(tmp_path / "e.csv", own)
    assert (file.whole, file.rows) == (True, ROWS)
    monkeypatch.setattr("lmctr.data.guess.sample._BYTES", 1000)
    file = sample_file(tmp_path / "e.csv")
    assert not file.whole
    assert file.table.num_rows < ROWS / 2
    assert abs(file.rows - ROWS) < ROWS / 10


@pytest.mark.parametrize("words", [["1.0", "0.0"], ["1", "0"]])
def test_labels_of_numbers_as_texts(tmp_path, words):
    columns = clicks(clicked=words * (ROWS // 2), member=["no", "yes", "no", "no", "no"] * (ROWS // 5))
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    guess = guess_table(sample_file(tmp_path / "e.parquet"))
    assert guess.schema["label"] == "clicked"


def test_labels_that_are_nan_are_not_known(tmp_path):
    """As a DataFrame holds numbers that are missing: they are no third value."""
    columns = clicks(clicked=[1.0, 0.0, float("nan"), 1.0] * (ROWS // 4), member=["a", "b"] * (ROWS // 2))
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    guess = guess_table(sample_file(tmp_path / "e.parquet"))
    assert guess.schema["label"] == {"column": "clicked", "missing": "drop"}
    says = next(entry.why for entry in guess.guesses if entry.role == "label")
    assert says == f"two values, 1.0 in 66.7% of the rows; {ROWS // 4} rows without a value are left out"


@pytest.mark.parametrize(("days", "time"), [(1, None), (2, None), (3, "date")])
def test_too_few_times_part_no_rows(tmp_path, days, time):
    """An export of one day: parted by its time, validation and test would be empty."""
    own = [f"2024-03-{1 + row * days // ROWS:02d}" for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(date=own)))
    assert guess.schema.get("time") == time
    assert any(one.why.startswith("too few times") for one in guess.guesses) == (time is None)
    assert "date" not in {field["name"] for field in guess.schema["fields"]}
