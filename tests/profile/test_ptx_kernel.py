"""Kernels that are made from PTX files."""

from pathlib import Path

import pytest

from kernrec.profile.ptx_kernel import kernel_of_ptx

_ENTRY = ".visible .entry {name}(.param .u64 p) {{ .reg .b32 %r<2>; mov.u32 %r1, %ntid.x; ret; }}\n"


@pytest.mark.parametrize(
    ("entry", "name"),
    [("_Z5scalePf", "scale"), ("_ZN3lib4copyEPf", "copy"), ("plain", "plain"), ("_Z3addPf", "z3addpf")],
)
def test_ptx_kernel_is_named_by_its_shortest_unique_source_name(tmp_path: Path, entry: str, name: str) -> None:
    path = tmp_path / "kernels.ptx"
    entries = ("_Z5scalePf", "_ZN3lib4copyEPf", "plain", "_Z3addPf", "_Z3addPi")
    header = ".version 8.0\n.target sm_80\n.address_size 64\n"
    path.write_text(header + "".join(_ENTRY.format(name=each) for each in entries))
    kernel, _ = kernel_of_ptx(path, entry, [4], [128], ["p=f32[512]"])
    assert kernel.name == name
