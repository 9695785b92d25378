"""Model zoos. Each module lists model names, and builds a model with inputs for its forward."""
