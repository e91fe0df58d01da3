"""Test that README and docs are short, and that files, links, options, recipes and pictures in them are right."""

import ast
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from kernrec.cli.app import run
from kernrec.kernel import all_kernels, kernels_for
from kernrec.op import all_ops
from tests.helpers.markdown import pages, prose
from tests.helpers.paths import ROOT

TOP = ("kernrec", "tools", "tests", "docs", "db", "datasets", ".ci")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_mentioned_paths_exist(page):
    for code in _CODE.findall(prose(page)):
        for word in code.split():
            if word.split("/")[0] in TOP and "/" in word and not re.search(r"<|NNN", word):
                assert list(ROOT.glob(word.rstrip("/"))), f"{_name(page)} names `{word}`, which does not exist"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_options_of_mentioned_scripts_exist(page):
    for code in _CODE.findall(prose(page)):
        words = code.removeprefix("python ").split()
        package = {"tools/evidence": "evidence/experiments", "tools/bench.py": "benchmarks"}.get(words[0])
        if package and len(words) > 1 and words[1] != "NAME":
            path = ROOT / "tools" / package / f"{words[1].replace('-', '_')}.py"
            assert path.is_file(), f"{_name(page)}: {words[0]} has no command {words[1]}"
            (run,) = (each for each in ast.parse(path.read_text("utf-8")).body if getattr(each, "name", "") == "run")
            assert isinstance(run, ast.FunctionDef)
            named = {"only": "set"}
            options = {f"--{named.get(each.arg, each.arg).replace('_', '-')}" for each in run.args.args}
            options |= {f"--no-{option[2:]}" for option in options}
            for word in words[2:]:
                assert not word.startswith("--") or word in options, f"{_name(page)}: {words[1]} has no option {word}"
        elif words[0].startswith("tools/") and words[0].endswith(".py"):
            text = (ROOT / words[0]).read_text(encoding="utf-8")
            for word in words[1:]:
                if word.startswith("--"):
                    assert f'"{word}"' in text, f"{_name(page)}: {words[0]} has no option {word}"


@pytest.mark.parametrize("page", [p for p in pages() if p.parent == ROOT], ids=_name)
def test_relative_links_exist(page):
    for target in _LINK.findall(prose(page)):  # MkDocs checks links between the site's pages
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{_name(page)} links to {target}"


def test_readme_is_short_and_fits_a_terminal():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 125
    shown = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            shown = line.startswith(("```console", "```text"))
        elif shown and not line.startswith(
            ("$ ", "note: ", "Capping the GPU ", "cuBLAS: ")
        ):  # the terminal wraps sentences
            assert len(line) <= 80, f"README.md:{number}: {len(line)} columns"


def test_readme_lists_what_every_operator_supports():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {}
    for names, dtypes in re.findall(r"^\| (`.+`) \| ([a-z0-9, ]+) \|", text, re.MULTILINE):
        listed |= {name: dtypes.split(", ") for name in re.findall(r"`(\w+)`", names)}
    assert listed == {
        op.name: [t for t in op.dtypes if kernels_for(op.name, t)] for op in all_ops() if kernels_for(op.name)
    }
    assert f"{len(list(all_kernels()))} kernels" in text


GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def _words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_guide_has_at_most_900_words(guide):
    assert _words(guide) <= 900


def test_docs_and_guides_have_at_most_14000_words():
    assert sum(map(_words, [*GUIDES, *(ROOT / "docs").glob("*.md")])) <= 14000


def test_readme_is_short_enough_to_read_in_a_minute():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) < 6000
    assert text.index("```sh") < 2600  # the first screen shows the first command
    proofs = re.findall(r"\]\((docs/accuracy/[\w-]+\.md)\)", text)
    assert len(proofs) >= 3
    assert all((ROOT / page).is_file() for page in proofs)


def test_picture_shows_a_terminal_of_80_columns():
    (path,) = re.findall(r"\]\((docs/images/[\w-]+\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [text.text or "" for text in ET.parse(ROOT / path).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert lines[0].startswith("$ kernrec recommend --workload")
    assert max(map(len, lines)) <= 80
    assert any(" today" in line for line in lines)


EXAMPLES = ROOT / "examples"


def test_slurm_script_parses():
    script = (EXAMPLES / "collect.sbatch").read_text(encoding="utf-8")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_kubernetes_job_uses_existing_options_and_declared_volumes():
    job = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text(encoding="utf-8"))
    assert job["kind"] == "RayJob"
    command, *options = shlex.split(job["spec"]["entrypoint"])
    assert command == "kernrec"
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {
        mount["name"]: mount["mountPath"] for container in pod["containers"] for mount in container["volumeMounts"]
    }
    assert mounts.keys() <= volumes
    assert any(option.startswith(f"{path}/") for option in options for path in mounts.values())
    assert run([*options, "--help"]) == 0
