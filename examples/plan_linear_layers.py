"""Plan the kernel config of each linear layer of a served model, for every number of tokens in a batch.

    python examples/plan_linear_layers.py [GPU] [--json plan.json]

The program requests the configs of all shapes at once, as a service would do when it starts. It needs no GPU. For each
layer and number of tokens, it prints the kernel and its expected time. It also prints the tokens per second that these
layers allow.
"""

import argparse
import json
from pathlib import Path

import kernrec

LAYERS = {"qkv": (6144, 4096), "output": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336)}
"""(n, k) of each linear layer of Llama-3 8B: the numbers of output and input features."""
TOKENS = (1, 16, 256, 2048)
BLOCKS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gpu", nargs="?", default="h200")
    parser.add_argument("--json", type=Path, help="file for the plan, which a service can load")
    options = parser.parse_args()

    plan = []
    for tokens in TOKENS:
        n, k = (list(sizes) for sizes in zip(*LAYERS.values(), strict=True))
        answers = kernrec.recommend_many("matmul", options.gpu, dtype="f16", layout="nt", m=tokens, n=n, k=k)
        total_s = BLOCKS * float(answers.latency_s[:, 0].sum())
        for layer, kernel, config, (latency_s, low_s, high_s) in zip(
            LAYERS, answers.kernels, answers.configs, answers.latency_s.tolist(), strict=True
        ):
            plan.append({"layer": layer, "tokens": tokens, "kernel": kernel, "config": config, "latency_s": latency_s})
            interval = f"({low_s * 1e6:.1f} to {high_s * 1e6:.1f})"
            print(f"{tokens:>5} tokens  {layer:<12} {latency_s * 1e6:>7.1f} us {interval:<18} {kernel}")
        print(f"{tokens:>5} tokens  all layers of {BLOCKS} blocks: {tokens / total_s:,.0f} tokens/s")
    if options.json:
        options.json.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
