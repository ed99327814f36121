"""`lmctr scaling WHAT`: scaling laws and what follows from them."""

from __future__ import annotations

from lmctr.cli.options import Action, Actions


def _action(name: str, says: str, options: str, epilog: str | None = None, takes_overrides: bool = False) -> Action:
    room = "lmctr.studies.scaling"
    return Action(name, says, f"{room}.options:{options}", f"{room}.{name}:run", epilog, takes_overrides)


_ACTIONS = (
    _action(
        "ladder",
        "train a ladder of sizes, fit the law, measure cost, choose a design",
        "LadderOptions",
        "Overrides such as --data.path FOLDER or --training.use_cpu true apply to every size, last.",
        takes_overrides=True,
    ),
    _action(
        "flops",
        "count FLOPs and parameters of models",
        "FlopsOptions",
        "Overrides such as --model.hidden_units '[64, 64]' apply to recipes.",
        takes_overrides=True,
    ),
    _action("fit", "fit a scaling law to points", "FitOptions"),
    _action("cost", "highest QPS under a latency limit, and machines", "CostRunOptions"),
    _action("revenue", "regress revenue on offline metrics", "RevenueOptions"),
    _action("design", "best size under a return on machine cost", "DesignOptions"),
    _action(
        "allocate",
        "machines for several scenarios under one budget",
        "AllocateOptions",
        "FILE: .csv with the columns scenario, design, gain, cost; or .yaml with the keys budget, minimal_roi and scenarios, a list of {name, "
        "candidates: file or list, gain: column, cost: column, gain_factor, cost_factor}.",
    ),
    _action("sumi", "plan rows of several samples of a user: size and FLOPs by N_c (Climber)", "SumiOptions"),
)

VERB = Actions(
    "scaling",
    "scaling laws, machine cost, design under a return on it",
    _ACTIONS,
    "From losses to machine cost to design (arXiv 2411.13322): `ladder` does all of it from one file; the others are its steps, and take "
    "points from anywhere.",
)
add_parser, run = VERB.add_parser, VERB.run
