"""Test that `find_gpu` accepts every common name of a GPU, and no other name."""

import os
import pickle
import subprocess
import sys

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import UnknownGPU, all_gpus, find_gpu
from kernrec.gpu.find import fold_gpu as fold
from tests.helpers.paths import cases


@pytest.mark.parametrize(("typed", "name"), cases(__file__, "common_spellings_find_their_gpu"))
def test_common_spellings_find_their_gpu(typed, name):
    assert find_gpu(typed).name == name


def test_every_name_title_and_alias_finds_only_its_gpu():
    owners: dict[str, set[str]] = {}
    for gpu in all_gpus():
        for name in (gpu.name, gpu.title, *gpu.aliases):
            assert find_gpu(name) is gpu
            owners.setdefault(fold(name), set()).add(gpu.name)
    assert {name: gpus for name, gpus in owners.items() if len(gpus) > 1} == {}


@pytest.mark.parametrize(
    "typed",
    ["rtx4900", "", "rtx", "mi300x", "gtx1080", "gtx 1660 laptop", "rtx 2080 laptop", "rtx3060 max-q", "rtx 4080 d",
     "quadro rtx 4000", "rtx 4000", "rtx a6000 laptop", "a100x", "rtx 3080 20gb", "p40", "gtx 2060 ti", "gtx 3090",
     "titan v", "rtx 5090 x"],
)  # fmt: skip
def test_unknown_name_is_refused_in_one_line(typed):
    with pytest.raises(UnknownGPU) as error:
        find_gpu(typed)
    assert isinstance(error.value, UsageError)
    assert repr(typed) in str(error.value)
    assert "kernrec list gpus" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("typed", "why"), cases(__file__, "unsupported_gpu_is_refused_with_the_reason"))
def test_unsupported_gpu_is_refused_with_the_reason(typed, why):
    with pytest.raises(UnknownGPU, match=why) as error:
        find_gpu(typed)
    assert "\n" not in str(error.value)


def test_gpu_can_be_pickled_and_hashed():
    gpu = find_gpu("h100")
    copy = pickle.loads(pickle.dumps(gpu))
    assert copy == gpu
    assert hash(copy) == hash(gpu)


def test_lookup_reads_only_the_generation_of_the_gpu():
    code = (
        "import kernrec.gpu.find as f; read = []; real = f._read\n"
        "f._generation_file = lambda stem: (read.append(stem), real(stem))[1]\n"
        "f.find_gpu('rtx4090'); print(read)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert shown.stdout.strip() == "['ada']"
