"""What the generated data share: titles about topics, draws of items and times, the truth behind a log and what its info says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from lmctr.data.leaks import rank_auc
from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import split_log
from lmctr.utils.ragged import blocks, offsets_from_lengths

TOPICS: dict[str, tuple[str, ...]] = {
    name: tuple(nouns.split())
    for name, nouns in {
        "Space": "rocket galaxy comet orbit astronaut nebula moon starship planet satellite",
        "Cooking": "kitchen chef recipe banquet bakery spice noodle oven dessert menu",
        "Crime": "detective heist alibi murder verdict smuggler witness ransom suspect prison",
        "Romance": "wedding kiss sweetheart proposal bride valentine lover honeymoon letter affair",
        "Sports": "champion boxer goalkeeper marathon stadium coach tournament racer medal team",
        "Horror": "ghost vampire haunting zombie curse coffin demon nightmare werewolf scream",
        "Music": "orchestra guitar melody singer drummer concert symphony jazz ballad piano",
        "Nature": "forest river elephant glacier meadow whale jungle canyon falcon reef",
        "War": "soldier battle regiment trench siege general bomber armistice convoy frontline",
        "Business": "banker startup merger broker market invoice boardroom salesman patent factory",
        "Fantasy": "dragon wizard sorcerer kingdom quest goblin unicorn spell enchantress castle",
        "School": "teacher classroom exam campus professor graduate homework scholar library essay",
    }.items()
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
        bayes_probability: (E,) the exact probability given what the user's earlier events show.
        label: (E,) int8 the labels, -1 for events that are no samples.
        taste: (U, num_topics) or (U, num_topics, num_scenarios) int8, +1 or -1.
        topic: (I,) topic of each catalogue row.
    """

    probability: np.ndarray
    bayes_probability: np.ndarray
    label: np.ndarray
    taste: np.ndarray
    topic: np.ndarray

    def best_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the Bayes-optimal history reader on `events` (all samples when None); nan where one class is missing."""
        return auc(self.label, self.bayes_probability, self.label >= 0 if events is None else events)

    def oracle_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the true probabilities, which nobody without the hidden taste can reach."""
        return auc(self.label, self.probability, self.label >= 0 if events is None else events)


class Settings:
    """Base of the generators: each is a dataclass of its settings, and its function takes the same settings.

    Attributes:
        message: what is said of a setting that does not hold.
    """

    message: ClassVar[str] = "{name}: got {value!r}, accepted: {accepted}."

    def require(self, name: str, accepted: str, holds: bool) -> None:
        """Raises for a setting that does not hold."""
        if not holds:
            raise ValueError(self.message.format(name=name, value=getattr(self, name), accepted=accepted))

    def settings(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass
class LogGenerator(Settings):
    """Base of the generators of logs, and the settings that all have.

    Args:
        num_users: users.
        num_items: rows of the catalogue.
        events_per_user: events of each user (the mean, with `events_spread`).
        seed: of all random draws.
        num_topics: topics, 2 to 12.
        zipf_exponent: popularity of the n-th item of a topic is proportional to n ** -zipf_exponent.
        topic_stickiness: chance, in [0, 1), that an event stays with the topic of the user's event before it.
        events_spread: standard deviation of the log of a user's number of events; 0 gives all users the same number.
        start_time: unix seconds of the start of the period.
        days: length of the period; each user's events are spread over it with exponential gaps and no two at one second.

    Attributes:
        known: what a Bayes-optimal reader knows of the earlier events. everything: what the log's samples are called when no test part can
            be split off. allow_repeats: whether a user may meet an item more than once.
    """

    known: ClassVar[str]
    everything: ClassVar[str]
    allow_repeats = True

    num_users: int = 400
    num_items: int = 600
    events_per_user: int = 60
    seed: int = 0
    _: KW_ONLY
    num_topics: int = 6
    zipf_exponent: float = 0.8
    topic_stickiness: float = 0.6
    events_spread: float = 0.0
    start_time: int = 1_577_836_800
    days: float = 365.0

    def generate(self) -> tuple[InteractionLog, SyntheticTruth]:
        """The log, and the truth behind each event. The same settings give the same log.

        Raises:
            ValueError: a setting out of its range.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Checks the settings that all generators have."""
        for name in ("num_users", "num_items", "events_per_user"):
            value = getattr(self, name)
            self.require(name, "an integer from 1", isinstance(value, (int, np.integer)) and value >= 1)
        most = min(len(TOPICS), self.num_items)
        accepted = f"an integer from 2 to {most} (there are {len(TOPICS)} topics, each needs an item)"
        self.require("num_topics", accepted, 2 <= self.num_topics <= most)
        self.require("topic_stickiness", "a number in [0, 1)", 0 <= self.topic_stickiness < 1)
        for name in ("zipf_exponent", "events_spread"):
            self.require(name, "a number from 0", getattr(self, name) >= 0)
        accepted = "more days than it takes for one event a second"
        self.require("days", accepted, self.days * 86_400 >= 4 * self.events_per_user)

    def draw_events(
        self, rng: np.random.Generator
    ) -> tuple[np.ndarray, pa.Table, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What users meet, whatever they think of it.

        Returns:
            (I,) topic of each item, the catalogue, (U + 1,) offsets of the users' events, (E,) user, item and time of each event.
        """
        topic = rng.permutation(np.arange(self.num_items) % self.num_topics)
        catalogue = draw_catalogue(rng, topic, self.num_topics)
        counts = np.full(self.num_users, self.events_per_user)
        if self.events_spread:
            spread = rng.lognormal(-(self.events_spread**2) / 2, self.events_spread, self.num_users)
            counts = np.maximum(1, np.rint(self.events_per_user * spread)).astype(np.int64)
            counts = counts if self.allow_repeats else np.minimum(counts, self.num_items // 2)
        offsets = offsets_from_lengths(counts)
        user = np.repeat(np.arange(self.num_users), counts)
        items = self._draw_items(rng, user, topic)
        times = draw_times(rng, offsets, self.start_time, self.days * 86_400)
        return topic, catalogue, offsets, user, items, times

    def _draw_items(self, rng: np.random.Generator, user: np.ndarray, topic: np.ndarray) -> np.ndarray:
        """(E,) items: first a topic (the last event's, or one from the user's own mix), then an item of the topic by popularity."""
        topics = self.num_topics
        mix = np.cumsum(rng.dirichlet(np.full(topics, 2.0), self.num_users), axis=1)
        by_topic = np.argsort(topic, kind="stable")
        sizes = np.bincount(topic, minlength=topics)
        starts = offsets_from_lengths(sizes)[:-1]
        rank = np.arange(len(topic)) - np.repeat(starts, sizes) + 1
        popularity = rank**-self.zipf_exponent
        cumulative = np.cumsum(popularity)
        before = np.concatenate([[0], cumulative])[starts]
        total = np.add.reduceat(popularity, starts)
        cumulative = (cumulative - np.repeat(before, sizes)) / np.repeat(total, sizes)
        cumulative += np.repeat(np.arange(topics), sizes)

        about = np.empty(len(user), dtype=np.int64)
        for some in blocks(len(user), 1 << 20):
            own = mix[user[some]]
            about[some] = np.minimum((own < rng.random(len(own))[:, None]).sum(axis=1), topics - 1)
        changes = rng.random(len(user)) >= self.topic_stickiness
        changes[np.concatenate([[True], user[1:] != user[:-1]])] = True
        about = about[np.maximum.accumulate(np.where(changes, np.arange(len(user)), 0))]

        def draw(chosen: np.ndarray) -> np.ndarray:
            place = np.searchsorted(cumulative, chosen + rng.random(len(chosen)), side="left")
            return by_topic[np.minimum(place, starts[chosen] + sizes[chosen] - 1)]

        items = draw(about)
        for attempt in range(1000):
            if self.allow_repeats:
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

    def with_info(
        self, log: InteractionLog, truth: SyntheticTruth, *, name: str, label_rule: str, notes: str = ""
    ) -> InteractionLog:
        """The log with what is known about it: its best reachable AUC, and the settings."""

        def rounded(value: float) -> float | None:
            return None if np.isnan(value) else round(float(value), 6)

        try:
            test, part = split_log(log).test, "the test part of the default split (by time, 8:1:1)"
            if np.isnan(truth.best_auc(test)):
                raise ValueError
        except ValueError:
            test, part = None, self.everything
        best = rounded(truth.best_auc(test))
        reader = f"that of the exact probability given each user's earlier {self.known}."
        info = DatasetInfo(
            name=name,
            licence="generated by lmctr, free of any rights",
            label_rule=label_rule,
            language="en",
            notes=f"The best reachable AUC on {part} is {best}: {reader}{notes}",
            best_auc=best,
            extra={
                "best_auc_on": part,
                "best_auc_knows": self.known,
                "best_auc_all_events": rounded(truth.best_auc()),
                "true_probability_auc": rounded(truth.oracle_auc(test)),
                "arguments": self.settings(),
            },
        )
        return replace(log, info=info)


def steps(offsets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Position by position, all users at once: the users that have an event there, and the event of each."""
    counts = np.diff(offsets)
    users = np.argsort(-counts, kind="stable")  # longest first, so that the active users are a prefix
    active = np.searchsorted(-counts[users], -np.arange(counts.max()), side="left")
    for step in range(int(counts.max())):
        now = users[: active[step]]
        yield now, offsets[now] + step


def draw_catalogue(rng: np.random.Generator, topic: np.ndarray, num_topics: int) -> pa.Table:
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


def draw_times(rng: np.random.Generator, offsets: np.ndarray, start: int, seconds: float) -> np.ndarray:
    """(E,) strictly rising times of each user, with exponential gaps that fill the period."""
    counts = np.diff(offsets)
    gaps = rng.exponential(size=int(offsets[-1]))
    passed = np.cumsum(gaps)
    passed -= np.repeat(passed[offsets[:-1]] - gaps[offsets[:-1]], counts)
    whole = passed[offsets[1:] - 1] + rng.exponential(size=len(counts))  # the gap after the last event
    position = np.arange(len(gaps)) - np.repeat(offsets[:-1], counts)
    room = seconds - counts  # one second for each event keeps times apart
    return start + position + (passed * np.repeat(room / whole, counts)).astype(np.int64)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(logits / 2))  # no overflow for large logits


def auc(labels: np.ndarray, scores: np.ndarray, events: np.ndarray | None = None) -> float:
    """Exact AUC, ties counted half; nan when only one class is there."""
    if events is not None:
        labels, scores = labels[events], scores[events]
    return rank_auc(scores, labels)
