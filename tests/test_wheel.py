"""Test the wheel as a user gets it: installed in an empty environment, used outside the checkout."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kernrec.util.engine_file import file_name
from tests.helpers.paths import ROOT


def built(folder: Path) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"))


def test_wheel_contains_the_database_and_the_workloads(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("db/prebuilt", "db/schema", "datasets/workloads"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file():  # includes the models' folder, if models ship
                assert f"kernrec/_data/{file.relative_to(ROOT)}" in names
    assert "kernrec/kernel/library/matmul_simt/kernel.cu" in names
    assert any(name.endswith(".dist-info/licenses/NOTICE") for name in names)  # names the licenses of shipped rows
    assert f"kernrec/{file_name(ROOT)}" in names
    assert not wheel.name.endswith("-any.whl")
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "tools/"))]


@pytest.mark.every(3)
@pytest.mark.slow
def test_recommend_works_in_an_empty_environment(wheel, tmp_path):
    home = tmp_path / "environment"
    venv.create(home)
    python = home / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "KERNREC_"))}
    pip = [sys.executable, "-m", "pip", "--python", python]  # saves installing pip first
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]  # most installed files are never imported
    subprocess.run([*pip, "install", *options, wheel], check=True, env=environment, timeout=600)
    command = [home / "bin" / "kernrec", "recommend", "--op", "conv", "--gpu", "rtx4090", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=True
    )
    assert len(json.loads(done.stdout)["layers"]) > 20

    # A query works without CuPy, and a command that needs a compiler names the extra to install.
    code = "from kernrec.compile import compile_source; compile_source('', 86)"
    recommended = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
    )
    assert ".[cuda13]" in recommended.stderr.splitlines()[-1]


def requirements(wheel: Path) -> list[Requirement]:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return [Requirement(line) for line in message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])]


def test_query_needs_no_training_or_compiling_library(wheel):
    needed = {r.name for r in requirements(wheel) if r.marker is None or "extra" not in str(r.marker)}
    assert needed == {"duckdb", "numpy", "rich", "typer"}
