"""Rendering: functions from plain data to strings. They know nothing of the Report, which calls them."""
