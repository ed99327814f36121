"""A page to try a model in the browser: `lmctr demo`."""
