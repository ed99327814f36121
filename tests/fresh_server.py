"""Runs code in forks of a process that has imported torch and transformers, and nothing of lmctr; started by `warm.fresh`."""

import gc
import importlib
import json
import os
import sys
import traceback


def read_hub_settings_again():
    """The libraries of the Hub read the environment when they are imported."""
    import datasets.config
    import huggingface_hub.constants
    import huggingface_hub.hf_api
    import transformers.utils.hub

    changed = {}
    for settings in (huggingface_hub.constants, datasets.config):
        before = dict(vars(settings))
        importlib.reload(settings)
        changed |= {
            name: (before.get(name), value)
            for name, value in vars(settings).items()
            if name.isupper() and value != before.get(name)
        }
    modules = os.path.join(huggingface_hub.constants.HF_HOME, "modules")
    changed["HF_MODULES_CACHE"] = (transformers.utils.hub.HF_MODULES_CACHE, modules)
    for module in list(sys.modules.values()):
        for name in changed.keys() & vars(module).keys():
            if vars(module)[name] == changed[name][0]:
                setattr(module, name, changed[name][1])
    huggingface_hub.hf_api.api.endpoint = huggingface_hub.constants.ENDPOINT


def _become(words, environment, folder, files):
    os.chdir(folder)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    if "HF_ENDPOINT" in environment:
        read_hub_settings_again()
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = ["", *(path for path in paths if path not in sys.path)]
    code, *more = words
    sys.argv, status = ["-c", *more], 0
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve():
    sys.path.pop(0)  # the folder of the tests
    for name in ("pandas", "pyarrow.dataset", "scipy.stats", "sklearn.ensemble", "torch", "transformers.trainer"):
        importlib.import_module(name)
    importlib.import_module("transformers.models.auto.modeling_auto")
    gc.collect()
    gc.freeze()  # no collection in a fork goes through these
    for line in sys.stdin:
        asked = json.loads(line)
        if not (child := os.fork()):
            _become(*asked)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
