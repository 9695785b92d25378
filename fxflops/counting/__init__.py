"""The cost of each call under a convention, the calls without cost and why, and sums by module and operator."""
