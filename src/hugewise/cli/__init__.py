"""The command line, one file a verb; every error that is a HugewiseError is told with its cure, and ends with 2.

Imports everything below. A new verb goes here: its file, and its options in `main`, which imports the file late.
"""
