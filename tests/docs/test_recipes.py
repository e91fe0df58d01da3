"""Test the Slurm and Kubernetes recipes as far as possible without Slurm or Kubernetes."""

import shlex
import subprocess

import yaml

from kernrec.cli.app import run
from tests.helpers.paths import ROOT

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
