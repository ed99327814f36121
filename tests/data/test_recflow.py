"""RecFlow's builder on hand-written files in the published format (folder all_stage, one Feather file per day)."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from lmctr.data import ImpressionStore, load_impressions
from lmctr.data.builders.recflow import load_recflow

DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")
FLAGS = ("realshow", "rerank_pos", "rerank_neg", "rank_pos", "rank_neg", "coarse_neg", "prerank_neg")


def row(request, user, video, *stages, rank=0, rerank=0, milliseconds=1_705_140_000_000, **responses):
    values = {
        "request_id": request,
        "request_timestamp": milliseconds,
        "user_id": user,
        "device_id": user + 100,
        "age": 2,
        "gender": 1,
        "province": 7,
        "video_id": video,
        "author_id": video // 10,
        "category_level_one": 3,
        "category_level_two": 31,
        "upload_type": 1,
        "upload_timestamp": 1_705_053_600,
        "duration": 15_000,
    }
    values |= {flag: int(flag in stages) for flag in FLAGS}
    values |= {"rank_index": rank, "rerank_index": rerank}
    zero = dict.fromkeys(("playing_time", "effective_view", "long_view", "like", "follow", "forward", "comment"), 0)
    return values | zero | responses


def day(shift=0):
    """Two requests whose rows are mixed, as in a file that is sorted by stage."""
    return [
        row(10 + shift, 1, 50, "realshow", "rerank_pos", "rank_pos", rank=2, rerank=1, effective_view=1, like=1),
        row(11 + shift, 2, 50, "realshow", "rerank_pos", "rank_pos", rank=1, rerank=1, effective_view=1),
        row(10 + shift, 1, 51, "rerank_neg", "rank_pos", rank=1, rerank=12),
        row(10 + shift, 1, 52, "rank_neg", rank=40),
        row(10 + shift, 1, 53, "rank_neg", rank=11),
        row(11 + shift, 2, 54, "coarse_neg"),
        row(10 + shift, 1, 55, "prerank_neg"),
        row(10 + shift, 1, 56, "prerank_neg"),
    ]


def write(folder, days=None, version=2):
    (folder / "all_stage").mkdir(exist_ok=True)
    for number, name in enumerate(DAYS):
        rows = day(100 * number) if days is None else days[number]
        feather.write_feather(pa.Table.from_pylist(rows), folder / "all_stage" / f"{name}.feather", version=version)
    return folder


def ads(source):
    """{request's user: [(video, v, ecpm)]} of the first day."""
    block = next(source.blocks())
    rows = list(zip(block.ads["video_id"].to_pylist(), block.ranks.tolist(), block.ecpm.tolist()))
    ends = np.cumsum(block.counts)
    users = block.users["user_id"].to_pylist()
    return {user: rows[end - count : end] for user, end, count in zip(users, ends, block.counts)}


@pytest.mark.parametrize("version", [1, 2])
def test_rows_of_a_request_are_gathered_with_the_last_stage_as_rank_index(tmp_path, version):
    found = ads(load_recflow(write(tmp_path, version=version)))
    assert found == {
        1: [(50, 5.0, 1.0), (51, 4.0, 0.0), (52, 3.0, 0.0), (53, 3.0, 0.0), (55, 1.0, 0.0), (56, 1.0, 0.0)],
        2: [(50, 5.0, 1.0), (54, 2.0, 0.0)],
    }


def test_positions_order_the_videos_inside_a_stage_and_leave_ties(tmp_path):
    found = ads(load_recflow(write(tmp_path), ranks="position"))
    assert [(video, v) for video, v, _ in found[1]] == [
        (50, 5.0),
        (51, 4.0),
        (52, 2.0),
        (53, 3.0),
        (55, 1.0),
        (56, 1.0),
    ]
    assert [(video, v) for video, v, _ in found[2]] == [(50, 2.0), (54, 1.0)]


def test_the_value_is_a_declared_sum_and_nothing_before_ranking(tmp_path):
    days = [day(100 * n) for n in range(3)]
    for rows in days:
        for entry in rows:
            entry["price"] = 2.5
    found = ads(load_recflow(write(tmp_path, days), value={"price": 2, "like": 10}))
    assert [(video, value) for video, _, value in found[1]] == [(50, 15), (51, 5), (52, 5), (53, 5), (55, 0), (56, 0)]
    assert [(video, value) for video, _, value in found[2]] == [(50, 5), (54, 0)]


def test_parts_are_days_and_fields_come_from_both_times(tmp_path):
    source = load_impressions("recflow", path=write(tmp_path))
    store = ImpressionStore.build(source)
    assert [len(rows) for _, rows in store.splits.items()] == [2, 2, 2]
    block = next(source.blocks())
    assert block.users["request_hour"].to_pylist() == [10, 10]
    assert block.users["request_weekday"].to_pylist() == [5, 5]  # a Saturday
    assert np.allclose(block.ads["age_days"], 1.0)
    assert block.times.tolist() == [1_705_140_000] * 2
    assert store.groups.tolist() == [1, 2] * 3
    assert store.stages[:6].tolist() == [4, 3, 2, 2, 0, 0]
    assert source.info.extra["value"] == "effective_view"


def test_shares_of_a_file_hold_the_same_requests(tmp_path):
    folder = write(tmp_path)
    whole = ads(load_recflow(folder))
    parted = {}
    source = load_recflow(folder, num_partitions=2)
    for block in source.blocks("train"):
        assert len(block) == 1
        parted[block.users["user_id"][0].as_py()] = block.ads["video_id"].to_pylist()
    assert parted == {user: [video for video, _, _ in rows] for user, rows in whole.items()}


def test_a_limit_draws_videos_of_each_stage(tmp_path):
    found = ads(load_recflow(write(tmp_path), videos_per_stage=1))
    assert [v for _, v, _ in found[1]] == [5.0, 4.0, 3.0, 1.0]
    again = ads(load_recflow(tmp_path, videos_per_stage=1))
    assert again == found


def test_the_content_decides_the_fingerprint(tmp_path):
    first = load_recflow(write(tmp_path))
    kept = first.fingerprint
    assert load_recflow(tmp_path).fingerprint == kept
    assert load_recflow(tmp_path, value="like").fingerprint != kept
    days = [day(), day(100), day(200)]
    days[0][0]["effective_view"] = 0
    assert load_recflow(write(tmp_path, days)).fingerprint != kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"realshow": 2}, r"2024-01-13.feather, row 1: realshow is 2; stage labels are 0 or 1"),
        (dict.fromkeys(FLAGS, 0), r"2024-01-13.feather, row 1: .* is 0; each row has a stage label"),
        ({"effective_view": -1}, r"2024-01-13.feather, row 1: effective_view is -1.0; the value"),
        ({"effective_view": float("nan")}, r"row 1: effective_view is nan; the value"),
        ({"user_id": 9}, r"request 10 has more than one user_id"),
        ({"gender": None}, r"2024-01-13.feather, row 1: the column 'gender' has no value"),
    ],
)
def test_bad_rows_are_named(tmp_path, change, message):
    rows = day()
    rows[0] |= change
    with pytest.raises(ValueError, match=message):
        list(load_recflow(write(tmp_path, [rows, day(100), day(200)])).blocks())


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"github\.com/RecFlow-ICLR/RecFlow"):
        load_recflow(tmp_path)
    write(tmp_path)
    file = tmp_path / "all_stage" / f"{DAYS[0]}.feather"
    with pytest.raises(ValueError, match=r"no column 'efective_view'.*Did you mean 'effective_view'"):
        list(load_recflow(tmp_path, value="efective_view").blocks())
    with pytest.raises(FileNotFoundError, match="2024-03-01"):
        load_recflow(tmp_path, dates=["2024-01-13", "2024-03-01"])
    with pytest.raises(ValueError, match="3 days; validation and test take 2"):
        load_recflow(tmp_path, validation_days=2)
    for wrong in ({"ranks": "order"}, {"num_partitions": 0}, {"value": {}}, {"videos_per_stage": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            load_recflow(tmp_path, **wrong)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="no Feather file, or cut off"):
        list(load_recflow(tmp_path).blocks())
