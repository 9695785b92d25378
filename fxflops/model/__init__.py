"""The user's model and its inputs: their modules and tensors, and how their state is saved and restored."""
