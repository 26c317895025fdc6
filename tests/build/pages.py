"""Pages of reports without the one script that they have."""

from importlib import resources

SCRIPT = resources.files("hugewise.report").joinpath("page.js").read_text(encoding="utf-8")


def scriptless(page: str) -> str:
    """The page without `hugewise.report.html`'s own script, which stands there once; nothing else of it is a script."""
    rest = page.replace(f"<script>{SCRIPT}</script>", "")
    assert len(page) - len(rest) == len(f"<script>{SCRIPT}</script>")
    assert "<script" not in rest
    return rest
