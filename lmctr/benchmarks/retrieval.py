"""`lmctr benchmark retrieval`: the ads of a request scored naively and with the first layer split, and the losses on impressions."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, in_turn, machine, summary, write_result

if TYPE_CHECKING:
    import torch

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


@dataclass(frozen=True)
class Settings:
    """What is measured: the paper's base model, and impressions of `num_ads` ads for the losses.

    The paper gives 200 fields and 128 statistics, not which of them are the user's; the ads' fields and numbers are `ad_fields` and
    `ad_numeric` of them.
    """

    embedding_dim: int = 16
    user_fields: int = 140
    ad_fields: int = 60
    user_numeric: int = 96
    ad_numeric: int = 32
    vocabulary: int = 1000
    hidden_units: tuple[int, ...] = (1024, 256, 256, 256)
    vector_size: int = 64
    ads: int = 1500
    num_ads: tuple[int, ...] = field(default=(10, 20, 50, 100, 200, 500, 1000, 1500))
    impressions: int = 64
    threads: int = 1


QUICK = Settings(4, 3, 2, 2, 1, 10, (8, 6), 5, 7, (3, 5), 4)


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `benchmark retrieval`."""
    parser = actions.add_parser(
        "retrieval",
        help="scoring a request's ads naively and with the first layer split; NeuralSort and ARF",
        description=(
            "Score the ads of one request with RetrievalMLP and TwoTower in several ways, in turn; the scores are compared. Then time "
            "NeuralSort and ARF on impressions of different numbers of ads. Prints medians and ratios. The defaults are the paper's base model "
            "[3328, 1024, 256, 256, 256, 1] with 1,500 ads, on one thread."
        ),
        allow_abbrev=False,
    )
    default = Settings()
    for name, text in (
        ("embedding_dim", "width of each field's vector"),
        ("user_fields", "categorical fields of the user"),
        ("ad_fields", "categorical fields of an ad"),
        ("user_numeric", "numbers of the user"),
        ("ad_numeric", "numbers of an ad"),
        ("vocabulary", "ids of each field"),
        ("vector_size", "width of the towers' vectors"),
        ("ads", "ads of the request"),
        ("impressions", "most impressions of a batch of the losses"),
        ("threads", "threads of torch"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"{text} (default: {value})")
    for name, text in (
        ("hidden_units", "widths of the hidden layers"),
        ("num_ads", "ads of an impression of the losses"),
    ):
        values = getattr(default, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            nargs="+",
            default=list(values),
            metavar="N",
            help=f"{text} (default: {' '.join(map(str, values))})",
        )
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each way, taken in turn (default: 7)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Runs `benchmark retrieval`."""
    names = asdict(Settings())
    settings = Settings(**{n: tuple(v) if isinstance(v := getattr(args, n), list) else v for n in names})
    check_counts(args, [name for name in names if name not in ("hidden_units", "num_ads")] + ["repeats"])
    for name in ("hidden_units", "num_ads"):
        if min(getattr(settings, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {min(getattr(settings, name))}")
    check_output(args.output)
    repeats = args.repeats
    if args.quick:
        settings, repeats = QUICK, 1
    result = benchmark_retrieval(settings, repeats, say=lambda line: print(line, file=sys.stderr))
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output, result, table)
    return 0


def benchmark_retrieval(
    settings: Settings, repeats: int = 7, *, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures scoring and losses.

    Args:
        settings: sizes. repeats: measurements of each way, after one that does not count.
        say: prints progress.

    Returns:
        "machine", "settings", "sizes" of the MLP, "mlp_flops" of an ad; "scoring": by family and way "seconds" (median and all) of a request and
        "speedup" to "naive", with "largest_difference" of the scores; "update_seconds" of a single ad's half; "losses": by number of ads the
        impressions of a batch and by way "seconds" and "milliseconds_per_impression".

    Raises:
        ValueError: the ways give scores that differ by more than 1e-5.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        result: dict[str, Any] = {"machine": machine(), "settings": {**asdict(settings), "repeats": repeats}}
        result |= {"scoring": {}, "losses": {}}
        for family in ARMS:
            result["scoring"][family] = _measure_scoring(family, settings, repeats, say)
        for count in settings.num_ads:
            result["losses"][count] = _measure_losses(count, settings, repeats, say)
    finally:
        torch.set_num_threads(before)
    return result


def make_model(family: str, settings: Settings) -> torch.nn.Module:
    """A model in evaluation mode, its running statistics those of random inputs."""
    import torch

    import lmctr

    values = {
        "user_vocab_sizes": [settings.vocabulary + 2] * settings.user_fields,
        "user_num_numeric": settings.user_numeric,
        "ad_vocab_sizes": [settings.vocabulary + 2] * settings.ad_fields,
        "ad_num_numeric": settings.ad_numeric,
        "embedding_dim": settings.embedding_dim,
        "hidden_units": list(settings.hidden_units),
    }
    torch.manual_seed(0)
    if family == "two_tower":
        model = lmctr.TwoTowerForCTR(lmctr.TwoTowerConfig(**values, vector_size=settings.vector_size))
    else:
        model = lmctr.RetrievalMLPForCTR(lmctr.RetrievalMLPConfig(**values))
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = None  # the mean over the batches
    with torch.no_grad():
        for seed in range(2):
            model.train()(**make_request(settings, users=64, ads=2, seed=seed))
    return model.eval()


def make_request(settings: Settings, users: int = 1, ads: int | None = None, seed: int = 9) -> dict[str, torch.Tensor]:
    """The inputs of users and their ads, ids and numbers at random."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    ads = settings.ads if ads is None else ads
    high = settings.vocabulary + 2
    return {
        "user_input_ids": torch.randint(1, high, (users, settings.user_fields), generator=rng),
        "user_numeric_values": torch.randn(users, settings.user_numeric, generator=rng),
        "ad_input_ids": torch.randint(1, high, (users, ads, settings.ad_fields), generator=rng),
        "ad_numeric_values": torch.randn(users, ads, settings.ad_numeric, generator=rng),
    }


def _measure_scoring(family: str, settings: Settings, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    import torch

    from lmctr.serving import split_first_layer

    model, request = make_model(family, settings), make_request(settings)
    user = {name: values for name, values in request.items() if name.startswith("user")}
    ads = {name: values[0] for name, values in request.items() if name.startswith("ad")}
    served = split_first_layer(model)
    served.update(range(settings.ads), **ads)
    ways = {
        "naive": lambda: model(**request).logits,
        "split, cached": lambda: served.score(**user),
    }
    if family == "retrieval_mlp":
        embedding = model.model.embedding
        of_user = embedding.user(*user.values()).expand(settings.ads, -1)
        rows = torch.cat((of_user, embedding.ad(*ads.values())), 1).detach()
        ways["naive, MLP only"] = lambda: model.head(model.model.mlp(rows)).T
        ways["split"] = lambda: served.score_halves(served.user_half(**user), served.ad_half(**ads))
    ways = {name: ways[name] for name in ARMS[family]}
    one = {name: values[:1] for name, values in ads.items()}
    with torch.inference_mode():
        scores = {name: way() for name, way in ways.items()}
        seconds = in_turn(ways, repeats, say=lambda line: say(f"{family}, {line}"))
        update = in_turn({"update": lambda: served.update([0], **one)}, max(repeats, 3))["update"]
    spread = scores["naive"].std().item()
    difference = max((score - scores["naive"]).abs().max().item() for score in scores.values())
    if not difference <= _TOLERANCE * max(1.0, scores["naive"].abs().max().item()):
        raise ValueError(f"{family}: the ways give scores up to {difference:g} apart; please report this")
    base = statistics.median(seconds["naive"])
    return {
        "arms": {
            name: {"seconds": summary(found), "speedup": base / statistics.median(found)}
            for name, found in seconds.items()
        },
        "update_seconds": summary(update),
        "largest_difference": difference,
        "spread": spread,
        "mlp_gflop_per_request": _gflop(model, request),
    }


def _gflop(model: torch.nn.Module, request: Mapping[str, torch.Tensor]) -> float:
    from lmctr.scaling.flops import measure_flops

    return measure_flops(model, request).total / 1e9


def _measure_losses(count: int, settings: Settings, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    import torch

    from lmctr.models.common.ranking_losses import ARFLoss, neural_sort

    rng = torch.Generator().manual_seed(count)
    size = max(1, min(settings.impressions, _PAIRS // count**2))
    scores = torch.randn(size, count, generator=rng, requires_grad=True)
    ranks = torch.rand(size, count, generator=rng).argsort(1).float()
    loss = ARFLoss(min(10, count))

    def together() -> None:
        loss(scores, ranks).backward()

    def one_by_one() -> None:
        for row in range(size):
            (loss(scores[row : row + 1], ranks[row : row + 1]) / size).backward()

    ways = {"NeuralSort": lambda: neural_sort(scores.detach()), "ARF": together, "ARF, one by one": one_by_one}
    if size == 1:
        del ways["ARF, one by one"]
    for way in ways.values():
        way()
    seconds = in_turn(ways, repeats, say=lambda line: say(f"{count} ads, {line}"))
    return {
        "impressions": size,
        "arms": {
            name: {
                "seconds": summary(found),
                "milliseconds_per_impression": 1e3 * statistics.median(found) / size,
            }
            for name, found in seconds.items()
        },
    }


def as_markdown(result: Mapping[str, Any]) -> str:
    """The results as text with tables."""
    settings, place = result["settings"], result["machine"]
    user = settings["embedding_dim"] * settings["user_fields"] + settings["user_numeric"]
    ad = settings["embedding_dim"] * settings["ad_fields"] + settings["ad_numeric"]
    sizes = [user + ad, *settings["hidden_units"], 1]
    lines = [
        "## Retrieval",
        "",
        f"{settings['ads']:,} ads of one request; MLP {sizes}, of its inputs {user} the user's and {ad} the ad's; towers with the same hidden "
        f"layers, vectors of {settings['vector_size']}. Median of {settings['repeats']}, the ways in turn.",
        f"{place['threads']} thread(s) of {place['cores']} cores, {place['platform']}, torch {place['torch']}.",
        "",
        "| family | way | ms per request | times naive |",
        "|---|---|---:|---:|",
    ]
    for family, found in result["scoring"].items():
        for name, arm in found["arms"].items():
            milliseconds = 1e3 * arm["seconds"]["median"]
            lines.append(f"| {family} | {name}: {ARMS[family][name]} | {milliseconds:.2f} | {arm['speedup']:.1f} |")
    lines.append("")
    for family, found in result["scoring"].items():
        lines.append(
            f"{family}: {found['mlp_gflop_per_request']:.2f} GFLOP naive; scores differ by at most {found['largest_difference']:.1e} (their standard "
            f"deviation is {found['spread']:.2g}); computing one ad again takes {1e3 * found['update_seconds']['median']:.2f} ms."
        )
    lines += [
        "",
        f"Losses: milliseconds per impression, in batches of at most {settings['impressions']} impressions and {_PAIRS:,} pairs.",
        "",
        "| ads | impressions | " + " | ".join(f"{name}: {text}" for name, text in LOSS_ARMS.items()) + " |",
        "|---:|---:|" + "---:|" * len(LOSS_ARMS),
    ]
    for count, found in result["losses"].items():
        cells = [found["arms"].get(name, {}).get("milliseconds_per_impression") for name in LOSS_ARMS]
        shown = " | ".join("" if cell is None else f"{cell:.3f}" for cell in cells)
        lines.append(f"| {count} | {found['impressions']} | {shown} |")
    return "\n".join(lines)
