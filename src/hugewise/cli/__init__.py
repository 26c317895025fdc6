"""The command line: the verbs in `main`, the work of a long one in a file of its own.

Every error that is a HugewiseError is told with its cure, and ends with 2.

Imports everything below. A new verb goes here: its options in `main`, which imports what it needs late.
"""
