"""What every HTML page of hugewise shares: escaping, the style sheet, and a policy that lets nothing else in.

Every text is escaped by the template engine; only figures (made by `images.inline`) and the style sheet are markup.
The Content-Security-Policy forbids everything but that style sheet, which it names by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hugewise.report.sentences import printable

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["environment", "render"]


@functools.cache
def environment() -> Environment:
    """The templates of this package; a name that a template does not know is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  (only when a report is written)

    made = Environment(
        loader=PackageLoader("hugewise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    return made


def render(template: str, figures: Mapping[str, str], **context: Any) -> str:
    """The page made of `template`. `figures`: key -> SVG made by `images.inline`."""
    style = resources.files("hugewise.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        environment()
        .get_template(template)
        .render(
            style=Markup(style),  # noqa: S704  (our own file)
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            figures={key: Markup(svg) for key, svg in figures.items()},  # noqa: S704  (made by images.inline)
            **context,
        )
    )
