"""Statistics, one method a file, each with its source. Pure: pairs and blocks come in, verdicts and figures go out.

Imports the model. `method.Method` is what a loop asks of a method, `family` has a study's error rate, `pairs` says
which blocks reach a test. `family.methods_for` chooses `sequential` (the default), `fixed`, `exact` or `screening`;
verdicts over hosts are made in `pooling`, over runs in `evidence`. What a verdict rests on is simulated in
tools/verification.
"""
