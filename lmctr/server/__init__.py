"""The HTTP server around `lmctr.runs.answers.engine`: routes, metrics, signals. The only room that knows web packages."""
