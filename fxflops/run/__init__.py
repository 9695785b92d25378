"""Run a model and its graph, and record the runs."""
