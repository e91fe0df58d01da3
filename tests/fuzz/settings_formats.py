"""More formats for fuzzing: files for sharing, Triton's cache, compiler options and user settings."""

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernrec.compile import CompileCache, NoCompilerError, compile_source
from kernrec.compile.nvrtc import compiler
from kernrec.store.keys import Signer, make_own_key
from kernrec.store.share.manifest import Withdrawal, parse_manifest
from kernrec.store.share.place import Folder
from kernrec.store.share.servers import WebServer
from tests.fuzz.formats import Format
from tests.helpers.paths import ROOT

_OPTIONS = (b"-std=c++17\n-DWARP=32\n-lineinfo\n", b"-D TILE = 4\n--std=c++20\n-O3\n-DNAME\n-Xptxas -v\n")
_MACROS = (b"N=4\nT=float\nF(x)=((x) * N)\n", b"N=(1 << 4)\nT=double\nF(x)=x\n")
_SOURCE = 'extern "C" __global__ void f(T* x) { x[threadIdx.x] = F(x[threadIdx.x] + N); }\n'


def more_formats(work: Path) -> Iterator[Format]:
    """Yield the formats for sharing, Triton, compiler options and user settings. `work` holds a bundle."""
    yield from _foreign()
    yield from _settings(work)
    yield from _place(work)


def _foreign() -> Iterator[Format]:
    from kernrec.interop.read_results import read_results
    from kernrec.interop.t1 import load_spec

    usual: dict[str, Any] = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None}
    tried: list[Any] = [[usual | {"kwargs": {"BLOCK_M": 64 << i, "BLOCK_N": 64}}, [0.5, 0.4, 0.6]] for i in range(2)]
    tried.append([usual | {"kwargs": {"BLOCK_M": 256, "BLOCK_N": 64}}, [float("inf")] * 3])
    samples = [{"key": [64, "torch.float16"], "configs_timings": tried}]
    later = [[attributes | {"ir_override": None}, times] for attributes, times in tried]
    samples.append({"key": [], "configs_timings": later})
    contents = tuple(json.dumps(sample).encode() for sample in samples)
    yield Format("triton-autotune", "case.autotune.json", contents, read_results)
    t1 = json.loads((ROOT / "datasets" / "kernels" / "filter2d.json").read_text(encoding="utf-8"))

    def options(path: Path) -> None:
        document = json.loads(json.dumps(t1))
        document["KernelSpecification"]["CompilerOptions"] = _lines(path)
        (spec := path.with_name("case.json")).write_text(json.dumps(document))
        _, notes = load_spec(spec, ROOT / "datasets" / "kernels" / "filter2d.cu")
        assert all(note.isprintable() for note in notes)

    yield Format("options", "case.txt", _OPTIONS, options)

    def macros(path: Path) -> None:
        pairs = (line.partition("=") for line in _lines(path))
        defines = {name: value for name, _, value in pairs}
        compile_source(_SOURCE, sm=89, defines=defines, name="case.cu", cache=CompileCache(None))

    try:
        compiler()
    except NoCompilerError:
        return
    yield Format("macros", "case.txt", _MACROS, macros, apart=True)


def _settings(work: Path) -> Iterator[Format]:
    from kernrec.store import keys

    (config := work / "config").mkdir()
    with patch.dict(os.environ, {"KERNREC_CONFIG": str(config)}):
        key = make_own_key()
        for name, other in (("alice", "5f" * 32), ("bob", "0c" * 32)):
            keys.trust(other, name)

    def within(read: Callable[[Path], object]) -> Callable[[Path], None]:
        """Return a function that reads a case as a file of the user's settings."""

        def reading(path: Path) -> None:
            with patch.dict(os.environ, {"KERNREC_CONFIG": str(path.parent)}):
                read(path)

        return reading

    def trusted(_: Path) -> None:
        for each, name in keys.trusted().items():
            assert keys.trusts(each)
            assert keys.signer_name(each).isprintable(), name
        assert not keys.trusts("")

    def signing(path: Path) -> None:
        Signer.of(path).sign(b"x")

    def public(_: Path) -> None:
        keys.signer_name(keys.own_key())

    yield Format("trusted", "trusted.json", ((config / "trusted.json").read_bytes(),), within(trusted))
    yield Format("key", "key", ((config / "key").read_bytes(),), within(signing))
    yield Format("key-pub", "key.pub", (f"{key}\n".encode(),), within(public))


def _place(work: Path) -> Iterator[Format]:
    from kernrec.store.share.pull import pull

    signer = Signer.of(work / "config" / "key")
    content = (work / "bundle" / "manifest.json").read_bytes()
    bundle = parse_manifest(content, "bundle")
    about = (bundle.created_at, bundle.made_by)
    withdrawal = Withdrawal({"monday": ["0" * 32, "f" * 32]}, *about, "the fan was broken", signer.key)

    def pulled(path: Path) -> None:
        line = path.read_bytes().replace(b"\n", b" ")
        signed = line + b"\n" + signer.sign(line)
        (folder := path.parent / "team" / "withdrawn").mkdir(parents=True)
        (folder / f"{sha256(signed).hexdigest()}.json").write_bytes(signed)
        with patch.dict(os.environ, {"XDG_DATA_HOME": str(path.parent), "KERNREC_CONFIG": str(path.parent)}):
            for note in pull(Folder(path.parent / "team"), untrusted=True).left:
                assert note.isprintable(), note

    old = {"format": "kernrec retraction", "version": 1, "rows": ["0" * 32], "owner": signer.key, "reason": ""}
    old |= {"created_at": bundle.created_at, "made_by": "kernrec 0.1.0"}
    samples = (withdrawal.to_bytes(), json.dumps(old).encode())
    yield Format("withdrawal", "case.json", samples, pulled, apart=True)

    def listed(path: Path) -> None:
        server = WebServer("http://localhost")
        with patch.object(server, "read", lambda name, most: Folder(path.parent).read(name, most)):
            for name in server.names():
                assert ".." not in name
                assert not name.startswith("/")

    names = [f"h200-sxm/2026-03-01-{digit * 8}-{digit * 12}.zip" for digit in "0f"]
    yield Format("place-index", "index.json", (json.dumps({"names": names}, indent=0).encode(),), listed)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").split("\n")
