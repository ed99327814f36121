"""`lmctr push RUN user/name`: check a run, write its card, upload it to the Hugging Face Hub."""

from lmctr.cli.options import Action

PUSH = Action(
    "push",
    "check a run and share it on the Hugging Face Hub",
    "lmctr.hub.options:PushOptions",
    "lmctr.hub.publish:run_push",
)
add_parser, run = PUSH.add_parser, PUSH.run
