"""The verb `export`."""

from __future__ import annotations

from lmctr.cli.options import Action

ACTION = Action(
    "export",
    "write a model as an ONNX or torch.export graph, or its vectors",
    "lmctr.hub.options:ExportOptions",
    "lmctr.hub.export:run_export",
)
add_parser = ACTION.add_parser
run = ACTION.run
