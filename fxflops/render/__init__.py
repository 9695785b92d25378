"""Rendering: functions that turn plain data into strings. Reports call these functions; no function here depends on the Report class."""
