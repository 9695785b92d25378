"""The report: its rows and views, comparisons, and the files that it is saved to."""
