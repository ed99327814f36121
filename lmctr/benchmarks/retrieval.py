"""`lmctr benchmark retrieval`: the ads of a request scored naively and with the first layer split, and the losses on impressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lmctr.benchmarks.harness import in_turn, keeping, machine_text, reports, results, speedups, summary, table
from lmctr.benchmarks.options import RetrievalBenchmark
from lmctr.models.common.ranking_losses import ARFLoss, neural_sort
from lmctr.models.families import family_of
from lmctr.scaling.flops import measure_flops
from lmctr.scaling.inputs import RequestShape, random_inputs
from lmctr.serving import split_first_layer

_TOLERANCE = 1e-5
_PAIRS = 1 << 22  # entries of the (B, n, n) tensors of a loss
ARMS = {
    "retrieval_mlp": {
        "naive": "the model's forward pass: the user's input joined to every ad's",
        "naive, MLP only": "the MLP on inputs that are joined already, without look-ups",
        "split": "split_first_layer: the user's half, and the ads' halves computed now",
        "split, cached": "split_first_layer: the user's half, and cached halves of the ads",
    },
    "two_tower": {
        "naive": "the model's forward pass: both towers",
        "split, cached": "split_first_layer: the user's tower, and cached vectors of the ads",
    },
}
LOSS_ARMS = {
    "NeuralSort": "relaxed permutation matrices, forward",
    "ARF": "loss and gradient",
    "ARF, one by one": "the same, an impression at a time",
}


def benchmark_retrieval(options: RetrievalBenchmark) -> dict[str, Any]:
    """Measures scoring and losses.

    Returns:
        "machine", "settings"; "scoring": by family and way "seconds" (median and all) of a request and "speedup" to "naive", with
        "largest_difference" of the scores, "mlp_gflop_per_request" and "update_seconds" of a single ad's half; "losses": by number of
        ads the impressions of a batch and by way "seconds" and "milliseconds_per_impression".

    Raises:
        ValueError: the ways give scores that differ by more than 1e-5.
    """
    options = options.sized()
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        return {
            **results(options),
            "scoring": {family: _measure_scoring(family, options) for family in ARMS},
            "losses": {count: _measure_losses(count, options) for count in options.num_ads},
        }
    finally:
        torch.set_num_threads(before)


def make_model(family: str, options: RetrievalBenchmark) -> torch.nn.Module:
    """A model in evaluation mode, its running statistics those of random inputs."""
    values = {
        "user_vocab_sizes": [options.vocabulary + 2] * options.user_fields,
        "user_num_numeric": options.user_numeric,
        "ad_vocab_sizes": [options.vocabulary + 2] * options.ad_fields,
        "ad_num_numeric": options.ad_numeric,
        "embedding_dim": options.embedding_dim,
        "hidden_units": options.hidden_units,
        **({"vector_size": options.vector_size} if family == "two_tower" else {}),
    }
    torch.manual_seed(0)
    row = family_of(family)
    model = row.load("ForCTR")(row.load("Config")(**values)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = None  # the mean over the batches
    with torch.no_grad():
        for seed in range(2):
            model(**random_inputs(model.config, RequestShape(candidates=2), num_requests=64, seed=seed))
    return model.eval()


def _measure_scoring(family: str, options: RetrievalBenchmark) -> dict[str, Any]:
    model = make_model(family, options)
    request = random_inputs(model.config, RequestShape(candidates=options.ads), seed=9)
    del request["ad_mask"]  # no ad is padding
    user = {name: values for name, values in request.items() if name.startswith("user")}
    ads = {name: values[0] for name, values in request.items() if name.startswith("ad")}
    one = {name: values[:1] for name, values in ads.items()}
    served = split_first_layer(model)
    served.update(range(options.ads), **ads)
    makers = {"naive": lambda: model(**request).logits, "split, cached": lambda: served.score(**user)}
    if family == "retrieval_mlp":
        embedding = model.model.embedding
        of_user = embedding.user(*user.values()).expand(options.ads, -1)
        rows = torch.cat((of_user, embedding.ad(*ads.values())), 1).detach()
        makers["naive, MLP only"] = lambda: model.head(model.model.mlp(rows)).T
        makers["split"] = lambda: served.score_halves(served.user_half(**user), served.ad_half(**ads))
    ways, scores = keeping({name: makers[name] for name in ARMS[family]})
    with torch.inference_mode():
        seconds = in_turn(ways, options.repeats, warm_up=True, about=f"{family}, ")
        update = in_turn({"update": lambda: served.update([0], **one)}, max(options.repeats, 3))["update"]
    difference = max((score - scores["naive"]).abs().max().item() for score in scores.values())
    if not difference <= _TOLERANCE * max(1.0, scores["naive"].abs().max().item()):
        raise ValueError(f"{family}: the ways give scores up to {difference:g} apart; please report this")
    speedup = speedups(seconds, "naive", pairs=False)
    return {
        "arms": {name: {"seconds": summary(found), "speedup": speedup[name]} for name, found in seconds.items()},
        "update_seconds": summary(update),
        "largest_difference": difference,
        "spread": scores["naive"].std().item(),
        "mlp_gflop_per_request": measure_flops(model, request).total / 1e9,
    }


def _measure_losses(count: int, options: RetrievalBenchmark) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(count)
    size = max(1, min(options.impressions, _PAIRS // count**2))
    scores = torch.randn(size, count, generator=rng, requires_grad=True)
    ranks = torch.rand(size, count, generator=rng).argsort(1).float()
    loss = ARFLoss(min(10, count))

    def one_by_one() -> None:
        for row in range(size):
            (loss(scores[row : row + 1], ranks[row : row + 1]) / size).backward()

    ways = {
        "NeuralSort": lambda: neural_sort(scores.detach()),
        "ARF": lambda: loss(scores, ranks).backward(),
        "ARF, one by one": one_by_one,
    }
    if size == 1:
        del ways["ARF, one by one"]
    seconds = in_turn(ways, options.repeats, warm_up=True, about=f"{count} ads, ")
    arms = {name: {"seconds": summary(found)} for name, found in seconds.items()}
    for arm in arms.values():
        arm["milliseconds_per_impression"] = 1e3 * arm["seconds"]["median"] / size
    return {"impressions": size, "arms": arms}


def as_markdown(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    user = settings["embedding_dim"] * settings["user_fields"] + settings["user_numeric"]
    ad = settings["embedding_dim"] * settings["ad_fields"] + settings["ad_numeric"]
    scored = [
        {"family": family, "name": name, "says": says, "arm": found["arms"][name]}
        | {"milliseconds": 1e3 * found["arms"][name]["seconds"]["median"]}
        for family, found in result["scoring"].items()
        for name, says in ARMS[family].items()
    ]
    form = "{family} | {name}: {says} | {milliseconds:.2f} | {arm[speedup]:.1f}"
    notes = "\n".join(
        f"{family}: {found['mlp_gflop_per_request']:.2f} GFLOP naive; scores differ by at most {found['largest_difference']:.1e} (their standard "
        f"deviation is {found['spread']:.2g}); computing one ad again takes {1e3 * found['update_seconds']['median']:.2f} ms."
        for family, found in result["scoring"].items()
    )
    losses = []
    for count, found in result["losses"].items():
        cells = [found["arms"].get(name, {}).get("milliseconds_per_impression") for name in LOSS_ARMS]
        shown = " | ".join("" if cell is None else f"{cell:.3f}" for cell in cells)
        losses.append({"count": count, "impressions": found["impressions"], "shown": shown})
    head = " | ".join(("ads", "impressions", *(f"{name}: {says}" for name, says in LOSS_ARMS.items())))
    return f"""## Retrieval

{settings["ads"]:,} ads of one request; MLP {[user + ad, *settings["hidden_units"], 1]}, of its inputs {user} the user's and {ad} the ad's; \
towers with the same hidden layers, vectors of {settings["vector_size"]}. Median of {settings["repeats"]}, the ways in turn.
{machine_text(result)}

{table("family | way | ms per request | times naive", form, scored, left=(0, 1))}

{notes}

Losses: milliseconds per impression, in batches of at most {settings["impressions"]} impressions and {_PAIRS:,} pairs.

{table(head, "{count} | {impressions} | {shown}", losses, left=())}"""


run = reports(benchmark_retrieval, as_markdown)
