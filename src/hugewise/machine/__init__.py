"""Any machine that attempts run on, seen through `Machine` and the probe's events; nothing here knows which one it is.

Imports the model and the rooms below. What is read of a machine's /proc and /sys, or spoken with the probe, goes here.
A new kind of machine goes to a room of its own beside `guests`, with the protocol `machine.Machine`, and an
`attempt.context.Boarding` that boards it.
"""
