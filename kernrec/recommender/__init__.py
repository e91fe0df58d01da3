"""Recommend the configs worth running for a request, and explain why.

request.py      the question: op or kernel, problem, GPU, objective, bounds
context.py      databases, models, calibrations and static tables, opened once
candidates.py   the configs of all kernels at each operating point, with their costs
rank.py         the engine's ranking: costs corrected by models, replaced by measurements, beside recorded times
select.py, notes.py, answer.py   select configs and build the answer (`result.py`)
infeasible.py   explain why nothing can run a problem
recommender.py  the class that combines these modules; `analyze/` and `explain/` use it too
networks/       totals of a network's layers: time, energy, power limits, clocks, yearly bill
many.py         one recommendation for each of many shapes, estimated side by side
"""

from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Query, Request
from kernrec.recommender.result import Answer, Comparison, Estimate, Recommendation

__all__ = [
    "Answer",
    "Comparison",
    "Estimate",
    "Objective",
    "Query",
    "Recommendation",
    "Recommender",
    "Request",
]
