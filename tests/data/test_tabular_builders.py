"""Builders of tabular data sets on small files written by hand in the official formats."""

import gzip

import numpy as np
import pytest

from lmctr.data import TabularFeatureProcessor, TabularStore, load_tabular, split_log
from lmctr.data.builders import taobao_ad_join
from lmctr.data.builders.movielens_table import movielens_table
from lmctr.data.builders.taobao_ad import FIRST_TEST_SECOND
from lmctr.data.builders.taobao_ad_join import prepare_taobao_ad
from lmctr.data.logs.log import InteractionLog
from lmctr.statistics import ItemStatistics, StatisticsReader, UserStatistics, factors
from lmctr.statistics.history_features import history_features


def words(store, field, rows=slice(None)):
    """Values of a field as texts, "" for missing and "?" for unknown ones."""
    place = [f.name for f in store.processor.ordered_fields()].index(field)
    known = ["", "?", *store.processor.state.vocabularies[field].values.to_pylist()]
    return [known[code] for code in store.input_ids[rows, place]]


# Criteo

CRITEO_LINES = [
    "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2\t68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\t\t3a171ecb\tc5c50484\te8b83407\t9727dd16",
    "1\t2\t-1\t44\t1\t102\t8\t2\t2\t4\t1\t1\t\t4\t68fd1e64\tf0cf0024\t6f67f7e5\t41274cd7\t25c83c98\tfe6b92e5\t922afcc0\t0b153874\ta73ee510\t2b53e5fb\t4f1b46f3\t623049e6\td7020589\tb28479f6\te6c5b5cd\tc92f3b61\t07c540c4\tb04e4670\t21ddcdc9\t5840adea\t60f6221e\t\t3a171ecb\t43f13e8b\te8b83407\t731c3655",
]


def test_criteo_kaggle(tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(CRITEO_LINES * 10) + "\n")
    source = load_tabular("criteo", path=tmp_path, min_count=1, split="rows")
    assert source.info.name == "criteo-kaggle"
    assert len(source.fields) == 39
    store = TabularStore.build(
        source, TabularFeatureProcessor([f for f in source.fields if f["name"] not in ("I12", "C22")])
    )
    assert [len(rows) for _, rows in store.splits.items()] == [16, 2, 2]
    assert store.labels.tolist() == [0, 1] * 10
    assert words(store, "C2", slice(0, 2)) == ["80e26c9b", "f0cf0024"]
    assert words(store, "C26", slice(0, 1)) == ["9727dd16"]
    np.testing.assert_allclose(store.numeric_values[:2, 1], [np.log(2), -np.log(2)], rtol=1e-6)  # I2 = 1 and -1
    with pytest.raises(ValueError, match="column 'I12': no value in any of the 16 rows"):
        TabularStore.build(source)
    gz = tmp_path / "b" / "train.txt.gz"
    gz.parent.mkdir()
    gz.write_bytes(gzip.compress("\n".join(CRITEO_LINES).encode()))
    assert next(load_tabular("criteo", path=gz.parent).rows()).column("C1").to_pylist() == ["68fd1e64"] * 2
    assert next(load_tabular("criteo", path=gz).rows()).column("I5").to_pylist() == [1382, 102]


def test_criteo_default_min_count_is_ten(tmp_path):
    lines = [line.replace("\t\t", "\t7\t") for line in CRITEO_LINES]
    (tmp_path / "train.txt").write_text("\n".join(lines[:1] * 9 + lines[1:] * 10) + "\n")
    source = load_tabular("criteo", path=tmp_path, split="rows", fractions=(1, 0, 0))
    assert words(TabularStore.build(source), "C2")[8:10] == ["?", "f0cf0024"]


def test_criteo_x1(tmp_path):
    header = ",".join(["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))])
    row = ",".join(["{label}", *(f"0.{n:02d}" for n in range(1, 14)), *(str(1000 + n) for n in range(1, 27))])
    for name, count in (("train", 7), ("valid", 2), ("test", 1)):
        lines = [row.format(label=n % 2) for n in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    source = load_tabular("criteo", path=tmp_path)
    assert source.info.name == "criteo-x1"
    store = TabularStore.build(source)
    assert [len(rows) for _, rows in store.splits.items()] == [7, 2, 1]
    np.testing.assert_allclose(store.numeric_values[0], np.arange(1, 14) / 100, rtol=1e-6)  # floats as they are
    assert words(store, "C3", slice(9, 10)) == ["1003"]  # min count 1
    assert store.statistics["test"]["values"]["C1"]["unknown"] == 0


def test_criteo_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"kaggle.com/c/criteo-display-ad-challenge.*Terms: Criteo"):
        load_tabular("criteo", path=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no train.txt in it. criteo-kaggle is published at"):
        load_tabular("criteo", path=tmp_path)
    with pytest.raises(ValueError, match="variant: got 'x2', accepted: kaggle, x1"):
        load_tabular("criteo", path=tmp_path, variant="x2")


# Avazu

AVAZU = """id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21
1000009418151094273,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79
10000169349117863715,1,14102523,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,96809ac8,711ee120,1,0,15704,320,50,1722,0,35,100084,79
10000371904215119486,0,14102605,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,b3cf8def,8a4875bd,1,0,15704,320,50,1722,0,35,100084,79
"""


@pytest.mark.parametrize("name", ["train.csv", "train.gz"])
def test_avazu(tmp_path, name):
    data = AVAZU.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    source = load_tabular("avazu", path=tmp_path, split="rows", fractions=(1, 0, 0))
    assert len(source.fields) == 24
    assert "id" not in [field["name"] for field in source.fields]
    store = TabularStore.build(source)
    assert words(store, "hour") == ["0", "23", "5"]
    assert words(store, "weekday") == ["1", "5", "6"]
    assert words(store, "weekend") == ["0", "1", "1"]
    assert words(store, "device_ip") == ["?", "?", "?"]  # min count 2
    assert words(store, "C14") == ["?", "15704", "15704"]
    assert store.labels.tolist() == [0, 1, 0]
    assert np.diff(store.times).tolist() == [(4 * 24 + 23) * 3600, 6 * 3600]
    # a raw row of the file is scored as it is
    row = dict(zip(AVAZU.split("\n")[0].split(","), AVAZU.split("\n")[2].split(",")))
    np.testing.assert_array_equal(store.processor([row])["input_ids"][0].numpy(), store.input_ids[1])
    with pytest.raises(ValueError, match=r"column 'hour': 1 values are no times \(row 1: '2014-10'\)"):
        store.processor([row | {"hour": "2014-10"}])


def test_avazu_x4_files_and_absence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"kaggle.com/c/avazu-ctr-prediction"):
        load_tabular("avazu", path=tmp_path)
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.csv").write_text(AVAZU)
    assert [len(rows) for _, rows in TabularStore.build(load_tabular("avazu", path=tmp_path)).splits.items()] == [
        3,
        3,
        3,
    ]


# KuaiVideo

KUAI = """timestamp,user_id,item_id,is_click,is_like,is_follow,pos_items,neg_items
{start},1,10,1,0,0,,
{start},1,11,0,0,0,10,12^13
{start},2,10,1,1,0,10^11^12,11
"""


def test_kuaivideo(tmp_path):
    with pytest.raises(FileNotFoundError, match="reczoo/KuaiVideo_x1"):
        load_tabular("kuaivideo", path=tmp_path)
    (tmp_path / "train.csv").write_text(KUAI.format(start=5))
    (tmp_path / "test.csv").write_text(KUAI.format(start=9).replace("11,0,0", "99,0,0"))
    source = load_tabular("kuaivideo", path=tmp_path, min_count=1, max_length=2, validation_fraction=0.0)
    store = TabularStore.build(source)
    assert [len(rows) for _, rows in store.splits.items()] == [3, 0, 3]
    assert store.labels.tolist() == [1, 0, 1, 1, 0, 1]
    assert store.groups.tolist() == [1, 1, 2, 1, 1, 2]
    assert words(store, "item_id") == ["10", "11", "10", "10", "?", "10"]
    names = ["", "?", *store.processor.state.vocabularies["item_id"].values.to_pylist()]
    shown = [[[names[code] for code in ids] for ids in row] for row in store.sequence_ids[:3]]
    assert shown == [[["", ""], ["", ""]], [["10", ""], ["12", "13"]], [["11", "12"], ["11", ""]]]
    values = store.processor.model_config_values()
    assert values["sequence_tables"] == [1, 1]
    assert values["sequence_vocab_sizes"] == []
    assert store.processor.vocab_size("user_id") == 4


# TaobaoAd

DAY = 86_400
TRAIN, LATE, TEST = FIRST_TEST_SECOND - 3 * DAY, FIRST_TEST_SECOND - 100, FIRST_TEST_SECOND + 5


def write_taobao(folder):
    (folder / "raw_sample.csv").write_text(
        "user,time_stamp,adgroup_id,pid,nonclk,clk\n"
        f"581738,{TRAIN},1,430548_1007,1,0\n"
        f"449818,{TRAIN + 50},3,430548_1007,0,1\n"
        f"581738,{LATE},3,430539_1007,0,1\n"
        f"581738,{TEST},1,430548_1007,1,0\n"
        f"914836,{TEST},1,430548_1007,1,0\n"  # a user without a profile
        f"449818,{TEST},77,430548_1007,1,0\n"  # an ad without features
        f"449818,{TEST},3,430548_1007,0,1\n"
    )
    (folder / "ad_feature.csv").write_text(
        "adgroup_id,cate_id,campaign_id,customer,brand,price\n1,9025,108570,1,95471,170.0\n3,6406,83237,1,NULL,199.0\n"
    )
    (folder / "user_profile.csv").write_text(
        "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,new_user_class_level \n"
        "581738,0,5,2,5,,3,0,3\n449818,19,3,2,3,2,3,0,\n"
    )
    (folder / "behavior_log.csv").write_text(
        "user,time_stamp,btag,cate,brand\n"
        f"581738,{LATE - 1},pv,6250,91286\n"
        f"581738,{TRAIN},buy,6251,91287\n"  # at the first impression's second: not before it
        f"581738,{TRAIN - 9},cart,9025,95471\n"
        f"581738,{TRAIN - 8},fav,6250,91286\n"
        f"449818,{TRAIN + 49},pv,6406,1\n"
        f"914837,{TRAIN},pv,1,1\n"  # a user who saw no ad
    )


def test_taobao_ad_raw(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tianchi.aliyun.com/dataset/56"):
        load_tabular("taobao_ad", path=tmp_path)
    write_taobao(tmp_path)
    source = load_tabular("taobao_ad", path=tmp_path, min_count=1, max_length=2, num_partitions=3)
    store = TabularStore.build(source)
    order = np.lexsort((store.groups, store.times))
    assert store.groups[order].tolist() == [581738, 449818, 581738, 449818, 581738]
    assert store.labels[order].tolist() == [0, 1, 1, 1, 0]
    assert store.split[order].tolist() == [0, 0, 1, 2, 2]
    known = {
        name: ["", "?", *store.processor.state.vocabularies[owner].values.to_pylist()]
        for name, owner in (("cate_his", "cate_id"), ("brand_his", "brand"), ("btag_his", "btag_his"))
    }
    histories = [
        [
            [known[name][code] for code in row[place] if code]
            for place, name in enumerate(("cate_his", "brand_his", "btag_his"))
        ]
        for row in store.sequence_ids[order]
    ]
    assert histories[0] == [["9025", "6250"], ["95471", "91286"], ["cart", "fav"]]
    assert histories[1] == [["6406"], ["1"], ["pv"]]
    assert histories[2] == [["?", "6250"], ["?", "91286"], ["?", "pv"]]  # the last two; "buy" is unseen in training
    np.testing.assert_array_equal(store.sequence_times[order][0, 0], [9, 8])
    np.testing.assert_array_equal(store.sequence_times[order][2, 0], [LATE - TRAIN, 1])
    assert words(store, "pvalue_level", order)[:2] == ["", "2"] or words(store, "pvalue_level", order)[:2] == [
        "?",
        "2",
    ]
    assert words(store, "new_user_class_level", order)[:2] == ["3", "?"]
    np.testing.assert_allclose(store.numeric_values[order][:2, 0], np.log1p([170, 199]), rtol=1e-6)


def test_taobao_ad_is_joined_once(tmp_path, monkeypatch):
    write_taobao(tmp_path)
    load_tabular("taobao_ad", path=tmp_path, num_partitions=2)
    folder = tmp_path / "lmctr_prepared"
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert not list(folder.glob("*.bin"))
    load_tabular("taobao_ad", path=tmp_path, num_partitions=2)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    with pytest.raises(
        ValueError, match="lmctr_prepared: holds files joined from other raw files or with other settings"
    ):
        load_tabular("taobao_ad", path=tmp_path, num_partitions=5)
    files = {name: tmp_path / f"{name}.csv" for name in ("raw_sample", "ad_feature", "user_profile", "behavior_log")}
    (tmp_path / "behavior_log.csv").write_text("user,time_stamp,btag,cate,brand\n581738,5,look,1,1\n")
    with pytest.raises(ValueError, match=r"behavior_log.csv, column 'btag': 1 values are unknown .*row 1: 'look'"):
        prepare_taobao_ad(files, tmp_path / "other", max_length=5, num_partitions=2)
    assert not (tmp_path / "other").exists()  # an unfinished join is not taken for a finished one


def test_a_second_join_leaves_the_first_alone(tmp_path, monkeypatch):
    """It would have begun by deleting what the first had dealt out, and the first have read what it wrote."""
    monkeypatch.setattr("lmctr.utils.lock._PATIENCE", 0.0)
    write_taobao(tmp_path)
    join = taobao_ad_join._join
    refused = []

    def late(*values):
        with pytest.raises(ValueError, match=r"another join into lmctr_prepared is at work in .*process \d+") as error:
            load_tabular("taobao_ad", path=tmp_path, num_partitions=2)
        refused.append(error)
        return join(*values)

    monkeypatch.setattr(taobao_ad_join, "_join", late)
    before = {path.name for path in tmp_path.iterdir()}
    source = load_tabular("taobao_ad", path=tmp_path, num_partitions=2)
    assert refused
    assert len(TabularStore.build(source)) == 5
    assert {path.name for path in tmp_path.iterdir()} == {*before, "lmctr_prepared"}


def test_taobao_ad_x1(tmp_path):
    header = (
        "clk,btag_his,cate_his,brand_his,userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
        "shopping_level,occupation,new_user_class_level,adgroup_id,cate_id,campaign_id,customer,brand,price,pid,btag"
    )
    row = "{clk},1^1^2,4280^6261^4280,267499^360760^84244,623684,0,5,2,5,0,3,0,0,441384,4280,276420,27077,84244,0.287407,0,1"
    (tmp_path / "train.csv").write_text("\n".join([header, *(row.format(clk=n % 2) for n in range(40))]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([header, row.format(clk=1).replace("1^1^2", "")]) + "\n")
    store = TabularStore.build(load_tabular("taobao_ad", path=tmp_path, seed=1))
    assert store.info.name == "taobao-ad-x1"
    assert len(store.splits.test) == 1
    assert 0 < len(store.splits.validation) < 12
    ids = store.sequence_ids[0]
    cate = store.processor.ordered_fields().index(next(f for f in store.processor.fields if f.name == "cate_id"))
    assert ids[0, 0] == ids[0, 2] == store.input_ids[0, cate]
    assert (store.sequence_ids[-1, 2] == 0).all()  # no history of behaviour types
    np.testing.assert_allclose(store.numeric_values[0], [0.287407], rtol=1e-6)


# MovieLens and other logs


def make_log(seed=0, events=600):
    rng = np.random.default_rng(seed)
    import pyarrow as pa

    catalogue = pa.table(
        {
            "item_id": np.arange(100, 130),
            "genres": [[f"g{g}" for g in rng.choice(5, rng.integers(0, 3), replace=False)] for _ in range(30)],
            "year": pa.array([None, *rng.integers(1950, 2010, 29).tolist()]),
        }
    )
    return InteractionLog.from_columns(
        user=rng.integers(0, 12, events),
        item=rng.integers(100, 130, events),
        time=rng.integers(0, 900, events) * 60,
        label=rng.integers(-1, 2, events),
        catalogue=catalogue,
    )


def test_movielens_table_agrees_with_loops_over_the_past():
    log = make_log()
    splits = split_log(log)
    source = movielens_table(log, splits, history_length=4, numeric="raw")
    store = TabularStore.build(source)
    events = np.concatenate([splits.train, splits.validation, splits.test])
    assert [len(rows) for _, rows in store.splits.items()] == [len(part) for _, part in splits.items()]
    np.testing.assert_array_equal(store.labels, log.label[events])
    np.testing.assert_array_equal(store.groups, log.user_ids[log.user[events]])
    np.testing.assert_array_equal(store.times, log.time[events])
    prior = log.label[splits.train].mean()
    names = [field.name for field in store.processor.ordered_fields()]
    first = names.index("user_rate")
    features = history_features(log, events, float(prior))
    assert names[first : first + 10] == [name for name in features.names if name != "release_year"]
    known = {
        name: ["", "?", *store.processor.state.vocabularies[name].values.to_pylist()] for name in ("item_id", "genres")
    }
    lists = {"genres": "genres", "liked_items": "item_id", "other_items": "item_id"}
    ids = log.catalogue["item_id"].to_numpy()
    for row in range(0, len(events), 7):
        event = int(events[row])
        past = [e for e in range(log.num_events) if log.user[e] == log.user[event] and log.time[e] < log.time[event]]
        labelled = [e for e in past if log.label[e] >= 0]
        rate = (sum(log.label[e] for e in labelled) + 10 * prior) / (len(labelled) + 10)
        assert store.numeric_values[row, 0] == pytest.approx(rate, abs=1e-6)
        assert store.numeric_values[row, 1] == pytest.approx(np.log1p(len(labelled)), abs=1e-6)
        shown = {
            name: [known[owner][code] for code in store.sequence_ids[row, place] if code]
            for place, (name, owner) in enumerate(lists.items())
        }
        liked = [str(ids[log.item[e]]) for e in past if log.label[e] == 1][-4:]
        other = [str(ids[log.item[e]]) for e in past if log.label[e] != 1][-4:]
        train_items = set(known["item_id"])
        assert shown["liked_items"] == [item if item in train_items else "?" for item in liked]
        assert shown["other_items"] == [item if item in train_items else "?" for item in other]
        assert sorted(shown["genres"]) == sorted(log.catalogue["genres"][int(log.item[event])].as_py())
        ages = [int(log.time[event] - log.time[e]) for e in past if log.label[e] == 1][-4:]
        assert store.sequence_times[row, 1][: len(ages)].tolist() == ages


def test_rows_of_statistics_have_the_values_that_training_saw(tmp_path):
    """A row whose statistics a server counted, event by event, becomes the inputs of the training; one transform per statistic."""
    log = make_log()
    splits = split_log(log)
    reader = StatisticsReader.fit(log, splits.train, "full")
    store = TabularStore.build(movielens_table(log, splits, statistics=reader))
    store.processor.save_pretrained(tmp_path)
    processor = TabularFeatureProcessor.from_pretrained(tmp_path)
    assert processor.statistics_reader == reader
    events = np.concatenate([splits.train, splits.validation, splits.test])
    np.testing.assert_allclose(store.numeric_values, reader.scaled(reader.raw(log, events)), atol=2e-5)
    ids, scored, expected = log.catalogue["item_id"].to_pylist(), [], []
    for row in range(len(splits.train), len(events), 9):
        event = int(events[row])
        start, end = log.offsets[log.user[event]], log.history_end[event]
        user = UserStatistics(reader, ItemStatistics.from_log(log, reader, int(log.time[event])))
        user.extend([ids[i] for i in log.item[start:end]], log.time[start:end].tolist(), log.label[start:end].tolist())
        (values,) = user.at([ids[log.item[event]]], int(log.time[event]))
        others = dict.fromkeys(["user_id", "item_id", "genres", "year", "time"], 0) | {"genres": []}
        lists = {key: [] for key in ("liked_items", "liked_times", "other_items", "other_times")}
        scored.append({**others, **lists, **dict(zip(reader.names, values))})
        expected.append(store.numeric_values[row])
    found = processor(scored)["numeric_values"].numpy()
    np.testing.assert_allclose(found, np.stack(expected), atol=2e-5)
    fields = {field["name"]: field for field in movielens_table(log, splits, statistics=reader).fields}
    assert fields["user_rate"]["before"] == "logit"
    assert fields["item_count"]["before"] == "log1p"


@pytest.mark.parametrize("ridge", [None, 1.0])
def test_factors_that_training_leaves_at_nothing_are_no_field(ridge, monkeypatch):
    """By their spread, rounding, a score that comes later would be thousands of standard deviations."""
    monkeypatch.setattr(factors, "FIRST", 20)
    monkeypatch.setattr(factors, "RIDGE", 1e6 if ridge is None else ridge)
    monkeypatch.setattr(factors, "_counted", {})
    log = make_log()
    splits = split_log(log)
    reader = StatisticsReader.fit(log, splits.train, ["user_rate", "rate_factor_score"])
    spread = np.nanstd(reader.raw(log, splits.train)[:, reader.names.index("rate_factor_score")])
    assert spread > 0
    assert (spread < factors.LEAST_SPREAD) == (ridge is None)
    names = {field["name"] for field in movielens_table(log, splits, statistics=reader).fields}
    assert "user_rate" in names
    assert ("rate_factor_score" in names) == (ridge is not None)


def test_the_future_changes_nothing_in_the_tables_rows():
    log = make_log()
    splits = split_log(log)
    before = TabularStore.build(movielens_table(log, splits, numeric="raw"))
    late = log.time >= np.median(log.time[splits.train])
    changed = log.label.copy()
    changed[late & (changed >= 0)] ^= 1
    other = InteractionLog(**{**vars_of(log), "label": changed})
    prior_kept = other.label[splits.train].mean()
    after = movielens_table(other, splits, numeric="raw")
    arrays = before.processor.transform(after, "train")
    early = ~late[splits.train]
    # the prior of the smoothed rates is the only thing that may move early rows: take it out of the comparison
    names = before.processor.field_names
    rates = [
        names.index(name) - 3
        for name in ("user_rate", "item_rate", "genre_rate_mean", "genre_rate_max", "genre_rate_min")
    ]
    others = [place for place in range(10) if place not in rates]
    rows = before.splits.train[early]
    np.testing.assert_array_equal(before.numeric_values[rows][:, others], arrays["numeric_values"][early][:, others])
    np.testing.assert_array_equal(before.sequence_ids[rows], arrays["sequence_ids"][early])
    assert prior_kept != log.label[splits.train].mean()
    assert not np.array_equal(before.sequence_ids[before.splits.train][~early], arrays["sequence_ids"][~early])


def vars_of(log):
    import dataclasses

    return {field.name: getattr(log, field.name) for field in dataclasses.fields(log)}


def test_movielens_table_of_the_published_files(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["userId,movieId,rating,timestamp"]
    pairs = rng.permutation([(user, movie) for user in range(1, 6) for movie in range(1, 61)])[:250]
    lines += [f"{u},{m},{rng.integers(1, 11) / 2},{1_500_000_000 + n}" for n, (u, m) in enumerate(pairs)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    movies = [f'{m},"Movie {m} ({1900 + m})",Comedy|Drama' for m in range(1, 61)]
    (tmp_path / "movies.csv").write_text("\n".join(["movieId,title,genres", *movies]) + "\n")
    source = load_tabular("movielens", path=tmp_path, history_length=0, numeric="quantile", num_bins=4)
    store = TabularStore.build(source)
    assert store.sequence_ids.shape[1] == 1  # the genres
    assert "last_5_mean" in store.processor.field_names
    assert set(words(store, "year")) <= {str(1900 + m) for m in range(1, 61)} | {"?"}
    with pytest.raises(ValueError, match="unknown key 'fraction'"):
        load_tabular("movielens", path=tmp_path, fraction=1)
