"""Training on many processes without them: what each rank computes, holds and sends, by a fake process group."""

from .simulation import RankKind, Simulation, simulate

__all__ = ["RankKind", "Simulation", "simulate"]
