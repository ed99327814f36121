"""Kills a verb before its n-th operation in a folder and runs the same command line again; run as a script by the test.

Each trial is a fork of a process that has imported everything, so that it takes no longer than the work itself. The child works in a copy of
the prepared folder, by relative paths, so that what it writes does not depend on where it is.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

WRITING = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.symlink", "os.link", "shutil.rmtree")


def in_child(words, place, kill_at=None):
    """Exit code (minus the signal's number), operations that write below the folder, and what was printed."""
    reader, writer = os.pipe()
    output = place.parent / f"{place.name}.txt"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(place)
            printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            code = watched(words, str(place) + os.sep, kill_at, writer)
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as found:
        counted = found.read()
    return os.waitstatus_to_exitcode(status), int(counted or -1), output.read_text(errors="replace")


def watched(words, folder, kill_at, writer):
    from lmctr.cli.main import main

    own, seen = os.getpid(), 0

    def hook(event, args):
        nonlocal seen
        writes = event in WRITING or (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if not writes or not isinstance(args[0], (str, bytes, os.PathLike)) or os.getpid() != own:
            return
        if os.path.abspath(os.fsdecode(args[0])).startswith(folder):
            seen += 1
            if seen == kill_at:
                os.kill(own, signal.SIGKILL)

    sys.addaudithook(hook)
    code = main(words)
    sys.stdout.flush()
    os.write(writer, str(seen).encode())
    return code


def campaign(words, given, work, trials, seed, again):
    """Findings of trials: `None`, or what went wrong.

    Args:
        words: the command line. given: folder that it works in. again: what the second one may say instead of doing all anew.
    """
    import random

    from test_same_folder import files_of

    def fresh(name):
        shutil.rmtree(work / name, ignore_errors=True)
        return shutil.copytree(given, work / name)

    whole = fresh("whole")
    code, operations, printed = in_child(words, whole)
    if code or operations < 1:
        raise SystemExit(f"uninterrupted: code {code}, {operations} operations: {printed[-3000:]}")
    wanted = files_of(whole)
    left = [name for name in wanted if name not in files_of(given) and Path(name).name.startswith(".")]
    if left:
        raise SystemExit(f"uninterrupted: left {left}")
    draw = random.Random(seed)
    chosen = draw.sample(range(1, operations + 1), min(trials, operations))
    if trials > 1 and operations not in chosen:
        chosen[-1] = operations
    findings = {}
    for kill_at in chosen:
        place = fresh(f"killed-{kill_at}")
        first, _, printed = in_child(words, place, kill_at)
        times = [kill_at]
        if draw.random() < 0.3:  # and the second one too
            times.append(draw.randrange(1, operations + 1))
            in_child(words, place, times[-1])
        code, _, printed = in_child(words, place)
        found = files_of(place)
        wrong = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        done = any(text in printed for text in again)
        if first != -signal.SIGKILL:
            findings[str(times)] = f"was not killed: {first}"
        elif code and not done:
            findings[str(times)] = f"code {code}: {printed[-1500:]}"
        elif wrong:
            findings[str(times)] = f"other files: {wrong}"
        else:
            shutil.rmtree(place)
    return {"trials": len(chosen), "operations": operations, "findings": findings}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for name, words in asked.pop("verbs").items():
        places = {key: Path(asked[key]) for key in ("given", "work")}
        print(json.dumps({"verb": name, **campaign(words, **{**asked, **places})}), flush=True)
