"""`lmctr analyze MEASURE RUN ...`: look into trained runs."""

from __future__ import annotations

from lmctr.cli.options import Action, Actions

_FREE = "name, path, options, split, fractions, seed, max_train_samples, max_eval_samples"
_EPILOG = f"Overrides: --data.KEY for {_FREE} and what else only says where data lie."


def _measure(name: str, says: str, module: str, epilog: str | None = _EPILOG) -> Action:
    places = (
        f"lmctr.studies.analyses.options:{name.title()}Options",
        f"lmctr.studies.analyses.{module}:analyze_{name}",
    )
    return Action(name, says, *places, epilog, takes_overrides=True)


VERB = Actions(
    "analyze",
    "look into trained runs",
    (
        _measure(
            "attention",
            "share of attention on sinks, by layer (CTR-Sink)",
            "attention",
            f"Overrides: --data.KEY for {_FREE}, retrieval.",
        ),
        _measure(
            "importance", "what the answers hang on: columns, statistics, item and history shuffled", "importance"
        ),
        _measure("next", "how much of what users took next the best items hold (runs of a log)", "next", None),
        _measure("rank", "effective rank of the representations, stage by stage (tabular families)", "tabular"),
        _measure("fields", "weights of field pairs (FAT)", "tabular", None),
        _measure("bound", "terms of the generalisation bound (FAT)", "tabular"),
        _measure("behaviors", "attention by behaviour type (sequence families)", "behaviors"),
    ),
    "Look into trained runs.",
    "MEASURE",
)
add_parser, run = VERB.add_parser, VERB.run
