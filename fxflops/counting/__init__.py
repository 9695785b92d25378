"""The cost of each call under a convention, what has none and why, and sums by module and operator."""
