"""The static tables of several kernels, laid side by side so that one pass over arrays estimates the configs of all."""

from functools import cached_property

from kernrec.model.prior.demand import Demand, side_by_side
from kernrec.recommender.estimate.static_table import StaticTable


class Tables(tuple[StaticTable, ...]):
    """The static tables of several kernels on one GPU."""

    @cached_property
    def demand(self) -> tuple[Demand, list[list[int]]]:
        """The demands of all launches side by side; for each table and launch, where its variants begin there."""
        if len(self) == 1:
            joint, starts = self[0].demand[0], [0]
        else:
            joint, starts = side_by_side([table.demand[0] for table in self])
        columns = [[start + own for own in table.demand[1]] for start, table in zip(starts, self, strict=True)]
        return joint, columns
