"""The command line: the commands in app.py, and what they read, load and show in the other files."""
