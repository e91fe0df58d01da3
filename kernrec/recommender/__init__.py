"""The recommender: from a request to the configs worth running, and why.

request.py      the question: op or kernel, problem, GPU, objective, bounds
context.py      opened once: databases, models, calibrations, static tables
candidates.py   the configs of all kernels at each operating point, with their costs
rank.py         the engine's costs (`estimate/engine.py`), corrected by models, replaced by measurements
select.py, choices.py, notes.py, answer.py   the selection, and the answer (`result.py`) that is built of it
infeasible.py   why nothing can run a problem
recommender.py  the engine that puts these together; `analyze/` and `explain/` ask it too
networks/       the layers of a network together: totals, power limits and clocks, a year's bill
many.py         one choice for each of many shapes, side by side
"""

from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Objective, Query, Request
from kernrec.recommender.result import Choice, Comparison, Estimate, Recommendation

__all__ = [
    "Choice",
    "Comparison",
    "Estimate",
    "Objective",
    "Query",
    "Recommendation",
    "Recommender",
    "Request",
]
