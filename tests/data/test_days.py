"""Times as numbers of days: what fields make of them, and what `lmctr init` proposes."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from guess_logs import ROWS, clicks, write

import lmctr
from lmctr.cli.main import main
from lmctr.data import TabularFeatureProcessor
from lmctr.data.features.columns import Rows, field_numbers
from lmctr.data.features.fields import Field
from lmctr.data.features.times import seconds_of
from lmctr.data.guess import guess_table

BORN = ["1990-01-01", None, "2020-02-29T12:00:00Z", "1969-12-31"]
STAMPS = [1_600_000_000, 1_600_086_400, 1_583_020_800, 0]
DAY = 86_400.0


def read(columns, **fields):
    fields = [{"name": name, "type": "numeric", **keys} for name, keys in fields.items()]
    processor = TabularFeatureProcessor(fields, label=None)
    return processor.fit(columns).transform(columns)["numeric_values"].T.astype(np.float64)


@pytest.mark.parametrize("given", ["texts", "format", "timestamps", "dates"])
def test_days_since_1970_and_between_two_columns(given):
    texts = BORN if given == "texts" else [None if text is None else text[:10] for text in BORN]
    own = {
        "format": [None if text is None else ".".join(text.split("-")[::-1]) for text in texts],
        "timestamps": pd.Series(
            [pd.Timestamp(text) for text in texts if given == "timestamps"], dtype="datetime64[ns]"
        ),
        "dates": [None if text is None else pd.Timestamp(text).date() for text in texts],
    }.get(given, texts)
    form = {"time_format": "%d.%m.%Y"} if given == "format" else {}
    days = {"column": "born", "extract": "days", **form}
    found = read(
        {"born": own, "ts": STAMPS, "n": range(4)},
        since=days | {"fill_value": -7},
        age=days | {"until": "ts", "fill_value": -9},
        years=days | {"until": "ts", "before": "log1p", "fill_value": 0},
    )
    at = [pd.Timestamp(text or 0).timestamp() / DAY for text in texts]
    ages = np.array([stamp / DAY - day for stamp, day in zip(STAMPS, at)])
    given_rows = [0, 2, 3]
    np.testing.assert_allclose(found[0], [at[0], -7, at[2], at[3]], rtol=1e-6)
    np.testing.assert_allclose(found[1][given_rows], ages[given_rows], rtol=1e-6)
    assert found[1][1] == -9
    np.testing.assert_allclose(found[2][given_rows], np.log1p(ages[given_rows]), rtol=1e-6)


def test_the_other_column_has_a_format_of_its_own():
    keys = {"column": "a", "extract": "days", "until": "b", "until_format": "%d/%m/%Y %H:%M"}
    found = read({"a": ["2024-03-01", "2024-03-02"], "b": ["02/03/2024 06:00", "01/03/2024 00:00"]}, wait=keys)
    assert found.tolist() == [[1.25, -1.0]]


@pytest.mark.parametrize(
    "values",
    [
        ["2024-03-01 12:00:00.5 +01:00", "2024-03-01 12:00:00.7 -02:00"],
        ["2024-03-01 12:00:00,123 UTC", "1960-03-01 12:00:00,9 UTC"],
        [1_700_000_000.25, -0.5],
        ["1700000000.75", "-1.5"],
    ],
)
def test_times_of_rows_are_times_of_fields(values):
    """However they are written: a field reads what the split reads, also beside missing values, which the time of a row may not be."""
    table = pa.table({"t": values})
    seconds = seconds_of(Rows(table), "t")
    days = {"type": "numeric", "column": "t", "extract": "days"}
    np.testing.assert_allclose(field_numbers(Field("d", **days), Rows(table)) * DAY, seconds, atol=1e-3)
    some = Rows(pa.table({"t": [None, *values, values[0]]}))
    np.testing.assert_allclose(field_numbers(Field("d", **days), some)[1:] * DAY, [*seconds, seconds[0]], atol=1e-3)
    processor = TabularFeatureProcessor([{"name": "d", **days}], label=None).fit({"t": values})
    alone = [processor([{"t": value}])["numeric_values"][0, 0] for value in values]
    assert alone == processor({"t": values})["numeric_values"][:, 0].tolist()


def test_what_is_no_time_is_told():
    with pytest.raises(ValueError, match=r"column 'a': 1 values are no times \(row 2: 'soon'\)"):
        read({"a": ["2024-03-01", "soon"]}, since={"column": "a", "extract": "days"})
    processor = TabularFeatureProcessor([{"name": "a", "type": "numeric", "extract": "days"}], label=None).fit(
        {"a": ["2024-03-01"]}
    )
    with pytest.raises(ValueError, match=r"column 'a': 1 values are no times \(row 2: '2024-02-30'\)"):
        processor([{"a": "2024-03-01"}, {"a": "2024-02-30"}])
    with pytest.raises(ValueError, match=r"column 'b': 1 values are no times \(row 1: 'x'\)"):
        read({"a": ["2024-03-01"], "b": ["x"]}, since={"column": "a", "extract": "days", "until": "b"})


def columns_of(**more):
    rng = np.random.default_rng(0)
    booked = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D")
    stay = booked + pd.to_timedelta(rng.integers(0, 90, ROWS), unit="D")
    return clicks(booked=booked.strftime("%Y-%m-%d"), stay=stay.strftime("%d.%m.%Y"), **more)


def fields_of(guess):
    return {field["name"]: field for field in guess.schema["fields"] if "extract" in field}


def test_two_dates_of_rows_without_a_time(tmp_path):
    guess = guess_table(write(tmp_path / "e.csv", columns_of()))
    own = fields_of(guess)
    assert "time" not in guess.schema
    names = ("booked_days", "stay_days", "booked_until_stay")
    assert [*own] == [name for stem in names for name in (stem, f"{stem}_bin")]
    assert own["booked_until_stay"]["until_format"] == "%d.%m.%Y"
    assert "read as days since 1970 and booked" in "\n".join(guess.lines())


def test_dates_before_a_rows_time_are_read_up_to_it(tmp_path):
    times = [1_704_067_200 + 3600 * row for row in range(ROWS)]
    late = [pd.Timestamp(time + 86_400 * (row % 10), unit="s").strftime("%Y-%m-%d") for row, time in enumerate(times)]
    names = dict.fromkeys(("last_seen", "statusDate"), columns_of()["booked"])
    guess = guess_table(write(tmp_path / "e.csv", columns_of(ts=times, delivery=late, **names)))
    assert guess.schema["time"] == "ts"
    own = fields_of(guess)
    assert [*own] == ["booked_days", "booked_days_bin", "stay_days", "stay_days_bin"]
    assert {field["until"] for field in own.values()} == {"ts"}
    said = {one.column: one.why for one in guess.guesses}
    assert said["delivery"].startswith("a time after ts in 9")
    assert {said[name] for name in names} == {"a time of what may have come after the label, by its name"}
    assert said["stay"] == "a time: read as days until ts"


def test_years_of_two_digits_that_lie_in_the_future_are_not_read(tmp_path):
    born = [f"{1 + row % 12:02d}/{1 + row % 28:02d}/{60 + row % 20}" for row in range(ROWS)]
    guess = guess_table(write(tmp_path / "e.csv", clicks(dob=born)))
    assert not fields_of(guess)
    assert "years of two digits, of which some lie in the future" in "\n".join(guess.lines())


def test_a_run_answers_requests_as_it_read_its_file(tmp_path, capsys):
    times = [1_704_067_200 + 3600 * row for row in range(ROWS)]
    columns = columns_of(ts=times)
    write(tmp_path / "e.csv", columns)
    assert main(["init", str(tmp_path / "e.csv"), "--output", str(tmp_path / "own")]) == 0
    options = ["--training.epochs", "1", "--model.hidden_units", "[8]", "--output-dir", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "own" / "deepfm.yaml"), "--quiet", *options]) == 0
    predict = ["predict", str(tmp_path / "run"), "--input", str(tmp_path / "e.csv"), "--quiet"]
    assert main([*predict, "--output", str(tmp_path / "scores.csv")]) == 0
    capsys.readouterr()
    scores = pd.read_csv(tmp_path / "scores.csv")
    run = lmctr.runs.load(tmp_path / "run")
    frame = pd.read_csv(tmp_path / "e.csv", dtype=str).head(20)
    rows = json.loads(frame.to_json(orient="records"))
    for row in rows:
        row["ts"] = int(row["ts"])
    logits = run.predict(rows)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores["probability"][:20], rtol=1e-5)
    older = [row | {"booked": "2001-01-01"} for row in rows]
    assert np.abs(run.predict(older) - logits).max() > 1e-4
