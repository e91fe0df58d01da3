"""A complete program in one file: it fills tensors, launches the config, checks the result and times it.

nvcc -std=c++17 -arch=sm_89 matmul.cu -o matmul && ./matmul
"""

from collections.abc import Sequence

from kernrec.emit.cuda import launch_comment
from kernrec.emit.files import Files
from kernrec.emit.program import HOST_ONLY, case, choice_in_cuda, harness, launcher, main_function, renamed_source
from kernrec.recommender.result import Recommendation


def emit(answers: Sequence[Recommendation]) -> Files:
    """The program of the best config."""
    best = choice_in_cuda(answers[0], "host")
    name = f"{best.kernel.name}.cu"
    names = {launch.entry: launch.entry for launch in best.kernel.launches}
    references = harness("references.h").replace('#include "harness.h"\n', "").replace("#pragma once\n", "")
    parts = [
        "\n".join(launch_comment(best)),
        f"// Build and run: nvcc -std=c++17 -arch={best.gpu.arch} {name} -o check && ./check",
        HOST_ONLY,  # before the tunables: their macros might be names of headers
        harness("harness.h").replace("#pragma once\n", "") + references,
        "#endif",
        renamed_source(best, names),
        HOST_ONLY,
        launcher(best, "static cudaError_t launch_config", names),
        main_function([case(best, "launch_config")]),
        "#endif",
    ]
    return {name: ("\n".join(parts) + "\n").encode()}
