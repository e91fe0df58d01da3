"""Recommend the configs worth running for a problem on a GPU, and explain each recommendation.

request.py      the user's request: op or kernel, problem, GPU, objective and bounds
context.py      databases, trained models, calibrations and static tables, each opened once
candidates.py   runnable configs of all kernels that implement a problem, with their costs at each operating point
rank.py         corrections of predicted costs by trained models, measurements and recorded times of libraries
select.py, notes.py, answer.py   select configs, and build the `Answer` that `result.py` defines
infeasible.py   reasons why no config can run a problem
recommender.py  the class that combines these modules; `analyze/` and `explain/` use it too
networks/       totals over the layers of a network: time, energy, power limits and clocks
many.py         one recommendation for each of many shapes, which are estimated in batches
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
