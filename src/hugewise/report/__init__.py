"""Reports of one run: HTML, Markdown, CSV, JSON and figures."""
