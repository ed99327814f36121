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

import inspect
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from lmctr.data.logs.log import InteractionLog

from .generator import TOPICS, LogGenerator, SyntheticTruth, auc, sigmoid, steps


@dataclass
class SyntheticLog(LogGenerator):
    """Settings of a generated log, besides those of [`LogGenerator`]; [`generate`] makes it.

    Args:
        recency_effect: logit per unit of the average of recent feedback.
        recency_decay: weight that the average keeps at each event, in [0, 1).
        taste_effect: logit that taste for the item's topic adds or takes.
        bias: logit without any effect.
        topic_appeal: in [0, 0.5); the share of users that like a topic goes from 0.5 + topic_appeal for the first topic to
            0.5 - topic_appeal for the last.
        allow_repeats: let a user meet an item more than once. Without it, a user may have at most `num_items // 2` events.
        stars: whether events carry graded feedback: 0.5 to 5 stars, above 3 exactly where the label is positive. How far above or below
            is chance, so stars tell no more than labels and the best AUC stays what it is.

    `log.info.best_auc` is the best reachable AUC on the test part of the default split (`split_log(log)`), or on all events when the log is
    too small for it; `log.info.extra` holds it for all events too, with the AUC of the true probabilities. The catalogue has the columns
    `item_id`, `title`, `genres` (the topic, for some items also a kind that means nothing) and `year`.
    """

    message = "synthetic_log: {name} = {value!r}; accepted: {accepted}."
    known: ClassVar[str] = "events"
    everything: ClassVar[str] = "all events"

    _: KW_ONLY
    recency_effect: float = 1.8
    recency_decay: float = 0.7
    taste_effect: float = 1.6
    bias: float = 0.0
    topic_appeal: float = 0.4
    allow_repeats: bool = False
    stars: bool = False

    def generate(self) -> tuple[InteractionLog, SyntheticTruth]:
        self.check()
        rng = np.random.default_rng(self.seed)
        topic, catalogue, offsets, user, items, times = self.draw_events(rng)
        liked = np.linspace(0.5 + self.topic_appeal, 0.5 - self.topic_appeal, self.num_topics)
        taste = np.where(rng.random((self.num_users, self.num_topics)) < liked, 1, -1).astype(np.int8)
        labels, probability, bayes = self._draw_labels(rng, offsets, topic[items], taste, liked)
        truth = SyntheticTruth(probability, bayes, labels, taste, topic)
        values = None
        if self.stars:  # drawn apart: the other draws are those of a log without stars
            draw = np.random.default_rng([self.seed, 1]).random(len(labels))
            values = np.where(labels == 1, 3.5 + 0.5 * np.floor(4 * draw), 0.5 + 0.5 * np.floor(6 * draw))
        log = InteractionLog.from_columns(
            user + 1, items + 1, times, labels, catalogue=catalogue, feedback_values=values
        )
        rule = "drawn from planted recency and taste effects"
        return self.with_info(log, truth, name="synthetic", label_rule=rule), truth

    def check(self) -> None:
        super().check()
        self.require("recency_decay", "a number in [0, 1)", 0 <= self.recency_decay < 1)
        self.require("topic_appeal", "a number in [0, 0.5)", 0 <= self.topic_appeal < 0.5)
        if not self.allow_repeats and self.events_per_user > self.num_items // 2:
            raise ValueError(
                f"synthetic_log: events_per_user = {self.events_per_user} without repeats needs at least twice as many items, got "
                f"num_items = {self.num_items}. Raise num_items or set allow_repeats=True."
            )

    def history_probability(self, log: InteractionLog, events: np.ndarray, num_behaviors: int) -> np.ndarray:
        """(S,) probability that the exact filter gives when it reads the last `num_behaviors` earlier events of each user only.

        It starts before the first of them as for a new user, without recent feedback and with the shares of each taste.
        """
        topics = {name: code for code, name in enumerate(list(TOPICS)[: self.num_topics])}
        topic = np.array([topics[genres[0]] for genres in log.catalogue["genres"].to_pylist()])[log.item]
        liked = np.linspace(0.5 + self.topic_appeal, 0.5 - self.topic_appeal, self.num_topics)
        start, end = log.history_bounds(events)
        average, odds = np.zeros(len(events)), np.tile(np.log(liked / (1 - liked)), (len(events), 1))
        for back in range(min(num_behaviors, int((end - start).max(initial=0))), 0, -1):
            rows = np.flatnonzero(end - start >= back)
            event = end[rows] - back
            if_liked, if_disliked = self._by_taste(average[rows])
            positive = log.label[event] == 1
            odds[rows, topic[event]] += _evidence(positive, if_liked, if_disliked)
            average[rows] = self._recent(average[rows], positive)
        if_liked, if_disliked = self._by_taste(average)
        belief = sigmoid(odds[np.arange(len(events)), topic[events]])
        return belief * if_liked + (1 - belief) * if_disliked

    def _by_taste(self, average: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probability of a positive label where the topic is liked, and where it is not."""
        base = self.bias + self.recency_effect * average
        return sigmoid(base + self.taste_effect), sigmoid(base - self.taste_effect)

    def _recent(self, average: np.ndarray, positive: np.ndarray) -> np.ndarray:
        return self.recency_decay * average + (1 - self.recency_decay) * np.where(positive, 1.0, -1.0)

    def _draw_labels(
        self, rng: np.random.Generator, offsets: np.ndarray, topic: np.ndarray, taste: np.ndarray, liked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, true probabilities and Bayes probabilities; one step per position, all users at once."""
        uniform = rng.random(int(offsets[-1]))
        labels = np.empty(len(uniform), dtype=np.int8)
        probability, bayes = np.empty(len(uniform)), np.empty(len(uniform))
        average = np.zeros(len(taste))
        odds = np.tile(np.log(liked / (1 - liked)), (len(taste), 1))  # log of P(+1) / P(-1) given the events so far
        for now, event in steps(offsets):
            about = topic[event]
            if_liked, if_disliked = self._by_taste(average[now])
            belief = sigmoid(odds[now, about])
            bayes[event] = belief * if_liked + (1 - belief) * if_disliked
            probability[event] = np.where(taste[now, about] > 0, if_liked, if_disliked)
            positive = uniform[event] < probability[event]
            labels[event] = positive
            odds[now, about] += _evidence(positive, if_liked, if_disliked)
            average[now] = self._recent(average[now], positive)
        return labels, probability, bayes


def _evidence(positive: np.ndarray, if_liked: np.ndarray, if_disliked: np.ndarray) -> np.ndarray:
    """What a label adds to the log-odds of the taste for its topic."""
    return np.where(positive, np.log(if_liked / if_disliked), np.log((1 - if_liked) / (1 - if_disliked)))


def best_reader_auc(log: InteractionLog, events: np.ndarray, num_behaviors: int | None = None) -> float | None:
    """AUC on some samples of the exact reader of the last `num_behaviors` earlier events (None: of all); None for another log than a
    generated one, and where one class is missing."""
    settings = log.info.extra.get("arguments")
    if log.info.name != "synthetic" or settings is None:
        return None
    longest = int(log.history_lengths(events).max(initial=0))
    scores = SyntheticLog(**settings).history_probability(
        log, events, longest if num_behaviors is None else num_behaviors
    )
    found = auc(log.label[events], scores)
    return None if np.isnan(found) else float(found)


def synthetic_log(*sizes: int, **settings: Any) -> InteractionLog:
    """Generates a log; takes the settings of [`SyntheticLog`], the first four by position too."""
    return SyntheticLog(*sizes, **settings).generate()[0]


synthetic_log.__signature__ = inspect.signature(SyntheticLog)  # what `help` and the registry read
