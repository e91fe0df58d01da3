"""The hash of several files: of their paths and contents, wherever they are and in whichever order they are named."""

from pathlib import Path

from kernrec.util.file_hash import files_hash


def written(root: Path, contents: dict[str, str]) -> list[Path]:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return [root / name for name in contents]


def test_hash_ignores_location_and_order(tmp_path):
    here = written(tmp_path / "here", {"a.py": "1", "ptx/b.py": "2"})
    there = written(tmp_path / "there", {"ptx/b.py": "2", "a.py": "1"})
    assert files_hash(tmp_path / "here", here) == files_hash(tmp_path / "there", there)


def test_hash_depends_on_content_names_and_boundaries(tmp_path):
    variants = [{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "c": "2"}, {"a": "12"}, {"a": "1b\n1\n2"}, {}]
    hashes = {files_hash(root := tmp_path / str(i), written(root, item)) for i, item in enumerate(variants)}
    assert len(hashes) == len(variants)
