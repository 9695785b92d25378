"""Old and new side by side: what two states of the library report of the same models."""
