"""The passes over a model: its own run, its graph's, and the record that they leave."""
