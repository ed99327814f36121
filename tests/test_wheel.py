"""What a wheel holds, and how large it is; and a wheel in an environment of its own that runs the Dockerfile's commands."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = {".py", ".pyi", ".yaml", ".md", ".html", ".csv", ".typed"}
CODE, REST = 1_436_500, 100_000  # bytes, packed: code is nearly all of it, and has a limit so that no data slip in

sys.path += [str(ROOT / "tests" / "server"), str(ROOT / "tests" / "hub")]


def packed():
    """Path in the wheel to path here, by pyproject.toml."""
    settings = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = {}
    for source, target in {name: name for name in wheel["packages"]}.items() | wheel["force-include"].items():
        place = ROOT / source
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[target if place.is_file() else f"{target}/{path.relative_to(place).as_posix()}"] = path
    return files


def test_a_wheel_holds_code_and_what_it_reads(tmp_path):
    files = packed()
    assert {"lmctr/__init__.py", "lmctr/py.typed", "lmctr/_resources/prompts/generic/en.yaml"} <= set(files)
    odd = [name for name in files if Path(name).suffix not in KINDS or "results" in Path(name).parts]
    assert odd == []
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files.items():
            archive.write(path, name)
        sizes = {entry.filename: entry.compress_size for entry in archive.infolist()}
    code = sum(size for name, size in sizes.items() if name.endswith(".py"))
    rest = {name: size for name, size in sizes.items() if not name.endswith(".py")}
    assert code < CODE
    assert sum(rest.values()) < REST
    largest = max(sizes, key=sizes.get)
    assert sizes[largest] < 16_000, f"{largest} alone is large: is it something to read at run time?"


@pytest.mark.campaign
@pytest.mark.network
@pytest.mark.timeout(1800)
def test_the_commands_of_the_image_run_from_a_wheel(tmp_path):
    """The image's pip call without the packages that are here already, then its CMD and its HEALTHCHECK."""
    pytest.importorskip("uvicorn")
    from served_runs import event_run

    image = (ROOT / "docs" / "deploy" / "Dockerfile").read_text()
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (site,) = venv.glob("lib/*/site-packages")
    others = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (site / "packages.pth").write_text("\n".join(others) + "\n")
    install = re.search(r"^RUN (pip install .*)$", image, re.M)[1]
    install = install.replace("lmctr/constraints.txt", "constraints.txt").replace("./lmctr[serve]", f"{ROOT}[serve]")
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    here = {"env": plain, "cwd": tmp_path}
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    words = [*install.replace('"', "").split()[1:], "--no-deps", "--force-reinstall"]
    subprocess.run([venv / "bin" / "python", "-m", "pip", *words], check=True, **here)
    where = subprocess.check_output([venv / "bin" / "python", "-c", "import lmctr; print(lmctr.__file__)"], **here)
    assert where.decode().startswith(str(venv))
    keys = subprocess.check_output([venv / "bin" / "lmctr", "train", "--list-keys", "din"], **here)
    assert b"learning_rate" in keys

    event_run(tmp_path / "run")
    command = json.loads(re.search(r"^CMD (\[.*\])", image, re.M)[1])
    health = re.search(r'^HEALTHCHECK .* CMD python -c "(.*)"$', image, re.M)[1]
    with subprocess.Popen(
        [venv / "bin" / command[0], *command[1:], "--port", "0"], stdout=subprocess.PIPE, text=True, **here
    ) as server:
        try:
            port = re.search(r"http://[\d.]+:(\d+)", server.stdout.readline())[1]
            check = [venv / "bin" / "python", "-c", health.replace("8000", port)]
            for _ in range(100):
                if subprocess.run(check, stderr=subprocess.DEVNULL, **here).returncode == 0:
                    break
                time.sleep(0.5)
            else:
                raise AssertionError("the image's health check does not succeed")
            assert b'"ok"' in urllib.request.urlopen(f"http://localhost:{port}/health", timeout=10).read()
        finally:
            server.terminate()
        assert server.wait(30) == 0
