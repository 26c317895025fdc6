"""Statistics, one method a file, each with its source. Pure: pairs and blocks come in, verdicts and figures go out.

Imports the model. `method.Method` is what a loop asks of a method, `family` has a study's error rate, `pairs` says
which blocks reach a test. What a verdict rests on is simulated in tools/verification.
"""
