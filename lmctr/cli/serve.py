"""The verb `serve`."""

from __future__ import annotations

from lmctr.cli.options import Action

ACTION = Action(
    "serve",
    "serve a trained model over HTTP",
    "lmctr.server.options:ServeOptions",
    "lmctr.server.running:serve",
    epilog="""\
    curl localhost:8000/v1/score -d '{"history": [{"text": "Heat (1995)", "time": 1700000000}], "candidates": ["Casino (1995)"],
                                      "time": 1700100000}'

A request that fits the model is printed as the server starts; `lmctr predict --help` shows what one may hold, for tables
{"rows": [{...}, ...]}. "user_id" in the place of "history" names a kept user, whom POST /v1/users/{id}/events {"events": [...],
"start": true} began. SIGTERM answers what was taken, then stops; SIGHUP loads the folder (or the Hub id) anew and goes over to it without a
pause.
""",
)
add_parser = ACTION.add_parser
run = ACTION.run
