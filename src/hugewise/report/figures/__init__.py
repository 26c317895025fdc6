"""Figures, one a file: a pure function from results to a Vega-Lite specification, or None without anything to draw."""
