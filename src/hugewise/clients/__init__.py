"""Hosts of their own for clients: reached over ssh, with the agent of guests at the other end; docs/design/guests.md.

Imports `attempt` and the rooms below. What a workload's clients need there, it says itself (`model.procedure.Parted`):
it knows nothing of ssh.
"""
