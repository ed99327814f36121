"""A generated multi-behaviour, multi-scenario log whose signal sits in rare "like" events among many "full-play" events.

Each user has a hidden taste s = +1 or -1 for each topic; in each scenario the taste that acts is s, or with chance `scenario_flip`
its opposite. Every event is of a topic that the user meets often or rarely by habit, whatever the taste, and of a random scenario.
A share of the events are *impressions*, the samples, with the label

    y ~ Bernoulli(p),   p = sigmoid(bias[scenario] + taste_effect * taste[topic, scenario])

and the others have no label. What a history shows of an event is its behaviour: a positive impression turns into a "like" with
chance `like_share`; everything else, background and negative impressions alike, is a "full-play". Full-plays say what the user
is used to and hardly anything about taste, and there are many more of them: the latest events hold few likes, a lifetime has enough.

The taste is hidden, so p is out of reach. Given a user's earlier items, scenarios and behaviours the posterior of the tastes is a sum
over two values per topic and scenario, updated event by event: the exact, Bayes-optimal probability. Its AUC is the best reachable.
"""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from lmctr.data.logs.log import InteractionLog

from .generator import LogGenerator, SyntheticTruth, sigmoid, steps

BEHAVIORS = ("unknown", "full-play", "like")
SCENARIOS = ("home", "search", "radio", "feed", "playlist", "album", "artist", "car")


@dataclass
class SyntheticSequenceLog(LogGenerator):
    """Settings of a generated log with behaviours "full-play" and "like" and several scenarios, besides those of [`LogGenerator`]; [`generate`]
    makes it. Items repeat in what a user meets.

    Args:
        num_scenarios: scenarios, 1 to 8.
        impression_share: share of events that are samples, in (0, 1].
        like_share: chance that a positive impression shows as a like, in (0, 1].
        taste_effect: logit that taste adds or takes.
        scenario_bias: logits of the scenarios without taste go from -scenario_bias to +scenario_bias.
        scenario_flip: chance that a scenario's taste is the opposite of the user's, in [0, 0.5].
        taste_share: chance that a user likes a topic, in (0, 1).

    The log has the labels `label` and the extra label `like`, and catalogue columns as in [`~lmctr.data.synthetic.log.SyntheticLog`].
    `log.info.best_auc` is the best reachable AUC on the test part of the default split.
    """

    message = "synthetic_sequence_log: {name} = {value!r}; accepted: {accepted}."
    known: ClassVar[str] = "items, scenarios and behaviours"
    everything: ClassVar[str] = "all samples"

    num_items: int = 300
    events_per_user: int = 200
    _: KW_ONLY
    num_scenarios: int = 3
    impression_share: float = 0.2
    like_share: float = 0.5
    taste_effect: float = 2.5
    scenario_bias: float = 0.5
    scenario_flip: float = 0.1
    taste_share: float = 0.5

    def generate(self) -> tuple[InteractionLog, SyntheticTruth]:
        self.check()
        users, topics, scenarios = self.num_users, self.num_topics, self.num_scenarios
        rng = np.random.default_rng(self.seed)
        topic, catalogue, offsets, user, items, times = self.draw_events(rng)
        scenario = rng.integers(0, scenarios, len(user))

        base = np.where(rng.random((users, topics)) < self.taste_share, 1, -1)
        flipped = rng.random((users, topics, scenarios)) < self.scenario_flip
        taste = (base[..., None] * np.where(flipped, -1, 1)).astype(np.int8)
        bias = np.linspace(-self.scenario_bias, self.scenario_bias, scenarios) if scenarios > 1 else np.zeros(1)
        probability = sigmoid(bias[scenario] + self.taste_effect * taste[user, topic[items], scenario])
        is_sample = rng.random(len(user)) < self.impression_share
        positive = rng.random(len(user)) < probability
        liked = is_sample & positive & (rng.random(len(user)) < self.like_share)
        label = np.where(is_sample, positive, -1).astype(np.int8)
        bayes = self._filter(offsets, topic[items], scenario, liked, bias)

        log = InteractionLog.from_columns(
            user + 1,
            items + 1,
            times,
            label,
            catalogue=catalogue,
            feedback=np.where(liked, 2, 1),
            feedback_names=BEHAVIORS,
            extra_labels={"like": np.where(is_sample, liked, -1)},
            scenario=scenario,
            scenario_names=SCENARIOS[:scenarios],
        )
        truth = SyntheticTruth(probability, bayes, label, taste, topic)
        rule = "drawn from hidden tastes for topics, which differ between scenarios; rare likes show them"
        found = f" {int(is_sample.sum())} of {log.num_events} events are samples, {int(liked.sum())} are likes."
        return self.with_info(log, truth, name="synthetic_sequence", label_rule=rule, notes=found), truth

    def check(self) -> None:
        super().check()
        most = len(SCENARIOS)
        self.require("num_scenarios", f"an integer from 1 to {most}", 1 <= self.num_scenarios <= most)
        for name in ("impression_share", "like_share"):
            self.require(name, "a number in (0, 1]", 0 < getattr(self, name) <= 1)
        self.require("taste_share", "a number in (0, 1)", 0 < self.taste_share < 1)
        self.require("scenario_flip", "a number in [0, 0.5]", 0 <= self.scenario_flip <= 0.5)

    def _filter(
        self, offsets: np.ndarray, topic: np.ndarray, scenario: np.ndarray, liked: np.ndarray, bias: np.ndarray
    ) -> np.ndarray:
        """(E,) probability of a positive label given what came before; one step per position, all users at once.

        For each user, topic and scenario: the log likelihood of what was seen, under either taste that may act there. The user's taste s
        ties the scenarios of a topic: P(t | seen) = sum_s P(s) P(t | s) L_r(t) prod_{r' != r} sum_t' P(t' | s) L_r'(t'), normalised.
        """
        positive = sigmoid(bias[:, None] + self.taste_effect * np.array([1.0, -1.0]))  # (R, taste)
        like = self.impression_share * self.like_share * positive
        evidence = np.stack([np.log1p(-like), np.log(like)])  # (liked, R, taste)
        flip = self.scenario_flip
        given = np.array([[1 - flip, flip], [flip, 1 - flip]])  # P(t | s), rows s
        prior = np.array([self.taste_share, 1 - self.taste_share])
        seen = np.zeros((len(offsets) - 1, self.num_topics, len(bias), 2))
        bayes = np.empty(int(offsets[-1]))
        for now, event in steps(offsets):
            about, place = topic[event], scenario[event]
            known = seen[now, about]  # (A, R, 2)
            likelihood = np.exp(known - known.max(axis=2, keepdims=True))
            per_scenario = np.einsum("art,st->ars", likelihood, given)  # sum_t P(t | s) L_r(t)
            # (A, s); the maxima taken out above cancel: they depend on neither s nor t
            others = np.log(per_scenario).sum(axis=1)
            own = np.take_along_axis(likelihood, place[:, None, None], axis=1)[:, 0]  # (A, t)
            own_sum = np.take_along_axis(per_scenario, place[:, None, None], axis=1)[:, 0]  # (A, s)
            weight = others - np.log(own_sum) + np.log(prior)
            weight = np.exp(weight - weight.max(axis=1, keepdims=True))
            joint = np.einsum("as,st,at->at", weight, given, own)
            belief = joint / joint.sum(axis=1, keepdims=True)
            bayes[event] = (belief * positive[place]).sum(axis=1)
            seen[now, about, place] += evidence[liked[event].astype(np.int64), place]
        return bayes


def synthetic_sequence_log(*sizes: int, **settings: Any) -> InteractionLog:
    """Generates a log; takes the settings of [`SyntheticSequenceLog`], the first four by position too."""
    return SyntheticSequenceLog(*sizes, **settings).generate()[0]


synthetic_sequence_log.__signature__ = inspect.signature(SyntheticSequenceLog)  # what `help` and the registry read
