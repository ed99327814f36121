"""The verb `demo`."""

from __future__ import annotations

from lmctr.cli.options import Action

ACTION = Action(
    "demo",
    "show a model in the browser, or write it as a Space",
    "lmctr.hub.options:DemoOptions",
    "lmctr.hub.demo.running:demo",
)
add_parser = ACTION.add_parser
run = ACTION.run
