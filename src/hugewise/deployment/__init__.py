"""Files that deploy a setting: each kind is a small pure function from the wanted setting to a `DeployedFile`.

Imports the model. A new kind of deployed file goes here: a function that passes foreign texts through `quoting`, its
comments in `configuration`, and a test in which the tool that reads the file accepts it (else its label says that no
tool has).
"""
