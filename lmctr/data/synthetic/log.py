"""A generated log with planted effects and a known best AUC, for the quickstart, tests and scaling studies.

Each user likes (s = +1) or dislikes (s = -1) each topic. The shares of users that like a topic differ between topics; a user's own
tastes are drawn independently and are never seen by a model. The user is shown items independent of taste: often of the topic of the
event before, else of a topic that the user meets more or less often, and with Zipf popularity inside the topic. The probability of
a positive label is

    p = sigmoid(bias + recency_effect * r + taste_effect * s[topic of the item])

where r in [-1, 1] is an exponential average of the user's earlier feedback (+1 positive, -1 negative), the newest weighing
`1 - recency_decay`: feedback comes in runs. Both effects can be read from a history of titles, feedback and order.

The taste is hidden, so p itself is out of reach. Because s is binary and independent over topics, the exact probability given the
user's whole history is a sum over its two values with a posterior that is updated event by event. That filter is the Bayes-optimal
history reader; its AUC is stated as the best reachable one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import split_log

TOPICS: dict[str, tuple[str, ...]] = {
    "Space": ("rocket", "galaxy", "comet", "orbit", "astronaut", "nebula", "moon", "starship", "planet", "satellite"),
    "Cooking": ("kitchen", "chef", "recipe", "banquet", "bakery", "spice", "noodle", "oven", "dessert", "menu"),
    "Crime": (
        "detective",
        "heist",
        "alibi",
        "murder",
        "verdict",
        "smuggler",
        "witness",
        "ransom",
        "suspect",
        "prison",
    ),
    "Romance": (
        "wedding",
        "kiss",
        "sweetheart",
        "proposal",
        "bride",
        "valentine",
        "lover",
        "honeymoon",
        "letter",
        "affair",
    ),
    "Sports": (
        "champion",
        "boxer",
        "goalkeeper",
        "marathon",
        "stadium",
        "coach",
        "tournament",
        "racer",
        "medal",
        "team",
    ),
    "Horror": (
        "ghost",
        "vampire",
        "haunting",
        "zombie",
        "curse",
        "coffin",
        "demon",
        "nightmare",
        "werewolf",
        "scream",
    ),
    "Music": ("orchestra", "guitar", "melody", "singer", "drummer", "concert", "symphony", "jazz", "ballad", "piano"),
    "Nature": ("forest", "river", "elephant", "glacier", "meadow", "whale", "jungle", "canyon", "falcon", "reef"),
    "War": (
        "soldier",
        "battle",
        "regiment",
        "trench",
        "siege",
        "general",
        "bomber",
        "armistice",
        "convoy",
        "frontline",
    ),
    "Business": (
        "banker",
        "startup",
        "merger",
        "broker",
        "market",
        "invoice",
        "boardroom",
        "salesman",
        "patent",
        "factory",
    ),
    "Fantasy": (
        "dragon",
        "wizard",
        "sorcerer",
        "kingdom",
        "quest",
        "goblin",
        "unicorn",
        "spell",
        "enchantress",
        "castle",
    ),
    "School": (
        "teacher",
        "classroom",
        "exam",
        "campus",
        "professor",
        "graduate",
        "homework",
        "scholar",
        "library",
        "essay",
    ),
}
"""Topic names, which are also the genre words, and the nouns that tell them from a title."""

_ADJECTIVES = (
    "last", "silent", "golden", "broken", "secret", "second", "distant", "lonely", "crimson", "hidden", "brave", "bitter",
    "little", "endless", "forgotten", "early", "gentle", "wild", "northern", "restless",
)  # fmt: skip
_PEOPLE = ("Marta", "Henry", "Clara", "Victor", "Nora", "Otto", "Ines", "Hugo")
_PLACES = ("Lisbon", "Oslo", "Kyoto", "Cairo", "Lima", "Vienna", "Havana", "Dublin")
_PATTERNS = (
    "The {adjective} {noun}",
    "{person} and the {noun}",
    "One {adjective} {noun} in {place}",
    "{noun} of {place}",
    "My {adjective} {noun}",
    "The {noun} and the {other}",
    "{person}'s {adjective} {noun}",
    "Return of the {noun}",
)
_KINDS = ("Series", "Short", "Classic", "Documentary")


@dataclass(frozen=True, eq=False)
class SyntheticTruth:
    """What the generator knows of each event of its log, in the log's order.

    Args:
        probability: (E,) the probability that the label was drawn from, hidden taste included.
        bayes_probability: (E,) the exact probability given the user's earlier events alone.
        label: (E,) the labels.
        taste: (U, num_topics) int8, +1 or -1.
        topic: (I,) topic of each catalogue row.
    """

    probability: np.ndarray
    bayes_probability: np.ndarray
    label: np.ndarray
    taste: np.ndarray
    topic: np.ndarray

    def best_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the Bayes-optimal history reader on `events` (all when None)."""
        return _auc(self.label, self.bayes_probability, events)

    def oracle_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the true probabilities, which nobody without the hidden taste can reach."""
        return _auc(self.label, self.probability, events)


def synthetic_log(
    num_users: int = 400,
    num_items: int = 600,
    events_per_user: int = 60,
    seed: int = 0,
    *,
    num_topics: int = 6,
    recency_effect: float = 1.8,
    recency_decay: float = 0.7,
    taste_effect: float = 1.6,
    bias: float = 0.0,
    zipf_exponent: float = 0.8,
    topic_stickiness: float = 0.6,
    topic_appeal: float = 0.4,
    events_spread: float = 0.0,
    allow_repeats: bool = False,
    start_time: int = 1_577_836_800,
    days: float = 365.0,
) -> InteractionLog:
    """Generates a log; the same arguments give the same log.

    Args:
        num_users: users.
        num_items: rows of the catalogue.
        events_per_user: events of each user (the mean, with `events_spread`).
        seed: of all random draws.
        num_topics: topics, 2 to 12.
        recency_effect: logit per unit of the average of recent feedback.
        recency_decay: weight that the average keeps at each event, in [0, 1).
        taste_effect: logit that taste for the item's topic adds or takes.
        bias: logit without any effect.
        zipf_exponent: popularity of the n-th item of a topic is proportional to n ** -zipf_exponent.
        topic_stickiness: chance, in [0, 1), that an event stays with the topic of the user's event before it.
        topic_appeal: in [0, 0.5); the share of users that like a topic goes from 0.5 + topic_appeal for the first topic to
            0.5 - topic_appeal for the last.
        events_spread: standard deviation of the log of a user's number of events; 0 gives all users the same number.
        allow_repeats: let a user meet an item more than once. Without it, a user may have at most `num_items // 2` events.
        start_time: unix seconds of the start of the period.
        days: length of the period; each user's events are spread over it with exponential gaps and no two at one second.

    Returns:
        A log with the catalogue columns `item_id`, `title`, `genres` (the topic, for some items also a kind that means nothing) and
        `year`. `log.info.best_auc` is the best reachable AUC on the test part of the default split (`split_log(log)`), or on all
        events when the log is too small for it; `log.info.extra` holds it for all events too, with the AUC of the true
        probabilities.

    Raises:
        ValueError: an argument out of its range.
    """
    return generate_synthetic(**locals())[0]


def generate_synthetic(
    num_users: int = 400,
    num_items: int = 600,
    events_per_user: int = 60,
    seed: int = 0,
    *,
    num_topics: int = 6,
    recency_effect: float = 1.8,
    recency_decay: float = 0.7,
    taste_effect: float = 1.6,
    bias: float = 0.0,
    zipf_exponent: float = 0.8,
    topic_stickiness: float = 0.6,
    topic_appeal: float = 0.4,
    events_spread: float = 0.0,
    allow_repeats: bool = False,
    start_time: int = 1_577_836_800,
    days: float = 365.0,
) -> tuple[InteractionLog, SyntheticTruth]:
    """[`synthetic_log`] together with the truth behind each event."""
    arguments = dict(locals())
    _check(arguments)
    rng = np.random.default_rng(seed)
    topic = rng.permutation(np.arange(num_items) % num_topics)
    catalogue = _catalogue(rng, topic, num_topics)
    counts = np.full(num_users, events_per_user)
    if events_spread:
        spread = rng.lognormal(-(events_spread**2) / 2, events_spread, num_users)
        counts = np.maximum(1, np.rint(events_per_user * spread)).astype(np.int64)
        if not allow_repeats:
            counts = np.minimum(counts, num_items // 2)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    user = np.repeat(np.arange(num_users), counts)
    items = _draw_items(rng, user, topic, num_users, num_topics, zipf_exponent, topic_stickiness, allow_repeats)
    times = _draw_times(rng, offsets, start_time, days * 86_400)
    liked = np.linspace(0.5 + topic_appeal, 0.5 - topic_appeal, num_topics)
    taste = np.where(rng.random((num_users, num_topics)) < liked, 1, -1).astype(np.int8)
    labels, probability, bayes = _draw_labels(rng, offsets, topic[items], taste, liked, arguments)
    truth = SyntheticTruth(probability, bayes, labels, taste, topic)
    log = InteractionLog.from_columns(user + 1, items + 1, times, labels, catalogue=catalogue)
    return _with_info(log, truth, arguments), truth


def _check(arguments: dict) -> None:
    def require(name: str, accepted: str, holds: bool) -> None:
        if not holds:
            raise ValueError(f"synthetic_log: {name} = {arguments[name]!r}; accepted: {accepted}.")

    for name in ("num_users", "num_items", "events_per_user"):
        require(name, "an integer from 1", isinstance(arguments[name], (int, np.integer)) and arguments[name] >= 1)
    most = min(len(TOPICS), arguments["num_items"])
    require(
        "num_topics",
        f"an integer from 2 to {most} (there are {len(TOPICS)} topics, each needs an item)",
        2 <= arguments["num_topics"] <= most,
    )
    require("recency_decay", "a number in [0, 1)", 0 <= arguments["recency_decay"] < 1)
    require("topic_stickiness", "a number in [0, 1)", 0 <= arguments["topic_stickiness"] < 1)
    require("topic_appeal", "a number in [0, 0.5)", 0 <= arguments["topic_appeal"] < 0.5)
    require("zipf_exponent", "a number from 0", arguments["zipf_exponent"] >= 0)
    require("events_spread", "a number from 0", arguments["events_spread"] >= 0)
    seconds = arguments["days"] * 86_400
    require("days", "more days than it takes for one event a second", seconds >= 4 * arguments["events_per_user"])
    if not arguments["allow_repeats"] and arguments["events_per_user"] > arguments["num_items"] // 2:
        raise ValueError(
            f"synthetic_log: events_per_user = {arguments['events_per_user']} without repeats needs at least twice as many items, got "
            f"num_items = {arguments['num_items']}. Raise num_items or set allow_repeats=True."
        )


def _catalogue(rng: np.random.Generator, topic: np.ndarray, num_topics: int) -> pa.Table:
    """Titles made from word lists: every title holds a noun of its topic, the rest says nothing about it."""
    names = list(TOPICS)[:num_topics]
    num_items = len(topic)
    nouns = rng.integers(0, 10, size=(num_items, 2))
    nouns[:, 1] = np.where(nouns[:, 1] == nouns[:, 0], (nouns[:, 1] + 1) % 10, nouns[:, 1])
    adjective = rng.integers(0, len(_ADJECTIVES), num_items)
    person, place = rng.integers(0, len(_PEOPLE), num_items), rng.integers(0, len(_PLACES), num_items)
    pattern = rng.integers(0, len(_PATTERNS), num_items)
    kind = rng.integers(0, 2 * len(_KINDS), num_items)
    year = rng.integers(1950, 2020, num_items)
    titles, genres = [], []
    for row in range(num_items):
        words = TOPICS[names[topic[row]]]
        title = _PATTERNS[pattern[row]].format(
            noun=words[nouns[row, 0]].capitalize(),
            other=words[nouns[row, 1]].capitalize(),
            adjective=_ADJECTIVES[adjective[row]].capitalize(),
            person=_PEOPLE[person[row]],
            place=_PLACES[place[row]],
        )
        titles.append(title)
        genres.append([names[topic[row]]] + ([_KINDS[kind[row]]] if kind[row] < len(_KINDS) else []))
    return pa.table(
        {
            "item_id": pa.array(np.arange(1, num_items + 1)),
            "title": pa.array(titles, pa.string()),
            "genres": pa.array(genres, pa.list_(pa.string())),
            "year": pa.array(year, pa.int16()),
        }
    )


def _draw_items(
    rng: np.random.Generator,
    user: np.ndarray,
    topic: np.ndarray,
    num_users: int,
    num_topics: int,
    zipf_exponent: float,
    stickiness: float,
    allow_repeats: bool,
) -> np.ndarray:
    """(E,) items: first a topic (the last event's, or one from the user's own mix), then an item of the topic by popularity."""
    mix = np.cumsum(rng.dirichlet(np.full(num_topics, 2.0), num_users), axis=1)
    by_topic = np.argsort(topic, kind="stable")
    sizes = np.bincount(topic, minlength=num_topics)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank = np.arange(len(topic)) - np.repeat(starts, sizes) + 1
    popularity = rank**-zipf_exponent
    cumulative = np.cumsum(popularity)
    before = np.concatenate([[0], cumulative])[starts]
    total = np.add.reduceat(popularity, starts)
    cumulative = (cumulative - np.repeat(before, sizes)) / np.repeat(total, sizes) + np.repeat(
        np.arange(num_topics), sizes
    )

    about = np.empty(len(user), dtype=np.int64)
    for start in range(0, len(user), 1 << 20):
        some = user[start : start + (1 << 20)]
        fresh = (mix[some] < rng.random(len(some))[:, None]).sum(axis=1)
        about[start : start + (1 << 20)] = np.minimum(fresh, num_topics - 1)
    changes = rng.random(len(user)) >= stickiness
    changes[np.concatenate([[True], user[1:] != user[:-1]])] = True
    about = about[np.maximum.accumulate(np.where(changes, np.arange(len(user)), 0))]

    def draw(chosen: np.ndarray) -> np.ndarray:
        place = np.searchsorted(cumulative, chosen + rng.random(len(chosen)), side="left")
        return by_topic[np.minimum(place, starts[chosen] + sizes[chosen] - 1)]

    items = draw(about)
    for attempt in range(1000):
        if allow_repeats:
            break
        key = user * len(topic) + items
        order = np.argsort(key, kind="stable")
        again = order[1:][key[order][1:] == key[order][:-1]]
        if not len(again):
            break
        # A topic's items may run out: later attempts draw from the whole catalogue.
        items[again] = draw(about[again]) if attempt < 20 else rng.integers(0, len(topic), len(again))
    else:
        raise ValueError(
            "synthetic_log: no draw without repeats was found; raise num_items or set allow_repeats=True."
        )
    return items


def _draw_times(rng: np.random.Generator, offsets: np.ndarray, start: int, seconds: float) -> np.ndarray:
    """(E,) strictly rising times of each user, with exponential gaps that fill the period."""
    counts = np.diff(offsets)
    gaps = rng.exponential(size=int(offsets[-1]))
    passed = np.cumsum(gaps)
    passed -= np.repeat(passed[offsets[:-1]] - gaps[offsets[:-1]], counts)
    whole = passed[offsets[1:] - 1] + rng.exponential(size=len(counts))  # the gap after the last event
    position = np.arange(len(gaps)) - np.repeat(offsets[:-1], counts)
    room = seconds - counts  # one second for each event keeps times apart
    return start + position + (passed * np.repeat(room / whole, counts)).astype(np.int64)


def _draw_labels(
    rng: np.random.Generator,
    offsets: np.ndarray,
    topic: np.ndarray,
    taste: np.ndarray,
    liked: np.ndarray,
    arguments: dict,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, true probabilities and Bayes probabilities; one step per position, all users at once."""
    counts = np.diff(offsets)
    users = np.argsort(-counts, kind="stable")  # longest first, so that the active users are a prefix
    uniform = rng.random(int(offsets[-1]))
    labels = np.empty(len(uniform), dtype=np.int8)
    probability, bayes = np.empty(len(uniform)), np.empty(len(uniform))
    average = np.zeros(len(counts))
    odds = np.tile(
        np.log(liked / (1 - liked)), (len(counts), 1)
    )  # log of P(taste = +1) / P(taste = -1) given the events so far
    active = np.searchsorted(-counts[users], -np.arange(counts.max()), side="left")
    for step in range(int(counts.max())):
        now = users[: active[step]]
        event = offsets[now] + step
        about = topic[event]
        base = arguments["bias"] + arguments["recency_effect"] * average[now]
        effect = arguments["taste_effect"]
        if_liked, if_disliked = _sigmoid(base + effect), _sigmoid(base - effect)
        belief = _sigmoid(odds[now, about])
        bayes[event] = belief * if_liked + (1 - belief) * if_disliked
        probability[event] = np.where(taste[now, about] > 0, if_liked, if_disliked)
        positive = uniform[event] < probability[event]
        labels[event] = positive
        odds[now, about] += np.where(
            positive, np.log(if_liked / if_disliked), np.log((1 - if_liked) / (1 - if_disliked))
        )
        decay = arguments["recency_decay"]
        average[now] = decay * average[now] + (1 - decay) * np.where(positive, 1.0, -1.0)
    return labels, probability, bayes


def _with_info(log: InteractionLog, truth: SyntheticTruth, arguments: dict) -> InteractionLog:
    def rounded(function, events: np.ndarray | None) -> float | None:  # noqa: ANN001
        value = function(events)
        return None if np.isnan(value) else round(float(value), 6)

    try:
        test, part = split_log(log).test, "the test part of the default split (by time, 8:1:1)"
        if np.isnan(truth.best_auc(test)):
            raise ValueError
    except ValueError:
        test, part = None, "all events"
    best = rounded(truth.best_auc, test)
    info = DatasetInfo(
        name="synthetic",
        licence="generated by lmctr, free of any rights",
        label_rule="drawn from planted recency and taste effects",
        language="en",
        notes=f"The best reachable AUC on {part} is {best}: that of the exact probability given each user's earlier events.",
        best_auc=best,
        extra={
            "best_auc_on": part,
            "best_auc_all_events": rounded(truth.best_auc, None),
            "true_probability_auc": rounded(truth.oracle_auc, test),
            "arguments": {
                key: value.item() if isinstance(value, np.generic) else value for key, value in arguments.items()
            },
        },
    )
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    return InteractionLog(**values | {"info": info})


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(logits / 2))  # no overflow for large logits


def _auc(labels: np.ndarray, scores: np.ndarray, events: np.ndarray | None) -> float:
    """Exact AUC, ties counted half; nan when only one class is there."""
    if events is not None:
        labels, scores = labels[events], scores[events]
    _, codes, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[codes]
    positives = labels == 1
    pairs = positives.sum() * (~positives).sum()
    if not pairs:
        return float("nan")
    return float((ranks[positives].sum() - positives.sum() * (positives.sum() + 1) / 2) / pairs)
