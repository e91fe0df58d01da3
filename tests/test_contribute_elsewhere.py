"""Test contributing from a notebook, a container and a workflow with the same command, on a simulated GPU."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernrec.store.share.bundle import read_bundle
from kernrec.store.share.manifest import bundle_name
from kernrec.store.share.place import place_at
from tests.helpers.command import environment
from tests.helpers.paths import ROOT
from tests.helpers.simulated_library import GPU, command_in

_SHELL = re.compile(r"^!(?P<command>.+)$", re.MULTILINE)
_INSTALL = re.compile(r'^%pip install --quiet "(?P<requirement>[^"]+)"$', re.MULTILINE)
_BEGINNING = """
import subprocess, sys
def _shell(command):
    print(subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout, end="", flush=True)
"""


def cells(notebook: Path, kind: str = "code") -> list[dict[str, Any]]:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [each | {"source": "".join(each["source"])} for each in document["cells"] if each["cell_type"] == kind]


def requirements(notebook: Path) -> list[str]:
    return [match["requirement"] for cell in cells(notebook) for match in _INSTALL.finditer(cell["source"])]


def program(notebook: Path, parameters: Mapping[str, object]) -> str:
    """Return the notebook as a program without its installations. `parameters` override the parameter cell."""
    parts = [_BEGINNING]
    for cell in cells(notebook):
        source = _INSTALL.sub("pass", cell["source"])
        parts.append(_SHELL.sub(lambda match: f"_shell(f{match['command']!r})", source))
        if "parameters" in cell["metadata"].get("tags", ()):
            parts += [f"{name} = {value!r}" for name, value in parameters.items()]
    text = "\n".join(parts) + "\n"
    assert not re.search(r"^[!%]", text, re.MULTILINE), "a line for the notebook's shell that this does not know"
    return text


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell"),
]

NOTEBOOK = ROOT / "examples" / "contribute.ipynb"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ACTION = ROOT / ".github" / "actions" / "contribute" / "action.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "contribute.yml"
GUIDE = (ROOT / "docs" / "guides" / "contribute.md").read_text(encoding="utf-8")
COMMAND = "kernrec contribute --budget 10m"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = set(PROJECT["project"]["optional-dependencies"])


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a program in its own home with the `kernrec` of the simulated GPU, and return its output."""
    command_in(folder / "bin")
    there = environment(HOME=str(folder), PATH=f"{folder / 'bin'}:/usr/bin:/bin", **variables)
    there = {name: value for name, value in there.items() if not name.startswith(("XDG_", "KERNREC_"))}
    done = subprocess.run(command, cwd=folder, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def bundle_in(folder: Path) -> str:
    (file,) = folder.glob("*/*.zip")
    name = file.relative_to(folder).as_posix()
    assert bundle_name(read_bundle(place_at(file)).manifest) == name
    return name


@pytest.mark.every(3)
def test_notebook_writes_a_bundle_and_lists_its_content(tmp_path):
    (path := tmp_path / "notebook.py").write_text(program(NOTEBOOK, {"BUDGET": "8configs"}))
    printed = run([sys.executable, str(path)], tmp_path)
    name = bundle_in(tmp_path / "contributed")
    assert f"written to contributed/{name}" in printed
    assert re.search(rf"^contributed/{name} [\d,]+ bytes$", printed, re.MULTILINE)
    assert printed.endswith("download them from the notebook's list of files\n")


def test_notebook_has_no_outputs_and_installs_existing_extras():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(NOTEBOOK))
    (requirement,) = requirements(NOTEBOOK)
    assert set(re.findall(r"\w+", requirement.partition("[")[2].partition("]")[0])) <= EXTRAS
    text = "".join(cell["source"] for cell in cells(NOTEBOOK, "markdown"))
    for file in re.findall(r"`(datasets/[\w/]+\.md)`", text):
        assert (ROOT / file).exists()


def test_container_runs_the_command_of_the_guide():
    instructions = dict(re.findall(r"^(ENTRYPOINT|CMD|USER) (.+)$", DOCKERFILE, re.MULTILINE))
    words = re.findall(r'"([^"]+)"', instructions["ENTRYPOINT"] + instructions["CMD"])
    assert " ".join(words) == COMMAND
    assert COMMAND in GUIDE
    assert instructions["USER"] not in ("0", "root")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {source for sources in copies for source in sources.split()}
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    build = PROJECT["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert "custom" in {**build.get("hooks", {}), **wheel.get("hooks", {})}
    needed = ["hatch_build.py", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], *wheel["packages"]]
    assert {*needed, *(path.split("/")[0] for path in wheel["force-include"])} <= copied
    (extras,) = re.findall(r"kernrec\[\$\{CUDA\},([\w,]+)\]", DOCKERFILE)
    assert {"cuda12", "cuda13", *extras.split(",")} <= EXTRAS
    for command in re.findall(r"^#     (docker .+)$", DOCKERFILE, re.MULTILINE):
        assert command in GUIDE


def loaded(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


@pytest.mark.every(3)
def test_action_measures_and_prints_the_bundle_path(tmp_path):
    """The script runs as on a runner, with `kernrec` where the previous step installs it."""
    steps = {step.get("id"): step for step in loaded(ACTION)["runs"]["steps"]}
    step = steps["measure"]
    command_in(tmp_path / "kernrec" / "bin")
    values = {"BUDGET": "8configs", "GPU": "auto", "DATABASE": str(tmp_path / "kept.duckdb")}
    assert set(step["env"]) == set(values)
    files = {name: str(tmp_path / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    run(script, tmp_path, RUNNER_TEMP=str(tmp_path), **values, **files)
    folder = tmp_path / "contribution" / "contributed"
    name = bundle_in(folder)
    assert name.startswith(f"{GPU}/")
    assert Path(files["GITHUB_OUTPUT"]).read_text() == f"folder={folder}\n"
    assert f"written to contributed/{name}" in Path(files["GITHUB_STEP_SUMMARY"]).read_text()
    assert (tmp_path / "kept.duckdb").exists()


def test_workflow_starts_only_by_hand_and_passes_the_inputs_of_the_action():
    """A self-hosted runner must not run code from an untrusted pull request."""
    workflow, action = loaded(WORKFLOW), loaded(ACTION)
    assert set(workflow[True]) == {"workflow_dispatch"}  # YAML parses the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    (used,) = (step for step in workflow["jobs"]["measure"]["steps"] if "with" in step)
    assert ROOT / used["uses"] == ACTION.parent
    assert set(used["with"]) <= set(action["inputs"])
    for name, value in workflow[True]["workflow_dispatch"]["inputs"].items():
        assert value["default"] == action["inputs"][name]["default"]
    for step in action["runs"]["steps"]:
        script = step.get("run", "")
        assert "${{" not in script, "an input is a variable of the script, never its text"
        subprocess.run(["bash", "-n", "-c", script], check=True)
        extras = re.findall(r"kernrec\[\$CUDA,([\w,]+)\]", script)
        assert all(set(each.split(",")) <= EXTRAS for each in extras)


def test_github_workflow_for_bundles_runs_an_existing_command(tmp_path):
    (job,) = loaded(ROOT / ".github" / "workflows" / "contributed.yml")["jobs"].values()
    (command,) = (step["run"] for step in job["steps"] if "kernrec db" in step.get("run", ""))
    (tmp_path / "sent").symlink_to(ROOT)
    assert "0 bundles" in run(["bash", "-c", command], tmp_path)
