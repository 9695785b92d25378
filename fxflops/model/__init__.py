"""Read the user's model and its inputs, and save and restore their state."""
