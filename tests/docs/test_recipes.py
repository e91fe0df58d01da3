"""The recipes for Slurm and Kubernetes, as far as they can be tried without either."""

import shlex
import subprocess

import yaml

from kernrec.cli.app import run
from tests.helpers.markdown import blocks
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "guides" / "cluster.md"


def test_the_slurm_script_is_one_that_bash_can_read() -> None:
    (script,) = (block.code for block in blocks(PAGE) if "#SBATCH" in block.code)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_kubernetes_job_collects_with_options_that_exist_and_mounts_what_it_names() -> None:
    (job,) = (yaml.safe_load(block.code) for block in blocks(PAGE) if "kind: RayJob" in block.code)
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
