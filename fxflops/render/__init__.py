"""Rendering: functions from plain data to strings. They do not depend on the Report, which calls them."""
