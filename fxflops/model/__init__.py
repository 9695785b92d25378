"""The user's model and its inputs: what they hold, and how they are put back as they were."""
