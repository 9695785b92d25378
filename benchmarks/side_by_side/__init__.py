"""Old and new side by side: compare the reports of two states of the library on the same models."""
