"""Rooflines: the ceilings of devices, and how close each call of a run comes to them."""
