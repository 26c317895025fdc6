"""Formats of measurements made elsewhere, one a file; found by being there (see `hugewise.importer`)."""
