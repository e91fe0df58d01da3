"""Train the shipped model of `matmul_triton` from recordings of TorchInductor's Triton template.

    python tools/train_triton_model.py [--data ../shared/data] [--out db/prebuilt/models]

The model corrects the analytical model, which uses the profile of `matmul_triton` with the config of each recorded row
(`tools/evidence/recordings/triton.py`). To calibrate the intervals, the tool holds out problems and GPUs in turn. It
writes the model card and the trees (`kernrec.model.learn.model_file`). Run it again after every change of the
analytical model or of the kernel's profiles. It takes a few minutes on one core.
"""

from collections import Counter
from pathlib import Path

from evidence.recordings.files import AbsentError
from evidence.recordings.triton import FILES, KERNEL, RECORDED, recorded_groups
from front import DATA, ROOT, Data, script

from kernrec.model.analytical.calibration import analytical_fingerprint
from kernrec.model.learn.model_file import save
from kernrec.op import problem_from_key
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset, RowGroup
from kernrec.training.load_measurements import provenance_of_rows
from kernrec.training.train_model import train

SHAPE = TrainingSettings(rounds=150, depth=5, rate=0.06, threads=1)
"""Settings of the trees for unrecorded GPUs. More or deeper trees rank worse on other GPUs."""
SETTINGS = TrainingSettings(rounds=300, depth=8, rate=0.1, child_weight=10.0, threads=1, shape=SHAPE)
"""Settings of the trees for recorded GPUs. They were chosen by top-1 efficiency and error on held-out problems, and by
the time of a query."""


def run(data: Data = DATA, out: Path = ROOT / "db" / "prebuilt" / "models") -> None:
    """Train and write the model."""
    groups: list[RowGroup] = []
    left_out = {}
    for gpu in FILES:
        problems, of_gpu = recorded_groups(data, gpu)
        left_out[gpu] = problems - len(of_gpu)
        print(f"{gpu}: {sum(map(len, of_gpu))} configs of {len(of_gpu)} problems, {left_out[gpu]} left out")
        groups += of_gpu
    if not groups:
        raise AbsentError("no problem has profiles: run tools/build_database.py matmul_triton")
    rows = Dataset(tuple(groups))
    model = train(rows, SETTINGS)
    counts = Counter(problem_from_key(group.problem).dtype for group in groups)
    training = provenance_of_rows(rows) | {
        "problems": len({group.problem for group in groups}),
        "measurements": 0,
        "mark": "",
        "prior": {"probe": analytical_fingerprint(), "calibrations": {}},
        "recorded": RECORDED,
        "source": "collected for PyTorch's AutoHeuristic (AlnisM/autoheuristic-datasets)",
        "caveats": [
            "an older Triton compiled the recorded kernels; the features are those of matmul_triton by today's Triton",
            "the variants of the A100 and H100 and their clocks are unknown",
            "data types: " + ", ".join(f"{count} problems in {dtype}" for dtype, count in sorted(counts.items())),
            "left out: configs and kinds of matrices without profiles, and matrices that are not dense",
        ],
        "problems_left_out": left_out,
    }
    path = save(model, out, KERNEL.name, training)
    for name, score in model.scores.items():
        print(f"{name}: {score if isinstance(score, str) else f'{score:.4g}'}")
    print(f"{path}: {sum(f.stat().st_size for f in out.glob(f'{KERNEL.name}.*')) / 1e6:.2f} MB")


if __name__ == "__main__":
    script(run)
