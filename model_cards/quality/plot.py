"""Draws quality.png from results.csv: python model_cards/quality/plot.py"""

import csv
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
MARKS = {"logistic_regression": "s", "gradient_boosting": "D", "dnn": "o", "din": "^", "ctr_sink": "v"}
TITLES = {"dnn": "DNN", "din": "DIN", "ctr_sink": "CTR-Sink"}

found = defaultdict(list)
with open(FOLDER / "results.csv") as file:
    for row in csv.DictReader(file):
        name, _, _ = row["model"].partition(", ")
        if (row["data"], row["split"]) == ("movielens latest-small", "test") and name in MARKS:
            found[name].append((float(row["auc"]), float(row["grouped_auc"])))
figure = Figure(figsize=(6.4, 3.0), layout="constrained")
axes = figure.subplots()
for name, mark in MARKS.items():
    colour = "tab:blue" if name in TITLES else "tab:gray"
    title = TITLES.get(name, name.replace("_", " "))
    axes.scatter(*zip(*found[name]), s=40, color=colour, marker=mark, alpha=0.8, label=title)
axes.set(xlabel="AUC", ylabel="AUC inside users", title="MovieLens latest-small, test: a point a run")
axes.locator_params(axis="x", nbins=5)
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside right center", frameon=False)
figure.savefig(FOLDER / "quality.png", dpi=110)
