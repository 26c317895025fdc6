"""What every HTML page of hugewise shares: escaping, the style sheet, and a policy that lets nothing else in.

Every text is escaped by the template engine; only figures (made by `images.inline`) and the style sheet are markup.
The Content-Security-Policy forbids everything but that style sheet, which it names by its hash, and the figures' font
in it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from hugewise.report import fonts
from hugewise.report.sentences import printable

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["environment", "render", "whole"]

# Words that a browser would break at a hyphen or a slash, up to a length that a column can still have.
_BREAKABLE = re.compile(r"(?<!\S)(?=\S{3,80}(?!\S))\S+[-/\u2013]\S+")


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
    made.filters["whole"] = whole
    return made


def whole(text: str) -> Markup:
    """The text of a table's cell, escaped, in which names of policies and files stay in one piece."""
    parts, end = [], 0
    for word in _BREAKABLE.finditer(text):
        parts += [escape(text[end : word.start()]), Markup('<span class="whole">%s</span>') % word[0]]
        end = word.end()
    return Markup("").join([*parts, escape(text[end:])])


def render(template: str, figures: Mapping[str, str], **context: Any) -> str:
    """The page made of `template`. `figures`: key -> SVG made by `images.inline`."""
    style = resources.files("hugewise.report").joinpath("style.css").read_text(encoding="utf-8") + fonts.face()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        environment()
        .get_template(template)
        .render(
            style=Markup(style),  # noqa: S704  (our own files)
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; font-src {fonts.SOURCE}; base-uri 'none'; "
            "form-action 'none'",
            figures={key: Markup(svg) for key, svg in figures.items()},  # noqa: S704  (made by images.inline)
            **context,
        )
    )
