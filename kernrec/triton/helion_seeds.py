"""Configs to begin Helion's search with: some of its own, compiled to Triton, emulated and ranked without a launch.

Helion writes another Triton function for each config. They are put into one file, below one function that calls the one
whose number it is given: so they are the configs of one kernel, which is ranked as any other.
"""

import ast
import hashlib
import importlib.util
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernrec import paths
from kernrec.errors import KernrecError, UsageError
from kernrec.kernel.triton_function import OPTIONS
from kernrec.triton.helion_version import check_helion
from kernrec.util.atomic_write import write_whole
from kernrec.util.light_dataclass import dataclass

NUMBER = "CONFIG"
"""The constant of the function of all configs that says which one runs."""

_DRAWN = 2
"""Random configs that are drawn for each one that is ranked: of a small space some come again."""


@dataclass(frozen=True)
class HelionSeeds:
    """Configs of a Helion kernel, ranked; predicted unless the database has measurements of them."""

    configs: tuple[Any, ...]
    """The best, of type `helion.Config`: `autotune_seed_configs` of its settings."""
    latencies_s: tuple[float, ...]
    """Predicted, of each."""
    ranked: int
    """How many configs were ranked."""
    failures: tuple[str, ...]
    """Why others were not."""
    source: Path
    """The file of all configs, a Triton function to read or to analyze."""


def helion_seeds(
    kernel: Any, args: Sequence[Any], gpu: str, *, top: int = 5, tried: int = 32, objective: str = "latency"
) -> HelionSeeds:
    """The best of some configs of a Helion kernel, for its search to begin with.

    >>> seeds = kernrec.triton.helion_seeds(matmul, (x, y), gpu="h100")
    >>> matmul.settings.autotune_seed_configs = seeds.configs

    Args:
        kernel: decorated with `@helion.kernel`.
        args: of one call; tensors may be on the CPU. Configs are those that Helion offers for their device; persistent
            ones start blocks for the SMs of `gpu`.
        gpu: the GPU as people call it.
        top: how many configs are given.
        tried: how many are ranked: the default, those of Helion's own heuristics, then random ones, always the same.
        objective: `latency`, `energy` or `edp`.

    Raises:
        UsageError: an impossible value, or a kernel that is none of Helion's.
        KernrecError: Helion is not installed or not a known release, or no config could be analyzed.
    """
    from kernrec.gpu import find_gpu
    from kernrec.recommender.request import SCALAR_OBJECTIVES, Objective

    check_helion()
    if not hasattr(kernel, "bind"):
        raise UsageError(f"{kernel!r:.60} is not a function with @helion.kernel")
    if objective not in SCALAR_OBJECTIVES:
        raise UsageError(f"objective is {objective!r:.40}; expected {', '.join(SCALAR_OBJECTIVES)}")
    if not 1 <= top <= tried <= 1000:
        raise UsageError(f"top is {top} and tried {tried}; expected 1 <= top <= tried <= 1000")
    card = find_gpu(gpu)
    bound = kernel.bind(tuple(args))
    failures: list[str] = []
    launches: list[tuple[Any, _Launch]] = []
    for config in _offered(bound.config_spec, tried):
        try:
            launches.append((config, _Launch(bound.to_triton_code(config), args, len(launches), card.sms)))
        except Exception as error:  # what Helion cannot compile, it says in many ways
            failures.append(f"{config}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    if not launches:
        raise KernrecError(f"{kernel.name}: Helion could not compile any of {tried} configs: {failures[0]}")
    first = launches[0][1]
    fitting = [(config, launch) for config, launch in launches if launch.fits(first)]
    failures += [f"{config}: other arguments" for config, launch in launches if not launch.fits(first)]
    source = _write(f"{kernel.name}_configs", [launch for _, launch in fitting])
    analysis = _ranking(f"{kernel.name}_configs", source, [launch for _, launch in fitting], card, Objective(objective))
    choices = analysis.recommendation.choices
    by_number = {launch.number: config for config, launch in fitting}
    failures += [f"{by_number[f.config[NUMBER.lower()]]}: {f.message}" for f in analysis.failures]
    best = choices[:top]
    return HelionSeeds(
        tuple(by_number[choice.config[NUMBER.lower()]] for choice in best),
        tuple(float(choice.latency_s.value) for choice in best),
        len(choices),
        tuple(failures),
        source,
    )


def _offered(spec: Any, count: int) -> list[Any]:
    """Different configs of a Helion kernel: its default, its heuristics' seeds, and random ones, always the same."""
    generation = spec.create_config_generation()
    configs = [spec.default_config(), *spec.compiler_seed_configs]
    state = random.getstate()
    random.seed(0)
    try:
        configs += [generation.random_config() for _ in range(_DRAWN * count)]
    finally:
        random.setstate(state)
    return list(dict.fromkeys(configs))[:count]


class _Launch:
    """The Triton function that Helion wrote for one config, and how its host code launches it."""

    def __init__(self, code: str, args: Sequence[Any], number: int, sms: int) -> None:
        """sms: of the card; a persistent kernel asks for those of its tensors' device."""
        self.number = number
        module = ast.parse(code)
        self.host = next(
            node.name
            for node in module.body
            if isinstance(node, ast.FunctionDef) and any(arg.arg == "_launcher" for arg in node.args.kwonlyargs)
        )
        names: dict[str, Any] = {"__name__": f"helion_config_{number}"}
        # A path of its own, so that `triton.jit` finds the source of what is executed here.
        file = _kept(code)
        exec(compile(code, str(file), "exec"), names)
        if "helion" in names:
            names["helion"] = _with_sms(names["helion"], sms)
        caught: list[tuple[Any, Any, Sequence[Any], Mapping[str, Any]]] = []

        def launcher(function: Any, grid: Any, *values: Any, **options: Any) -> None:
            caught.append((function, grid, values, options))

        names[self.host](*args, _launcher=launcher)
        if len(caught) != 1:
            raise KernrecError(f"its host code makes {len(caught)} launches; one is expected")
        function, self.grid, values, options = caught[0]
        self.function = function.fn.__name__
        self.options = {name: value for name, value in options.items() if name in OPTIONS}
        if other := sorted(options.keys() - set(OPTIONS)):
            raise KernrecError(f"it is launched with {other[0]}, which kernrec does not know")
        parameters = list(function.params)
        self.arguments = {p.name: value for p, value in zip(parameters, values, strict=False) if not p.is_constexpr}
        self.constants = {p.name: value for p, value in zip(parameters, values, strict=False) if p.is_constexpr}
        self.body = _device_code(module, number)

    def fits(self, other: "_Launch") -> bool:
        """Whether it takes the arguments of another config; tensors that the host code makes differ in no more."""
        return {name: _kind(value) for name, value in self.arguments.items()} == {
            name: _kind(value) for name, value in other.arguments.items()
        }


def _with_sms(helion: Any, sms: int) -> Any:
    """The package as host code sees it, where every device has so many SMs."""

    def get_num_sm(device: Any, *, reserved_sms: int = 0) -> int:
        return max(1, sms - reserved_sms)

    runtime = SimpleNamespace(**{**vars(helion.runtime), "get_num_sm": get_num_sm})
    return SimpleNamespace(**{**vars(helion), "runtime": runtime})


def _kind(value: Any) -> Any:
    """An argument as far as it matters between configs."""
    if hasattr(value, "shape"):
        return str(value.dtype), tuple(value.shape), tuple(value.stride())
    return value


def _kept(code: str) -> Path:
    """A file of the user's cache with this source."""
    file = paths.cache() / "helion" / f"{hashlib.sha256(code.encode()).hexdigest()[:24]}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, code.encode())
    return file


class _Renamed(ast.NodeTransformer):
    """Names of a module with its config's number behind them."""

    def __init__(self, names: set[str], number: int) -> None:
        self._names, self._number = names, number

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self._names:
            node.id = f"{node.id}_{self._number}"
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        if node.name in self._names:
            node.name = f"{node.name}_{self._number}"
        return node


def _device_code(module: ast.Module, number: int) -> tuple[list[str], list[str]]:
    """(imports, constants and functions) that run on the GPU, their names with the config's number behind them."""
    on_gpu: list[ast.stmt] = []
    for node in module.body:
        if (isinstance(node, ast.FunctionDef) and node.decorator_list) or isinstance(node, ast.Assign):
            on_gpu.append(node)
    used = {n.id for node in on_gpu for n in ast.walk(node) if isinstance(n, ast.Name)}
    imports = []
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            bound = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            if bound & used:
                imports.append(ast.unparse(node))
    names = {node.name for node in on_gpu if isinstance(node, ast.FunctionDef)}
    names |= {t.id for node in on_gpu if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}
    renamed = _Renamed(names, number)
    return imports, [ast.unparse(renamed.visit(node)) for node in on_gpu]


def _write(name: str, launches: Sequence[_Launch]) -> Path:
    """The file of all configs, with the function `name` that calls the one of its constant."""
    imports = sorted({line for launch in launches for line in launch.body[0]} | {"import triton"})
    if not any("triton.language as tl" in line for line in imports):
        imports.append("import triton.language as tl")
    parameters = list(launches[0].arguments)
    lines = ["@triton.jit", f"def {name}({', '.join([*parameters, f'{NUMBER}: tl.constexpr'])}):"]
    for launch in launches:
        passed = [f"{p}={p}" for p in parameters] + [f"{p}={value!r}" for p, value in launch.constants.items()]
        lines += [
            f"    if {NUMBER} == {launch.number}:",
            f"        {launch.function}_{launch.number}({', '.join(passed)})",
        ]
    bodies = ["\n\n\n".join(launch.body[1]) for launch in launches]
    return _kept("\n".join(imports) + "\n\n\n" + "\n\n\n".join([*bodies, "\n".join(lines)]) + "\n")


def _ranking(name: str, source: Path, launches: Sequence[_Launch], card: Any, objective: Any) -> Any:
    """The analysis of the function of all configs."""
    import triton

    from kernrec.profile.triton_call import kernel_of_triton
    from kernrec.profile.triton_call_file import TritonCall
    from kernrec.recommender.analyze_kernel import analyze
    from kernrec.recommender.analyze_triton import kept_values
    from kernrec.recommender.profile_configs import ProfilingOptions
    from kernrec.recommender.request import Query
    from kernrec.triton.calls.launch_record import record_of

    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    configs = [triton.Config({NUMBER: launch.number}, **launch.options) for launch in launches]
    grids = {launch.number: launch.grid for launch in launches}
    record = record_of(function, (), launches[0].arguments, lambda meta: grids[meta[NUMBER]], configs)
    arguments = dict(record.arguments)
    for parameter, array in record.contents.items():
        arguments[parameter] = {**arguments[parameter], "values": str(kept_values(array))}
    call = TritonCall(source, name, arguments, [], record.configs, place=source.name, decorated=function)
    kernel, _ = kernel_of_triton(call)
    query = Query(objective, power_limit_w=card.tdp_w, top=len(configs), each_config=True)
    options = ProfilingOptions(folder=source.parent)
    return analyze(kernel, kernel.definition.problem(), card, paths.user_database(), query, options)
