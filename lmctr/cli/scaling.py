"""`lmctr scaling WHAT`: scaling laws and what follows from them; each sub-verb is a module of its own."""

from __future__ import annotations

import argparse

from lmctr.studies.scaling import allocate as scaling_allocate
from lmctr.studies.scaling import cost as scaling_cost
from lmctr.studies.scaling import design as scaling_design
from lmctr.studies.scaling import fit as scaling_fit
from lmctr.studies.scaling import flops as scaling_flops
from lmctr.studies.scaling import ladder as scaling_ladder
from lmctr.studies.scaling import revenue as scaling_revenue
from lmctr.studies.scaling import sumi as scaling_sumi

ACCEPTS_OVERRIDES = True  # of the recipes of `flops` and `ladder`; the others refuse them

# Each module has `add_parser(actions)` and `run(args)`, and imports nothing heavy at its top.
ACTIONS = {
    "ladder": scaling_ladder,
    "flops": scaling_flops,
    "fit": scaling_fit,
    "cost": scaling_cost,
    "revenue": scaling_revenue,
    "design": scaling_design,
    "allocate": scaling_allocate,
    "sumi": scaling_sumi,
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds the verb `scaling`."""
    parser = subparsers.add_parser(
        "scaling",
        help="scaling laws, machine cost, design under a return on it",
        description="From losses to machine cost to design (arXiv 2411.13322): `ladder` does all of it from one file; the others are its "
        "steps, and take points from anywhere.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    for module in ACTIONS.values():
        module.add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb that was asked for."""
    module = ACTIONS[args.action]
    if args.overrides and not getattr(module, "ACCEPTS_OVERRIDES", False):
        raise ValueError(f"scaling {args.action} takes no recipe overrides, got --{args.overrides[0][0]}")
    return module.run(args)
