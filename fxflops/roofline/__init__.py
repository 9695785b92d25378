"""Rooflines. Rooflines show the peak speeds of devices, and how close each call of a run comes to its device's peaks."""
