"""The runs of a model and of its graph, and the record that they leave."""
