"""Rendering: functions from plain rolled-up data to strings. They know neither the Report nor the terminal's state."""
