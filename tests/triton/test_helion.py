"""Helion's doors: a cache that its autotuner reads and writes, and seeds for its search, with the real package."""

import json
from pathlib import Path

import pytest

from kernrec.errors import KernrecError, UsageError

torch = pytest.importorskip("torch", reason="needs PyTorch")
helion = pytest.importorskip("helion", reason="needs PyTorch and Helion")

from helion.autotuner import remote_cache  # noqa: E402
from helion.autotuner.local_cache import parse_cache_entry  # noqa: E402

from kernrec.triton import helion_version  # noqa: E402
from kernrec.triton.helion_cache import FolderCache  # noqa: E402
from kernrec.triton.helion_seeds import _Launch, helion_seeds  # noqa: E402
from tests.triton.helion_kernels import add  # noqa: E402

KEY = "0a" * 32
BACKEND = "kernrec.triton.helion_cache.FolderCache"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", BACKEND)


def entry(block: int = 64) -> str:
    """An entry as Helion writes it."""
    fields = {"hardware": "NVIDIA A100", "specialization_key": "()", "config_spec_hash": "12"}
    return json.dumps(
        {
            "config": helion.Config(block_sizes=[block]).to_json(),
            "key": {"type": "LooseAutotuneCacheKey", "fields": fields},
            "flat_config": json.dumps([block]),
        }
    )


def test_helion_loads_the_backend_and_reads_back_what_it_put(tmp_path: Path) -> None:
    backend = remote_cache._load_remote_backend()
    assert isinstance(backend, FolderCache)
    assert backend.get(KEY) is None
    assert list(backend.list()) == []
    remote_cache._remote_put(backend, KEY, entry())
    again = remote_cache._load_remote_backend()
    saved = parse_cache_entry(remote_cache._remote_get(again, KEY))
    assert saved.config == helion.Config(block_sizes=[64])
    assert (tmp_path / "helion" / f"{KEY}.json").is_file()
    backend.put("0b" * 32, entry(128))
    assert len(list(again.list())) == 2
    assert len(list(again.list(max_results=1))) == 1


def test_a_team_shares_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNREC_HELION", str(tmp_path / "team"))
    FolderCache().put(KEY, entry())
    assert [path.name for path in (tmp_path / "team").iterdir()] == [f"{KEY}.json"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"config": "{}"}', '{"config": "[]", "key": {"fields": {}}}', "[" * 100_000, '{"a": 1}'],
)
def test_an_entry_that_is_none_of_helion_s_is_no_answer(content: str) -> None:
    cache = FolderCache()
    with pytest.raises(KernrecError, match="not an entry of Helion's cache"):
        cache.put(KEY, content)
    cache.folder.mkdir()
    (cache.folder / f"{KEY}.json").write_text(content)
    assert cache.get(KEY) is None
    assert list(cache.list()) == []


def test_a_key_is_no_path() -> None:
    with pytest.raises(KernrecError, match="is not a key of Helion's cache"):
        FolderCache().put("../../escape", entry())


def test_another_release_of_helion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helion_version, "SUPPORTED", ("0.1",))
    with pytest.raises(KernrecError, match=r"Helion 1\.\S+ is installed, which kernrec does not know: 0.1 are"):
        FolderCache()


def test_seeds_are_helion_s_own_configs_the_best_predicted_first() -> None:
    pytest.importorskip("triton", reason="needs the extra `triton`")
    x = torch.zeros(1 << 16)
    seeds = helion_seeds(add, (x, x), "a100", top=2, tried=3)
    assert seeds.ranked == 3
    assert seeds.failures == ()
    assert list(seeds.latencies_s) == sorted(seeds.latencies_s)
    assert all(isinstance(config, helion.Config) for config in seeds.configs)
    bound = add.bind((x, x))
    for config in seeds.configs:  # Helion compiles them
        assert "triton.jit" in bound.to_triton_code(config)


def test_persistent_configs_start_blocks_for_the_sms_of_the_card() -> None:
    pytest.importorskip("triton", reason="needs the extra `triton`")
    x = torch.zeros(1 << 16)
    bound = add.bind((x, x))
    config = helion.Config(block_sizes=[64], pid_type="persistent_interleaved", num_sm_multiplier=2)
    launch = _Launch(bound.to_triton_code(config), (x, x), 0, sms=108)
    assert launch.grid == (216,)
    assert launch.constants["_NUM_SM"] == 108


def test_persistent_configs_are_ranked_beside_flat_ones() -> None:
    pytest.importorskip("triton", reason="needs the extra `triton`")
    x = torch.zeros(1 << 16)
    seeds = helion_seeds(add, (x, x), "a100", top=6, tried=6)
    assert seeds.failures == ()
    kinds = {config.get("pid_type", "flat") for config in seeds.configs}
    assert "flat" in kinds
    assert kinds & {"persistent_blocked", "persistent_interleaved"}


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is not a function with @helion\.kernel"):
        helion_seeds(len, (), "a100")
    with pytest.raises(UsageError, match="expected 1 <= top <= tried"):
        helion_seeds(add, (), "a100", top=5, tried=3)
    with pytest.raises(UsageError, match="unknown GPU"):
        helion_seeds(add, (), "a1000x")
