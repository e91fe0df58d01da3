from collections.abc import Callable
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.kernel import Kernel, PointerArgument, ScalarArgument, load_kernel

SPEC = Path(__file__).parent / "tiled" / "kernel.toml"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the spec with one text replaced by another."""

    def edited(old: str, new: str) -> Path:
        text = SPEC.read_text()
        assert text.count(old) >= 1
        folder = tmp_path / "tiled"
        folder.mkdir(exist_ok=True)
        (folder / "kernel.toml").write_text(text.replace(old, new, 1))
        (folder / "kernel.cu").write_text((SPEC.parent / "kernel.cu").read_text())
        return folder / "kernel.toml"

    return edited


def test_a_spec_is_read_as_it_is_written(tiled: Kernel) -> None:
    assert (tiled.name, tiled.op, tiled.min_sm) == ("tiled", "matmul", 75)
    assert (tiled.dtypes, tiled.layouts) == (("f32",), ("nn",))
    assert [t.name for t in tiled.tunables][:3] == ["block_m", "block_n", "block_k"]
    assert tiled.tunables[0].values == (32, 64, 128, 256)
    assert [t.name for t in tiled.tunables if t.launch] == ["split_k", "raster"]
    first, second = tiled.launches
    assert first.arguments[0] == PointerArgument("a")
    assert isinstance(first.arguments[4], ScalarArgument)
    assert first.grid[2].text == "1"
    assert first.reads == {"a": ("m", "k"), "b": ("n", "k")}
    assert second.when is not None
    assert second.when.is_truth
    assert len(first.probes) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "tiled"', "name = 3", "tiled/kernel.toml: name: expected a string, got the number 3"),
        ('name = "tiled"', 'nmae = "tiled"', "name is missing, expected a string (is 'nmae' a misspelling of it?)"),
        ('op = "matmul"', 'op = "matmull"', "op: unknown op 'matmull'; did you mean matmul"),
        ('dtypes = ["f32"]', 'dtypes = ["f23"]', "dtypes: unknown name 'f23'; did you mean f32"),
        ('dtypes = ["f32"]', "dtypes = []", "dtypes: expected at least one name, got the list []"),
        ("min_sm = 75", 'min_sm = "75"', "min_sm: expected a compute capability such as 75, got the string '75'"),
        ("min_sm = 75", "min_ms = 75", "unknown key 'min_ms'; did you mean min_sm"),
        ("min_sm = 75", "dtype_min_sm = { f16 = 80 }", "dtype_min_sm: unknown dtype 'f16'; known: f32"),
        (
            "min_sm = 75",
            "min_sm = 75\ndtype_min_sm = { f32 = 75 }",
            "f32: expected a compute capability above min_sm =",
        ),
        ('source = "kernel.cu"', 'source = "../kernel.cu"', "source: expected the name of a file in the same folder"),
        ('source = "kernel.cu"', 'source = "/etc/passwd"', "source: expected the name of a file in the same folder"),
        ('source = "kernel.cu"', 'source = "other.cu"', "tiled/other.cu cannot be read: there is no such file"),
        ("values = [32, 64, 128, 256]", "valeus = [32]", "[tunables] block_m: values is missing, expected a list"),
        (
            "values = [32, 64, 128, 256]",
            "values = []",
            "[tunables] block_m: values: expected 1 to 256 different integers",
        ),
        ("values = [32, 64, 128, 256]", "values = [32, 32]", "1 to 256 different integers"),
        ("values = [32, 64, 128, 256]", "values = [32, true]", "1 to 256 different integers"),
        ("values = [32, 64, 128, 256]", "values = [32.0]", "1 to 256 different integers"),
        ("launch = true", "launhc = true", "[tunables] split_k: unknown key 'launhc'; did you mean launch"),
        ("block_m = {", "Block_M = {", "[tunables] Block_M: expected a name of up to 40 lower-case letters"),
        ("block_m = {", "m = {", "[tunables] m: the name 'm' is taken"),
        ("block_m = {", "min = {", "[tunables] min: 'min' is reserved in expressions"),
        ("block_m = {", "sm = {", "[tunables] sm: the name 'sm' is taken"),
        ('"threads % 32 == 0"', '"thread % 32 == 0"', "constraints[5]: 'thread % 32 == 0': unknown name 'thread'; did"),
        ('"threads % 32 == 0"', '"threads % 32 == "', "constraints[5]: expression 'threads % 32 == ', column"),
        ('"threads % 32 == 0"', "[1]", "constraints[5]: expected an expression in quotes, got the list [1]"),
        (
            '"ceil_div(m, block_m)"',
            '"ceil_div(m, tiles_n)"',
            "[let] tiles_m: 'ceil_div(m, tiles_n)' needs tiles_n, which",
        ),
        ("tiles_m =", "block_m =", "[let] block_m: the name 'block_m' is taken"),
        ('entry = "tiled"', 'entry = "til ed"', "launch[0]: entry: expected the name of a function"),
        (
            'entry = "tiled"',
            'entry = "absent"',
            "launch[0]: entry: unknown kernel of the source 'absent'; known: tiled",
        ),
        ('block = ["threads"]', "block = []", "launch[0]: block: expected 1 to 3 expressions"),
        ('block = ["threads"]', 'blcok = ["threads"]', "launch[0]: block is missing, expected a list of 1 to 3"),
        ('"a", "b", "c", "partial"', '"a", "b", "d", "partial"', "launch[0]: arguments[2]: unknown tensor 'd'"),
        ('"i32 m"', '"int m"', "launch[0]: arguments[4]: unknown C type 'int'"),
        ('"i32 m"', '"i32 mm"', "launch[0]: arguments[4]: 'mm': unknown name 'mm'"),
        ('["n", "tiles_n"]', '["n"]', "launch[0]: order[1]: expected [axis, extent]"),
        ('a = ["m", "k"]', 'a = ["m", "q"]', "launch[0]: reads.a: unknown axis of order 'q'"),
        ('a = ["m", "k"]', 'aa = ["m", "k"]', "launch[0]: reads: unknown tensor 'aa'"),
        ("depth = { k_tiles", "depth = { k_tile", "launch[0]: depth: expected the loops of trips (k_tiles)"),
        ('{ m = "block_m", n = "block_n", k = "4 * block_k" },', "", "launch[0]: probes: expected at least 3"),
        ('k = "4 * block_k"', 'kk = "4 * block_k"', "launch[0]: probes[0]: unknown dimension 'kk'"),
        ('k = "4 * block_k"', 'k = "tiles_k"', "launch[0]: probes[0].k: 'tiles_k': unknown name"),
        ('name = "partial"', 'name = "c"', "workspace[0]: name: the name 'c' is taken"),
        ('dtype = "f32"', 'dtype = "f31"', "workspace[0]: unknown dtype 'f31'; did you mean f32"),
        ("[tunables]", "[tunables", "not TOML"),
        ('block_k = { values = [8, 16, 32], meaning = "depth of a tile" }', "block_k = 3", "expected a table, got the"),
        ("[[launch]]", "[[lunch]]", "unknown key 'lunch'; did you mean launch"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line_that_says_where(write: Write, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        load_kernel(write(old, new))
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("tiled/")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[" * 5000, b"a = " + b"[" * 100_000, b"x" * (2 << 20)])
def test_a_file_that_is_no_spec_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernel.toml").write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        load_kernel(tmp_path / "kernel.toml")
    assert "\n" not in str(refusal.value)


def test_a_missing_file_or_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "kernel.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            load_kernel(path)


def test_the_hash_follows_code_and_geometry_and_not_prose(write: Write, tiled: Kernel) -> None:
    assert load_kernel(write("rows of C per thread block", "height of the tile")).hash == tiled.hash
    assert load_kernel(write("[let]", "# lets\n[let]")).hash == tiled.hash
    assert load_kernel(write("values = [2, 3, 4]", "values = [2, 4, 3]")).hash != tiled.hash
    assert load_kernel(write('"stages - 1"', '"stages - 2"')).hash != tiled.hash
    path = write("stages", "stages")
    path.with_name("kernel.cu").write_text((SPEC.parent / "kernel.cu").read_text() + "// more\n")
    assert load_kernel(path).hash != tiled.hash


def test_the_order_of_tunables_is_part_of_the_hash(write: Write, tiled: Kernel) -> None:
    lines = SPEC.read_text().splitlines()
    m, n = (next(line for line in lines if line.startswith(name)) for name in ("block_m", "block_n"))
    assert load_kernel(write(f"{m}\n{n}", f"{n}\n{m}")).hash != tiled.hash


def copy_of(folder: Path, source: str) -> Path:
    """The test kernel with another source, in a folder of its own."""
    target = folder / "tiled"
    target.mkdir()
    (target / "kernel.toml").write_text(SPEC.read_text())
    (target / "kernel.cu").write_text(source)
    return target / "kernel.toml"


def test_what_a_source_includes_stands_in_its_place_once(tmp_path: Path, tiled: Kernel) -> None:
    source = (SPEC.parent / "kernel.cu").read_text()
    spec = copy_of(tmp_path, '#include "shared.cuh"\n  # include "shared.cuh"\n' + source)
    (tmp_path / "shared.cuh").write_text("// shared by kernels")
    loaded = load_kernel(spec)
    assert loaded.source == "// shared by kernels\n\n" + source
    assert loaded.hash != tiled.hash
    (tmp_path / "shared.cuh").write_text("// changed")
    assert load_kernel(spec).hash != loaded.hash


def test_an_include_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'absent.cuh', which is neither in its folder nor in the folder above"):
        load_kernel(copy_of(tmp_path, '#include "absent.cuh"\n'))
