"""The Frappe builders on small files in the real format: the full log as CSV, the benchmark's held-out rows as libfm."""

import numpy as np
import pytest

from lmctr.data import load_log, load_tabular, split_log, validate_log
from lmctr.data.builders.frappe import CONTEXT

HEADER = "user\titem\tcnt\tdaytime\tweekday\tisweekend\thomework\tcost\tweather\tcountry\tcity\n"
# user, item, count, context. Launches 1 and 5 are of one user and app: only the weather of another row tells them apart.
LAUNCHES = [
    (0, 0, 1, "morning", "sunday", "weekend", "unknown", "free", "sunny", "Spain", 0),
    (0, 1, 7, "evening", "monday", "workday", "home", "free", "cloudy", "Spain", 7),
    (1, 2, 2, "morning", "monday", "workday", "work", "paid", "rainy", "India", 0),
    (1, 0, 2, "night", "sunday", "weekend", "home", "free", "sunny", "unknown", 0),
    (2, 3, 9, "evening", "sunday", "weekend", "unknown", "free", "sunny", "India", 7),
    (0, 1, 1, "evening", "monday", "workday", "home", "free", "rainy", "Spain", 7),
    (2, 3, 4, "evening", "sunday", "weekend", "unknown", "free", "sunny", "India", 7),
]
# Ids: users 0 to 2, apps 3 to 7; then the values of each column: daytime 8 morning, 9 evening, 10 night; weekday 11 sunday, 12 monday; weekend
# 13 weekend, 14 workday; 15 unknown, 16 home, 17 work; 18 free, 19 paid; 20 sunny, 21 cloudy, 22 rainy; 23 Spain, 24 India, 25 unknown; 26, 27.
VALIDATION = [
    (1, [1, 5, 8, 12, 14, 17, 19, 22, 24, 26]),  # launch 2
    (-1, [1, 4, 8, 12, 14, 17, 19, 22, 24, 26]),
    (-1, [1, 6, 10, 11, 13, 16, 18, 20, 25, 26]),  # 10 and 25: "night" and "unknown" are in training only
]
TEST = [
    (1, [0, 4, 9, 12, 14, 16, 18, 22, 23, 27]),  # launch 5, as 22 is rain
    (-1, [0, 6, 9, 12, 14, 16, 18, 22, 23, 27]),
    (1, [2, 6, 9, 11, 13, 15, 18, 20, 24, 27]),  # launches 4 and 6 agree: one of them
]
META = (
    "item\tpackage\tcategory\tdownloads\tdeveloper\ticon\tlanguage\tdescription\tname\tprice\trating\tshort desc\n"
    + "".join(
        f'{item}\tcom.a{item}\tTools\t1,000\tA\thttp://a\ten\tIt\'s "long"\tApp {item}\tFree\t4.5\t{"" if item == 2 else "Short."}\n'
        for item in range(5)
    )
)


def libfm(rows):
    return "".join(f"{label} {' '.join(f'{key}:1' for key in ids)}\n" for label, ids in rows)


def folder_of(root, launches=LAUNCHES, validation=VALIDATION, test=TEST):
    (root / "frappe").mkdir(parents=True)
    text = HEADER + "".join("\t".join(map(str, row)) + "\n" for row in launches)
    (root / "frappe" / "frappe.csv").write_text(text, encoding="utf-8")
    (root / "meta.csv").write_text(META, encoding="utf-8")
    (root / "frappe.validation.libfm").write_text(libfm(validation))
    (root / "frappe.test.libfm").write_text(libfm(test))
    return root


@pytest.fixture
def folder(tmp_path):
    # An app (4) that nobody uses leaves every user some negatives.
    return folder_of(tmp_path / "data", [*LAUNCHES, (1, 4, 1, *LAUNCHES[0][3:])])


def rows_of(source, part):
    return [row for rows in source.rows(part=part) for row in rows.table.to_pylist()]


def test_held_out_rows_are_read_with_their_values(folder):
    source = load_tabular("frappe", path=folder)
    test = rows_of(source, "test")
    assert [row["label"] for row in test] == [1, 0, 1]
    assert [(row["user"], row["item"]) for row in test] == [(0, 1), (0, 3), (2, 3)]
    assert [test[0][name] for name in CONTEXT] == [
        "evening",
        "monday",
        "workday",
        "home",
        "free",
        "rainy",
        "Spain",
        "7",
    ]
    assert [test[2][name] for name in CONTEXT] == [str(value) for value in LAUNCHES[4][3:]]
    last = rows_of(source, "validation")[2]
    assert (last["daytime"], last["country"], last["weather"]) == ("id 10", "id 25", "sunny")
    assert [field["name"] for field in source.fields] == ["user", "item", *CONTEXT]
    assert source.info.extra["rows"]["test"] == {"rows": 3, "positives": 2}
    assert source.info.extra["ambiguous_held_out_positives"] == 0


def test_training_rows_are_the_launches_left_and_drawn_negatives(folder):
    source = load_tabular("frappe", path=folder)
    train = rows_of(source, "train")
    positives = [row for row in train if row["label"]]
    left = [(0, 0, "sunny"), (0, 1, "cloudy"), (1, 0, "sunny"), (2, 3, "sunny"), (1, 4, "sunny")]
    assert sorted((row["user"], row["item"], row["weather"]) for row in positives) == sorted(left)
    negatives = [row for row in train if not row["label"]]
    assert len(negatives) == 10
    used = {(row[0], row[1]) for row in [*LAUNCHES, (1, 4)]}
    assert not any((row["user"], row["item"]) in used for row in negatives)
    contexts = [tuple(row[name] for name in ("user", *CONTEXT)) for row in negatives]
    assert contexts == [tuple(row[name] for name in ("user", *CONTEXT)) for row in positives for _ in range(2)]
    again = rows_of(load_tabular("frappe", path=folder, negative_seed=1), "train")
    assert [row for row in again if row["label"]] == positives
    assert again != train
    assert rows_of(load_tabular("frappe", path=folder), "train") == train
    assert len(rows_of(load_tabular("frappe", path=folder, num_negatives=3), "train")) == 20


def test_log_view_shows_training_launches_only(folder):
    log = load_log("frappe_log", path=folder)
    splits = split_log(log, "given")
    # Negatives are hidden: an app is met before where the user launched it, not where it was drawn.
    met = [
        (log.item[a:b] == log.item[e]).any() for e, a, b in zip(range(len(log)), *log.history_bounds(range(len(log))))
    ]
    assert validate_log(log, splits).repeated_items == sum(met) > 0
    assert [len(events) for _, events in splits.items()] == [15, 3, 3]
    table = load_tabular("frappe", path=folder)
    context = log.context.to_pylist()
    for part, events in splits.items():
        seen = [
            (int(log.user_ids[log.user[e]]), int(log.item[e]), int(log.label[e]), *context[e].values()) for e in events
        ]
        of_table = [tuple(row[name] for name in ("user", "item", "label", *CONTEXT)) for row in rows_of(table, part)]
        assert sorted(seen) == sorted(of_table)
    assert tuple(context[0]) == CONTEXT
    launches = {user: [row[1] for row in [*LAUNCHES, (1, 4)] if row[0] == user] for user in range(3)}
    start, end = log.history_bounds(splits.test)
    for event, first, stop in zip(splits.test, start, end):
        held_out = {0: [1], 1: [2], 2: [3]}[int(log.user[event])]
        expected = sorted(launches[int(log.user[event])])
        for item in held_out:
            expected.remove(item)
        assert sorted(log.item[first:stop].tolist()) == expected
    seen = ~log.hidden
    assert (log.label[seen] == 1).all()
    assert (log.part[seen] == 0).all()
    assert log.time[splits.train].max() < log.time[splits.validation].min() == log.time[splits.test].max()
    assert log.catalogue.slice(0, 1).to_pylist() == [
        {
            "item_id": 0,
            "title": "App 0",
            "category": "Tools",
            "price": "Free",
            "rating": "4.5",
            "summary": "Short.",
            "genres": ["Tools"],
            "app": "0",
        }
    ]
    assert log.scenario_names[log.scenario[splits.test[0]]] == "monday evening"


def test_wrong_files_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no frappe.csv.*CARSKit.*no redistribution"):
        load_tabular("frappe", path=tmp_path / "elsewhere")
    (folder / "frappe.test.libfm").rename(folder / "test.txt")
    with pytest.raises(FileNotFoundError, match=r"no frappe.test.libfm.*neural_factorization_machine"):
        load_tabular("frappe", path=folder)
    with pytest.raises(ValueError, match="num_negatives: got 0"):
        load_tabular("frappe", path=folder_of(tmp_path / "b"), num_negatives=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test": [(1, [0, 4, 9])]}, r"frappe.test.libfm: line 1 is no row of Frappe: '1 0:1 4:1 9:1'"),
        ({"test": [(2, VALIDATION[0][1])]}, "line 1 is no row of Frappe"),
        (
            {"test": [(1, [7, 4, *VALIDATION[0][1][2:]])]},
            "line 1 has the user 7 and the app 4.*Is frappe.csv the full log",
        ),
        ({"test": [(1, [0, 6, *VALIDATION[0][1][2:]])]}, "is no launch of this log"),
        ({"test": []}, "frappe.test.libfm: the file is empty"),
        (
            {"launches": [(0, item, 1, *LAUNCHES[0][3:]) for item in range(5)], "validation": [], "test": []},
            "is empty",
        ),
    ],
)
def test_rows_that_do_not_belong_to_the_log_are_refused(tmp_path, changed, message):
    launches = [*LAUNCHES, (1, 4, 1, *LAUNCHES[0][3:])]
    with pytest.raises(ValueError, match=message):
        load_tabular("frappe", path=folder_of(tmp_path, **{"launches": launches} | changed))


def test_user_of_every_app_has_no_negatives(tmp_path):
    launches = [*LAUNCHES, *((2, item, 1, *LAUNCHES[0][3:]) for item in range(5))]
    with pytest.raises(ValueError, match="user 2 has used all 5 apps"):
        load_tabular("frappe", path=folder_of(tmp_path, launches=launches))


def test_many_draws_are_even(tmp_path):
    """Every app that a user never used is drawn about as often as the others."""
    launches = [(user, user % 3, 1, *LAUNCHES[0][3:]) for user in range(3)] * 400 + [(0, 9, 1, *LAUNCHES[1][3:])]
    ids = [1, 3 + 1, *range(13, 21)]
    folder = folder_of(tmp_path, launches=launches, validation=[(1, ids)], test=[(1, ids)])
    rows = rows_of(load_tabular("frappe", path=folder), "train")
    drawn = np.bincount([row["item"] for row in rows if not row["label"] and row["user"] == 1], minlength=10)
    assert drawn[1] == 0
    assert len(drawn[drawn > 0]) == 9
    assert drawn[drawn > 0].min() > 60
