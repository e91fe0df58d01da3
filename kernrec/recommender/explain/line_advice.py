"""Recommend changes of a kernel's source lines, ordered by the speedup that the model expects."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kernrec.profile.line_costs import SAMPLED_BLOCKS, SPACES, Access, LineCost
from kernrec.recommender.explain.breakdown import Explanation, LaunchDetail
from kernrec.recommender.json_form import JsonForm
from kernrec.util.light_dataclass import dataclass

_SECTOR = 32
_WORTH = 0.03
"""Minimum speedup, as a fraction, for advice. Smaller speedups are far within the model's error."""
_POOR = 0.6
"""Fraction of useful bytes, active lanes or necessary wavefronts below which a line gets advice."""
_FEW = 0.25
"""Occupancy below which there are too few warps to hide latency."""
_MANY_READS = 8
"""Minimum number of reads per byte for the advice to keep data in registers or shared memory."""
_CHEAP_DIVISION = 0.1
"""Ratio of the cost of a shift or multiplication to the cost of a division, in instructions."""
_CORE = ("issue", "fma", "int", "special", "f64", "tensor", "LSU", "shared memory", "L1")
_ON_CHIP = ("LSU", "L1", "L2")


@dataclass(frozen=True)
class LineAdvice(JsonForm):
    """Recommended change of one source line or of the whole launch."""

    file: str
    line: int
    """Line number, or 0 for advice about the whole launch."""
    text: str
    problem: str
    change: str
    speedup: float
    """Ratio of the launch time to the expected launch time after the change."""

    @property
    def sentence(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else ""
        code = f"`{self.text}`: " if self.text else ""
        return f"{place}{code}{self.problem}; {self.change}: {self.speedup:.2g}x expected"


def line_advice(
    subject: Explanation, lines: Sequence[LineCost], source: Callable[[str, int], str], has_f64: bool
) -> list[LineAdvice]:
    """Return the recommended changes, largest gain first.

    Args:
        subject: breakdown of a config that needs a single launch.
        source: function that returns the text of a line, given a file name and a line number.
        has_f64: whether a parameter of the kernel has type f64. If true, f64 arithmetic is assumed to be intended.
    """
    (launch, *_) = subject.launches
    total = _Totals(lines)
    advised = [advice for cost in lines for advice in _of_line(launch, cost, total, source, has_f64)]
    advised += _of_reads(launch, lines, subject, source)
    advised += _of_launch(launch, subject)
    best: dict[tuple[int, str], LineAdvice] = {}
    for advice in advised:
        key = (advice.line, advice.problem.partition(":")[0])
        if advice.speedup > 1 + _WORTH and (key not in best or best[key].speedup < advice.speedup):
            best[key] = advice
    return sorted(best.values(), key=lambda advice: -advice.speedup)


class _Totals:
    """Sums over all source lines of a kernel."""

    def __init__(self, lines: Sequence[LineCost]) -> None:
        self.issued = sum(cost.issued for cost in lines) or 1.0
        self.integer = sum(cost.issue.get(name, 0.0) for cost in lines for name in ("alu", "imad", "wide64"))
        accesses = [access for cost in lines for access in cost.accesses.values()]
        moved = {space: sum(each.moved for each in accesses if each.space == space) or 1 for space in SPACES}
        self.wavefronts, self.sectors = moved["shared"], moved["global"] + moved["local"]
        self.requests = sum(access.requests for access in accesses) or 1


def _after(launch: LaunchDetail, factors: Mapping[str, float]) -> float:
    """Return the speedup of a launch if the time of each resource changes by a factor (1 by default)."""
    parts = launch.time_s
    longest = max(parts.values())
    after = max(seconds * factors.get(name, 1.0) for name, seconds in parts.items())
    return (longest + launch.in_turn_s) / (after + launch.in_turn_s)


def _of_line(
    launch: LaunchDetail, cost: LineCost, total: _Totals, source: Callable[[str, int], str], has_f64: bool
) -> Iterator[LineAdvice]:
    file, line = cost.place
    text = source(file, line).strip()[:60]

    def advice(problem: str, change: str, factors: Mapping[str, float]) -> LineAdvice:
        return LineAdvice(file, line, text, problem, change, _after(launch, factors))

    for access in cost.accesses.values():
        yield from _of_access(access, total, advice)
    if cost.division:
        rest = 1 - cost.division * (1 - _CHEAP_DIVISION) / total.issued
        yield advice(
            f"integer division: {100 * cost.division / total.issued:.0f} % of all instructions divide",
            "divide by a power of two or a constant, or replace it by a counter",
            {
                **dict.fromkeys(("issue", "special", "latency"), rest),
                "int": max(1 - cost.division / max(total.integer, cost.division), 0.1),
            },
        )
    if cost.f64 and not has_f64:
        yield advice(
            "f64 by accident: numbers of 64 bits in a kernel of f32",
            "write 2.0f for 2.0, and sqrtf for sqrt",
            {"f64": 0.0, "special": 0.1, "issue": 1 - 0.5 * cost.f64 / total.issued, "latency": 0.5},
        )
    if cost.issued and cost.active / cost.issued < _POOR:
        share = cost.active / cost.issued
        rest = 1 - cost.issued * (1 - share) / total.issued
        yield advice(
            f"divergence: {100 * share:.0f} % of the lanes are active",
            "let the lanes of a warp take the same branch, for example by sorting or by one item per warp",
            dict.fromkeys(("issue", "fma", "int", "special", "LSU", "latency"), rest),
        )


def _of_access(access: Access, total: _Totals, advice: Callable[..., LineAdvice]) -> Iterator[LineAdvice]:
    if access.space == "global" and access.what != "atomic":
        ideal = max(access.bytes / _SECTOR, access.requests)
        used = min(access.bytes / (access.moved * _SECTOR), 1.0) if access.moved else 1.0
        together = used * access.count  # All `count` accesses read the same sectors.
        if used < _POOR and 0.9 < together < 1.1 and access.widest < 16:
            rest = 1 - (access.moved - access.bytes / _SECTOR) / total.sectors
            yield advice(
                f"narrow {access.what}: {access.widest} bytes at a time of {access.widest * access.count} adjacent",
                "let each thread load up to 16 bytes at once, as float4, int4 or uchar4",
                {**dict.fromkeys(_ON_CHIP, rest), "issue": 0.5, "latency": 0.5},
            )
        elif used < _POOR and access.moved > 1.5 * ideal:
            rest = 1 - (access.moved - ideal) / total.sectors
            yield advice(
                f"uncoalesced {access.what}: {100 * used:.0f} % of the bytes used",
                "let neighboring threads access neighboring elements (swap the indices, or stage in shared memory)",
                {**dict.fromkeys(_ON_CHIP, rest), "DRAM": max(rest, used), "latency": max(rest, 0.5)},
            )
        elif access.widest < 16 and used > 0.9 and access.lanes == 32 * access.requests:
            rest = 1 - access.requests * (1 - access.widest / 16) / total.requests
            yield advice(
                f"narrow {access.what}: {access.widest} bytes per thread where 16 fit",
                "load float4 (or int4), and let each thread work on 4 elements",
                {"LSU": rest, "issue": 1 - 0.5 * (1 - rest), "latency": 1 - 0.3 * (1 - rest)},
            )
    if access.space == "shared" and access.ideal and access.moved > access.ideal / _POOR:
        rest = 1 - (access.moved - access.ideal) / total.wavefronts
        yield advice(
            f"bank conflicts: {access.moved / access.ideal:.3g}x the wavefronts of a {access.what}",
            "pad the rows of the array by one element, as in [32][33]",
            {"shared memory": rest, "LSU": rest, "L1": rest},
        )
    if access.space == "local":
        rest = 1 - access.moved / total.sectors
        issued = 1 - 2 * access.requests / total.issued  # Each access also needs an address instruction.
        yield advice(
            f"local array: {100 * access.moved / total.sectors:.0f} % of the sectors are local memory",
            "index it by constants (unroll the loop), so that it stays in registers",
            {**dict.fromkeys(_ON_CHIP, rest), "DRAM": rest, "latency": max(rest, 0.3), "issue": issued},
        )
    if access.what == "atomic" and access.lanes > 2 * access.moved:
        rest = 1 - 0.97 * access.requests / total.requests
        yield advice(
            f"atomics on one address: {access.lanes / max(access.moved, 1):.0f} lanes share a sector",
            "add up within the warp or the block first, then let one thread do the atomic",
            {"L2": min(rest, 0.1), "LSU": rest, "latency": rest, "shared memory": rest},
        )


def _of_reads(
    launch: LaunchDetail, lines: Sequence[LineCost], subject: Explanation, source: Callable[[str, int], str]
) -> Iterator[LineAdvice]:
    """Yield the advice to reuse data for the line that reads most, if the kernel reads each byte many times."""
    reads = {cost.place: cost.accesses[read] for cost in lines if (read := ("global", "read")) in cost.accesses}
    if not reads:
        return
    (file, line), most = max(reads.items(), key=lambda each: each[1].moved)
    moved = sum(access.moved for access in reads.values())
    times = moved * _SECTOR * launch.blocks / min(launch.blocks, SAMPLED_BLOCKS) / max(subject.roofline.dram_bytes, 1.0)
    if times < _MANY_READS or most.bytes < _POOR * most.moved * _SECTOR:
        return
    rest = 1 - 0.75 * most.moved / moved  # Assume that the change avoids three of four reads.
    yield LineAdvice(
        file, line, source(file, line).strip()[:60],
        f"re-read: each byte is read {times:.0f} times from L1 or L2",
        "keep it in shared memory or registers, and compute several results per thread",
        _after(launch, {**dict.fromkeys(_ON_CHIP, rest), "latency": rest, "issue": (1 + rest) / 2}),
    )  # fmt: skip


def _of_launch(launch: LaunchDetail, subject: Explanation) -> Iterator[LineAdvice]:
    def advice(problem: str, change: str, speedup: float) -> LineAdvice:
        return LineAdvice("", 0, "", problem, change, speedup)

    gpu = subject.recommendation.gpu
    if launch.blocks * launch.threads < gpu.sms * 256:
        share = launch.blocks * launch.threads / (gpu.sms * 256)
        yield advice(
            f"too few warps: {launch.blocks} blocks of {launch.threads} threads for {gpu.sms} SMs",
            "give each thread less work, so that the grid is larger",
            _after(launch, dict.fromkeys((*_CORE, "L2", "latency", "DRAM"), max(share, 0.1))),
        )
    elif launch.occupancy < _FEW and launch.capped_by != "warps":
        warps = launch.resident_blocks * -(-launch.threads // 32)
        yield advice(
            f"too few warps: {warps} per SM, limited by {launch.capped_by}",
            "use larger blocks, or less of this resource per block",
            _after(launch, {"latency": max(launch.occupancy / _FEW, _FEW)}),
        )
    elif launch.waves > 1 and launch.tail < _POOR:
        whole = launch.waves / -(-launch.waves // 1)
        yield advice(
            f"tail: the last of {-(-launch.waves // 1):.0f} rounds of blocks leaves most of the GPU idle",
            "use smaller blocks, or as many blocks as fit at once (grid-stride loop)",
            _after(launch, dict.fromkeys((*_CORE, "latency"), whole)),
        )
