"""A document as one HTML file that needs nothing else: no address, figures as SVG inside.

The template engine makes every text one line and escapes it; only figures (made by `images.inline`), the style sheet
and one script of our own (`page.js`) are markup. The Content-Security-Policy forbids everything but these two, which it
names by their hashes, and the figures' font. The script adds to what is there: without it nothing is missing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from hugewise.model.results import VERDICTS
from hugewise.report import images
from hugewise.report.document import NAMED, Document
from hugewise.visible import printable

if TYPE_CHECKING:
    from jinja2 import Environment


# Words that a browser would break at a hyphen or a slash, up to a length that a column can still have.
_BREAKABLE = re.compile(r"(?<!\S)(?=\S{3,80}(?!\S))\S+[-/\u2013]\S+")

# Of a page that is served alone: where it came from it may ask.
_ASKING = "connect-src 'self'; "


@functools.cache
def environment() -> Environment:
    """Return the templates of this package; a name that a template does not know is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  (only when a report is written)

    made = Environment(
        loader=PackageLoader("hugewise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["kind"] = lambda block: type(block).__name__
    made.filters["whole"] = whole
    made.filters["coded"] = coded
    return made


def whole(text: str) -> Markup:
    """Return the text of a table's cell, escaped, in which names of policies and files stay in one piece."""
    shown, parts, end = printable(text), [], 0
    if _BREAKABLE.search(shown) is None:  # most are figures
        return escape(shown)
    for word in _BREAKABLE.finditer(shown):
        parts += [escape(shown[end : word.start()]), Markup('<span class="whole">%s</span>') % word[0]]
        end = word.end()
    return Markup("").join([*parts, escape(shown[end:])])


def coded(text: str) -> Markup:
    """Return a sentence, escaped, in which names between backticks are code."""
    return Markup("").join(
        Markup("<code>%s</code>") % part if at % 2 else escape(part)
        for at, part in enumerate(NAMED.split(printable(text)))
    )


def html(document: Document, figures: Mapping[str, str], live: str = "") -> str:
    """Return the page; `figures`: key -> inline SVG; `live`: version of a served page, which asks for another."""
    style, script = _own("style.css") + images.font_face(), _own("page.js")
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            document=document,
            symbols={verdict: words.symbol for verdict, words in VERDICTS.items()},
            style=Markup(style),  # noqa: S704  (our own files)
            script=Markup(script),  # noqa: S704  (our own file)
            policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            f"font-src {images.SOURCE}; {_ASKING if live else ''}base-uri 'none'; form-action 'none'",
            live=live,
            figures={key: Markup(svg) for key, svg in figures.items()},  # noqa: S704  (made by images.inline)
        )
    )


def _own(name: str) -> str:
    return resources.files("hugewise.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression that allows exactly this text
    (https://www.w3.org/TR/CSP3/#framework-directive-source-list).
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
