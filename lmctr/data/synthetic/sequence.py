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

from dataclasses import dataclass

import numpy as np

from lmctr.data.logs.log import DatasetInfo, InteractionLog
from lmctr.data.logs.splits import split_log

from .log import TOPICS, _auc, _catalogue, _draw_items, _draw_times, _sigmoid

BEHAVIORS = ("unknown", "full-play", "like")
SCENARIOS = ("home", "search", "radio", "feed", "playlist", "album", "artist", "car")


@dataclass(frozen=True, eq=False)
class SequenceTruth:
    """What is behind a generated log, in the order of its events.

    Args:
        probability: (E,) true p. bayes: (E,) probability of a positive label given the user's earlier items, scenarios and behaviours.
        label: (E,) int8 label, -1 for background events.
        taste: (U, topics, scenarios) int8, +1 or -1.
        topic: (I,) topic of each item.
    """

    probability: np.ndarray
    bayes: np.ndarray
    label: np.ndarray
    taste: np.ndarray
    topic: np.ndarray

    def best_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the Bayes probability on samples (default: all); nan where one class is missing."""
        events = np.flatnonzero(self.label >= 0) if events is None else events
        return _auc(self.label, self.bayes, events)

    def oracle_auc(self, events: np.ndarray | None = None) -> float:
        """AUC of the true probability, which no reader of histories can have."""
        events = np.flatnonzero(self.label >= 0) if events is None else events
        return _auc(self.label, self.probability, events)


def synthetic_sequence_log(
    num_users: int = 400,
    num_items: int = 300,
    events_per_user: int = 200,
    seed: int = 0,
    *,
    num_topics: int = 6,
    num_scenarios: int = 3,
    impression_share: float = 0.2,
    like_share: float = 0.5,
    taste_effect: float = 2.5,
    scenario_bias: float = 0.5,
    scenario_flip: float = 0.1,
    taste_share: float = 0.5,
    zipf_exponent: float = 0.8,
    topic_stickiness: float = 0.6,
    events_spread: float = 0.0,
    start_time: int = 1_577_836_800,
    days: float = 365.0,
) -> InteractionLog:
    """Generates a log with behaviours "full-play" and "like" and several scenarios.

    Args:
        num_users: users.
        num_items: rows of the catalogue.
        events_per_user: events of each user (the mean, with `events_spread`); items repeat.
        seed: of all random draws.
        num_topics: topics, 2 to 12.
        num_scenarios: scenarios, 1 to 8.
        impression_share: share of events that are samples, in (0, 1].
        like_share: chance that a positive impression shows as a like, in (0, 1].
        taste_effect: logit that taste adds or takes.
        scenario_bias: logits of the scenarios without taste go from -scenario_bias to +scenario_bias.
        scenario_flip: chance that a scenario's taste is the opposite of the user's, in [0, 0.5].
        taste_share: chance that a user likes a topic, in (0, 1).
        zipf_exponent: popularity of the n-th item of a topic is proportional to n ** -zipf_exponent.
        topic_stickiness: chance, in [0, 1), that an event stays with the topic of the user's event before it.
        events_spread: standard deviation of the log of a user's number of events; 0 gives all users the same number.
        start_time: unix seconds of the start of the period.
        days: length of the period.

    Returns:
        A log with the labels `label` and the extra label `like`, catalogue columns as in [`synthetic_log`].
        `log.info.best_auc` is the best reachable AUC on the test part of the default split.

    Raises:
        ValueError: an argument out of its range.
    """
    return generate_synthetic_sequence(**locals())[0]


def generate_synthetic_sequence(
    num_users: int = 400,
    num_items: int = 300,
    events_per_user: int = 200,
    seed: int = 0,
    *,
    num_topics: int = 6,
    num_scenarios: int = 3,
    impression_share: float = 0.2,
    like_share: float = 0.5,
    taste_effect: float = 2.5,
    scenario_bias: float = 0.5,
    scenario_flip: float = 0.1,
    taste_share: float = 0.5,
    zipf_exponent: float = 0.8,
    topic_stickiness: float = 0.6,
    events_spread: float = 0.0,
    start_time: int = 1_577_836_800,
    days: float = 365.0,
) -> tuple[InteractionLog, SequenceTruth]:
    """[`synthetic_sequence_log`] together with the truth behind each event."""
    arguments = dict(locals())
    _check(arguments)
    rng = np.random.default_rng(seed)
    topic = rng.permutation(np.arange(num_items) % num_topics)
    catalogue = _catalogue(rng, topic, num_topics)
    counts = np.full(num_users, events_per_user)
    if events_spread:
        spread = rng.lognormal(-(events_spread**2) / 2, events_spread, num_users)
        counts = np.maximum(1, np.rint(events_per_user * spread)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    user = np.repeat(np.arange(num_users), counts)
    total = len(user)
    items = _draw_items(rng, user, topic, num_users, num_topics, zipf_exponent, topic_stickiness, True)
    times = _draw_times(rng, offsets, start_time, days * 86_400)
    scenario = rng.integers(0, num_scenarios, total)

    base = np.where(rng.random((num_users, num_topics)) < taste_share, 1, -1)
    flipped = rng.random((num_users, num_topics, num_scenarios)) < scenario_flip
    taste = (base[..., None] * np.where(flipped, -1, 1)).astype(np.int8)
    bias = np.linspace(-scenario_bias, scenario_bias, num_scenarios) if num_scenarios > 1 else np.zeros(1)
    probability = _sigmoid(bias[scenario] + taste_effect * taste[user, topic[items], scenario])
    is_sample = rng.random(total) < impression_share
    positive = rng.random(total) < probability
    liked = is_sample & positive & (rng.random(total) < like_share)
    label = np.where(is_sample, positive, -1).astype(np.int8)
    bayes = _filter(offsets, topic[items], scenario, liked, bias, arguments)

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
        scenario_names=SCENARIOS[:num_scenarios],
    )
    truth = SequenceTruth(probability, bayes, label, taste, topic)
    return _with_info(log, truth, arguments), truth


def _check(arguments: dict) -> None:
    def require(name: str, accepted: str, holds: bool) -> None:
        if not holds:
            raise ValueError(f"synthetic_sequence_log: {name} = {arguments[name]!r}; accepted: {accepted}.")

    for name in ("num_users", "num_items", "events_per_user"):
        require(name, "an integer from 1", isinstance(arguments[name], (int, np.integer)) and arguments[name] >= 1)
    most = min(len(TOPICS), arguments["num_items"])
    require("num_topics", f"an integer from 2 to {most}", 2 <= arguments["num_topics"] <= most)
    require(
        "num_scenarios", f"an integer from 1 to {len(SCENARIOS)}", 1 <= arguments["num_scenarios"] <= len(SCENARIOS)
    )
    for name in ("impression_share", "like_share"):
        require(name, "a number in (0, 1]", 0 < arguments[name] <= 1)
    require("taste_share", "a number in (0, 1)", 0 < arguments["taste_share"] < 1)
    require("scenario_flip", "a number in [0, 0.5]", 0 <= arguments["scenario_flip"] <= 0.5)
    require("topic_stickiness", "a number in [0, 1)", 0 <= arguments["topic_stickiness"] < 1)
    for name in ("zipf_exponent", "events_spread"):
        require(name, "a number from 0", arguments[name] >= 0)
    require(
        "days",
        "more days than it takes for one event a second",
        arguments["days"] * 86_400 >= 4 * arguments["events_per_user"],
    )


def _filter(
    offsets: np.ndarray, topic: np.ndarray, scenario: np.ndarray, liked: np.ndarray, bias: np.ndarray, arguments: dict
) -> np.ndarray:
    """(E,) probability of a positive label given what came before; one step per position, all users at once.

    For each user, topic and scenario: the log likelihood of what was seen, under either taste that may act there. The user's taste s
    ties the scenarios of a topic: P(t | seen) = sum_s P(s) P(t | s) L_r(t) prod_{r' != r} sum_t' P(t' | s) L_r'(t'), normalised.
    """
    counts = np.diff(offsets)
    num_scenarios = len(bias)
    positive = _sigmoid(bias[:, None] + arguments["taste_effect"] * np.array([1.0, -1.0]))  # (R, taste)
    like = arguments["impression_share"] * arguments["like_share"] * positive
    evidence = np.stack([np.log1p(-like), np.log(like)])  # (liked, R, taste)
    flip = arguments["scenario_flip"]
    given = np.array([[1 - flip, flip], [flip, 1 - flip]])  # P(t | s), rows s
    prior = np.array([arguments["taste_share"], 1 - arguments["taste_share"]])
    seen = np.zeros((len(counts), arguments["num_topics"], num_scenarios, 2))
    bayes = np.empty(int(offsets[-1]))
    users = np.argsort(-counts, kind="stable")
    active = np.searchsorted(-counts[users], -np.arange(counts.max()), side="left")
    for step in range(int(counts.max())):
        now = users[: active[step]]
        event = offsets[now] + step
        about, place = topic[event], scenario[event]
        known = seen[now, about]  # (A, R, 2)
        likelihood = np.exp(known - known.max(axis=2, keepdims=True))
        per_scenario = np.einsum("art,st->ars", likelihood, given)  # sum_t P(t | s) L_r(t)
        others = np.log(per_scenario).sum(
            axis=1
        )  # (A, s); the maxima taken out above cancel: they depend on neither s nor t
        own = np.take_along_axis(likelihood, place[:, None, None], axis=1)[:, 0]  # (A, t)
        own_sum = np.take_along_axis(per_scenario, place[:, None, None], axis=1)[:, 0]  # (A, s)
        weight = others - np.log(own_sum) + np.log(prior)
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        joint = np.einsum("as,st,at->at", weight, given, own)
        belief = joint / joint.sum(axis=1, keepdims=True)
        bayes[event] = (belief * positive[place]).sum(axis=1)
        seen[now, about, place] += evidence[liked[event].astype(np.int64), place]
    return bayes


def _with_info(log: InteractionLog, truth: SequenceTruth, arguments: dict) -> InteractionLog:
    def rounded(value: float) -> float | None:
        return None if np.isnan(value) else round(float(value), 6)

    try:
        test, part = split_log(log).test, "the test part of the default split (by time, 8:1:1)"
        if np.isnan(truth.best_auc(test)):
            raise ValueError
    except ValueError:
        test, part = None, "all samples"
    best = rounded(truth.best_auc(test))
    samples = truth.label >= 0
    info = DatasetInfo(
        name="synthetic_sequence",
        licence="generated by lmctr, free of any rights",
        label_rule="drawn from hidden tastes for topics, which differ between scenarios; rare likes show them",
        language="en",
        notes=(
            f"The best reachable AUC on {part} is {best}: that of the exact probability given each user's earlier items, scenarios "
            f"and behaviours. {int(samples.sum())} of {log.num_events} events are samples, {int((log.feedback == 2).sum())} are likes."
        ),
        best_auc=best,
        extra={
            "best_auc_on": part,
            "best_auc_all_events": rounded(truth.best_auc()),
            "true_probability_auc": rounded(truth.oracle_auc(test)),
            "arguments": {
                key: value.item() if isinstance(value, np.generic) else value for key, value in arguments.items()
            },
        },
    )
    values = {name: getattr(log, name) for name in log.__dataclass_fields__}
    return InteractionLog(**values | {"info": info})
