"""Random logs and sequence batches for the tests of sequence views and models."""

import numpy as np
import pyarrow as pa
import torch

from lmctr.data import InteractionLog, SequenceProcessor, SequenceView

BEHAVIORS = ("unknown", "full-play", "like")
SCENARIOS = ("home", "search", "radio")
CANDIDATES = [{"item": 100 + i, "scenario": SCENARIOS[i % 3]} for i in range(7)] + [
    {"item": 999}
]  # of which one is unknown


def statistics_logits(weights, batch, row, candidate):
    """What the statistics add to the logits past the network, float64 (T,); 0 without any."""
    if "statistics" not in batch:
        return 0.0
    return weights["statistics_skip.weight"] @ batch["statistics"][row, candidate].double().numpy()


def sequence_log(
    seed=0, num_users=5, most_events=14, num_items=12, seconds=40, weight=False, extra_labels=(), graded=False
):
    """Users with 1 to `most_events` events, equal times, three behaviours and scenarios, some events without a label."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most_events + 1, num_users)
    counts[0] = most_events
    user = np.repeat(np.arange(num_users), counts)
    total = len(user)
    label = rng.integers(-1, 2, total)
    label[[0, 1]] = [0, 1]
    catalogue = pa.table(
        {
            "item_id": np.arange(num_items) + 100,
            "genres": pa.array([["a", "b"][: 1 + i % 2] for i in range(num_items)]),
            "year": pa.array(1990 + np.arange(num_items) % 3),
        }
    )
    return InteractionLog.from_columns(
        user,
        rng.integers(0, num_items, total) + 100,
        rng.integers(0, seconds, total),
        label,
        catalogue=catalogue,
        feedback=rng.integers(0, 3, total),
        feedback_names=BEHAVIORS,
        scenario=rng.integers(0, 3, total),
        scenario_names=SCENARIOS,
        extra_labels={name: rng.integers(-1, 2, total) for name in extra_labels},
        weight=rng.uniform(0.5, 2, total) if weight else None,
        feedback_values=rng.uniform(1, 5, total) if graded else None,
        users=pa.table({"user_id": np.arange(num_users), "country": [f"c{i % 2}" for i in range(num_users)]}),
    )


def sequence_view(log, **options):
    return SequenceView(log, SequenceProcessor.fit(log, **options))


def single_rows(batch):
    """The single-item row of every real candidate of a SUMI batch: the row's start, the history cut at the dependence."""
    found = []
    for row, candidate in (batch["candidate_items"] != 0).nonzero().tolist():
        seen = int(batch["dependence"][row, candidate])
        single = {name: values[row : row + 1] for name, values in batch.items() if name in ("user_features",)}
        for name, values in batch.items():
            if name.startswith("history"):
                single[name] = values[row : row + 1, : max(seen, 1)] if seen else values[row : row + 1, :1] * 0
            elif name.startswith("candidate") or name in ("dependence", "statistics"):
                single[name] = values[row : row + 1, candidate]
        found.append((row, candidate, single))
    return found


def single_batches(batch):
    """`single_rows`, those of equally long histories together: rows, candidates and batch."""
    alike = {}
    for one in single_rows(batch):
        alike.setdefault(one[2]["history_items"].shape, []).append(one)
    for ones in alike.values():
        rows, candidates, singles = zip(*ones)
        yield list(rows), list(candidates), {name: torch.cat([own[name] for own in singles]) for name in singles[0]}


def random_batch(config, seed=0, num_rows=3, num_events=9, num_candidates=None, tasks=1):
    """A batch of random rows with times, of lengths from `num_events` down; `num_candidates` None gives (B,) candidates."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high, *shape, low=0):
        return torch.randint(low, high, shape, generator=generator)

    lengths = torch.tensor([max(num_events - 3 * row, 1) for row in range(num_rows)])
    mask = torch.arange(num_events) < lengths[:, None]
    shape = (num_rows,) if num_candidates is None else (num_rows, num_candidates)
    times = draw(60, num_rows, num_events, low=1).cumsum(1)
    batch = {
        "history_items": draw(config.item_vocab_size, num_rows, num_events, low=1) * mask,
        "history_behaviors": draw(config.num_behaviors, num_rows, num_events) * mask,
        "history_scenarios": draw(config.num_scenarios, num_rows, num_events) * mask,
        "history_times": times * mask,
        "candidate_items": draw(config.item_vocab_size, *shape, low=2),
        "candidate_scenarios": draw(config.num_scenarios, *shape),
        "candidate_times": times[:, -1].reshape(-1, *[1] * (len(shape) - 1)) + draw(60, *shape, low=1),
        "dependence": lengths.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone(),
    }
    columns = {
        side: [
            (size, int(not place))  # a list has one value at least
            for size, width in zip(
                getattr(config, f"{side}_feature_vocab_sizes"), getattr(config, f"{side}_feature_widths")
            )
            for place in range(width)
        ]
        for side in ("item", "user")
    }
    if columns["item"]:
        of_history = [draw(size, num_rows, num_events, low=low) * mask for size, low in columns["item"]]
        batch["history_features"] = torch.stack(of_history, -1)
        batch["candidate_features"] = torch.stack([draw(size, *shape, low=low) for size, low in columns["item"]], -1)
    if columns["user"]:
        batch["user_features"] = torch.stack([draw(size, num_rows, low=low) for size, low in columns["user"]], -1)
    if config.num_statistics:
        batch["statistics"] = torch.randn(*shape, config.num_statistics, generator=generator)
    labels = draw(2, *shape, *([tasks] if tasks > 1 else []))
    labels.view(-1)[0], labels.view(-1)[1:2] = 1, 0
    batch["labels"] = labels.float()
    return batch


def feature_vectors(weights, prefix, ids, widths):
    """Of each feature the vector of its id, or the mean of those of a list's that are no padding."""
    ids = iter(ids)
    for place, width in enumerate(widths):
        own = [found for found in (next(ids) for _ in range(width)) if found]
        yield sum(weights[f"{prefix}.{place}.weight"][found] for found in own) / max(1, len(own))


def events_of(seed, count, time=0):
    """Raw events of one user, of whom the first comes up to 4 seconds after `time`."""
    generator = torch.Generator().manual_seed(seed)
    events = []
    for _ in range(count):
        item, behavior, scenario, gap = (int(torch.randint(0, n, (), generator=generator)) for n in (12, 3, 3, 5))
        time += gap
        events.append(
            {"item": 100 + item, "behavior": BEHAVIORS[behavior], "scenario": SCENARIOS[scenario], "time": time}
        )
    return events


def one_by_one(model, processor, history, candidates, time):
    """The logits of candidates, each scored as a row of its own."""
    with torch.no_grad():
        rows = [processor([history], [[candidate]], times=[time]) for candidate in candidates]
        return torch.cat([model(**row).logits[0] for row in rows])
