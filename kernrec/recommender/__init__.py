"""Recommendations: candidates, their estimates, the Pareto front, and what a query asks of them."""

from kernrec.recommender.answer import Choice, Comparison, Cost, Recommendation
from kernrec.recommender.recommender import OBJECTIVES, Query, Recommender

__all__ = ["OBJECTIVES", "Choice", "Comparison", "Cost", "Query", "Recommendation", "Recommender"]
