"""Recommendations: candidates, their estimates, the Pareto front, and what a query asks of them."""

from kernrec.recommender.recommender import OBJECTIVES, Query, Recommender
from kernrec.recommender.result import Choice, Comparison, Cost, Recommendation

__all__ = ["OBJECTIVES", "Choice", "Comparison", "Cost", "Query", "Recommendation", "Recommender"]
