"""Count each call under a convention, explain calls without a cost, and sum by module and operator."""
