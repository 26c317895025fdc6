"""Figures, one a file: results -> Vega-Lite specification."""
