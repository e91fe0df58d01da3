"""Test the cached random numbers of posteriors."""

import numpy as np
import pytest

from kernrec.model.search.random_draws import student_draws


def drawn(seed: tuple[int, int], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(list(seed))
    first = generator.standard_normal((rows, columns)) * np.sqrt(4.0 / generator.chisquare(4.0, (rows, 1)))
    return first, generator.standard_t(5.0, (rows, columns))


@pytest.mark.parametrize("seed", [(0, 0), (0, 3)])
def test_cached_random_draws_equal_generated_ones(seed, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # first drawn, then read from the cache
        student_draws.cache_clear()
        for made, expected in zip(student_draws(seed, 16, 3, 4.0, 5.0), drawn(seed, 16, 3), strict=True):
            np.testing.assert_array_equal(made, expected)
            assert not made.flags.writeable
    assert (tmp_path / "cache" / "derived" / "draws.3").exists() == (seed == (0, 0))


def test_damaged_cache_of_random_draws_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    student_draws.cache_clear()
    student_draws((0, 0), 16, 2, 4.0, 5.0)
    path = tmp_path / "cache" / "derived" / "draws.2"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    student_draws.cache_clear()
    np.testing.assert_array_equal(student_draws((0, 0), 16, 2, 4.0, 5.0)[1], drawn((0, 0), 16, 2)[1])
