"""The files by which a setting is deployed: each kind a small pure function from what is wanted to a `DeployedFile`.

Imports the model. A new kind of deployed file goes here: a function whose texts of others go through `quoting`, its
comments in `configuration`, and a test in which the tool that reads it does so (else its label says that none has).
"""
