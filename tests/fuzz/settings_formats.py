"""The formats that are damaged, continued: those of sharing, Triton's cache, and options of compilers."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernrec.compile import CompileCache, NoCompilerError, compile_source
from kernrec.compile.nvrtc import compiler
from kernrec.store.keys import Signer, make_own_key
from kernrec.store.share import Folder, Manifest
from kernrec.store.share.bundle import signed, write_documents
from kernrec.store.share.manifest import LARGEST_MANIFEST, Retraction, parse_manifest
from tests.fuzz.formats import Format
from tests.helpers.paths import ROOT

_OPTIONS = (
    b"-std=c++17\n-DWARP=32\n-lineinfo\n",
    b"-D TILE = 4\n--std=c++20\n-O3\n-DNAME\n-Xptxas -v\n",
)
_MACROS = (b"N=4\nT=float\nF(x)=((x) * N)\n", b"N=(1 << 4)\nT=double\nF(x)=x\n")
_SOURCE = 'extern "C" __global__ void f(T* x) { x[threadIdx.x] = F(x[threadIdx.x] + N); }\n'


def more_formats(work: Path) -> Iterator[Format]:
    """Further formats.

    Args:
        work: the folder in which `formats` left a bundle.
    """
    yield from _foreign()
    yield from _settings(work)
    yield from _log(work)


def _foreign() -> Iterator[Format]:
    from kernrec.interop.load_spec import load_spec
    from kernrec.interop.read_results import read_results

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
        """The options of a T1 description, one a line."""
        document = json.loads(json.dumps(t1))
        document["KernelSpecification"]["CompilerOptions"] = _lines(path)
        (spec := path.with_name("case.json")).write_text(json.dumps(document))
        _, notes = load_spec(spec, ROOT / "datasets" / "kernels" / "filter2d.cu")
        assert all(note.isprintable() for note in notes)

    yield Format("options", "case.txt", _OPTIONS, options)

    def macros(path: Path) -> None:
        """The macros of a spec, as they reach the compiler."""
        pairs = (line.partition("=") for line in _lines(path))
        defines = {name: value for name, _, value in pairs}
        compile_source(_SOURCE, sm=89, defines=defines, name="case.cu", cache=CompileCache(None))

    try:
        compiler()
    except NoCompilerError:
        return
    yield Format("macros", "case.txt", _MACROS, macros, apart=True)


def _settings(work: Path) -> Iterator[Format]:
    from kernrec.store.remotes import remotes

    from kernrec.store import keys
    from kernrec.store.share.object_store import can_push, checked_url

    (config := work / "config").mkdir()
    with patch.dict(os.environ, {"KERNREC_CONFIG": str(config)}):
        key = make_own_key()
        for name, other in (("alice", "5f" * 32), ("bob", "0c" * 32)):
            keys.trust(other, name)

    def within(read: Callable[[Path], object]) -> Callable[[Path], None]:
        """Reads a file of the user's settings."""

        def reading(path: Path) -> None:
            with patch.dict(os.environ, {"KERNREC_CONFIG": str(path.parent)}):
                read(path)

        return reading

    def trusted(_: Path) -> None:
        for each, name in keys.trusted().items():
            assert keys.trusts(each)
            assert keys.signer_name(each).isprintable(), name
        assert not keys.trusts("")

    def listed(_: Path) -> None:
        for remote in remotes():
            checked_url(remote.url)
            can_push(remote.url)
            assert work in remote.pulled.parents or remote.pulled.is_absolute()

    def signing(path: Path) -> None:
        Signer.of(path).sign(b"x")

    def public(_: Path) -> None:
        keys.signer_name(keys.own_key())

    rows = json.dumps([{"name": "team", "url": "s3://team/kernrec"}, {"name": "lab", "url": "/srv/lab"}]).encode()
    yield Format("trusted", "trusted.json", ((config / "trusted.json").read_bytes(),), within(trusted))
    yield Format("remotes", "remotes.json", (rows,), within(listed))
    yield Format("key", "key", ((config / "key").read_bytes(),), within(signing))
    yield Format("key-pub", "key.pub", (f"{key}\n".encode(),), within(public))


def _log(work: Path) -> Iterator[Format]:
    from kernrec.store.remotes import Remote
    from kernrec.store.share.entries import names_of_index
    from kernrec.store.share.log import remote_log

    from kernrec.store.share.pull import pull

    signer = Signer.of(work / "config" / "key")
    bundle = parse_manifest((work / "bundle" / "manifest.json").read_bytes(), "bundle")
    about = (bundle.created_at, bundle.made_by)
    pushed = Manifest(bundle.segments, (), *about, bundle.licence, bundle.provenance, bundle.schema, signer.key)
    taken_back = Retraction(("0" * 32, "f" * 32), *about, "the fan was broken", signer.key)

    def pulled(path: Path) -> None:
        """A remote whose log has the case as a document, signed by the key that the samples name."""
        team = path.parent / "team"
        shutil.copytree(work / "bundle" / "segments", team / "segments")
        for content in (pushed.to_bytes(), path.read_bytes()):
            name = f"manifests/{sha256(content).hexdigest()}.json"
            write_documents(Folder(team), signed(name, content, signer))
        with patch.dict(os.environ, {"XDG_DATA_HOME": str(path.parent), "KERNREC_CONFIG": str(path.parent)}):
            remote = Remote("team", str(team))
            for line in pull(remote, untrusted=True).left:
                assert line.isprintable(), line
            assert all(row["state"] for row in remote_log(remote))

    samples = (pushed.to_bytes(), taken_back.to_bytes())
    yield Format("remote-log", "case.json", samples, pulled, apart=True)

    def listed(path: Path) -> None:
        content = b"".join(Folder(path.parent).read("index.json", LARGEST_MANIFEST))
        for name in names_of_index(content, "index.json", "manifests/"):
            assert name.startswith("manifests/")
            assert ".." not in name

    names = [f"manifests/{digit * 64}.{end}" for digit in "0f" for end in ("json", "sig")]
    yield Format("remote-index", "index.json", (json.dumps({"names": names}, indent=0).encode(),), listed)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").split("\n")
