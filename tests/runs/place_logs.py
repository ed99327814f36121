"""A small log whose clicks hang on where an item is shown."""

import numpy as np
import pandas as pd


def events_of_places(count, chances, **columns):
    """Events whose place alone says how likely a click is; the columns, behind the usual ones, are made of a generator and the places."""
    draw = np.random.default_rng(0)
    place = draw.integers(0, len(chances), count)
    rows = {
        "user": [f"u{user}" for user in draw.integers(0, 60, count)],
        "item": [f"i{item}" for item in draw.integers(0, 30, count)],
        "ts": np.arange(count) * 60 + 1_600_000_000,
    }
    rows |= {name: made(draw, place) for name, made in columns.items()}
    return pd.DataFrame({**rows, "clicked": (draw.random(count) < np.array(chances)[place]) * 1})
