"""A complete program in one file: it fills tensors, launches the config, checks the result and times it.

nvcc -std=c++17 -arch=sm_89 matmul.cu -o matmul && ./matmul
"""

from collections.abc import Sequence

from kernrec.compile.compiled import target_name
from kernrec.emit.cuda import launch_comment
from kernrec.emit.files import Files
from kernrec.emit.program import (
    HOST_ONLY,
    case,
    harness,
    kernel_source,
    launcher,
    main_function,
    map_encoder,
    program_of,
)
from kernrec.recommender.result import Recommendation


def emit(answers: Sequence[Recommendation]) -> Files:
    """The program of the best config."""
    program = program_of(answers[0], "host")
    best = program.choice
    target = target_name(best.kernel.source, best.gpu.sm)
    option = f"-arch={target}"
    if target.endswith("a"):  # for which nvcc's -arch would compile for the plain architecture, too
        option = f"-gencode=arch={target.replace('sm', 'compute')},code={target}"
    name = f"{best.kernel.name}.cu"
    names = {launch.entry: launch.entry for launch in best.kernel.launches}
    loading = harness("loaded_kernel.h").replace("#pragma once\n", "") if program.compiled is not None else ""
    references = harness("references.h").replace('#include "harness.h"\n', "").replace("#pragma once\n", "")
    parts = [
        "\n".join(launch_comment(best, program.launches)),
        f"// Build and run: nvcc -std=c++17 {option} {name} -o check && ./check",
        HOST_ONLY,  # before the tunables: their macros might be names of headers
        harness("harness.h").replace("#pragma once\n", "") + references + loading,
        "#endif",
        kernel_source(program, names),
        HOST_ONLY,
        map_encoder([program]),
        launcher(program, "static cudaError_t launch_config", names),
        main_function([case(best, "launch_config")]),
        "#endif",
    ]
    return {name: ("\n".join(parts) + "\n").encode()}
