"""The report: its rows and views, comparisons, and the files it is saved to."""
