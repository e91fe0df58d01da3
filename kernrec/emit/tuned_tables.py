"""Write the best configs of Triton kernels as tuning files for vLLM or SGLang, or as a lookup table for Inductor."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernrec.emit.formats import Files
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.moe_configs import ExpertLayer, read_moe_configs, tiles_of, write_moe_configs
from kernrec.interop.triton_results import entry, product_key

if TYPE_CHECKING:
    from kernrec.kernel import Kernel
    from kernrec.recommender.result import Answer

TOOLS = ("vllm", "sglang")


def of_every_call(name: str, detail: str) -> bool:
    """Return whether one tuning file can contain the configs for all analyzed calls of a Triton function."""
    return name in TOOLS and bool(ExpertLayer.parse(detail).tokens.names)


def emit_experts(answers: "Sequence[Answer]", detail: str, tool: str) -> Files:
    """Return a tuning file of vLLM or SGLang with one config per number of tokens.

    If several calls have the same number of tokens, use the config with the lowest cost.

    Args:
        answers: Answers for calls of a Triton function with the tunables in `moe_configs.TILES`, latest call first.
        detail: Description of the expert layer, in the format of `ExpertLayer.parse`.
        tool: `vllm` or `sglang`.

    Raises:
        UsageError: The kernel is not a Triton function, or `detail` does not match the answers.
    """
    layer = ExpertLayer.parse(detail)
    if len(answers) > 1 and not layer.tokens.names:
        raise UsageError(
            f"m={layer.tokens.text} gives all {len(answers)} calls of the function the same number of tokens; give an"
            " expression of the function's integer arguments, such as m=tokens"
        )
    entries: dict[int, tuple[float, dict[str, int]]] = {}
    routed: set[tuple[Any, ...]] = set()
    for answer in answers:
        if find_gpu(layer.device) != answer.gpu:
            raise UsageError(f"device is {layer.device!r}, but the answer is for {answer.gpu.title}")
        kernel = answer.best.kernel
        if kernel.triton is None:
            raise UsageError(f"{kernel.name} is not a Triton function, but {tool} needs one")
        tokens = layer.tokens_of(dict(answer.problem.dims))
        call = tokens, answer.problem.dims, _configs_of(kernel)
        if call in routed:
            continue
        routed.add(call)
        cost = answer.value_of(answer.best.latency_s.value, answer.best.energy_j.value)
        entry = cost, tiles_of(kernel, answer.best.config)
        entries[tokens] = min(entries.get(tokens, entry), entry, key=lambda cost_and_tiles: cost_and_tiles[0])
    tiles = {tokens: config for tokens, (_, config) in entries.items()}
    return {layer.file_name(tool): write_moe_configs(tiles).encode()}


def _configs_of(kernel: "Kernel") -> tuple[Any, ...]:
    if kernel.listed is None:
        return (kernel.name,)
    tunables = {tunable.name for tunable in kernel.tunables}
    places = [place for place, column in enumerate(kernel.listed.columns) if column in tunables]
    return tuple(tuple(row[place] for place in places) for row in kernel.listed.rows)


def merged(existing: bytes, new: bytes, path: str) -> bytes:
    """Replace or add the entries of `new` in a tuning file. Raise `UsageError` if the existing file is invalid."""
    entries, version = read_moe_configs(existing.decode("utf-8", "replace"), path)
    added, _ = read_moe_configs(new.decode(), "what is emitted")
    return write_moe_configs(entries | added, version).encode()


INDUCTOR_KERNEL = "matmul_triton"
"""Library kernel with the same tunables as Inductor's matmul template."""


def emit_inductor(answers: "Sequence[Answer]") -> Files:
    """Return Inductor's lookup table with the best config of each matmul.

    Raise `UsageError` unless each answer recommends `INDUCTOR_KERNEL`.
    """
    table = {}
    for answer in answers:
        recommendation = next((each for each in answer.recommendations if each.kernel.name == INDUCTOR_KERNEL), None)
        if recommendation is None:
            raise UsageError(
                f"--emit inductor works only for {INDUCTOR_KERNEL}; give --kernel {INDUCTOR_KERNEL} and a --shape"
            )
        problem = recommendation.problem
        dims = dict(problem.dims)
        config = {tunable.macro: recommendation.config[tunable.name] for tunable in recommendation.kernel.tunables}
        table[product_key(dims, problem.dtype, problem.layout)] = [entry(config, dims["k"], problem.dtype)]
    return {"lookup_table.json": (json.dumps(table, indent=2) + "\n").encode()}
