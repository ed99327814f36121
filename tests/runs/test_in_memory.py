"""`lmctr.runs.train` on data in memory or a data file: what `lmctr train FILE --model FAMILY` does, from Python."""

from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lmctr
from lmctr.data.in_memory import arrow_table

ROWS = 400
FEW = {"training.use_cpu": True, "training.max_steps": 3, "training.boosting_share": 0.0, "data.baselines": False}


@pytest.fixture
def table():
    """(400 rows) clicks on ads of sites."""
    rng = np.random.default_rng(0)
    ad, site = rng.integers(0, 20, ROWS), rng.integers(0, 5, ROWS)
    click = (rng.random(ROWS) < 0.2 + 0.6 * (ad < 10)).astype(int)
    names = {"click": click, "ad": [f"ad{a}" for a in ad], "site": [f"site{s}" for s in site]}
    return pd.DataFrame({**names, "price": rng.random(ROWS).round(3)})


class OfPolars:
    """A frame of another library: columns, and Arrow's interface with the layouts that polars has for texts and categories."""

    def __init__(self, frame):
        table = pa.Table.from_pandas(frame, preserve_index=False)
        views = [
            pa.string_view() if pa.types.is_large_string(kind) or pa.types.is_string(kind) else kind
            for kind in table.schema.types
        ]
        self.table = table.cast(pa.schema([*zip(table.column_names, views)]))
        if "site" in frame:
            codes = frame["site"].astype("category").cat
            values = pa.array(codes.categories.tolist(), pa.string_view())
            site = pa.DictionaryArray.from_arrays(pa.array(codes.codes, pa.uint32()), values)
            self.table = self.table.set_column(self.table.column_names.index("site"), "site", site)
        self.columns, self.dtypes = self.table.column_names, self.table.schema.types
        self.schema = SimpleNamespace(names=lambda: self.columns)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.fixture
def log():
    """(600 rows) plays of songs, times of pandas, users as the index; and (40 rows) songs."""
    rng = np.random.default_rng(1)
    song, day = rng.integers(0, 40, 600), pd.Timestamp("2024-01-01", tz="UTC")
    plays = pd.DataFrame(
        {
            "song_id": song,
            "time": day + pd.to_timedelta(np.sort(rng.integers(0, 9_000_000, 600)), unit="s"),
            "plays": rng.integers(0, 10, 600) + song // 10,
        },
        index=pd.Index([f"u{user}" for user in rng.integers(0, 30, 600)], name="user_id"),
    )
    songs = pd.DataFrame({"song_id": range(40), "title": [f"song {n}" for n in range(40)], "genre": ["a", "b"] * 20})
    return plays, songs


def test_a_frame_is_trained_on_as_its_file_is(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.to_parquet("clicks.parquet", index=False)
    of_file = lmctr.runs.train("clicks.parquet", model="deepfm", overrides=FEW, quiet=True)
    assert str(of_file.path) == "runs/clicks_deepfm"
    forms = {
        "frame": table,
        "arrow": pa.Table.from_pandas(table, preserve_index=False),
        "rows": table.to_dict("records"),
        "dataset": datasets.Dataset.from_pandas(table),
        "dict": table.to_dict("list"),
        "polars": OfPolars(table),
    }
    for name, data in forms.items():
        run = lmctr.runs.train(data, model="deepfm", output_dir=name, overrides=FEW, quiet=True)
        assert pq.read_table(f"{name}.data/rows.parquet").to_pydict() == table.to_dict("list")
        np.testing.assert_array_equal(run.predict(data), of_file.predict("clicks.parquet"))
    of_frame, of_other = (run.processor.transform(rows)["input_ids"] for rows in (table, OfPolars(table)))
    np.testing.assert_array_equal(of_frame, of_other)
    assert run.metrics["command"] == f"lmctr.runs.train(data, model='deepfm', overrides={FEW})"
    assert run.evaluate() == pytest.approx(of_file.evaluate())


def test_lists_of_a_frame_may_be_arrays_of_which_some_are_empty(table, tmp_path):
    """An empty array is of floats where numpy is not told otherwise."""
    tags = [["a", "b", "c"][: row % 4] for row in range(len(table))]
    plain = table.assign(tags=tags, sizes=[[len(own), row % 7][: len(own)] for row, own in enumerate(tags)])
    arrays = plain.assign(tags=[*map(np.array, tags)], sizes=[*map(np.array, plain["sizes"])])
    run = lmctr.runs.train(arrays, model="dnn", output_dir=tmp_path / "run", overrides=FEW, quiet=True)
    kept = pq.read_table(tmp_path / "run.data" / "rows.parquet")
    assert {name: kept[name].to_pylist() for name in ("tags", "sizes")} == plain[["tags", "sizes"]].to_dict("list")
    assert np.ptp(run.predict(plain)) > 0
    for form in (arrays, arrays.to_dict("list"), arrays.to_dict("records")):
        np.testing.assert_array_equal(run.predict(form), run.predict(plain))
        found = arrow_table(form, "data").select(["tags", "sizes"])
        assert found.to_pydict() == plain[["tags", "sizes"]].to_dict("list")


def test_a_column_of_texts_and_numbers_is_its_texts(table, tmp_path):
    """As pandas reads a file whose column of codes has letters in some rows only; what cannot be mixed is told."""
    codes = [row % 9 if row % 3 else f"x{row % 9}" for row in range(len(table))]
    mixed, texts = table.assign(site=codes), table.assign(site=[*map(str, codes)])
    run = lmctr.runs.train(mixed, model="dnn", output_dir=tmp_path / "run", overrides=FEW, quiet=True)
    assert pq.read_table(tmp_path / "run.data" / "rows.parquet")["site"].to_pylist() == [*map(str, codes)]
    scores = run.predict(texts)
    assert np.ptp(scores) > 0
    for form in (mixed, mixed.to_dict("list"), mixed.to_dict("records")):
        np.testing.assert_array_equal(run.predict(form), scores)
    with pytest.raises(ValueError, match="data, column 'site': the values have no common type"):
        lmctr.runs.train(
            table.assign(site=[{}, 1] * 200), model="dnn", output_dir=tmp_path / "other", overrides=FEW, quiet=True
        )


def test_missing_marks_of_pandas_in_a_dict_of_columns(table):
    sizes = pd.Series(range(len(table)), dtype="Int64").mask(table["price"] > 0.5)
    found = arrow_table({**table.to_dict("list"), "size": [*sizes]}, "data")["size"]
    assert found.to_pylist() == [None if own is pd.NA else own for own in sizes]


def test_a_log_with_its_items(log, tmp_path, capsys):
    plays, songs = log
    run = lmctr.runs.train(
        plays, items=songs, model="din", label="plays>=6", output_dir=tmp_path / "run", overrides=FEW, quiet=True
    )
    assert capsys.readouterr().out == ""
    columns = run.recipe.data["options"]["columns"]
    assert (columns["user"], columns["label"]) == ("user_id", {"column": "plays", "at_least": 6.0})
    assert run.processor.item_feature_names == ("genre",)
    best = run.recommend(["u1"], top=2)
    assert run.recommend(OfPolars(pd.DataFrame({"user_id": ["u1"]})), 2, items=OfPolars(songs)).equals(best)
    assert run.recommend(pd.DataFrame({"user_id": ["u1"], "more": 1}).set_index("user_id"), 2).equals(best)
    assert (run.predict(plays.reset_index().set_index("user_id")) == run.predict(plays)).all()
    assert best.num_rows == 2
    assert set(best["song_id"].to_pylist()) <= set(range(40))


def test_what_was_trained_on_is_kept(table, tmp_path, capsys):
    folder = tmp_path / "run"
    prices = np.where(np.arange(ROWS) % 50, table["price"], np.nan)
    table = pa.Table.from_pandas(table.drop(columns="price"), preserve_index=False).append_column("price", [prices])
    given = {"model": "deepfm", "output_dir": folder, "quiet": True, "overrides": FEW}
    trained = lmctr.runs.train(table, **given)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    lmctr.runs.train(table, **given)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(
        ValueError, match=r"run was trained on other data, which are in .*rows\.parquet; .*overwrite=True"
    ):
        lmctr.runs.train(table.slice(0, 300), **given)
    assert pq.read_table(f"{folder}.data/rows.parquet").num_rows == ROWS
    lmctr.runs.train(table.slice(0, 300), **given | {"quiet": False}, overwrite=True)
    assert "starting from step 0" not in capsys.readouterr().out  # nothing was there to go on from
    assert pq.read_table(f"{folder}.data/rows.parquet").num_rows == 300
    newer = table.to_pandas().assign(ad="new " + table["ad"].to_pandas())
    on = lmctr.runs.train(
        newer, output_dir=tmp_path / "on", quiet=True, overrides={**FEW, "training.from_run": str(folder)}
    )
    known = [set(run.processor.state.vocabularies["ad"].values.to_pylist()) for run in (trained, on)]
    assert known[0] < known[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": None}, r"is a data file, no recipe: name the family too, model=din .*`lmctr init "),
        ({"output_dir": None}, "output_dir is missing: data in memory have no name"),
        ({"lable": "click"}, "unknown key 'lable' in the arguments of lmctr.runs.train; did you mean 'label'"),
        (
            {"label": "clik"},
            "label: .*rows.parquet has no column 'clik'; did you mean 'click'. its columns: click, ad, site, price",
        ),
        ({"model": "din"}, r"state it: time=COLUMN; .*lmctr train \S*rows.parquet --model deepfm"),
        ({"model": "din", "negatives": 0}, "^negatives=0: accepted: a number from 1"),
        ({"recipe": [1, 2]}, "row 1: expected a dict of columns, got int 1"),
        ({"recipe": {"data": {}, "model": {}}}, "^model: of data, a table or a data file; this is a recipe"),
        ({"recipe": "deepfm/synthetic"}, "^model goes with a data file .lmctr train clicks.csv --model din"),
        ({"recipe": None, "model": None}, "recipe: expected the groups, a file or a name, got null"),
    ],
)
def test_mistakes_are_told_in_python(given, words, table, tmp_path):
    arguments = {"recipe": table, "model": "deepfm", "output_dir": tmp_path / "run", "quiet": True, **given}
    with pytest.raises(ValueError, match=words):
        lmctr.runs.train(arguments.pop("recipe"), **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "polars"])
def test_items_of_names_are_asked_for_by_name_however_their_file_holds_texts(form, log, tmp_path):
    """Arrow has several types of texts; a column of Parquet is of another one than that of a CSV."""
    plays = log[0].reset_index()
    plays = plays.assign(song_id=[f"s{song}" for song in plays["song_id"]])
    data = {
        "csv": tmp_path / "plays.csv",
        "parquet": tmp_path / "plays.parquet",
        "frame": plays,
        "polars": OfPolars(plays),
    }[form]
    if form == "csv":
        plays.to_csv(data, index=False)
    elif form == "parquet":
        plays.to_parquet(data, index=False)
    run = lmctr.runs.train(data, model="din", label="plays>=6", output_dir=tmp_path / "run", overrides=FEW, quiet=True)
    history = [{"item": "s1", "time": 1_704_100_000, "label": 1}]
    assert run.score(history, ["s2", "s3"], 1_720_000_000).shape == (2,)
    assert run.processor.unknown_items(["s2", "t"]) == ["t"]
