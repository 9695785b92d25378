"""Run a model and its graph, and record these runs."""
