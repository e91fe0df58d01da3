"""Choose the thread block of your own CUDA kernel and find its bottleneck, without a GPU.

    pip install '.[cuda13]' && python examples/choose_block_size.py [GPU ...]

The kernel is docs/examples/saxpy.cu. For each GPU, the program prints the best block, its bottleneck, and how its time
compares with that of the block that the occupancy heuristic picks.
"""

import sys
from pathlib import Path

import kernrec

SAXPY = Path(__file__).resolve().parents[1] / "docs" / "examples" / "saxpy.cu"
ELEMENTS = 1 << 22


def main() -> None:
    source = SAXPY.read_text(encoding="utf-8")
    arguments = ["f32:2", f"x=f32[{ELEMENTS}]", f"y=f32[{ELEMENTS}]", f"i32:{ELEMENTS}"]
    for gpu in sys.argv[1:] or ["rtx4090", "a100"]:
        analysis = kernrec.analyze(source, gpu, arguments, grid=(ELEMENTS // 256,), block=(256,), objective="latency")
        best = analysis.answer.best
        (launch,) = best.launches
        print(f"{gpu}: grid {launch.grid}, block {launch.block}: {best.latency_s.value * 1e6:.1f} us")
        print(
            f"{gpu}: limited by {best.bottleneck};"
            f" {best.versus_occupancy_heuristic.slowdown:+.1%} time beside the most occupancy"
        )


if __name__ == "__main__":
    main()
