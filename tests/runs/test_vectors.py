"""The vectors of fields' values, against what the model reads of batches with these values."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sequence_rows import sequence_log, sequence_view
from small_families import SMALL
from transformers import AutoConfig

import lmctr
from lmctr.cli.main import main
from lmctr.data import TabularFeatureProcessor
from lmctr.models.families import family_of
from lmctr.runs.inputs.pretrained import PretrainedKeys, read_vectors
from lmctr.runs.vectors import value_vectors, vectors, write_vectors

sys.path.append(str(Path(__file__).parents[1] / "server"))
from served_runs import impression_request, impression_run

FIELDS = [
    {"name": "ad", "type": "categorical"},
    {"name": "price", "type": "numeric"},
    {"name": "city", "type": "categorical", "embedding_dim": 8, "missing": "own_id"},
    {"name": "hashed", "type": "categorical", "hash_buckets": 5},
    {"name": "tags", "type": "multi_value", "max_length": 3},
    {"name": "seen", "type": "sequence", "max_length": 2, "share_with": "ad"},
]
ROWS = {
    "ad": [7, 7, 12, 3, 12, 3, 7, 12],
    "price": [0.5, 1.0, 2.0, 1.5, 0.1, 0.2, 0.3, 0.4],
    "city": ["x", "y", None, "x", "z", "y", "x", "z"],
    "hashed": ["a", "b", "c", "a", "b", "c", "a", "b"],
    "tags": [["red"], ["blue", "red"], [], ["green"], ["red"], ["blue"], ["green"], ["red", "green"]],
    "seen": [[7], [12, 3], [], [7], [3], [7], [12], [3]],
    "label": [0, 1, 0, 1, 1, 0, 1, 0],
}
TABULAR, SEQUENCE = ([name for name in SMALL if family_of(name).input == kind] for kind in ("tabular", "sequence"))


def model_of(family, processor, **more):
    torch.manual_seed(0)
    values = processor.model_config_values() | SMALL[family] | more
    return lmctr.AutoModelForCTR.from_config(AutoConfig.for_model(family, **values)).eval()


@pytest.mark.parametrize("family", TABULAR)
def test_a_table(family):
    mixed = family == "dnn"  # others have one width
    fields = [{key: entry for key, entry in field.items() if mixed or key != "embedding_dim"} for field in FIELDS]
    processor = TabularFeatureProcessor(fields).fit(ROWS)
    model = model_of(family, processor)
    found = value_vectors(model, processor)
    assert {*found} == {"ad", "city", "tags"}
    assert found["ad"]["value"].to_pylist() == [7, 12, 3]
    assert found["ad"].schema.field("value").type == pa.int64()
    assert {*found["city"]["value"].to_pylist()} == {"x", "y", "z"}
    embedding = model.base_model.embedding
    ends = np.cumsum(embedding.dims)
    for name, table in found.items():
        values, vectors = table["value"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)
        rows = [
            {**{key: column[0] for key, column in ROWS.items()}, name: [v] if name == "tags" else v} for v in values
        ]
        with torch.no_grad():
            read = embedding(**{key: entry for key, entry in processor(rows).items() if key != "labels"}).flatten(1)
        place = processor.field_names.index(name)
        read = read[:, ends[place] - embedding.dims[place] : ends[place]].numpy()
        if name == "tags" and family == "fat":  # which reads lists by an attention of its own
            assert vectors.shape == read.shape
            continue
        np.testing.assert_allclose(vectors, read, rtol=1e-6)
        assert len(np.unique(vectors, axis=0)) == len(values)


@pytest.mark.parametrize("family", SEQUENCE)
def test_events(family):
    log = sequence_log(num_users=12)
    processor = sequence_view(log, item_features=["genres", "year"], user_features=["country"]).processor
    model = model_of(family, processor, initializer_range=0.5).train()
    found = value_vectors(model, processor)
    assert model.training
    assert {*found} == {"item", "user country"}
    items = found["item"]["value"].to_pylist()
    batch = processor(
        [[]] * len(items), [[item] for item in items], times=[10] * len(items), users=[{"country": "c0"}] * len(items)
    )
    with torch.no_grad():
        read = model.base_model.item_embedding(batch["candidate_items"][:, 0], batch["candidate_features"][:, 0])
    np.testing.assert_array_equal(np.array(found["item"]["vector"].to_pylist(), np.float32), read.flatten(1).numpy())
    bank = next(own for own in model.modules() if getattr(own, "vocabulary", None) == "user_feature.0")
    for name, vector in zip(*(found["user country"][key].to_pylist() for key in ("value", "vector"))):
        code = processor([[]], [items[:1]], times=[10], users=[{"country": name}])["user_features"][0, 0]
        np.testing.assert_array_equal(np.float32(vector), bank.weight[code].detach().numpy())


def test_given_vectors_are_those_that_the_model_reads():
    processor = TabularFeatureProcessor(FIELDS[:1]).fit(ROWS)
    model = model_of("dnn", processor, pretrained_dims={"ad": 3})
    (given,) = model.base_model.embedding.groups["16"].pretrained.values()
    torch.nn.init.normal_(given.bank.weight)
    read = given.projection(given.bank.weight[2:])
    found = np.array(value_vectors(model, processor)["ad"]["vector"].to_pylist(), np.float32)
    np.testing.assert_allclose(found, read.detach().numpy(), rtol=1e-6)


def test_files_are_read_as_given_vectors(tmp_path, capsys):
    processor = TabularFeatureProcessor(FIELDS[:2]).fit(ROWS)
    model = model_of("deepfm", processor)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--format", "embeddings", "--output", str(tmp_path / "out")]) == 0
    assert "3 values of ad, vectors of 16" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["ad.parquet"]
    values, matrix = read_vectors(PretrainedKeys(file=str(tmp_path / "out" / "ad.parquet")))
    found = lmctr.runs.load(tmp_path / "model").embeddings()
    assert found["ad"].equals(pq.read_table(tmp_path / "out" / "ad.parquet"))
    assert values == [12, 7, 3]
    np.testing.assert_array_equal(matrix, np.array(found["ad"]["vector"].to_pylist(), np.float32))


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["item", "user land", "a/b c"], ["item", "user_land", "a%2Fb_c"]),
        (["user land", "user_land", "item"], ["user%20land", "user_land", "item"]),
    ],
)
def test_files_have_no_blanks_in_their_names(tmp_path, names, files):
    tables = {name: pa.table({"value": [name], "vector": [[1.0]]}) for name in names}
    written = write_vectors(tables, tmp_path)
    assert [file.name for file in written] == [f"{name}.parquet" for name in files]
    assert [pq.read_table(file)["value"][0].as_py() for file in written] == names


def test_models_without_values():
    processor = TabularFeatureProcessor(FIELDS[1:2]).fit(ROWS)
    with pytest.raises(ValueError, match="no field whose values it knows by name"):
        value_vectors(model_of("dnn", processor), processor)
    for kind, words in (("text", "get_input_embeddings"), ("impressions", "users or ads")):
        other = type("Other", (), {"request_kind": kind})()
        with pytest.raises(ValueError, match=f"DNNForCTR reads {kind}.*{words}"):
            value_vectors(model_of("dnn", processor), other)


def test_two_towers(tmp_path, capsys):
    path = impression_run(tmp_path / "towers")
    requests = [impression_request(seed) for seed in range(4)]
    users, ads = [one["user"] for one in requests], [{**ad, "name": "n"} for one in requests for ad in one["ads"]]
    run = lmctr.runs.load(path)
    expected = run.predict([{"user": user, "ads": ads} for user in users]).reshape(len(users), -1)
    found = run.embeddings(users=pa.Table.from_pylist(users), ads=ads)
    assert [*found] == ["users", "ads"]
    assert found["ads"].drop_columns("vector").to_pylist() == ads
    of_users, of_ads = (np.array(table["vector"].to_pylist(), np.float32) for table in found.values())
    np.testing.assert_allclose(of_users @ of_ads.T, expected, atol=1e-5)
    assert np.ptp(expected) > 1e-3
    for name, rows in (("users", users), ("ads", ads)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.in.parquet")
    words = ["export", str(path), "--output", str(tmp_path / "out"), "--ads", str(tmp_path / "ads.in.parquet")]
    assert main([*words, "--format", "embeddings"]) == 0
    assert f"{len(ads)} rows of ads, vectors of {of_ads.shape[1]}" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["ads.parquet"]
    assert pq.read_table(tmp_path / "out" / "ads.parquet")["vector"].equals(found["ads"]["vector"])
    assert main(words) == 2
    assert "--ads is for --format embeddings" in capsys.readouterr().err


def test_bad_rows_of_two_towers(tmp_path, caplog):
    run = lmctr.runs.load(impression_run(tmp_path / "towers"))
    ad = impression_request(0)["ads"][0]
    number, category = (
        next(f.name for f in run.processor.ad.fields if f.type == kind) for kind in ("numeric", "categorical")
    )
    for rows, message in (
        ([{**ad, "vector": 1}], "ads: there is a column 'vector'"),
        ([{key: ad[key] for key in ad if key != category}], f"ads: no column '{category}'"),
        ([{**ad, number: "1"}, {**ad, number: "much"}], "row 2"),
    ):
        with pytest.raises(ValueError, match=message):
            run.embeddings(ads=rows)
    run.embeddings(ads=[{**ad, category: f"new {place}"} for place in range(100)])
    assert f"{category}" in caplog.text
    processor = TabularFeatureProcessor(FIELDS).fit(ROWS)
    model = model_of("dnn", processor)
    with pytest.raises(ValueError, match="ads: two_tower alone has vectors of rows; this is a DNNForCTR"):
        vectors(model, processor, ads=[ad])
