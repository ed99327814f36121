"""Amazon Books, 30Music and Spotify sessions on small files written by hand in each official format."""

import gzip
import json

import numpy as np
import pytest

from lmctr.data import load_log, validate_log

DAY = 86_400

# ---- Amazon Books ---------------------------------------------------------------------------------------------------

RATINGS = "".join(f"{u},{i},{r},{t * DAY}\n" for u, i, r, t in [
    ("AH2L", "0001", 5.0, 16000), ("AH2L", "0002", 2.0, 16001), ("AH2L", "000X", 4.0, 16001),
    ("B00B", "0001", 3.0, 15000), ("B00B", "0002", 1.0, 15500), ("CCCC", "0003", 5.0, 15000),
])  # fmt: skip
REVIEW = {
    "reviewerID": "A1",
    "asin": "0001",
    "reviewerName": 'Al "Bo"',
    "helpful": [0, 1],
    "reviewText": "A book.\nTwo lines",
    "overall": 5.0,
    "summary": "Good",
    "unixReviewTime": 16000 * DAY,
    "reviewTime": "10 22, 2013",
}


def names_of(log):
    return [log.feedback_names[code] for code in log.feedback]


def test_amazon_ratings(tmp_path):
    (tmp_path / "ratings_Books.csv").write_text(RATINGS)
    log = load_log("amazon_book", path=tmp_path, min_user_events=1, min_item_events=1)
    assert log.num_users == 3
    assert names_of(log) == ["5 stars", "2 stars", "4 stars", "3 stars", "1 star", "5 stars"]
    assert log.label.tolist() == [1, 0, 1, 0, 0, 1]
    assert log.catalogue["item_id"].to_pylist() == ["0001", "0002", "0003", "000X"]
    assert log.history_lengths([0, 1, 2]).tolist() == [0, 1, 1]  # events of a day do not see each other
    validate_log(log)


def test_amazon_cores_repeat(tmp_path):
    """Dropping CCCC's only book and 000X leaves two users with the two books that both have."""
    (tmp_path / "ratings_Books.csv").write_text(RATINGS)
    log = load_log("amazon_book", path=tmp_path, min_user_events=2, min_item_events=2)
    assert (log.num_users, log.num_items, log.num_events) == (2, 2, 4)
    with pytest.raises(ValueError, match="none of 6 events is left"):
        load_log("amazon_book", path=tmp_path)


def test_amazon_reviews_with_meta(tmp_path):
    reviews = [REVIEW, REVIEW | {"asin": "0002", "overall": 3.0, "unixReviewTime": 15999 * DAY}]
    with gzip.open(tmp_path / "reviews_Books_5.json.gz", "wt") as file:
        file.write("".join(json.dumps(review) + "\n" for review in reviews))
    with gzip.open(tmp_path / "meta_Books.json.gz", "wt", encoding="utf-8") as file:
        file.write("{'asin': '0001', 'title': \"O'Neil & Sons\", 'categories': [['Books', 'Drama']], 'brand': ''}\n")
        file.write('{"asin": "0002", "title": "Café", "category": ["Books", "Travel"], "brand": "B"}\n')
        file.write("{'asin': 'other', 'salesRank': {'Books': 5}}\n")
    log = load_log("amazon_book", path=tmp_path, min_user_events=1, min_item_events=1)
    table = {name: log.catalogue[name].to_pylist() for name in log.catalogue.column_names}
    assert dict(zip(table["item_id"], table["title"])) == {"0001": "O'Neil & Sons", "0002": "Café"}
    assert dict(zip(table["item_id"], table["category"])) == {"0001": "Drama", "0002": "Travel"}
    assert dict(zip(table["item_id"], table["brand"])) == {"0001": None, "0002": "B"}
    assert names_of(log) == ["3 stars", "5 stars"]
    (tmp_path / "meta_Books.json.gz").write_bytes(gzip.compress(b"{'asin': \n"))
    with pytest.raises(ValueError, match="line 1 is neither a JSON object nor a Python dict"):
        load_log("amazon_book", path=tmp_path, min_user_events=1, min_item_events=1)


def test_bad_amazon_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ratings_Books\.csv.*Download.*mcauley"):
        load_log("amazon_book", path=tmp_path)
    (tmp_path / "ratings_Books.csv").write_text("A,0001,6.0,100\n")
    with pytest.raises(ValueError, match=r"rating.*row 1.*Ratings are 1 to 5"):
        load_log("amazon_book", path=tmp_path)
    (tmp_path / "ratings_Books.csv").write_text("A,0001,five,100\n")
    with pytest.raises(ValueError, match=r"'rating': row 1 is no number, .*'five'"):
        load_log("amazon_book", path=tmp_path)
    (tmp_path / "Books_5.json").write_text('{"asin": "1", "overall": 5}\n')
    with pytest.raises(ValueError, match="reviewerID"):
        load_log("amazon_book", path=tmp_path)


# ---- 30Music --------------------------------------------------------------------------------------------------------


def session(number, time, user, tracks, gap=" "):
    links = {"subjects": [{"type": "user", "id": user}], "objects": tracks}
    return f'event.session\t{number}\t{time}\t{{"numtracks":{len(tracks)},"playtime":9}}{gap}{json.dumps(links)}\n'


def track(key, start, ratio, action="play"):
    return {"type": "track", "id": key, "playstart": start, "playtime": 5, "playratio": ratio, "action": action}


def thirty_music(folder, sessions, love=""):
    for name in ("relations", "entities"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "relations" / "sessions.idomaar").write_text(sessions)
    (folder / "relations" / "love.idomaar").write_text(love)
    (folder / "entities" / "tracks.idomaar").write_text(
        'track\t7\t-1\t{"duration":200000,"playcount":4,"MBID":null,"name":"Sigur+R%C3%B3s/_/Glosoli"}\t'
        '{"artists":[{"type":"person","id":31}],"albums":[],"tags":[{"type":"tag","id":2},{"type":"tag","id":9}]}\n'
        'track\t99\t-1\t{"name":"Not+played"}\t{"artists":[],"albums":[],"tags":[]}\n'
    )
    return folder


def test_thirty_music(tmp_path):
    sessions = session(1, 1000, 44, [track(7, 0, 1.0), track(8, 200, 0.1, "skip"), track(9, 210, 0.5)])
    sessions += session(2, 500, 44, [track(8, 0, None), track(7, 90, None, "skip")], gap="\t")
    sessions += session(3, 400, 45, [track(7, 0, 0.9)])
    loved = 'preference.love\t5\t1100\t{"value":"love"} {"subjects":[{"type":"user","id":44}],"objects":[{"type":"track","id":7}]}\n'
    folder = thirty_music(tmp_path, sessions, loved)
    log = load_log("30music", path=folder, min_user_events=2)
    assert log.user_ids.tolist() == [44]
    assert log.time.tolist() == [500, 590, 1000, 1100, 1200, 1210]
    assert names_of(log) == ["play", "skip", "full-play", "love", "skip", "play"]
    assert log.label.tolist() == [-1, 0, 1, -1, 0, 0]
    row = log.catalogue["item_id"].to_pylist().index(7)
    assert log.catalogue["title"][row].as_py() == "Sigur Rós - Glosoli"
    assert log.catalogue["artist"][row].as_py() == 31
    assert log.catalogue["tags"][row].as_py() == [2, 9]
    plain = load_log("30music", path=folder, min_user_events=1, love=False, tracks=False, full_play=0.5)
    assert plain.num_users == 2
    assert "love" not in names_of(plain)
    assert plain.label[plain.user == 0].tolist() == [-1, 0, 1, 0, 1]
    assert plain.catalogue.column_names == ["item_id"]


def test_bad_thirty_music_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="30Music"):
        load_log("30music", path=tmp_path)
    folder = thirty_music(tmp_path, session(1, 10, 4, [track(7, 0, 1.0)]) + "event.session\t2\tsoon\t{}\n")
    with pytest.raises(ValueError, match="line 2 is not in the idomaar format"):
        load_log("30music", path=folder, min_user_events=1)
    thirty_music(tmp_path, 'event.session\t1\t10\t{} {"subjects":[],"objects":[]}\n')
    with pytest.raises(ValueError, match="line 1 names no user"):
        load_log("30music", path=folder, min_user_events=1)
    thirty_music(tmp_path, session(1, 10, 4, [track(7, 0, 1.0)]))
    with pytest.raises(ValueError, match="none of 1 users has 10 plays"):
        load_log("30music", path=folder)
    with pytest.raises(ValueError, match="full_play"):
        load_log("30music", path=folder, full_play=0)


# ---- Spotify --------------------------------------------------------------------------------------------------------

COLUMNS = (
    "session_id,session_position,session_length,track_id_clean,skip_1,skip_2,skip_3,not_skipped,context_switch,"
    "no_pause_before_play,short_pause_before_play,long_pause_before_play,hist_user_behavior_n_seekfwd,"
    "hist_user_behavior_n_seekback,hist_user_behavior_is_shuffle,hour_of_day,date,premium,context_type,"
    "hist_user_behavior_reason_start,hist_user_behavior_reason_end"
)


def spotify_row(session_id, position, track_id, skip, hour, context="radio", date="2018-07-15"):
    flags = [str(skip <= level).lower() for level in (1, 2, 3)] + [str(skip == 4).lower()]
    return (
        f"{session_id},{position},2,{track_id},{','.join(flags)},0,0,0,0,0,0,true,{hour},{date},true,{context},"
        "trackdone,fwdbtn\n"
    )


ROWS = (
    spotify_row("0_a", 1, "t_1", 4, 23)
    + spotify_row("0_a", 2, "t_2", 1, 23)
    + spotify_row("0_a", 3, "t_1", 2, 0, "catalog")
    + spotify_row("0_b", 2, "t_3", 3, 5)
    + spotify_row("0_b", 1, "t_1", 5, 5)
)


def test_spotify_sessions(tmp_path):
    (tmp_path / "log_0_x.csv").write_text(f"{COLUMNS}\n{ROWS}")
    with gzip.open(tmp_path / "log_1_x.csv.gz", "wt") as file:
        file.write(f"{COLUMNS}\n{spotify_row('1_c', 1, 't_9', 4, 1)}")
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "tf_000.csv").write_text(
        "track_id,duration,release_year,us_popularity_estimate,acousticness,energy,tempo,valence,mode\n"
        "t_1,180.5,1999,99.5,0.1,0.2,120.0,0.3,major\n"
    )
    log = load_log("spotify_sessions", path=tmp_path, min_session_length=2)
    assert log.user_ids.tolist() == ["0_a", "0_b"]
    midnight = 17727 * DAY  # 2018-07-15
    assert log.time.tolist() == [midnight + 23 * 3600 + p for p in (1, 2, 3)] + [
        midnight + 5 * 3600 + p for p in (1, 2)
    ]
    assert names_of(log) == ["played", "skipped at once", "skipped early", "unknown", "skipped late"]
    assert log.label.tolist() == [1, 0, 0, 0, 0]
    assert [log.scenario_names[code] for code in log.scenario] == ["radio", "radio", "catalog", "radio", "radio"]
    row = log.catalogue["item_id"].to_pylist().index("t_1")
    assert log.catalogue["release_year"][row].as_py() == 1999
    assert log.catalogue["duration"].null_count == log.num_items - 1
    assert load_log("spotify_sessions", path=tmp_path, min_session_length=1).num_users == 3
    assert load_log("spotify_sessions", path=tmp_path, min_session_length=1, max_files=1).num_users == 2
    assert np.array_equal(log.history_lengths(np.arange(5)), [0, 1, 2, 0, 1])


def test_bad_spotify_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"log_\*\.csv.*Download"):
        load_log("spotify_sessions", path=tmp_path)
    (tmp_path / "log_0.csv").write_text(f"{COLUMNS.replace('not_skipped', 'kept')}\n{ROWS}")
    with pytest.raises(ValueError, match="no column 'not_skipped'"):
        load_log("spotify_sessions", path=tmp_path)
    (tmp_path / "log_0.csv").write_text(f"{COLUMNS}\n{ROWS}")
    with pytest.raises(ValueError, match="no session has 10 tracks"):
        load_log("spotify_sessions", path=tmp_path)
    (tmp_path / "log_0.csv").write_text(f"{COLUMNS}\n{ROWS.replace('2018-07-15', 'someday', 1)}")
    with pytest.raises(ValueError, match="log_0"):
        load_log("spotify_sessions", path=tmp_path, min_session_length=1)
