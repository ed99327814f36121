"""Imported last by a server that processes are forked from: no collection goes through what it has imported, nor copies its pages."""

import gc

gc.collect()
gc.freeze()
