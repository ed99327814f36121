"""Which columns `lmctr init` takes for times, and how it reads them."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import ROWS, clicks, guessed, table, write

from lmctr.cli.main import main
from lmctr.data import load_log
from lmctr.data.features.columns import Rows
from lmctr.data.features.times import seconds_of
from lmctr.data.guess import NoLogError, guess_log, guess_table, sample_file
from lmctr.data.tables.load import table_source


@pytest.mark.parametrize(
    ("times", "spec"),
    [
        (lambda t: t * 1000, {"column": "ts", "unit": "ms"}),
        (lambda t: np.datetime_as_string(t.astype("datetime64[s]")), "ts"),
        (
            lambda t: [
                f"{d[8:10]}.{d[5:7]}.{d[:4]} {d[11:16]}" for d in np.datetime_as_string(t.astype("datetime64[s]"))
            ],
            {"column": "ts", "format": "%d.%m.%Y %H:%M"},
        ),
        (  # of shops and databases: an offset after a blank, another one from some day on
            lambda t: [
                f"{np.datetime64(int(at) + 3600 * hours, 's')} +0{hours}00".replace("T", " ")
                for at, hours in zip(t, [1] * (ROWS // 2) + [2] * (ROWS // 2))
            ],
            {"column": "ts", "format": "%Y-%m-%d %H:%M:%S %z"},
        ),
        (  # of BigQuery, which leaves fractions out where there are none
            lambda t: [
                f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}{'.250001' * (place % 3 > 0)} UTC"
                for place, at in enumerate(t)
            ],
            "ts",
        ),
        (
            lambda t: [f'"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S},250"' for at in t],
            "ts",
        ),  # of programs' logs
    ],
)
def test_times(tmp_path, times, spec):
    plain = np.array(table()["ts"])
    guess, log = guessed(tmp_path / "e.csv", table(ts=times(plain)))
    assert guess.schema["columns"]["time"] == spec
    assert abs(np.sort(log.time) - plain).max() < 60


@pytest.mark.parametrize("name", ["timestamp", "rating_time"])
def test_times_of_the_nineties_where_the_name_says_times(tmp_path, name):
    times = np.linspace(828_124_615, 900_000_000, ROWS).astype(int)  # 1996, as in MovieLens
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, **{name: times}))
    assert guess.schema["columns"]["time"] == name
    assert log.time.min() == 828_124_615
    with pytest.raises(NoLogError, match="no column looks like the time"):
        guessed(tmp_path / "e.csv", table(ts=None, price=times))
    guess, _ = guessed(tmp_path / "e.csv", table(ts=None, price=times), given={"time": "price"})
    assert guess.schema["columns"]["time"] == "price"


def test_a_column_that_describes_the_item_or_the_user_is_no_time_of_events(tmp_path):
    rng = np.random.default_rng(1)
    columns = table(ts=None)
    days = lambda numbers: [f"20{10 + number // 12 % 12:02d}-{1 + number % 12:02d}-05" for number in numbers]  # noqa: E731
    viewed = [f"2024-01-{1 + row * 28 // ROWS:02d} 10:00:{row % 60:02d}" for row in range(ROWS)]
    for name, ids in (("release_date", "item_id"), ("signup_date", "user_id")):
        guess, log = guessed(tmp_path / f"{name}.csv", {name: days(columns[ids]), **columns, "viewed_at": viewed})
        assert guess.schema["columns"]["time"] == "viewed_at"
        assert log.time.min() == 1_704_103_200
    drawn = [f"2024-01-{1 + day:02d}" for day in rng.integers(0, 28, ROWS)]  # another time, that nothing has one of
    guess, _ = guessed(tmp_path / "e.csv", {**columns, "due_date": drawn, "event_time": viewed})
    assert guess.schema["columns"]["time"] == "event_time"


def test_days_as_whole_numbers_are_times(tmp_path):
    days = [20240101 + row * 28 // ROWS for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, date=days))
    assert guess.schema["columns"]["time"] == {"column": "date", "format": "%Y%m%d"}
    assert log.time.min() == 1_704_067_200
    guess = guess_table(write(tmp_path / "t.csv", clicks(date=days)))
    assert (guess.schema["time"], guess.schema["time_format"]) == ("date", "%Y%m%d")
    (rows,) = table_source(tmp_path / "t.csv", **guess.options()).rows()
    assert seconds_of(rows, "date", "%Y%m%d").min() == 1_704_067_200
    words = guess_table(write(tmp_path / "n.csv", clicks(date=[1, 2] * (ROWS // 2))))
    assert "time" not in words.schema


def test_a_time_that_some_rows_lack_parts_no_table(tmp_path):
    times = [f"2024-01-{1 + row * 28 // ROWS:02d}T10:00:{row % 60:02d}" for row in range(ROWS)]
    some = [None if row % 100 == 7 else at for row, at in enumerate(times)]
    for name in ("login", "time"):
        file = tmp_path / f"{name}.csv"
        assert guess_table(write(file, clicks(**{name: times}))).schema["time"] == name
        guess = guess_table(write(file, clicks(**{name: some})))
        assert len(list(table_source(file, **guess.options()).rows(part="train"))) == 1  # it is not refused
        assert "time" not in guess.schema
        said = "\n".join(guess.lines())
        assert "a time, by which the rows are not parted: read as days since 1970" in said
        assert ("4 of 400 rows have none; the rows are parted at random" in said) == (name == "time")
        with pytest.raises(ValueError, match=f"--time {name}: 4 of 400 rows have none; fill them"):
            guess_table(sample_file(file), given={"time": name})


@pytest.mark.parametrize("end", ["Z", "+02:00", ".125", ""])
def test_iso_texts_part_the_rows_of_a_parquet_table(tmp_path, end):
    times = [f"2024-01-{1 + row * 28 // ROWS:02d}T10:00:{row % 60:02d}{end}" for row in range(ROWS)]
    pq.write_table(pa.table(clicks(ts=times)), tmp_path / "e.parquet")
    guess = guess_table(sample_file(tmp_path / "e.parquet"))
    (rows,) = table_source(tmp_path / "e.parquet", **guess.options()).rows()
    found = seconds_of(rows, guess.schema["time"], guess.schema.get("time_format"))
    assert found[0] == 1_704_103_200 - (7200 if end == "+02:00" else 0)
    bad = pa.table({"ts": [*times[:5], "soon", *times[6:]]})
    with pytest.raises(
        ValueError, match=r"'ts': 1 values are no times among rows 1 to 400 \(row 6: 'soon'\).*ISO times"
    ):
        seconds_of(Rows(bad, "e.parquet", 1), "ts")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S UTC"),
        ("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("%b %d, %Y", "%b %d, %Y"),
        ("%m/%d/%y", "%m/%d/%y"),
        *(
            (form, form)
            for form in (
                "%Y%m%d%H%M%S",
                "%a, %d %b %Y %H:%M:%S GMT",
                "%d/%b/%Y:%H:%M:%S +0000",
                "%a %b %d %H:%M:%S +0000 %Y",
            )
        ),
    ],
)
def test_times_as_people_write_them(tmp_path, form, name):
    moments = [datetime(2024, 1, 3) + timedelta(hours=7 * row) for row in range(ROWS)]
    text = [f'"{moment.strftime(form)}"' for moment in moments]
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, view_time=text))
    assert guess.schema["columns"]["time"] == {"column": "view_time", "format": name}
    assert datetime.fromtimestamp(int(log.time.max()), UTC).strftime(form) == moments[-1].strftime(form)
    guess = guess_table(write(tmp_path / "f.csv", clicks(sign_time=text)))
    assert "sign_time" not in [field["name"] for field in guess.schema["fields"]]  # a time, no category


def test_day_and_month_are_told_by_all_rows_and_the_shorter_span(tmp_path):
    days = [f"11/{6 + row * 4 // ROWS}/2017" for row in range(ROWS)]
    guess, _log = guessed(tmp_path / "e.csv", table(ts=None, date=days))
    assert guess.schema["columns"]["time"]["format"] == "%m/%d/%Y"
    assert "%d/%m/%Y fits too" in next(found.why for found in guess.guesses if found.role == "time")
    late = [f"01/{1 + row * 13 // ROWS:02d}/2024" for row in range(1, ROWS + 1)]  # the 13th comes last
    guess, _ = guessed(tmp_path / "f.csv", table(ts=None, date=late))
    assert guess.schema["columns"]["time"]["format"] == "%m/%d/%Y"


def test_times_of_day_come_before_days(tmp_path):
    """A day alone leaves what a user did before on it out of histories."""
    times = pd.to_datetime(table()["ts"], unit="s")
    columns = table(ts=None) | {
        "created_day": times.strftime("%Y-%m-%d"),
        "created_ts": times.strftime("%Y-%m-%d %H:%M:%S"),
    }
    guess, _ = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["time"] == "created_ts"
    later = times + pd.Timedelta(days=30)  # when it is delivered
    columns["created_ts"] = later.strftime("%Y-%m-%d %H:%M:%S")
    guess, _ = guessed(tmp_path / "f.csv", columns)
    assert guess.schema["columns"]["time"] == "created_day"
    assert "; days alone: no history" in guess.guesses[0].why


def test_what_training_will_refuse_is_said_at_once(tmp_path, capsys, monkeypatch):
    """Rows that were written twice; those of days alone may be alike."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(table())
    twice = pd.concat([frame, frame.head(50)])
    for name, days in (("twice", False), ("days", True)):
        twice.assign(ts=twice["ts"] // 86_400 * 86_400 if days else twice["ts"]).to_csv(f"{name}.csv", index=False)
        assert main(["init", f"{name}.csv", "--yes"]) == 0
        refused = "not fit to train on as it is: log 'twice': 50 of 450 events repeat another in every column. Mend"
        assert (refused in capsys.readouterr().out) is not days


def test_a_time_that_is_stated_to_be_the_user_is_no_time(tmp_path):
    """Sessions called by when they began: the other times are those of the events."""
    columns = table(user_id=None)
    columns |= {"timestamp": [1_700_000_000 + at % 50 for at in columns["ts"]]}
    guess, _ = guessed(tmp_path / "e.csv", columns, given={"user": "timestamp"})
    assert {role: guess.schema["columns"][role] for role in ("user", "time")} == {"user": "timestamp", "time": "ts"}


def test_a_part_of_one_class_is_said_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = table()
    columns["click"][int(0.78 * ROWS) : int(0.92 * ROWS)] = [0] * (int(0.92 * ROWS) - int(0.78 * ROWS))
    pd.DataFrame(columns).to_csv("clicks.csv", index=False)
    for verb in ("init", "train"):
        code = main(
            [verb, *(["clicks.csv", "--yes"] if verb == "init" else ["clicks/din.yaml", "--output-dir", "run"])]
        )
        said = capsys.readouterr()
        assert code == (0 if verb == "init" else 2)
        assert "the validation part (40 samples) has only the label 0; AUC needs positives" in said.out + said.err


def test_times_of_items_are_called_so(tmp_path):
    days = [f"2023-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(len({*table()["item_id"]}))]
    items = {"item_id": sorted({*table()["item_id"]}), "published_at": days}
    write(tmp_path / "i.csv", items)
    guess = guess_log(write(tmp_path / "e.csv", table()), sample_file(tmp_path / "i.csv"))
    assert {one.column: one.why for one in guess.guesses}[
        "published_at"
    ] == "times: no field, only prompts may read them"


def test_events_without_a_time_are_left_out_and_told(tmp_path):
    times = [None if row % 8 == 3 else str(np.datetime64(int(at), "s")) for row, at in enumerate(table()["ts"])]
    guess, log = guessed(tmp_path / "e.jsonl", table(ts=times))
    assert guess.schema["columns"]["time"] == {"column": "ts", "missing": "drop"}
    assert any("50 rows (12.5%) have none, and are left out (missing: drop)" in one.why for one in guess.guesses)
    assert log.num_events == ROWS - 50
    assert "50 of 400 rows without a value of 'ts' were left out" in log.info.notes
    with pytest.raises(ValueError, match=r"50 of 400 values are missing .*time: \{column: ts, missing: drop\}"):
        load_log(tmp_path / "e.jsonl", columns={**guess.schema["columns"], "time": "ts"})


def test_a_time_that_most_rows_lack_gives_way(tmp_path):
    seconds = table()["ts"]
    edited = [at if row % 3 == 0 else None for row, at in enumerate(seconds)]
    guess = guess_log(write(tmp_path / "e.jsonl", table(ts=None, created_at=edited, posted=seconds)))
    assert guess.schema["columns"]["time"] == "posted"


def test_times_from_the_first_event_on_are_read_where_rows_stand_in_their_order(tmp_path):
    """Hours since the start of a campaign, and numbers of rows: nobody tells the day, and the order is what histories need."""
    hours = [6 * (row // 50) for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(ts=None, time=hours))
    assert guess.schema["columns"]["time"] == "time"
    assert "0 to 42, in the order of the rows and of no known day" in next(
        o.why for o in guess.guesses if o.role == "time"
    )
    assert log.time.max() == 42
    guess = guess_log(write(tmp_path / "f.csv", table(ts=None, hour=hours)), given={"time": "hour"})
    assert guess.schema["columns"]["time"] == "hour"
    both = guess_log(write(tmp_path / "g.csv", table(time=hours)))
    assert both.schema["columns"]["time"] == "ts"
    for name, values in {
        "time": [row % 24 for row in range(ROWS)],
        "hour": hours,
    }.items():  # a time of day; another name
        with pytest.raises(NoLogError, match=r"time \(unix|no times that can be told"):
            guess_log(write(tmp_path / "h.csv", table(ts=None, **{name: values})))
    with pytest.raises(NoLogError, match=r"their numbers in a column called time\)"):
        guess_log(write(tmp_path / "i.csv", table(ts=None)))
