"""Reports of one run: HTML, Markdown, CSV, JSON and figures, made from `hugewise.model.results.Results` alone.

Imports `analysis`, `external` and the rooms below. A new report section goes here: what it says is found in `analysis`,
never here. `figures` draws.
"""
