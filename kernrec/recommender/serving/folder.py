"""Write the predicted configs of an audit to a folder that the engine reads instead of its own files.

A file has an entry for every number of tokens that the engines' files have, because the engine selects the nearest
entry. If there is no gain, the entry is the engine's default. So a step of many tokens does not run a config that
was selected for few tokens.
"""

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from kernrec.errors import UsageError, file_errors
from kernrec.interop.moe_configs import write_moe_configs
from kernrec.recommender.serving.audit import AuditedFile, ServingAudit
from kernrec.recommender.serving.engine_defaults import KEYS, Tiles, default_config
from kernrec.recommender.serving.engines import Deployment
from kernrec.recommender.serving.shipped_files import FOLDERS
from kernrec.recommender.serving.verdict import Verdict, worth
from kernrec.util.files import write_whole

VARIABLES = {"vllm": "VLLM_TUNED_CONFIG_FOLDER", "sglang": "SGLANG_MOE_CONFIG_DIR"}
"""Environment variables that name the folder."""


def entries_of(audited: AuditedFile, served: Deployment) -> dict[int, Tiles]:
    """Return the entries of a file, by number of tokens (times the heads for state-space layers).

    Use the comparison with the nearest number of tokens, by ratio. Take its best config if the gain is worth it.
    Otherwise take the engine's default for this number of tokens.
    """
    entries: dict[int, Tiles] = {}
    by_tokens = {made.tokens: made for made in audited.comparisons}
    for key in sorted({*KEYS, *by_tokens}):
        made = by_tokens[min(by_tokens, key=lambda tokens: (abs(math.log(tokens / key)), tokens))]
        own = default_config(served.engine, audited.file, key, served.gpu)
        entries[audited.file.entry(key)] = made.best if worth(made) is Verdict.WRITE else own
    return entries


def relative_place(audited: AuditedFile, served: Deployment) -> str:
    """Return a file's path below the folder; a file that engines read only from their package keeps its path there."""
    file = audited.file
    if not file.from_folder:
        return f"package/{FOLDERS[served.engine][file.kind]}/{file.name}"
    if served.engine == "vllm":
        return file.name
    return f"configs/triton_{served.triton.replace('.', '_')}/{file.name}"


def write_folder(audit: ServingAudit, folder: Path) -> list[Path]:
    """Write each file that is worth it, and keep files with other names.

    Returns:
        Paths of the files. If none is worth it, no folder is created.

    Raises:
        UsageError: the folder cannot be written.
    """
    texts: Mapping[str, str] = {
        relative_place(audited, audit.served): write_moe_configs(entries_of(audited, audit.served))
        for audited in audit.files
        if audited.verdict is Verdict.WRITE
    }
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; expected a folder")
    written = []
    for place, text in texts.items():
        path = folder / place
        with file_errors(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode(), shared=True)
        written.append(path)
    return written


def setting(audit: ServingAudit, folder: Path) -> str:
    """Return the shell command that makes the engine read the folder."""
    return f"export {VARIABLES[audit.served.engine]}={shlex.quote(str(folder.absolute()))}"
