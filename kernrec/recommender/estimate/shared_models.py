"""Models and calibrations that travel in a bundle of measurements."""

import hashlib
import shutil
from pathlib import Path

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.recommender.estimate.model_store import stored_models
from kernrec.store.share import Bundle, Model
from kernrec.store.share.bundle import fetch
from kernrec.util.scratch import scratch_folder


def models_in(folder: Path) -> dict[Path, Model]:
    """The files of a folder of models, as a bundle names them; raises `UsageError` if one of them is unusable."""
    if not folder.is_dir():
        return {}
    _, wrong = stored_models(folder)
    if wrong:
        raise UsageError(f"{wrong[0]}; nothing was exported")
    models = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        content = path.read_bytes()
        models[path] = Model(path.name, hashlib.sha256(content).hexdigest(), len(content))
    return models


def take_models(bundle: Bundle, folder: Path) -> tuple[list[str], list[str]]:
    """Put the models of a bundle into a folder of models; those that the folder has, or kernrec ships, stay.

    Returns:
        Names of the files that were taken, and of those that stayed.

    Raises:
        UsageError: if a file is not what the manifest says or is not a model; nothing is taken then.
    """
    with scratch_folder() as temporary:
        for model in bundle.manifest.models:
            fetch(bundle.place, model, temporary / model.file)
        _, wrong = stored_models(temporary)
        if wrong:
            raise UsageError(
                f"models of {bundle.place.title}: {wrong[0].removeprefix(f'{temporary}/')}; none was taken"
            )
        names = sorted(model.file for model in bundle.manifest.models)
        shipped = paths.shipped("db/prebuilt") / "models"
        present = [name for name in names if (folder / name).exists() or (shipped / name).exists()]
        # A model and its trees are files of one stem: a model of one's own is not mixed with a stranger's.
        stems = {name.partition(".")[0] for name in present}
        taken = [name for name in names if name.partition(".")[0] not in stems]
        if taken:
            folder.mkdir(parents=True, exist_ok=True)
        for name in taken:
            shutil.copyfile(temporary / name, folder / name)
    return taken, [name for name in names if name not in taken]
