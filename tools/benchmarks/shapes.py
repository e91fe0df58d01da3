"""Draw random problems with sizes that are typical of neural networks. Every run draws the same problems."""

import random

_SIZES = (64, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 14336)


def matmuls(count: int, seed: int | str = 1) -> list[dict[str, int]]:
    """Return the dimensions of `count` random matmuls."""
    draw = random.Random(seed)
    return [{name: draw.choice(_SIZES) + draw.choice([0, 0, 8, 1]) for name in "mnk"} for _ in range(count)]
