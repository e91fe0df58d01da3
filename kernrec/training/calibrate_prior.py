"""Fit the prior's coefficients to measurements and store them: what `kernrec train --calibrate` computes."""

from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.model.prior.calibration import FILE, Calibration, load, save
from kernrec.training.dataset import Dataset
from kernrec.training.fit_calibration import CalibrationFit, fit
from kernrec.training.load_measurements import MeasurementRequest, load_measurements, provenance
from kernrec.util.optional import require_optional


@dataclass(frozen=True)
class CalibrationRequest:
    """Which calibrations to fit."""

    measurements: MeasurementRequest
    """What to fit to."""
    folder: Path | None = None
    """Where to store calibrations; None for `models` beside the first database."""


@dataclass(frozen=True)
class CalibrationResult:
    """The calibrations of all architectures that were measured enough."""

    path: Path
    """The file that holds the calibrations of this folder."""
    fits: tuple[CalibrationFit, ...]
    """Of each architecture, at least one."""
    notes: tuple[str, ...]
    """What the user should know, a sentence each."""


def calibrate_prior(request: CalibrationRequest) -> CalibrationResult:
    """Fit the coefficients of each measured architecture and store those that help on held-out problems.

    Calibrations of other architectures in the folder stay as they are.

    Raises:
        UsageError: no measurement.
        KernrecError: too few measurements of every architecture, a library of the extra `train` is missing, or the
            folder cannot be written.
    """
    require_optional(("sklearn",), "calibrating the prior", "train")
    # Coefficients are fitted anew from those of data sheets, whatever was fitted before.
    measurements = load_measurements(request.measurements, calibrated=False)
    folder = request.folder or measurements.models_folder
    fits = fit(measurements.groups, provenance(Dataset(measurements.groups), measurements, calibrated=False))
    notes = list(measurements.notes)
    try:
        stored = load(folder)
    except UsageError as error:
        notes.append(f"{error}; it is replaced")
        stored = {}
    fitted = {result.arch for result in fits}
    calibrations: dict[str, Calibration] = {arch: entry for arch, entry in stored.items() if arch not in fitted}
    for result in fits:
        notes += [f"{result.arch}: {finding}" for finding in result.findings]
        if result.calibration is not None:
            calibrations[result.arch] = result.calibration
        else:
            dropped = "; its earlier calibration is removed" if result.arch in stored else ""
            notes.append(f"{result.arch}: the data sheet's coefficients stay{dropped}")
    if calibrations != stored:
        save(calibrations, folder)
        if len(list(folder.glob("*.json"))) > 1:
            notes.append(
                "a model only corrects the prior it was trained with: run `kernrec train` again where models were"
                " trained before this calibration"
            )
    return CalibrationResult(folder / FILE, tuple(fits), tuple(notes))
