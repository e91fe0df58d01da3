"""List the kernels of a CUDA program, including the template instances that it names or launches."""

import re
from pathlib import Path

from kernrec.errors import UsageError, unknown
from kernrec.interop.host_launches import host_launches
from kernrec.kernel.cuda_signature import Signature, signatures
from kernrec.util.human import counted


def kernel_names(text: str) -> list[str]:
    """Return `--entry` values for the kernels of a program: names of kernels, and instances of templates.

    A template without an instance is listed by its name. Kernels that the program never launches come last.
    """
    launched = set(re.findall(r"([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>)?\s*<<<", text))
    kernels = sorted(signatures(text), key=lambda each: each.name not in launched)
    return [name for each in kernels for name in (_instances(text, each) if each.template else [each.name])]


def _instances(text: str, template: Signature) -> list[str]:
    """Return the instances of a template that a program names or launches, or the template's name if there are none."""
    explicit = re.findall(rf"\btemplate\b[^;{{}}<]*\b({template.name}\s*<[^<>;(){{}}]*>)\s*\(", text)
    launched = [launch.kernel for launch in host_launches(text, template.name, ()) if "<" in launch.kernel]
    return sorted({" ".join(each.split()) for each in (*explicit, *launched)}) or [template.name]


def select_kernel(text: str, source: Path, entry: str | None) -> tuple[Signature, str | None]:
    """Return (name of a kernel, its instance or empty if it is not a template).

    Args:
        text: The program.
        source: File of the program, for messages.
        entry: The kernel, or an instance such as `scale<float, 4>`; None for the only kernel.

    Raises:
        UsageError: The kernel does not exist, or `entry` is None and there are several.
    """
    kernels = {signature.name: signature for signature in signatures(text)}
    if not kernels:
        raise UsageError(f"{source} has no kernel (__global__)")
    name = None if entry is None else entry.partition("<")[0].strip()
    if name is None and len(kernels) > 1:
        raise UsageError(
            f"{source} has {counted(len(kernels), 'kernel')} ({', '.join(kernels)}): name one as in"
            f" {source.name}:{next(iter(kernels))}"
        )
    if name is not None and name not in kernels:
        raise unknown(f"kernel in {source.name}", name, kernels)
    signature = kernels[name] if name is not None else next(iter(kernels.values()))
    if not signature.template:
        if entry is not None and "<" in entry:
            raise UsageError(f"{entry}: {name} is not a template")
        return signature, None
    instance = entry if entry is not None and "<" in entry else None
    if instance is None:
        instances = [each for each in _instances(text, signature) if "<" in each]
        if len(instances) != 1:
            several = f": {', '.join(instances[:4])}" if instances else ""
            example = f"{signature.name}<{', '.join(signature.template)}>"
            raise UsageError(
                f"{signature.name} is a template{several}; name an instance as in"
                f" '{source.name}:{instances[0] if instances else example}'"
            )
        instance = instances[0]
    return signature.instantiated(instance), instance
