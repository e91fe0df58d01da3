"""The package as a user gets it: a wheel, installed where nothing else is, used outside the checkout."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_the_database_and_the_workloads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("db/prebuilt", "db/schema", "datasets/workloads"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file():  # models too, where some ship, in a folder of their own
                assert f"kernrec/_data/{file.relative_to(ROOT)}" in names
    assert "kernrec/kernel/library/matmul_simt/kernel.cu" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "tools/"))]


def test_an_empty_environment_recommends_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KERNREC_"))}
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, env=environment, timeout=600)
    command = [home / "bin" / "kernrec", "recommend", "--op", "conv", "--gpu", "rtx4090", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=True
    )
    assert len(json.loads(done.stdout)["layers"]) > 20

    # Without CuPy a query works; what needs a compiler says which extra to install.
    code = "from kernrec.compile import compile_source; compile_source('', 86)"
    asked = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
    )
    assert ".[cuda13]" in asked.stderr.splitlines()[-1]
