"""The builder of CoLLM's ML-1M on small pickled frames in the real format."""

import os
import pickle

import numpy as np
import pandas as pd
import pytest

from lmctr.data import load_log, split_log, validate_log
from lmctr.data.builders.collm_levels import NAMES, levels_without_the_user
from lmctr.statistics import StatisticsReader

TITLES = {1: "Alpha (1990)", 2: "Beta, The (2001)", 3: "Gamma", 4: "Delta (1955)", 9: "Omega (1970)"}
START = 990_000_000
# user, film, label, seconds, liked before (0 pads). Film 9 is liked, but no row.
ROWS = {
    "train_ood2": [
        (7, 1, 1, 10, [0]),
        (7, 2, 0, 20, [0, 1]),
        (8, 1, 0, 20, [0]),
        (8, 2, 1, 20, [0]),
        (9, 2, 0, 25, [0]),
    ],
    "valid_ood2": [
        (7, 3, 1, 100, [0, 1]),
        (8, 3, 0, 110, [0, 2]),
        (7, 4, 0, 120, [0, 1, 9, 3]),
    ],
    "test_ood2": [
        (8, 4, 1, 200, [0, 2]),
        (7, 9 + 1, 0, 210, [0, 1, 9, 3]),
    ],
}
TITLES[10] = "Kappa (1999)"


def frame(rows):
    made = pd.DataFrame(
        {
            "uid": [row[0] for row in rows],
            "iid": [row[1] for row in rows],
            "label": [row[2] for row in rows],
            "timestamp": [START + row[3] for row in rows],
            "his": pd.Series([row[4] for row in rows], dtype=object),
            "his_title": pd.Series([[TITLES.get(item, "") for item in row[4]] for row in rows], dtype=object),
            "title": pd.Series([TITLES[row[1]] for row in rows], dtype=object),
            "flag": [-1.0] * len(rows),
            "not_cold": [1] * len(rows),
        }
    )
    made.index = range(5, 5 + len(rows))
    made.columns = made.columns.astype(object)
    return made


def folder_of(root, **changed):
    folder = root / "collm" / "ml-1m"
    folder.mkdir(parents=True)
    for name, rows in (ROWS | changed).items():
        made = rows if isinstance(rows, (pd.DataFrame, dict)) else frame(rows)
        with open(folder / f"{name}.pkl", "wb") as file:
            pickle.dump(made, file, protocol=4)
    return root


def history(log, event):
    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    items = log.catalogue["item_id"].to_numpy()[log.item[start:end]]
    names = [log.feedback_names[code] for code in log.feedback[start:end]]
    return list(zip(items.tolist(), names))


def samples(log, part):
    item = log.catalogue["item_id"].to_numpy()
    return {(int(log.user_ids[log.user[e]]), int(item[log.item[e]])): int(e) for e in split_log(log, "given")[part]}


def test_parts_labels_and_catalogue(tmp_path):
    log = load_log("collm_ml1m", path=folder_of(tmp_path))
    splits = split_log(log, "given")
    validate_log(log, splits)
    for part, rows in zip(("train", "validation", "test"), ROWS.values()):
        found = {key: (int(log.label[e]), int(log.time[e])) for key, e in samples(log, part).items()}
        assert found == {(row[0], row[1]): (row[2], START + row[3]) for row in rows}
    assert log.catalogue.to_pylist()[0] == {"item_id": 1, "title": "Alpha (1990)", "year": 1990}
    years = dict(zip(log.catalogue["item_id"].to_pylist(), log.catalogue["year"].to_pylist()))
    assert years == {1: 1990, 2: 2001, 3: None, 4: 1955, 9: 1970, 10: 1999}
    assert log.info.extra["rows"] == {"train": 5, "validation": 3, "test": 2}
    assert "GroupLens" in log.info.licence


def test_histories_hold_training_labels_and_later_likes_only(tmp_path):
    log = load_log("collm_ml1m", path=folder_of(tmp_path))
    of = {part: samples(log, part) for part in ("train", "validation", "test")}
    assert history(log, of["train"][7, 2]) == [(1, "positive")]
    assert history(log, of["validation"][7, 3]) == [(1, "positive"), (2, "negative")]
    # 9 is liked by then, 3 was liked in validation; that 4 was disliked there is not told.
    liked = [(1, "positive"), (2, "negative"), (3, "positive"), (9, "positive")]
    assert history(log, of["validation"][7, 4]) == liked
    assert history(log, of["test"][7, 10]) == liked
    assert history(log, of["test"][8, 4]) == [(1, "negative"), (2, "positive")]


def test_validation_labels_can_be_seen(tmp_path):
    log = load_log("collm_ml1m", path=folder_of(tmp_path), labels_seen="train_and_validation")
    event = samples(log, "test")[7, 10]
    assert (4, "negative") in history(log, event)
    assert [entry for entry in history(log, event) if entry[0] == 3] == [(3, "positive")]
    with pytest.raises(ValueError, match="labels_seen: got 'all', accepted: 'none', 'train', 'train_and_validation'"):
        load_log("collm_ml1m", path=tmp_path, labels_seen="all")


def test_histories_of_likes_alone(tmp_path):
    """What the files list, the same in every part: no event of a history tells a label of a row."""
    log = load_log("collm_ml1m", path=folder_of(tmp_path), labels_seen="none")
    of = {part: samples(log, part) for part in ("train", "validation", "test")}
    assert history(log, of["train"][7, 2]) == [(1, "positive")]
    assert history(log, of["validation"][7, 3]) == [(1, "positive")]
    assert history(log, of["test"][7, 10]) == [(1, "positive"), (3, "positive"), (9, "positive")]
    assert len(of["train"]) == len(ROWS["train_ood2"])
    split = split_log(log, "given")
    assert [len(split[part]) for part in ("train", "validation", "test")] == [len(rows) for rows in ROWS.values()]
    assert "likes" in log.context.column_names
    assert "film_level" not in log.context.column_names
    assert "see no labels" in log.info.notes


@pytest.mark.parametrize("labels_seen", ["train", "train_and_validation"])
def test_statistics_see_the_same_labels(tmp_path, labels_seen):
    log = load_log("collm_ml1m", path=folder_of(tmp_path), labels_seen=labels_seen)
    train = split_log(log, "given").train
    reader = StatisticsReader.fit(log, train, ["user_rate", "user_count", "item_count"])
    seen = ROWS["train_ood2"] + (ROWS["valid_ood2"] if labels_seen != "train" else [])
    prior = 2 / 5
    for row in ROWS["test_ood2"]:
        own = [other[2] for other in seen if other[0] == row[0]]
        rate, user_count, item_count = reader.raw(log, np.array([samples(log, "test")[row[0], row[1]]]))[0]
        assert user_count == len(own)
        assert item_count == sum(other[1] == row[1] for other in seen)
        assert rate == pytest.approx((sum(own) + reader.strength * prior) / (len(own) + reader.strength))


def test_context_tells_the_likes_before(tmp_path):
    log = load_log("collm_ml1m", path=folder_of(tmp_path))
    for event in range(log.num_events):
        own = [
            other
            for other in range(log.num_events)
            if log.user[other] == log.user[event]
            and log.time[other] < log.time[event]
            and not log.hidden[other]
            and log.feedback_names[log.feedback[other]] == "positive"
        ]
        ages = sorted(int(log.time[event] - log.time[other]) for other in own)
        found = {name: values[event].as_py() for name, values in zip(log.context.column_names, log.context.columns)}
        assert found["likes"] == pytest.approx(np.log1p(len(ages)))
        for seconds in (120, 600, 3600, 86_400, 604_800):
            assert found[f"likes_{seconds}"] == pytest.approx(np.log1p(sum(age <= seconds for age in ages)))
        for name, place in (("last_like", 0), ("third_last_like", 2), ("first_like", len(ages) - 1)):
            known = 0 <= place < len(ages)
            assert found[name] == (pytest.approx(np.log1p(ages[place])) if known else None)
        years = log.catalogue["year"].to_pylist()
        liked = [years[log.item[other]] for other in own if years[log.item[other]] is not None]
        year = years[log.item[event]]
        assert found["liked_year"] == (pytest.approx(np.mean(liked)) if liked else None)
        assert found["year_distance"] == (pytest.approx(year - np.mean(liked)) if liked and year else None)


def test_files_that_ask_for_more_are_refused_and_run_nothing(tmp_path):
    folder = folder_of(tmp_path)

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    for content in (Evil(), {"a": Evil()}, frame(ROWS["test_ood2"]).assign(his=[Evil(), Evil()])):
        (folder / "collm/ml-1m/test_ood2.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=r"test_ood2.pkl: no pickled frame.*asks for \w+.system"):
            load_log("collm_ml1m", path=folder)
    assert not (tmp_path / "ran").exists()


def test_missing_and_wrong_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no train_ood2.pkl.*CoLLM.*no redistribution"):
        load_log("collm_ml1m", path=tmp_path)
    folder = folder_of(tmp_path, test_ood2={"uid": [1]})
    with pytest.raises(ValueError, match=r"test_ood2.pkl: holds a dict, expected a pandas DataFrame"):
        load_log("collm_ml1m", path=folder)
    (folder / "collm/ml-1m/test_ood2.pkl").write_bytes(b"PK\x03\x04 no pickle")
    with pytest.raises(ValueError, match=r"test_ood2.pkl: no pickled frame of CoLLM's ML-1M"):
        load_log("collm_ml1m", path=folder)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (frame(ROWS["test_ood2"]).drop(columns="his"), "test_ood2.pkl.*his"),
        (frame(ROWS["test_ood2"]).assign(label=[0, 5]), "'label'.*other than 0 and 1"),
        (frame(ROWS["test_ood2"]).assign(uid=[1.5, 2.0]), "'uid'.*expected whole numbers"),
        (
            frame(ROWS["test_ood2"]).assign(his=pd.Series(["1", "2"], index=[5, 6], dtype=object)),
            "'his': row 0 holds '1', expected a list",
        ),
        (frame(ROWS["test_ood2"]).assign(his_title=[[], []]), "row 0: `his` has 2 films, `his_title` 0 titles"),
        (frame(ROWS["test_ood2"]).iloc[:0], "the frame has no rows"),
        (frame([(7, 1, 1, 300, [0])]), "user 7 and film 1 stand on two rows"),
        (frame([(7, 10, 1, 300, [0, 4])]), "names film 4, whose own row has the label 0"),
    ],
)
def test_wrong_frames_are_refused(tmp_path, made, message):
    with pytest.raises(ValueError, match=message):
        load_log("collm_ml1m", path=folder_of(tmp_path, test_ood2=made))


@pytest.mark.parametrize("labels_seen", ["train", "train_and_validation"])
def test_levels_are_those_of_the_other_users(tmp_path, labels_seen):
    log = load_log("collm_ml1m", path=folder_of(tmp_path), labels_seen=labels_seen)
    labelled = [e for e in range(log.num_events) if log.label[e] >= 0 and not log.hidden[e]]
    likes = [
        e for e in range(log.num_events) if not log.hidden[e] and log.feedback_names[log.feedback[e]] == "positive"
    ]
    last = max(log.time[e] for e in labelled)
    share = np.mean([log.label[e] for e in labelled])

    def mean_of(user):
        own = [log.label[e] for e in labelled if log.user[e] == user]
        return (sum(own) + 5 * share) / (len(own) + 5)

    def film(user, item):
        rows = [e for e in labelled if log.item[e] == item and log.user[e] != user]
        return sum(log.label[e] - mean_of(log.user[e]) for e in rows) / (len(rows) + 5), np.log1p(len(rows))

    def logit(rate):
        return np.log(rate / (1 - rate))

    def lift(user, liked, item):
        fans = {log.user[e] for e in likes if log.item[e] == liked and log.user[e] != user and log.time[e] <= last}
        rows = [log.label[e] for e in labelled if log.item[e] == item and log.user[e] in fans]
        rate = min(max(share + film(user, item)[0], 0.02), 0.98)
        return logit((sum(rows) + 20 * rate) / (len(rows) + 20)) - logit(rate)

    for event in range(log.num_events):
        user, item = log.user[event], log.item[event]
        level, count = film(user, item)
        wanted = {"film_level": level, "film_rows": count}
        before = [log.item[e] for e in likes if log.user[e] == user and log.time[e] < log.time[event]]
        if before:
            levels, counts = zip(*(film(user, liked) for liked in before))
            pairs = sorted(lift(user, liked, item) for liked in before)
            wanted |= {
                "liked_level": np.mean(levels),
                "liked_level_10": np.mean(levels[-10:]),
                "liked_rows": np.mean(counts),
            }
            wanted |= {"co_liked": np.mean(pairs), "co_liked_10": np.mean(pairs[-10:])}
        for name in NAMES:
            found = log.context[name][event].as_py()
            assert found == (pytest.approx(wanted[name], abs=1e-6) if name in wanted else None), (name, event)


def test_levels_of_many_liked_films(tmp_path):
    """More likes than the last ten, on drawn rows: against plain loops over them."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(6), 30)
    item = np.concatenate([rng.permutation(40)[:30] for _ in range(6)])
    time = np.concatenate([np.sort(rng.integers(0, 60, 30)) for _ in range(6)])
    label = rng.integers(0, 2, 180)
    found = levels_without_the_user(user, item, time, label, label == 1, 40)
    rate = {u: (label[user == u].sum() + 5 * label.mean()) / (30 + 5) for u in range(6)}

    def level(own, film):
        rows = [e for e in range(180) if item[e] == film and user[e] != own]
        return sum(label[e] - rate[user[e]] for e in rows) / (len(rows) + 5)

    def lift(own, liked, film):
        fans = {user[e] for e in range(180) if item[e] == liked and label[e] == 1 and user[e] != own}
        rows = [label[e] for e in range(180) if item[e] == film and user[e] in fans]
        q = min(max(label.mean() + level(own, film), 0.02), 0.98)
        shrunk = (sum(rows) + 20 * q) / (len(rows) + 20)
        return np.log(shrunk / (1 - shrunk)) - np.log(q / (1 - q))

    for event in range(0, 180, 7):
        before = [e for e in range(180) if user[e] == user[event] and time[e] < time[event] and label[e] == 1]
        if before:
            levels = [level(user[event], item[e]) for e in before]
            assert found["liked_level"][event] == pytest.approx(np.mean(levels), abs=1e-6)
            assert found["liked_level_10"][event] == pytest.approx(np.mean(levels[-10:]), abs=1e-6)
            lifts = sorted(lift(user[event], item[e], item[event]) for e in before)
            assert found["co_liked"][event] == pytest.approx(np.mean(lifts), abs=1e-5)
            assert found["co_liked_10"][event] == pytest.approx(np.mean(lifts[-10:]), abs=1e-5)
    assert np.nanstd(found["co_liked"]) > 0.01
    changed = label.copy()
    changed[user == 3] = 1 - changed[user == 3]
    again = levels_without_the_user(user, item, time, np.where(user == 3, changed, label), label == 1, 40)
    prior = (
        again["film_level"][user == 3] - found["film_level"][user == 3]
    )  # only the share of all rows, which the others shrink to, moves
    assert np.abs(prior).max() < 0.05
