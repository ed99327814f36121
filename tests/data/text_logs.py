"""Small logs for the tests of text views and retrieval."""

import numpy as np
import pyarrow as pa

from lmctr.data.logs.log import InteractionLog

TITLES = [
    "Heat (1995)",
    "Casino (1995)",
    "Alien (1979)",
    None,
    "",
    "Toy Story",
    "[SINK] <s> [SEP]",
    "星际穿越",
    "Heat Casino",
]
GENRES = [["Action", "Crime"], ["Crime"], ["Horror", "Sci-Fi"], ["Drama"], None, [], ["Crime"], ["Sci-Fi"], ["Action"]]


def catalogue(copies=1):
    titles, genres = TITLES * copies, GENRES * copies
    return pa.table(
        {
            "item_id": np.arange(len(titles)),
            "title": pa.array(titles, pa.string()),
            "genres": pa.array(genres, pa.list_(pa.string())),
        }
    )


def small_log(num_users=12, most_events=30, seed=0, known_feedback=False, weight=False, copies=1):
    """Random events with equal times, users with one event, events without a label and repeated items."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most_events, num_users)
    counts[0] = 1
    user = np.repeat(np.arange(num_users), counts)
    total = len(user)
    items = catalogue(copies)
    return InteractionLog.from_columns(
        user,
        rng.integers(0, items.num_rows, total),
        rng.integers(0, 40, total) * 86_400,
        rng.integers(-1, 2, total),
        catalogue=items,
        feedback=rng.integers(1 if known_feedback else 0, 3, total),
        feedback_names=("unknown", "negative", "positive"),
        weight=rng.uniform(0.5, 2, total) if weight else None,
    )
