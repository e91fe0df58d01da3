"""Recommend the configs worth running for a problem on a GPU, and explain each recommendation."""

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
