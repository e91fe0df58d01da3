"""Load calibrations and trained models, which are stored next to the database of their measurements.

The user's folder `models` takes precedence over the shipped folder. Both may contain

    calibration.json                    calibrations
    <op>@<gpu>.json, <op>.json          models of an op for one GPU or all GPUs; a kernel's name may replace the op
    vendor/<op>.json                    models of vendor libraries (shipped folder only)

An unusable file is skipped and reported once.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec import paths
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.model.analytical import calibration
from kernrec.model.analytical.calibration import Calibration
from kernrec.model.analytical.power import RANDOM
from kernrec.op import Problem
from kernrec.op.equivalent import as_matmul
from kernrec.store import Stack
from kernrec.store.marks import is_own
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.model.baselines.model import GpuVendorModel, VendorModel
    from kernrec.recommender.estimate.correction import ModelScope, TrainedModel


class ModelStore:
    """Calibrations and trained models of the user and of kernrec.

    Args:
        folder: folder with the user's models, or None to use only shipped models.
        stack: open databases. The store warns if they differ from the training data of the user's models.
        calibrated: whether to use calibrations.
        own: whether the database next to `folder` belongs to the user. If not, shipped models take precedence.
    """

    def __init__(self, folder: Path | None, stack: Stack, calibrated: bool = True, own: bool = True) -> None:
        shipped = paths.shipped("db/prebuilt") / "models"
        self._own = folder
        self._folders = [path for path in (folder, shipped) if path is not None and path.is_dir()]
        if not own:  # Models of other people must not replace shipped models.
            self._folders.reverse()
        self._stack = stack
        self._read: dict[str, TrainedModel | None] = {}
        self._vendor: dict[str, VendorModel | None] = {}
        self._pending: list[str] = []
        self._reported: set[str] = set()
        self._scopes: dict[tuple[str | int, ...], ModelScope | None] = {}
        if stack.missing is not None:
            self._warn(f"KERNREC_DB names {stack.missing}, which does not exist yet; only the shipped data is used")
        for note in stack.notes:
            self._warn(note)
        if folder is not None and os.path.lexists(folder) and not folder.is_dir():  # `lexists` includes broken links.
            self._warn(f"{folder} is not a folder; your models are not used")
        self._calibrations: dict[str, Calibration] = {}
        for place in reversed(self._folders if calibrated else []):
            try:
                self._calibrations |= calibration.load(place)
            except KernrecError as error:
                self._warn(f"{error}; not used")

    @classmethod
    def beside(
        cls, databases: Sequence[Path | str] | None, stack: Stack | None = None, calibrated: bool = True
    ) -> "ModelStore":
        """Return the store next to the first of `databases`. Without databases, use the user's database."""
        folder = paths.models() if databases is None else None
        own = True
        if databases:
            folder = Path(databases[0]).parent / "models"
            own = not folder.is_dir() or is_own(Path(databases[0]))
        return cls(folder, stack or Stack(databases), calibrated, own)

    @property
    def calibrations(self) -> Mapping[str, Calibration]:
        """Calibrations in use, keyed by GPU architecture."""
        return self._calibrations

    def calibration(self, gpu: GPU) -> Calibration | None:
        """Return the calibration of a GPU's architecture, or None if there is none."""
        return self._calibrations.get(gpu.arch)

    def model(self, op: str, gpu: GPU) -> "TrainedModel | None":
        """Return the trained model of an op or kernel, or None if there is none.

        A model for the GPU takes precedence over a model for all GPUs.
        """
        if not self._folders:
            return None
        for name in (f"{op}@{gpu.name}", op):
            if name not in self._read:
                self._read[name] = self._load(name)
            if (model := self._read[name]) and self._has_current_calibration(model, gpu):
                return model
        return None

    def scope(self, op: str, kernel: Kernel, gpu: GPU, dtype: str) -> "ModelScope | None":
        """Return the trained model to use for a kernel on a GPU, as a `ModelScope`, or None if no model applies."""
        key = op, kernel.name, kernel.hash, gpu.name, gpu.sm, dtype
        if key not in self._scopes:
            reported, scope = len(self._reported), self._scope(op, kernel, gpu, dtype)
            # After a warning, the next call skips the faulty file and may return another model, so do not cache.
            if len(self._reported) > reported:
                return scope
            self._scopes[key] = scope
        return self._scopes[key]

    def _scope(self, op: str, kernel: Kernel, gpu: GPU, dtype: str) -> "ModelScope | None":
        above, own = self._usable(op, kernel, gpu, dtype), self.beneath(op, kernel, gpu, dtype)
        if above is None or own is None:
            return above or own
        trained_above = above.trained.training.get("beneath", {}).get(kernel.name)
        if trained_above not in (None, own.trained.training["data_sha256"]):
            self._warn(f"model {above.trained.name} was trained to correct another model of {kernel.name}; not used")
            return own
        # The op's model must have been trained on the kernel and on the GPU. If the kernel's own model was not trained
        # on the GPU either, a test of the op's model on held-out GPUs is enough.
        carries_over = not own.gpu_known and above.model.tried_on_new_gpus
        if not above.kernel_known or not (above.gpu_known or carries_over):
            return own
        return above if trained_above is None else replace(above, beneath=own)

    def beneath(self, op: str, kernel: Kernel, gpu: GPU, dtype: str) -> "ModelScope | None":
        """Return the scope of the kernel's own model, or None if no such model applies."""
        return None if kernel.name == op else self._usable(kernel.name, kernel, gpu, dtype)

    def _usable(self, name: str, kernel: Kernel, gpu: GPU, dtype: str) -> "ModelScope | None":
        model = self.model(name, gpu)
        scope = None if model is None else model.scope(gpu, kernel, dtype)
        return scope if scope is not None and self._readable(scope) else None

    def _readable(self, scope: "ModelScope") -> bool:
        try:
            for part in scope.model.parts(scope.gpu_known):
                _ = scope.model.forests[part]
        except KernrecError as error:
            self._read[scope.trained.name] = None
            self._warn(f"{error}; not used")
            return False
        return True

    def vendor_model(self, op: str) -> "VendorModel | None":
        """Return the model of the vendor libraries for an op, or None if kernrec ships no such model."""
        if op not in self._vendor:
            self._vendor[op] = None
            path = paths.shipped("db/prebuilt") / "models" / "vendor" / f"{op}.json"
            if path.exists():
                from kernrec.model.baselines.model_file import load

                try:
                    self._vendor[op] = load(path)
                except KernrecError as error:
                    self._warn(f"{error}; not used")
        return self._vendor[op]

    def vendor_model_on(self, problem: Problem, gpu: GPU, inputs: str) -> "GpuVendorModel | None":
        """Return the model of the vendor libraries, or None if there is none or if the inputs are not random."""
        model = self.vendor_model(as_matmul(problem).op) if inputs == RANDOM else None
        return None if model is None else model.on(gpu)

    @property
    def reported(self) -> bool:
        """Whether the store has warned about a file."""
        return bool(self._reported)

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings about files since the last call."""
        pending, self._pending = tuple(self._pending), []
        return pending

    def _warn(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._pending.append(text)

    def _load(self, name: str) -> "TrainedModel | None":
        try:
            # `exists` is False for a broken link. Include broken links, so that a warning reports them.
            places = [folder / f"{name}.json" for folder in self._folders]
            path = next((path for path in places if path.exists() or path.is_symlink()), None)
        except OSError as error:
            self._warn(f"cannot look for models in {Path(error.filename).parent}: {error.strerror}; none is used")
            return None
        if path is None:
            return None
        # Import lazily: most users have no trained model.
        from kernrec.model.analytical.calibration import SAME_MODEL, fingerprint_change
        from kernrec.model.learn.model import ANALYTICAL
        from kernrec.model.learn.model_file import load
        from kernrec.recommender.estimate.correction import TrainedModel

        try:
            model, card = load(path, trees=False)
        except KernrecError as error:
            self._warn(f"{error}; not used")
            return None
        training = card["training"]
        if (changed := fingerprint_change(training["prior"]["probe"])) > SAME_MODEL:
            by = f"by up to {changed:.0%}" if changed < 10 else "beyond recognition"
            self._warn(
                f"model {name} was trained with an older analytical model, which has changed {by.replace('%', ' %')}"
                " since; not used (`kernrec train` renews it)"
            )
            return None
        own, analytical = (card["scores"].get(f"median latency error{whose}") for whose in ("", ANALYTICAL))
        if own is not None and analytical is not None and own > analytical:
            kind = card["scores"].get("held out by", "problem")
            self._warn(
                f"model {name} is less accurate than the analytical model on held-out {kind}s"
                f" ({own * 100:.1f} against {analytical * 100:.1f} % of latency); not used"
            )
            return None
        if path.parent == self._own:
            self._compare(name, training)
        return TrainedModel(model, name, training, shipped=path.parent != self._own)

    def _compare(self, name: str, training: Mapping[str, Any]) -> None:
        """Warn if the databases have changed since the model was trained."""
        trained, now = training["measurements"], self._stack.measurements()
        if trained != now:
            self._warn(
                f"the databases have {counted(now, 'measurement')} now, but had {trained} when model {name} was trained"
                f" on {counted(training['rows'], 'config')} (`kernrec train` trains it again)"
            )
        elif training["mark"] != self._stack.mark():
            self._warn(
                f"the databases have other measurements ({now}) than when model {name} was trained (`kernrec train`"
                " trains it again)"
            )

    def _has_current_calibration(self, model: "TrainedModel", gpu: GPU) -> bool:
        then: str | None = model.training["prior"]["calibrations"].get(gpu.arch)
        fitted = self.calibration(gpu)
        now = fitted.hash if fitted else None
        if then == now or model.shipped:  # Do not warn: users cannot retrain a shipped model.
            return then == now
        names = [f"calibration {fit}" if fit else "the data sheet's coefficients" for fit in (then, now)]
        self._warn(
            f"model {model.name} was trained with {names[0]} of {gpu.arch}, but kernrec now uses {names[1]}; not used"
            " (`kernrec train` renews it)"
        )
        return False


def stored_models(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each calibration and model in a folder, and a message for each file that cannot be read."""
    from kernrec.model.learn.model_file import load, problem_count

    columns = "what", "hash", "configs", "problems", "gpus", "calibration"
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    try:
        for arch, fitted in sorted(calibration.load(folder).items()):
            about = fitted.hash, fitted.rows, fitted.problems, " ".join(fitted.gpus), "data sheets"
            rows.append(dict(zip(columns, (f"calibration of {arch}", *about), strict=True)))
    except KernrecError as error:
        wrong.append(str(error))
    for path in sorted(folder.glob("*.json")):
        if path.name == calibration.FILE:
            continue
        try:
            model, card = load(path)
        except KernrecError as error:
            wrong.append(str(error))
            continue
        training = card["training"]
        fits = ", ".join(f"{arch} {fit}" for arch, fit in sorted(training["prior"]["calibrations"].items()))
        trained = training["data_sha256"][:12], training["rows"], problem_count(training), " ".join(model.gpus)
        calibrated = f"calibrated: {fits}" if fits else "data sheets"
        rows.append(dict(zip(columns, (f"model {path.stem}", *trained, calibrated), strict=True)))
    return rows, wrong
