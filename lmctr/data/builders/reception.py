"""How items were received before a log begins, in words that a language model can read.

Only ratings older than every event of the log count, so the text tells nothing about a sample or what came after it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

# Words by number of earlier ratings and by their share of positive ones; the upper ends are exclusive.
FAME = ((4, "rare"), (12, "known"), (40, "popular"), (np.inf, "famous"))
LIKING = ((0.40, "hated"), (0.52, "disliked"), (0.62, "mixed"), (0.72, "liked"), (0.82, "praised"), (np.inf, "loved"))
STRENGTH = 3.0  # earlier ratings that the overall share counts for


def earlier_reception(item: np.ndarray, positive: np.ndarray, num_items: int) -> tuple[pa.Array, pa.Array]:
    """Counts and words of earlier ratings by item.

    Args:
        item: (R,) catalogue row of each earlier rating.
        positive: (R,) bool, whether it was positive.
        num_items: rows of the catalogue.

    Returns:
        Number of earlier ratings, (I,) int32, and words such as "popular praised", (I,) string, null for an item
        without earlier ratings. The share of positive ratings is smoothed towards the share of all earlier ratings.
    """
    count = np.bincount(item, minlength=num_items)
    overall = float(positive.mean()) if len(positive) else 0.0
    share = (np.bincount(item, weights=positive, minlength=num_items) + STRENGTH * overall) / (count + STRENGTH)
    fame = np.array([word for _, word in FAME])[np.digitize(count, [end for end, _ in FAME[:-1]])]
    liking = np.array([word for _, word in LIKING])[np.digitize(share, [end for end, _ in LIKING[:-1]])]
    words = np.char.add(np.char.add(fame, " "), liking)
    return pa.array(count.astype(np.int32)), pa.array(words, mask=count == 0)
