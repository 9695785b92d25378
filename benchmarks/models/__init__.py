"""Model zoos: each module lists names, and builds a model with the inputs of its forward."""
