"""What a column's name says of its values."""

from __future__ import annotations

import re

THINGS = {
    "brand", "category", "cate", "campaign", "customer", "advertiser", "publisher", "creative", "seller",
    "merchant", "shop", "store", "author", "artist", "city", "country", "zip", "zipcode", "sku", "app", "device", "os", "channel", "ip",
}  # fmt: skip
"""Last words of the names of columns whose numbers name things."""


def words_of(name: str) -> list[str]:
    """The words of a column's name, `ad_click` or `adClick`."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())


def ends_in_id(name: str) -> bool:
    """Whether a name ends as those of ids do."""
    return re.sub(r"[^a-z]", "", name.lower()).endswith("id")
