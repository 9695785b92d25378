"""Rooflines: the ceilings of devices, and how near each call of a run came to them."""
