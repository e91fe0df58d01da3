"""The tool that says how much of a folder of PTX the emulator understands."""

from pathlib import Path

import ptx_coverage
import pytest

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def test_what_kernels_lack_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ".entry a(.param .u64 x) { .reg .b32 %r<3>; mov.u32 %r1, 1; add.s32 %r2, %r1, 1; ret; }\n"
    lacking = ".entry b() { .reg .b32 %r<3>; frob.s32 %r1, %r2; frob.s32 %r2, %r1; ret; }\n"
    (tmp_path / "two.ptx").write_text(HEAD + whole + lacking)
    (tmp_path / "broken.ptx").write_text(HEAD + ".entry c() { .frob x; }\n.entry d() { ret; }\n")
    monkeypatch.setattr("sys.argv", ["ptx_coverage.py", str(tmp_path), "--all"])
    ptx_coverage.main()
    out = capsys.readouterr().out
    assert "1 of 4 kernels decode in every instruction (25.0 %)" in out
    assert "two.ptx: b: frob.s32\n" in out
    assert "     1  frob.s32" in out
    assert "     2  parser: " in out


def test_a_folder_without_ptx_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        monkeypatch.setattr("sys.argv", ["ptx_coverage.py", str(folder)])
        with pytest.raises(SystemExit):
            ptx_coverage.main()
