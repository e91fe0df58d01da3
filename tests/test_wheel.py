"""Test the wheel as a user gets it: installed in an empty environment, used outside the checkout.

The wheel installs on Linux (x86-64 and aarch64), macOS (arm64) and Windows, for Python 3.11 to 3.14.
"""

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

MANYLINUX = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
LINUX = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
PLATFORMS = {
    "linux-aarch64": (LINUX | {"platform_machine": "aarch64"}, [f"{tag}_aarch64" for tag in MANYLINUX]),
    "macos-arm64": (
        {"os_name": "posix", "sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
        ["macosx_14_0_arm64", "macosx_12_0_arm64", "macosx_11_0_arm64", "macosx_11_0_universal2"],
    ),
    "windows-x86_64": (
        {"os_name": "nt", "sys_platform": "win32", "platform_system": "Windows", "platform_machine": "AMD64"},
        ["win_amd64"],
    ),
}
"""Environment markers and wheel tags of each supported platform."""

RESOLVED = (
    ("linux-aarch64", "3.11", "[cuda12,cuda13,measure,train]"),
    ("macos-arm64", "3.14", "[cuda12,cuda13,measure,train]"),
    ("windows-x86_64", "3.14", "[cuda12,measure,train]"),
    ("windows-x86_64", "3.14", "[cuda13,train]"),
)
"""(platform, Python, extras) for each platform but Linux x86-64, where the tests install the package. Mostly the
Python version that gets its wheels last is used. Every change tests the last entry."""

PIP_AS_ON = """
import json, os, sys
from pip._vendor.packaging import markers
environment = json.loads(sys.argv[1])
markers.default_environment = lambda: environment

def no_download(preparer, requirements, parallel_builds=False):
    names = [{"metadata": {"name": requirement.name}} for requirement in requirements]
    print(json.dumps({"install": names}), flush=True)
    os._exit(0)

from pip._internal.operations.prepare import RequirementPreparer
RequirementPreparer.prepare_linked_requirements_more = no_download
from pip._internal.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
"""Program that runs pip with another platform's environment markers, because --platform only chooses wheels. It
resolves from the metadata that the index serves beside each wheel, and stops: some versions of pip download half a
gigabyte of wheels even in a dry run, before they report the same names."""


def built(folder: Path) -> Path:
    """Return a wheel with the engine of the checkout."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel of the checkout."""
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

    # A query works without CuPy; a command that needs a compiler names the extra to install.
    code = "from kernrec.compile import compile_source; compile_source('', 86)"
    recommended = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
    )
    assert ".[cuda13]" in recommended.stderr.splitlines()[-1]


def requirements(wheel: Path) -> list[Requirement]:
    """Return the requirements in the wheel's metadata, extras included."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return [Requirement(line) for line in message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])]


def test_query_needs_no_training_or_compiling_library(wheel):
    needed = {r.name for r in requirements(wheel) if r.marker is None or "extra" not in str(r.marker)}
    assert needed == {"duckdb", "numpy", "rich", "typer"}


def index_answers() -> bool:
    """Return whether the package index responds."""
    probe = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--retries", "1", "rich"]
    command = [sys.executable, "-m", "pip", "--timeout", "15", *probe]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def resolved(requirement: str, platform: str, python: str) -> set[str]:
    """Return the packages that pip would install on a platform, all as wheels."""
    markers, tags = PLATFORMS[platform]
    environment = markers | {
        "implementation_name": "cpython", "implementation_version": f"{python}.0",
        "platform_python_implementation": "CPython", "platform_release": "", "platform_version": "",
        "python_version": python, "python_full_version": f"{python}.0",
    }  # fmt: skip
    options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--target", "unused", "--quiet"]
    options += ["--report", "-", "--python-version", python, "--implementation", "cp"]
    options += [f"--platform={tag}" for tag in tags]
    command = [sys.executable, "-c", PIP_AS_ON, json.dumps(environment), "install", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not index_answers():
        pytest.skip("the package index does not answer")
    assert done.returncode == 0, done.stderr
    return {entry["metadata"]["name"].lower() for entry in json.loads(done.stdout)["install"]}


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(("platform", "python", "extras"), RESOLVED)
def test_every_platform_and_python_version_has_wheels(wheel, platform, python, extras):
    names = resolved(f"{wheel}{extras}", platform, python)
    assert {"kernrec", "duckdb", "numpy", "rich", "typer"} <= names
    on_mac = platform == "macos-arm64"
    assert names & {"xgboost", "xgboost-cpu"} == {"xgboost" if on_mac else "xgboost-cpu"}
    assert names.isdisjoint({"cupy-cuda12x", "cupy-cuda13x"}) == on_mac
    assert ("nvidia-ml-py" in names) == ("measure" in extras)
    assert "scipy" in names
