"""The builder on small files written by hand in each official format."""

import zipfile

import numpy as np
import pytest

from lmctr.data import load_log, validate_log

YEAR = int(365.25 * 86_400)
NOW = 1_500_000_000

MOVIES_CSV = (
    "movieId,title,genres\n"
    "1,Toy Story (1995),Adventure|Animation|Children\n"
    '2,"Matrix, The (1999)",Action|Sci-Fi\n'
    '3,"Misérables, Les (1995) ",Drama\n'
    '40,"Quoted ""Name"" (2006-2007)",(no genres listed)\n'
    "50,Babylon 5,Sci-Fi\n"
)
MOVIES_DAT = (
    "1::Toy Story (1995)::Animation|Children's|Comedy\n"
    "2::Star Wars: Episode IV - A New Hope (1977)::Action\n"
    "3::Misérables, Les (1995)::Drama|Musical\n"
    '4::"Great Performances" Cats (1998)::Musical\n'
)
USERS_DAT = "1::F::1::10::48067\n2::M::56::16::70072\n3::M::25::15::55117\n"


def csv_ratings(rows):
    return "userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},{r},{t}\n" for u, i, r, t in rows)


def dat_ratings(rows):
    return "".join(f"{u}::{i}::{r}::{t}\n" for u, i, r, t in rows)


ROWS = [
    (1, 1, 4.0, NOW),
    (1, 2, 3.0, NOW - 10),
    (1, 3, 3.5, NOW - 11 * YEAR),
    (2, 50, 0.5, NOW - 20),
    (2, 1, 5.0, NOW - 30),
    (7, 40, 4.5, NOW - 5),
]


def csv_folder(folder, rows=ROWS, movies=MOVIES_CSV):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ratings.csv").write_text(csv_ratings(rows), encoding="utf-8")
    (folder / "movies.csv").write_text(movies, encoding="utf-8")
    return folder


def dat_folder(folder, encoding, users=True):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(1, 1, 5, NOW), (1, 4, 2, NOW - 3), (3, 3, 4, NOW - 1), (3, 2, 3, NOW - 2)]
    (folder / "ratings.dat").write_text(dat_ratings(rows), encoding=encoding)
    (folder / "movies.dat").write_text(MOVIES_DAT, encoding=encoding)
    if users:
        (folder / "users.dat").write_text(USERS_DAT, encoding=encoding)
    return folder


def test_csv_format(tmp_path):
    log = load_log("movielens", path=csv_folder(tmp_path), min_user_events=1)
    assert log.catalogue.select(["item_id", "title", "genres", "year"]).to_pylist() == [
        {"item_id": 1, "title": "Toy Story (1995)", "genres": ["Adventure", "Animation", "Children"], "year": 1995},
        {"item_id": 2, "title": "Matrix, The (1999)", "genres": ["Action", "Sci-Fi"], "year": 1999},
        {"item_id": 3, "title": "Misérables, Les (1995)", "genres": ["Drama"], "year": 1995},
        {"item_id": 40, "title": 'Quoted "Name" (2006-2007)', "genres": [], "year": 2006},
        {"item_id": 50, "title": "Babylon 5", "genres": ["Sci-Fi"], "year": None},
    ]
    assert log.user_ids.tolist() == [1, 2, 7]
    assert log.time.tolist() == [NOW - 10, NOW, NOW - 30, NOW - 20, NOW - 5]
    assert log.catalogue["item_id"].to_numpy()[log.item].tolist() == [2, 1, 1, 50, 40]
    assert log.label.tolist() == [0, 1, 1, 0, 1]
    assert [log.feedback_names[code] for code in log.feedback[:2]] == ["negative", "positive"]
    assert log.info.label_rule == "rating > 3"
    assert "research use" in log.info.licence
    assert "Harper" in log.info.citation
    validate_log(log, allow_repeats=False)


@pytest.mark.parametrize(("encoding", "users"), [("latin-1", True), ("utf-8", False)])
def test_dat_format(tmp_path, encoding, users):
    log = load_log("movielens", path=dat_folder(tmp_path, encoding, users), min_user_events=1)
    titles = log.catalogue["title"].to_pylist()
    assert titles[1:] == [
        "Star Wars: Episode IV - A New Hope (1977)",
        "Misérables, Les (1995)",
        '"Great Performances" Cats (1998)',
    ]
    assert log.catalogue["genres"].to_pylist()[0] == ["Animation", "Children's", "Comedy"]
    assert log.catalogue["year"].to_pylist() == [1995, 1977, 1995, 1998]
    assert log.label.tolist() == [0, 1, 0, 1]
    if users:
        assert log.users.to_pylist() == [
            {"user_id": 1, "gender": "F", "age": 1, "occupation": 10, "zip": "48067"},
            {"user_id": 3, "gender": "M", "age": 25, "occupation": 15, "zip": "55117"},
        ]
    else:
        assert log.users is None


def test_filters(tmp_path):
    # User 1: 20 ratings in the file, 4 of them recent; user 2: 19 recent ratings; user 3: 20 old ones.
    rows = [(1, i, 4.0, NOW - (0 if i < 4 else 12) * YEAR - i) for i in range(20)]
    rows += [(2, i, 2.0, NOW - i) for i in range(19)]
    rows += [(3, i, 4.0, NOW - 11 * YEAR - i) for i in range(20)]
    movies = "movieId,title,genres\n" + "".join(f"{i},Film {i} (2000),Drama\n" for i in range(30))
    folder = csv_folder(tmp_path, rows, movies)
    log = load_log("movielens", path=folder)
    assert log.user_ids.tolist() == [1]
    assert log.num_events == 4
    assert log.num_items == 30
    assert load_log("movielens", path=folder, last_years=None).num_events == 40
    assert load_log("movielens", path=folder, min_user_events=1).num_events == 4 + 19
    assert load_log("movielens", path=folder, positive_above=4.0).label.tolist() == [0] * 4
    with pytest.raises(ValueError, match=r"none of 59 ratings is left with min_user_events=21"):
        load_log("movielens", path=folder, min_user_events=21)


def test_reception_comes_from_ratings_before_the_log_only(tmp_path):
    """Movie 1: five earlier ratings, all positive; movie 2: one, negative; movie 3: rated inside the window only.

    Shares smoothed by three ratings of the overall 5/6: movie 2 (0 + 2.5) / 4 = 0.625, movie 1 (5 + 2.5) / 8 = 0.94.
    """
    old = [(u, 1, 5.0, NOW - 11 * YEAR + u) for u in range(5)] + [(1, 2, 1.0, NOW - 11 * YEAR)]
    movies = "movieId,title,genres\n" + "".join(f"{i},Film {i} (2000),Drama\n" for i in (3, 2, 1))
    for label in (1.0, 5.0):  # what happens inside the window changes nothing
        new = [(1, 3, label, NOW), (7, 1, label, NOW - 5), (8, 2, label, NOW - 9)]
        log = load_log("movielens", path=csv_folder(tmp_path / str(label), old + new, movies), min_user_events=1)
        assert log.num_events == 3
        assert log.catalogue["item_id"].to_pylist() == [3, 2, 1]
        assert log.catalogue["earlier_ratings"].to_pylist() == [0, 1, 5]
        assert log.catalogue["reception"].to_pylist() == [None, "rare liked", "known loved"]
    whole = load_log(
        "movielens", path=csv_folder(tmp_path / "all", old + new, movies), min_user_events=1, last_years=None
    )
    assert whole.catalogue["reception"].to_pylist() == [None] * 3


def test_the_window_ends_at_the_newest_rating(tmp_path):
    rows = [(1, 1, 4.0, NOW), (1, 2, 4.0, NOW - 10 * YEAR), (1, 3, 4.0, NOW - 10 * YEAR - 1)]
    log = load_log("movielens", path=csv_folder(tmp_path, rows), min_user_events=1)
    assert log.time.tolist() == [NOW - 10 * YEAR, NOW]


def test_places(tmp_path, monkeypatch):
    csv_folder(tmp_path / "one" / "ml-latest-small")
    assert load_log("movielens", path=tmp_path / "one", min_user_events=1).info.name == "movielens-latest-small"
    monkeypatch.setenv("LMCTR_DATA", str(tmp_path / "one"))
    assert load_log("movielens", min_user_events=1).num_events == 5
    csv_folder(tmp_path / "one" / "ml-25m")
    dat_folder(tmp_path / "one" / "ml-1m", "latin-1")
    with pytest.raises(ValueError, match="several data sets: ml-1m, ml-25m, ml-latest-small"):
        load_log("movielens", min_user_events=1)
    assert load_log("movielens", variant="25m", min_user_events=1).info.name == "movielens-25m"
    assert load_log("movielens", variant="1m", min_user_events=1).users is not None
    with pytest.raises(ValueError, match="variant: got '2m'"):
        load_log("movielens", variant="2m")


@pytest.mark.parametrize("kind", ["csv", "dat"])
def test_zip_as_downloaded(tmp_path, kind):
    folder = csv_folder(tmp_path / "ml-x") if kind == "csv" else dat_folder(tmp_path / "ml-x", "latin-1")
    with zipfile.ZipFile(tmp_path / "ml-x.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"ml-x/{file.name}")
    zipped = load_log("movielens", path=tmp_path / "ml-x.zip", min_user_events=1)
    plain = load_log("movielens", path=folder, min_user_events=1)
    assert np.array_equal(zipped.item, plain.item)
    assert zipped.catalogue.equals(plain.catalogue)


def test_absent_files_say_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("LMCTR_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"LMCTR_DATA.*grouplens\.org/datasets/movielens.*licence"):
        load_log("movielens")
    with pytest.raises(FileNotFoundError, match=r"does not exist.*grouplens\.org"):
        load_log("movielens", path=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no ratings\.csv or ratings\.dat.*grouplens\.org"):
        load_log("movielens", path=tmp_path)
    csv_folder(tmp_path)
    (tmp_path / "movies.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"movies\.csv: the ratings are there, the movies are not"):
        load_log("movielens", path=tmp_path)
    (tmp_path / "x.zip").write_text("no zip")
    with pytest.raises(ValueError, match="expected a folder, or a zip file"):
        load_log("movielens", path=tmp_path / "x.zip")


@pytest.mark.parametrize(
    ("ratings", "message"),
    [
        ("", r"ratings\.csv: the file is empty"),
        ("userId,movieId,rating,timestamp\n", r"ratings\.csv: the file has a header and no rows"),
        ("userId,movieId,rating\n1,1,4.0\n", r"ratings\.csv: no column 'timestamp'"),
        ("userId,userId,movieId,rating,timestamp\n1,1,1,4.0,5\n", r"duplicate columns \['userId'\]"),
        (
            csv_ratings([(1, 1, 4.0, 5), (1, 2, 4.0, "soon")]),
            r"ratings\.csv, column 'timestamp': row 2 is no whole number, .*'soon'",
        ),
        (csv_ratings([(1, 1, 4.0, 5), (1, 2, 4.0, "")]), r"column 'timestamp': 1 of 2 values are missing \(row 2"),
        (csv_ratings([(1, 1, "good", 5)]), r"column 'rating': row 1 is no number, .*'good'"),
        (
            csv_ratings([(1, 1, 4.0, 5), (1, 2, 40, 6)]),
            r"column 'rating': 1 of 2 values are no ratings \(row 2: 40\.0\)",
        ),
        (csv_ratings([(1, 1, "nan", 5)]), r"column 'rating': 1 of 1"),
        (csv_ratings([(1, 1, 4.0, 5), (1, 99, 4.0, 6)]), r"column 'movieId': .*not in the catalogue \(row 2: 99\)"),
        (csv_ratings([(1, 2, 4.0, 5), (1, 1, 4.0, 5), (1, 2, 3.0, 6)]), r"rows 1 and 3: user 1, movie 2"),
        (
            csv_ratings([(1, 1, 4.0, 5), (1, 2, 4.0, 6)])[:-1] + ",7\n",
            r"ratings\.csv: .*row 2: Expected 4 columns, got 5",
        ),
        (csv_ratings([(1, 1, 4.0, 5_000_000_000_000)]), r"column 'timestamp'.*milliseconds"),
    ],
)
def test_bad_files(tmp_path, ratings, message):
    csv_folder(tmp_path)
    (tmp_path / "ratings.csv").write_text(ratings)
    with pytest.raises(ValueError, match=message):
        load_log("movielens", path=tmp_path, min_user_events=1)


def test_bad_dat_files(tmp_path):
    dat_folder(tmp_path, "latin-1")
    (tmp_path / "ratings.dat").write_text("1::1::5::7\n1::2::x::8\n")
    with pytest.raises(ValueError, match=r"ratings\.dat, column 'Rating': row 2 is no number, .*'x'"):
        load_log("movielens", path=tmp_path, min_user_events=1)
    (tmp_path / "ratings.dat").write_text("1::1::5::7\n1::2::5\n")
    with pytest.raises(ValueError, match=r"ratings\.dat.*row 2: Expected 4 columns, got 3"):
        load_log("movielens", path=tmp_path, min_user_events=1)
    (tmp_path / "ratings.dat").write_text("")
    with pytest.raises(ValueError, match=r"ratings\.dat: the file is empty"):
        load_log("movielens", path=tmp_path)


def test_null_and_empty_titles_are_legal(tmp_path):
    movies = "movieId,title,genres\n1,,\n2,NA,Drama\n3,x,\n40,y,\n50,z,\n"
    log = load_log("movielens", path=csv_folder(tmp_path, movies=movies), min_user_events=1)
    assert log.catalogue["title"].to_pylist()[:2] == [None, "NA"]
    assert log.catalogue["genres"].to_pylist()[:2] == [[], ["Drama"]]


def test_rating_levels_and_tags_as_behaviours(tmp_path):
    """Each half star is a behaviour type; tags stand in histories without being samples."""
    rows = [(1, 1, 0.5, 100), (1, 2, 5.0, 300), (2, 1, 3.5, 100), (2, 2, 4.0, 400)]
    folder = csv_folder(tmp_path / "csv", rows=rows)
    (folder / "tags.csv").write_text(
        'userId,movieId,tag,timestamp\n1,1,"dark, slow",200\n2,2,fun,401\n9,2,fun,200\n2,1,odd,99\n1,2,end,300\n'
    )
    log = load_log("movielens", path=folder, min_user_events=1, last_years=None, behaviors="ratings", tags=True)
    names = [log.feedback_names[code] for code in log.feedback]
    assert names == ["0.5 stars", "tag", "5 stars", "tag", "3.5 stars", "4 stars"]
    assert log.label.tolist() == [0, -1, 1, -1, 1, 1]
    stars = np.array([0.5, np.nan, 5, np.nan, 3.5, 4], np.float32)  # a tag has none
    assert np.array_equal(log.feedback_values, stars, equal_nan=True)
    assert log.time[: log.offsets[1]].tolist() == [100, 200, 300, 300]
    assert "2 tags" in log.info.notes
    plain = load_log("movielens", path=folder, min_user_events=1, last_years=None, behaviors="ratings")
    assert [plain.feedback_names[code] for code in plain.feedback] == ["0.5 stars", "5 stars", "3.5 stars", "4 stars"]
    with pytest.raises(ValueError, match=r"behaviors.*label, ratings"):
        load_log("movielens", path=folder, behaviors="stars")
    (folder / "tags.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"tags\.csv"):
        load_log("movielens", path=folder, min_user_events=1, last_years=None, tags=True)
