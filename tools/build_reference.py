"""Generate the pages of the documentation's reference from the code, whenever the site is built.

This hook of MkDocs (`hooks` in mkdocs.yml) adds pages under `reference/`. Each page is a function that returns
Markdown. `tools/reference.toml` explains keys of `kernel.toml`, environment variables and fields of JSON answers;
`tests/docs/test_reference.py` fails if an entry is missing or outdated.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]

GENERATED = "<!-- Written by tools/build_reference.py. -->\n\n"

_TEXT = tomllib.loads((ROOT / "tools" / "reference.toml").read_text(encoding="utf-8"))
KEYS: dict[tuple[str, str], str] = {
    (table, key): text for table, keys in _TEXT["keys"].items() for key, text in keys.items()
}
"""Description of each key of a `kernel.toml`, keyed by (table, key)."""
VARIABLES, VALUES, ARGUMENTS, FUNCTION_VALUES, FIELDS, OUTPUT, SPECS = (
    _TEXT[name] for name in ("variables", "values", "arguments", "functions", "fields", "output", "specs")
)

_INTERNAL_KEYS = {"digest", "reference_digest"}
"""Keys that kernrec adds to a stored spec."""

SET_BY_KERNREC = {
    "PYTHONPATH", "PYTHONSAFEPATH", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_DEVICE_ORDER",
    "PYTHONUNBUFFERED",
    "KERNREC_CAPTURE", "KERNREC_CAPTURE_GPU", "KERNREC_CAPTURE_PER_FUNCTION", "KERNREC_CAPTURE_REFUSED",
    "KERNREC_CAPTURE_SOCKET",
}  # fmt: skip
"""Environment variables that kernrec sets for itself or for its child processes."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages to the site. MkDocs calls this hook."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=GENERATED + page()))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog))
    return files


def commands() -> str:
    """Return the page of commands, arguments and options, which Typer generates from the code of the command line."""
    program = [sys.executable, "-m", "typer", "--app", "app", "kernrec.cli.app", "utils", "docs", "--name", "kernrec"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(
        [*program, "--title", "Commands"], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"typer utils docs: {done.stderr.strip()}")
    return re.sub(r"\*\*(Usage|Options|Arguments|Commands)\*\*:", r"\1:", done.stdout)


PUBLIC = """
recommend recommend_many recommend_network recommender.many.ManyAnswers recommender.networks.network.NetworkAnswer
analyze build run.BuiltKernel run.Variant triton.autotune triton.prune serve_audit check checking.check.CheckResult
checking.check.OutputCheck recommender.Recommender recommender.Request recommender.Query recommender.Objective
recommender.Answer recommender.Recommendation recommender.Estimate recommender.Comparison errors.KernrecError
errors.UsageError
"""
"""Names of the public interface in `kernrec`. The page also lists the other classes of `kernrec.recommender`."""


def python_api() -> str:
    """Return the page of the public Python API. mkdocstrings replaces its entries by docstrings."""
    from kernrec import recommender

    classes = [f"recommender.{n}" for n in recommender.__all__ if isinstance(getattr(recommender, n), type)]
    return _page(
        "Python API",
        "This page is the public interface. All quantities are in SI units: watts, seconds, joules, hertz."
        " The [guide](../guides/python.md) has examples.",
        *(f"::: kernrec.{name}" for name in dict.fromkeys([*PUBLIC.split(), *sorted(classes)])),
    )


def kernel_toml() -> str:
    """Return the page of the keys of a spec, in the order in which they are read."""
    from kernrec.kernel.spec import LIMITS, SCALAR_RANGES

    parts = [
        "A spec describes a kernel: its tunables, launches and tensors. The tables list every key; any other key is an"
        " error that names the nearest one. The [guide](../guides/analyze.md) has a complete example. Many values are"
        " [expressions](expressions.md), which can use tunables, dimensions, `dtype`, `layout`, `dtype_bytes`, `sm` and"
        " earlier names of `[let]`.",
    ]
    keys = spec_keys()
    for name, title in _TEXT["titles"].items():
        rows = [
            (f"`{key}`", KEYS.get((name, key), ""), expected, "required" if default is None else default)
            for (table, key), (expected, default) in keys.items()
            if table == name
        ]
        parts += [f"## {title}", markdown_table(("key", "meaning", "expected", "default"), rows)]
    parts += ["## Arguments of a launch", _meanings("text", "argument", ARGUMENTS)]
    parts += ["## Values of a tensor", _TEXT["pages"]["values"], _meanings("text", "values", VALUES)]
    limits, types = (", ".join(f"`{name}`" for name in names) for names in (LIMITS, SCALAR_RANGES))
    parts += ["## Limits of the GPU", f"Constraints can also use {limits}.", "## Types of scalar arguments"]
    return _page("kernel.toml", *parts, f"The type of a scalar argument such as `i32 width` is one of {types}.")


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _meanings(head: str, meaning: str, texts: Mapping[str, str]) -> str:
    return markdown_table((head, meaning), [(f"`{name}`", text) for name, text in texts.items()])


def spec_keys() -> dict[tuple[str, str], tuple[str, str | None]]:
    """Return (expected value, default), keyed by (table, key), in reading order. A required key's default is None."""
    from kernrec.kernel import toml_table
    from kernrec.kernel.spec_reader import kernel_from

    keys: dict[tuple[str, str], tuple[str, str | None]] = {}
    original = toml_table.Table.take
    required = toml_table._REQUIRED

    def take(self: Any, key: str, kind: type, expected: str, default: Any = required) -> Any:
        table = self.place.removeprefix("spec").lstrip(": ")
        table = re.sub(r"^(\[tunables\]) \w+$", r"\1 name", table)
        table = re.sub(r"^(launch|workspace)\[\d+\]$", r"[[\1]]", table)
        table = re.sub(r"^\[problem\]: tensors\.\w+", "[problem.tensors] name", table)
        table = re.sub(r"^\[problem\]: dims\.\w+$", "[problem] dims name", table)
        if key in ("dtypes", "layouts"):
            expected = "a list of names that the operator accepts"
        if key not in _INTERNAL_KEYS:
            text = "none" if default is None or default in ("", [], {}) else f"`{json.dumps(default, default=str)}`"
            text = "the tensor's name" if default == "c" else text  # `c` is a tensor in `SPECS`.
            keys.setdefault((table, key), (expected, None if default is required else text))
        return original(self, key, kind, expected, default)

    with patch.object(toml_table.Table, "take", take):
        for data in SPECS.values():
            kernel_from(data, "spec", "__global__ void run() {}")
    return keys


def expressions() -> str:
    from kernrec.kernel.expression import FUNCTIONS, MAX_LENGTH

    rows = [
        (f"`{name}`", str(least) if least == most else f"{least} to {most}", FUNCTION_VALUES.get(name, ""))
        for name, (_, least, most, *_) in FUNCTIONS.items()
    ]
    text = _TEXT["pages"]["expressions"].replace("MAX_LENGTH", f"{MAX_LENGTH:,}")
    return str(text) + "\n## Functions\n\n" + markdown_table(("function", "arguments", "value"), rows) + "\n"


def json_output() -> str:
    """Return the page of the fields of `--json` answers, found in real answers."""
    parts = [_TEXT["pages"]["json"].strip()]
    for command, answer in answers().items():
        rows = [(f"`{field}`", kind, meaning_of(command, field)) for field, kind in fields(answer)]
        parts += [f"## {command}", markdown_table(("field", "type", "meaning"), rows)]
    return _page("JSON output", *parts)


def answers() -> dict[str, Any]:
    """Return the `--json` answer of each command in `reference.toml`."""
    # Hide the user's database, so that the pages are the same on every machine.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"XDG_DATA_HOME": folder}):
        os.environ.pop("KERNREC_DB", None)
        return {name: _answer([*command.split(), "--json"]) for name, command in _TEXT["commands"].items()}


def meaning_of(command: str, field: str) -> str:
    """Return the description of a field for a command, else for `kernrec recommend`, else an empty text."""
    like_recommendations = re.sub(r"^(recommendations|beside|totals|rows|gpus)\[\]\.", "", field)
    for about, name in ((FIELDS[command], field), (FIELDS["kernrec recommend"], like_recommendations)):
        for path in (name, f"recommendations[].{name}"):
            if text := about.get(path) or about.get(path.rpartition(".")[0]):
                return str(text)
    return ""


def fields(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the path and the type of each field of a JSON value. Each path occurs once."""
    kinds: dict[str, str] = {}

    def visit(item: Any, path: str) -> None:
        kind = _kind(item)
        if path and (path not in kinds or kinds[path] == "null"):
            kinds[path] = kind
        if path in _LIKE_OTHERS:
            return
        if isinstance(item, dict):
            for key, child in item.items():
                name = "<name>" if path.endswith(_OPEN) else re.sub(r"^(global|shared)\.\w+\.", r"\1.<buffer>.", key)
                name = re.sub(r"^issue\.\w+$", "issue.<class>", name)
                visit(child, f"{path}.{name}" if path else name)
        elif isinstance(item, list):
            for child in item:
                if isinstance(child, dict | list):
                    visit(child, f"{path}[]")

    visit(value, path)
    return [(name, kind) for name, kind in kinds.items() if not name.endswith("[]")]


_LIKE_OTHERS = ("against", "occupancy_heuristic", "layers")
"""Names of objects that have the same fields as another object. The page does not repeat these fields."""
_OPEN = (
    *("config", "shape", "tunables", "codes", "dtype_min_sm", "time_s", "mix", "energy_by_part_j", "figures"),
    *("difference", "changes"),
)
"""Names of objects whose keys depend on the kernel, problem or GPU."""


_KINDS = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "text", dict: "object"}


def _kind(item: Any) -> str:
    if isinstance(item, list):
        return f"list of {_kind(item[0])}" if item and not isinstance(item[0], dict) else "list"
    return _KINDS[type(item)]


def _answer(arguments: Sequence[str]) -> Any:
    from kernrec.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    with chdir(ROOT), redirect_stdout(out), redirect_stderr(err):
        status = run(arguments)
    if status:
        raise RuntimeError(f"kernrec {' '.join(arguments)}: {err.getvalue().strip()}")
    answer: object = json.loads(out.getvalue())
    return answer


def environment() -> str:
    return _page("Environment variables", _meanings("variable", "meaning", VARIABLES))


def output_values() -> str:
    about = "Bottlenecks are resources. `check` and `explain` count instruction classes. `monitor`: throttle reasons."
    tables = [part for head, values in OUTPUT.items() for part in (f"## {head}", _meanings("value", "meaning", values))]
    return _page("Values in the output", about, *tables)


CATALOG = {
    "gpus": ("name", "title", "sm", "sms", "tdp_w", "aliases"),
    "ops": ("name", "title", "aliases", "dimensions", "dtypes", "layouts", "workload"),
    "kernels": ("name", "op", "dtypes", "layouts", "min_sm", "dtype_min_sm", "description"),
}
"""Fields on the page of GPUs, operators and kernels, keyed by the argument of `kernrec list`."""


def catalog() -> str:
    parts = ["`kernrec list gpus`, `kernrec list ops` and `kernrec list kernels` print these lists with more columns."]
    for kind, names in CATALOG.items():
        rows = _answer(["list", kind, "--json"])
        table = markdown_table(names, [[_cell(row[name]) for name in names] for row in rows])
        parts += [f"## {kind} ({len(rows)})", table]
    return _page("GPUs, operators and kernels", *parts)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def schema() -> str:
    """Return the page of the database schema: the SQL of all migrations and of the views."""
    from kernrec.store.schema import migrations, views_sql

    parts = [
        "A database is one DuckDB file. The numbered migrations in `db/schema` create its schema. When kernrec opens an"
        " older database, it applies the missing migrations. Units are SI and part of the names. The key of a row is a"
        " hash of its other columns that are not NULL, so equal rows have equal keys in all databases."
    ]
    steps = [(f"Migration `{step.number:03d}_{step.name}.sql`", step.sql) for step in migrations()]
    for title, sql in (*steps, ("Views", views_sql())):
        parts += [f"## {title}", f"```sql\n{sql.strip()}\n```"]
    return _page("Database schema", *parts)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


PAGES = {
    "commands": commands, "python": python_api, "kernel-toml": kernel_toml, "expressions": expressions,
    "json": json_output, "schema": schema, "environment": environment, "output-values": output_values,
    "catalog": catalog,
}  # fmt: skip
"""Functions that return the generated pages, keyed by the page's name under `reference/`."""
