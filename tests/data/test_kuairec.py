"""The KuaiRec builder on small files written by hand in the official format."""

import numpy as np
import pytest

from lmctr.data import load_log, validate_log
from lmctr.data.logs.splits import split_log

HEADER = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
SMALL = (
    HEADER + "14,148,4381,6067,2020-07-05 05:27:48.378,20200705,1593898068.378,0.722103\n"
    "14,183,11635,6100,2020-07-05 05:28:00.057,20200705,1593898080.057,1.907377\n"
    "14,3649,22422,10867,,,,2.063311\n"
    "14,148,9100,6067,2020-07-06 05:27:48.378,20200706,1593984468.378,1.499918\n"
    "19,183,6100,6100,2020-07-05 06:00:00.0,20200705,1593900000.0,1.0\n"
    "19,183,6100,6100,2020-07-05 06:00:00.0,20200705,1593900000.0,1.0\n"
    "19,500,100,6100,2020-07-05 06:00:01.5,20200705,1593900001.5,0.016393\n"
    "19,600,7000,6100,2020-07-05 06:00:02.5,20200705,1593900002.5,1.147541\n"
)
BIG = HEADER + "7,183,1000,6100,2020-07-05 01:00:00.9,20200705,1593882000.9,0.163934\n"
CAPTION_HEADER = (
    "video_id,manual_cover_text,caption,topic_tag,first_level_category_id,first_level_category_name,"
    "second_level_category_id,second_level_category_name,third_level_category_id,third_level_category_name\n"
)
# A quoted comma, a quoted line break, a carriage return, placeholders for nothing, a record that a line break cuts in two.
CAPTIONS = (
    CAPTION_HEADER + '148,UNKNOWN,"精神小伙路难走, 程哥你狗粮慢点撒","[搞笑,情侣]",8,颜值,673,颜值随拍,-124,UNKNOWN\n'
    '183,五爱街最美美女,"新开业\n  开业#五爱街 全场八折\r优惠",[五爱街],27,高新数码,-124,UNKNOWN,-124,UNKNOWN\n'
    "500,封面文字,,[],19,情感,UNKNOWN,UNKNOWN,-124,UNKNOWN\n"
    "600,UNKNOWN,UNKNOWN,[],19,情感,20,情感,-124,UNKNOWN\n"
    + "".join(f"{video},UNKNOWN,视频{video},[],1,生活,2,生活,3,旅行\n" for video in range(1000, 1040))
)
CATEGORIES = 'video_id,feat\n148,"[8]"\n183,"[27, 9]"\n500,[]\n'


def folder_of(root, small=SMALL, captions=CAPTIONS, categories=CATEGORIES, big=None, inner="."):
    folder = root / inner
    folder.mkdir(parents=True)
    (folder / "small_matrix.csv").write_bytes(small.encode())
    if captions is not None:
        (folder / "kuairec_caption_category.csv").write_bytes(captions.encode())
    if categories is not None:
        (folder / "item_categories.csv").write_text(categories)
    if big is not None:
        (folder / "big_matrix.csv").write_text(big)
    return root


def test_events(tmp_path):
    log = load_log("kuairec", path=folder_of(tmp_path / "data"))
    assert log.user_ids.tolist() == [14, 19]
    ids = log.catalogue["item_id"].to_numpy()[log.item]
    assert ids.tolist() == [148, 183, 148, 183]
    assert log.time.tolist() == [1593898068, 1593898080, 1593984468, 1593900000]
    assert log.label.tolist() == [0, 1, 1, 0]  # a ratio of exactly 1 is no more than the whole video
    assert log.feedback.tolist() == [1, 2, 2, 1]
    assert log.feedback_values.tolist() == np.array([0.722103, 1.907377, 1.499918, 1.0], np.float32).tolist()
    assert log.info.extra == {
        "matrix": "small",
        "num_rows_in_files": 8,
        "num_rows_without_timestamp": 1,
        "num_repeated_rows": 1,
        "num_events_without_caption": 2,
        "num_videos_in_caption_file": 44,
        "num_videos_with_caption": 42,
        "num_unreadable_caption_rows": 0,
    }
    assert (
        "1 without timestamp, 1 repeats of user, video and timestamp, 2 of videos without a caption" in log.info.notes
    )
    assert "CC BY-SA 4.0" in log.info.licence
    assert (log.info.language, log.info.label_rule, log.info.name) == ("zh", "watch ratio > 1", "kuairec-small")


def test_catalogue(tmp_path):
    catalogue = load_log("kuairec", path=folder_of(tmp_path / "data")).catalogue.to_pylist()
    assert catalogue[0] == {
        "item_id": 148,
        "caption": "精神小伙路难走, 程哥你狗粮慢点撒",
        "cover_text": None,
        "categories": ["颜值", "颜值随拍"],
        "topic_tags": ["搞笑", "情侣"],
        "tags": [8],
    }
    assert catalogue[1] == {
        "item_id": 183,
        "caption": "新开业 开业#五爱街 全场八折 优惠",
        "cover_text": "五爱街最美美女",
        "categories": ["高新数码"],
        "topic_tags": ["五爱街"],
        "tags": [27, 9],
    }
    assert catalogue[2]["categories"] == ["生活", "旅行"]  # equal names of two levels once
    assert catalogue[2]["tags"] == []  # not in item_categories.csv
    assert len(catalogue) == 42
    plain = load_log("kuairec", path=folder_of(tmp_path / "plain", categories=None)).catalogue
    assert "tags" not in plain.column_names


def test_records_cut_in_two_are_counted(tmp_path):
    cut = CAPTIONS + "700,UNKNOWN,第一行\n第二行,[],1,生活,2,生活,3,旅行\n"
    log = load_log("kuairec", path=folder_of(tmp_path / "data", captions=cut))
    assert log.info.extra["num_unreadable_caption_rows"] == 2
    assert "Caption file: 2 rows that are no record were left out." in log.info.notes
    root = folder_of(tmp_path / "bytes")
    with open(root / "kuairec_caption_category.csv", "ab") as file:
        file.write(b"701,UNKNOWN,\xe4\xb8,[],1,a,2,b,3,c\n")
    log = load_log("kuairec", path=root)
    assert log.info.extra["num_unreadable_caption_rows"] == 1
    assert 701 not in log.catalogue["item_id"].to_pylist()
    many = CAPTION_HEADER + "148,a,b,[],1,c,2,d,3,e\n" + "no record\n" * 3
    with pytest.raises(
        ValueError, match=r"3 of 4 rows are no record of 10 UTF-8 fields with a video id \(row 2: 'no record'\)"
    ):
        load_log("kuairec", path=folder_of(tmp_path / "many", captions=many))


def test_matrices_options_and_folders(tmp_path, monkeypatch):
    root = folder_of(tmp_path / "data", big=BIG, captions=None, inner="KuaiRec/KuaiRec 2.0/data")
    (root / "kuairec_caption_category.csv").write_bytes(CAPTIONS.encode())  # downloaded as a file of its own
    monkeypatch.setenv("LMCTR_DATA", str(root))
    both = load_log("kuairec", matrix="both")
    assert (both.num_users, both.num_events) == (3, 5)
    assert load_log("kuairec", matrix="big").time.tolist() == [1593882000]
    assert load_log("kuairec", positive_above=0.5).label.tolist() == [1, 1, 1, 1]
    assert load_log("kuairec", min_user_events=2).user_ids.tolist() == [14]


def test_histories_are_strictly_before(tmp_path):
    rows = [
        f"{user},{1000 + k},1,1,t,d,{1593900000 + 97 * k + user}.5,{1.5 if k % 2 else 0.5}\n"
        for user in (1, 2)
        for k in range(40)
    ]
    log = load_log("kuairec", path=folder_of(tmp_path / "data", small=HEADER + "".join(rows)))
    assert validate_log(log, split_log(log)).lines()
    start, end = log.history_bounds(np.arange(log.num_events))
    assert (end - start).tolist() == [*range(40), *range(40)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"small": SMALL.replace("watch_ratio", "ratio")}, r"small_matrix.csv: no column 'watch_ratio'"),
        (
            {"small": SMALL.replace("0.722103", "-1")},
            r"small_matrix.csv, column 'watch_ratio': 1 of 8 values are no ratios \(row 1: -1.0",
        ),
        (
            {"small": SMALL.replace("1593898068.378", "1593898068378")},
            r"column 'timestamp': 1 of 8 values are no unix seconds",
        ),
        ({"small": HEADER}, r"small_matrix.csv: the file has a header and no rows"),
        ({"small": HEADER + "1,500,1,1,t,d,1593900000,1\n"}, r"none of 1 rows is left: 0 have no timestamp"),
        ({"captions": CAPTIONS.replace("topic_tag", "tag")}, r"kuairec_caption_category.csv: no column 'topic_tag'"),
        ({"captions": CAPTIONS + "148,a,b,[],1,c,2,d,3,e\n"}, r"row 45 repeats video 148; a video has one row"),
        ({"captions": ""}, r"kuairec_caption_category.csv: the file is empty"),
        ({"categories": CATEGORIES.replace("[8]", "8")}, r"item_categories.csv: row 1 is video 148, feat '8'"),
    ],
)
def test_bad_files(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_log("kuairec", path=folder_of(tmp_path / "data", **changes))


def test_absent_files(tmp_path, monkeypatch):
    monkeypatch.delenv("LMCTR_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"set LMCTR_DATA.*https://kuairec.com.*CC BY-SA 4.0"):
        load_log("kuairec")
    root = folder_of(tmp_path / "data", captions=None)
    with pytest.raises(
        FileNotFoundError, match=r"no kuairec_caption_category.csv, here or above.*https://kuairec.com"
    ):
        load_log("kuairec", path=root)
    with pytest.raises(FileNotFoundError, match=r"there is no big_matrix.csv"):
        load_log("kuairec", path=root, matrix="big")
    with pytest.raises(ValueError, match=r"matrix: got 'medium', accepted: 'small', 'big', 'both'"):
        load_log("kuairec", path=root, matrix="medium")
