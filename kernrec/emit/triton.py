"""Write a recommended config as a Triton source in Python: kernel, config, and a function that launches it."""

import re
from collections.abc import Iterator, Sequence

from kernrec.emit.cuda import launch_comment
from kernrec.emit.files import Files
from kernrec.kernel.binding import Pointer, Scalar
from kernrec.kernel.triton_function import OPTIONS
from kernrec.recommender.result import Answer, Recommendation


def emit(answers: Sequence[Answer]) -> Files:
    """Return the Triton source of the best config."""
    best = answers[0].best
    return {f"{best.kernel.name}.py": triton_source(best).encode()}


def triton_source(recommendation: Recommendation) -> str:
    """Return the kernel's source, the config as `CONFIG`, and a function `launch` if all arguments can be written."""
    kernel, form = recommendation.kernel, recommendation.kernel.form(recommendation.problem)
    words = {*re.findall(r"[A-Za-z_]\w*", kernel.source), *OPTIONS}
    constants = dict(kernel.defines(recommendation.config, form.dtype, form.layout))
    constants |= {tunable.macro: str(recommendation.config[tunable.name]) for tunable in kernel.tunables}
    config = ", ".join(f"{name}={value}" for name, value in constants.items() if name in words)
    lines = [line.replace("//", "#", 1) for line in launch_comment(recommendation)]
    lines += [kernel.source, f"\nCONFIG = dict({config})\n", *_launcher(recommendation)]
    return "\n".join(lines)


def _launcher(recommendation: Recommendation) -> Iterator[str]:
    """Yield the lines of a function that launches the config, if every argument is a tensor or a number."""
    function, (launch, *others) = recommendation.kernel.triton, recommendation.launches
    assert function is not None
    # Ignore the scratch pointers after the function's own arguments.
    arguments = dict(zip(function.parameters, launch.arguments, strict=False))
    if others or function.descriptors:
        return
    values, tensors = [], []
    for name, argument in arguments.items():
        if isinstance(argument, Scalar):
            values.append(f"{name}={argument.value}")
        elif isinstance(argument, Pointer):
            values.append(f"{name}={None if argument.null else argument.name}")
            tensors += [] if argument.null or argument.name in tensors else [argument.name]
        else:
            return
    yield f"\ndef launch({', '.join(tensors)}):"
    yield f'    """Queue {launch.entry} for {recommendation.problem.key} on PyTorch\'s current stream."""'
    yield f"    {launch.entry}[{launch.grid}]({', '.join(values)}, **CONFIG)\n"
