"""Simulate training on many processes in one process: the work, memory and communication of each rank, and the time of a step."""

from .bounds import StepBound, step_bound
from .links import Links
from .meshes import Meshes, rank_meshes
from .predicted import StepPrediction, step_prediction
from .result import RankKind, Simulation
from .simulation import simulate
from .training import train_meshes

__all__ = [
    "Links",
    "Meshes",
    "RankKind",
    "Simulation",
    "StepBound",
    "StepPrediction",
    "rank_meshes",
    "simulate",
    "step_bound",
    "step_prediction",
    "train_meshes",
]
