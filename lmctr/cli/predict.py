"""The verb `predict`."""

from __future__ import annotations

from lmctr.cli.options import Action

FORMATS = """\
Rows of a log (any run that read one: text, events, tables). A file of user, item, time and what else the log's events have; histories,
descriptions and statistics come from the run's log, or from --log:

    lmctr predict RUN --input impressions.csv --output scores.parquet --on-error skip

A request is one JSON object per line, an answer one per line in the same order; an "id" is copied. Memory stays bounded however long
the input is. How lines are batched does not change the scores; a history that candidates share, or that goes on from the line before, is
encoded once where the model can.

Texts (CTR-Sink). "history" is the user's full history, oldest first, with texts as the run's prompt writes items and times in seconds;
"feedback" only where the run uses it, "similarity" where the run's order or signals use it and the folder holds no retriever. "target" is
a text or {"text": ...}, "candidates" a list of them instead:

    {"history": [{"text": "Heat (1995)", "time": 1700000000, "feedback": "liked"}], "target": "Casino (1995)", "time": 1700100000}

Here and of events below: where the run reads statistics, behaviours and candidates name their "item", candidates the log's "context" if it has one, and
behaviours a "label" (0, 1 or null) that their behavior does not say; of graded values (`feedback_values`: stars, watched seconds) a behaviour's is
"value". The answer has "logit" and "probability" for a target, "logits" and "probabilities" for candidates.

Events (the sequence families). Items by their ids, "behavior" and "scenario" by the names (or codes) of the run's log. A candidate (or the
one "target") is an id, or an object with "item" and, where they differ from the request's, "scenario" and "time"; "user" holds the
user's features where the run has such. Several tasks: "logits" and "probabilities" are objects by task:

    {"history": [{"item": 318, "behavior": "like", "scenario": "home", "time": 1700000000}],
     "candidates": [296, {"item": 47, "scenario": "search"}], "scenario": "home", "time": 1700100000}

Impressions (retrieval). A user and its ads with all columns of their fields (null: missing; others are ignored, as in tables); the
answer has "scores" in the order of the ads:

    {"user": {"region": "north", "clicked_ads": ["7"]}, "ads": [{"ad_id": "7", "clicks": 12}, {"ad_id": "9", "clicks": 0}]}

or a table of rows of a user and one ad each, as the file of training was; the answer has "row" and "score":

    lmctr predict RUN --input ranked.csv --output scores.csv --id-column request_id

Tables (the tabular families). A file of raw rows (CSV, TSV, .gz of them, Parquet, JSON lines; - for JSON lines) with all columns that
the processor reads; the answer has "row" (1 is the first), "logit" and "probability":

    lmctr predict RUN --input rows.csv --output scores.parquet --id-column ad_id
"""

ACTION = Action(
    "predict",
    "score requests with a trained run",
    "lmctr.runs.answers.options:PredictOptions",
    "lmctr.runs.answers.predict:predict",
    epilog=FORMATS,
)
add_parser = ACTION.add_parser
run = ACTION.run
