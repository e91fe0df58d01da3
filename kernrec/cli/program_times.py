"""Print a captured program's predicted GPU time by kernel, in the layout of `nsys stats` (cuda_gpu_kern_sum)."""

from typing import TYPE_CHECKING

from kernrec.cli.format import print_notes
from kernrec.cli.kernel_argument import AnalyzeOptions
from kernrec.cli.table import Column, print_columns, quantities
from kernrec.util.human import counted

if TYPE_CHECKING:
    from kernrec.capture.call_file import CudaCall


class ProgramTimes:
    """Collects the calls of a program with their predicted times."""

    def __init__(self, wanted: AnalyzeOptions) -> None:
        self._wanted = wanted
        self._times: dict[str, list[tuple[int, float]]] = {}  # kernel -> (number of launches, seconds per launch)

    def add(self, call: "CudaCall") -> None:
        """Predict the time of a call with the program's own block size."""
        from kernrec import paths
        from kernrec.gpu import find_gpu

        database = self._wanted.db or paths.user_database()
        seconds = call.seconds(find_gpu(self._wanted.gpu), database, self._wanted.budget)
        self._times.setdefault(call.entry, []).append((call.launches, seconds))

    def print_table(self) -> None:
        """Print the table if any call launches a CUDA kernel."""
        from kernrec.capture.call_file import short_name
        from kernrec.gpu import find_gpu

        if not self._times:
            return
        totals = {name: sum(count * each for count, each in times) for name, times in self._times.items()}
        launches = {name: sum(count for count, _ in times) for name, times in self._times.items()}
        names, whole = sorted(totals, key=lambda name: -totals[name]), sum(totals.values())
        columns = [
            Column("time", "right", [f"{100 * totals[name] / whole:.1f} %" for name in names]),
            quantities("total", "s", [totals[name] for name in names]),
            Column("launches", "right", [f"{launches[name]}" for name in names]),
            quantities("mean", "s", [totals[name] / launches[name] for name in names]),
            quantities("least", "s", [min(each for _, each in self._times[name]) for name in names]),
            quantities("most", "s", [max(each for _, each in self._times[name]) for name in names]),
            Column("kernel", "left", [short_name(name) for name in names]),
        ]
        title = find_gpu(self._wanted.gpu).title
        print_columns(f"GPU time of the program on {title}, by kernel", columns)
        launched = counted(sum(launches.values()), "launch")
        print_notes([f"{launched}, {whole * 1e3:.4g} ms in all: predicted, never measured; without copies and gaps"])
