"""Calibration of a host: what its A/A streams show, the record of it, and what a study may rest on it."""
