"""Write the files that the commands of own_logs.md read, from those that the authors published, all in one folder.

python model_cards/own_logs/prepare.py FOLDER    # writes into the current folder

FOLDER holds `assist2009_pid_test1.csv` and `assist2009_pid_valid1.csv` (arghosh/AKT), `ratings.dat` and `movies.dat` of the snapshot 100K
(MovieTweetings), `user_item.dat`, `item_category.dat` and `item_brand.dat` (Amazon of HIN-Datasets), `yoochoose-clicks-100k_train_full.txt` and
`yoochoose-clicks-100k_test.txt` (session-rec), `click_log.csv` (rec-project-multiRecall) and `MainTable.csv` (CSEDM-challenge).
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

SOURCE = Path(sys.argv[1])


def answers() -> None:
    """One row per answer: a row of each skill of its problem stands there, one behind the other; skills of a problem are one list."""
    rows, skills = [], {}
    for name in ("assist2009_pid_test1.csv", "assist2009_pid_valid1.csv"):
        lines = (SOURCE / name).read_text().splitlines()
        for start in range(0, len(lines), 4):
            student = lines[start].split(",")[1]
            before, known = None, set()
            for problem, skill, correct in zip(
                *(line.strip(",").split(",") for line in lines[start + 1 : start + 4]), strict=True
            ):
                if problem != before or skill in known:
                    rows.append((student, problem, correct))
                    known = set()
                before = problem
                known.add(skill)
                skills.setdefault(problem, {})[skill] = None
    frame = pd.DataFrame(rows, columns=["student", "problem", "correct"])
    frame["time"] = 1_600_000_000 + 60 * frame.index  # the file has none
    frame.to_csv("answers.csv", index=False)
    pd.DataFrame({"problem": list(skills), "skill": ["|".join(known) for known in skills.values()]}).to_csv(
        "problems.csv", index=False
    )


def purchases() -> None:
    """Items with their categories, one list, and their brand."""
    shutil.copy(SOURCE / "user_item.dat", "amazon.dat")
    category, brand = (
        pd.read_csv(SOURCE / f"item_{kind}.dat", names=["item", kind], dtype=str) for kind in ("category", "brand")
    )
    items = (
        category.groupby("item", sort=False)["category"]
        .agg("|".join)
        .reset_index()
        .merge(brand, how="outer", on="item")
    )
    items.to_csv("amazon_items.csv", index=False)


answers()
purchases()
for name in ("ratings.dat", "movies.dat"):
    shutil.copy(SOURCE / name, name)
parts = [pd.read_csv(SOURCE / f"yoochoose-clicks-100k_{part}.txt", sep="\t") for part in ("train_full", "test")]
pd.concat(parts).to_csv("yoochoose.tsv", sep="\t", index=False)
shutil.copy(SOURCE / "click_log.csv", "news.csv")
shutil.copy(SOURCE / "MainTable.csv", "csedm.csv")
