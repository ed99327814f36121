"""Imported last by a server that processes are forked from: no collection goes through what it has imported, nor copies its pages, and a Ctrl-C
that was held back while it imported is dropped: what it starts from here on hears its own."""

import gc
import signal

gc.collect()
gc.freeze()
if hasattr(signal, "pthread_sigmask"):
    while signal.SIGINT in signal.sigpending():
        signal.sigwait({signal.SIGINT})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
