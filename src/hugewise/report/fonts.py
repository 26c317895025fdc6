"""The font of the figures, which travels with them: a browser shows the very widths that the layout was made with.

`arimo.woff2` is Arimo Regular 1.33 (Debian's fonts-croscore; SIL Open Font License), whose widths are those of
Liberation Sans, with which the renderer measures. It was reduced to Latin-1 and the signs of the reports by
`pyftsubset Arimo-Regular.ttf --flavor=woff2 --no-hinting --layout-features=kern --drop-tables+=DSIG,GDEF,GSUB
--name-IDs=0,1,2,3,4,5,6,13,14 --unicodes=U+0020-007E,U+00A0-00FF,U+03BC,U+2010-2015,U+2018-201E,U+2022,U+2026,
U+2190-2193,U+2212,U+221E,U+2248,U+2260,U+2264,U+2265,U+25B2,U+25BC,U+FFFD`. Other characters come from the reader's
fonts, whose widths nobody knows.
"""

from __future__ import annotations

import base64
import functools
from importlib import resources

__all__ = ["SOURCE", "face"]

SOURCE = "data:"
"""Where the font comes from, as a policy's `font-src` names it."""


@functools.cache
def face() -> str:
    """The style rule that brings the font (12 kB): for a page, and for a figure that is a file of its own."""
    data = resources.files("hugewise.report").joinpath("arimo.woff2").read_bytes()
    encoded = base64.b64encode(data).decode()
    return f'@font-face {{ font-family: Arimo; src: url("{SOURCE}font/woff2;base64,{encoded}") format("woff2"); }}'
