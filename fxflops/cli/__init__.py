"""The command line. ``app.py`` has the commands; the other files read their options, load models and format the output."""
