"""The Report, with its tables, views, comparisons and file formats."""
