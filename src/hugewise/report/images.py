"""Figures as SVG files, and as SVG inside a page. Nothing is fetched: data and fonts are at hand.

Rendered by vl-convert (Vega in an embedded engine), which is told that no address may be loaded.

`arimo.woff2`, which travels with the figures, is Arimo Regular 1.33 (Debian's fonts-croscore; SIL Open Font License):
its widths are those of Liberation Sans, with which the renderer measures. It was reduced to Latin-1 and the signs of
the reports by `pyftsubset Arimo-Regular.ttf --flavor=woff2 --no-hinting --layout-features=kern
--drop-tables+=DSIG,GDEF,GSUB --name-IDs=0,1,2,3,4,5,6,13,14 --unicodes=U+0020-007E,U+00A0-00FF,U+03BC,U+2010-2015,
U+2018-201E,U+2022,U+2026,U+2190-2193,U+2212,U+221E,U+2248,U+2260,U+2264,U+2265,U+25B2,U+25BC,U+FFFD`. Other characters
come from the reader's fonts, whose widths nobody knows.
"""

from __future__ import annotations

import base64
import functools
import itertools
import mmap
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib import resources
from typing import Any

from hugewise.errors import StorageError
from hugewise.report.figures.theme import BY

SOURCE = "data:"
"""Source of the font, as a policy's `font-src` names it."""


@functools.cache
def font_face() -> str:
    """Return the style rule that brings the font (12 kB): for a page, and for a figure that is a file of its own."""
    data = resources.files("hugewise.report").joinpath("arimo.woff2").read_bytes()
    encoded = base64.b64encode(data).decode()
    return f'@font-face {{ font-family: Arimo; src: url("{SOURCE}font/woff2;base64,{encoded}") format("woff2"); }}'


_ENGINE = 65 << 30  # measured: V8's cage of pointers
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_REFERRING = ("clip-path", "fill", "filter", "mask", "stroke")
_MARK = "\u034f"  # combining grapheme joiner
_DATA = ("values", "domain", "sort")
_EXPRESSIONS = ("labelExpr", "filter", "calculate", "expr", "test")
_LONGEST = 256  # characters
_INK, _PAPER = "#1d2126", "#ffffff"
_NOISE = ("aria-hidden", "aria-roledescription", "role", "pointer-events")
_LETTERS = ("font-family", "font-size")


def render(spec: Mapping[str, Any]) -> str:
    """Return the SVG text of a Vega-Lite specification (about 40 ms).

    Vega keeps what it draws in JavaScript objects by name, where a name that every object has (`constructor`,
    `__proto__`) is found before it was put there. So every name goes there with a mark, which has no width.

    Raises StorageError where the engine would find no room: it ends the process then.
    """
    need_room()
    import vl_convert  # noqa: PLC0415  (84 MB on disk: only when figures are drawn)

    return str(vl_convert.vegalite_to_svg(_marked(spec), allowed_base_urls=[])).replace(_MARK, "")


def need_room() -> None:
    """Raise StorageError where the engine would find no room."""
    try:
        mmap.mmap(-1, _ENGINE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError as error:
        raise StorageError(
            f"the report cannot be written: what draws its figures reserves 64 GiB of addresses ({error.strerror})",
            hint="raise the limit of address space (ulimit -v unlimited), then: hugewise report RUN",
        ) from error


def _marked(value: Any, place: str = "") -> Any:
    # texts are cut: with megabytes the engine never ends, and no signal ends it
    if value is None or isinstance(value, float | int):  # most of a figure
        return value
    if isinstance(value, str):
        if len(value) > _LONGEST and place not in _EXPRESSIONS and BY not in value:
            value = f"{value[:_LONGEST]}\N{HORIZONTAL ELLIPSIS}"
        return f"{_MARK}{value}" if place in _DATA else value
    if isinstance(value, Mapping):
        return {key: _marked(each, place if place in _DATA and key != "ink" else key) for key, each in value.items()}
    return [_marked(each, place) for each in value] if isinstance(value, list | tuple) else value


def standalone(svg: str) -> str:
    """Return the figure as a file of its own, with its font: dark ink on white paper, whatever shows it."""
    root = ET.fromstring(svg)  # noqa: S314  (our own renderer's output)
    ET.register_namespace("", _SVG[1:-1])
    _slim(root)
    style = ET.Element(f"{_SVG}style")
    style.text = font_face()
    _titles(root)
    paper = ET.Element(f"{_SVG}rect", {"width": "100%", "height": "100%", "fill": _PAPER})
    root[:0] = [style, paper]
    for element in root.iter():
        for name, value in element.items():
            if value == "currentColor":
                element.set(name, _INK)
    return ET.tostring(root, encoding="unicode") + "\n"


def inline(svg: str, *, name: str, title: str) -> str:
    """Return the figure for an HTML page, which brings the font: ids are made unique with `name`, `title` is its text.

    It keeps its size whatever the page's width, so that the letters of all figures are of one size.

    HTML needs no namespace declarations, so that the page holds no address at all.
    """
    root = ET.fromstring(svg)  # noqa: S314  (our own renderer's output)
    width, height = root.get("width", "0"), root.get("height", "0")
    _prune(root)
    letters = _slim(root)
    _titles(root, whose=True)
    counter = itertools.count(1)
    ids = {element.attrib["id"]: f"{name}-{next(counter)}" for element in root.iter() if "id" in element.attrib}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib.pop("class", None)
        for key in list(element.attrib):
            value = element.attrib.pop(key)
            element.attrib[key.replace(_XLINK, "xlink:")] = _renamed(key, value, ids)
    root.attrib.clear()
    root.attrib.update(
        {
            **letters,
            "viewBox": f"0 0 {width} {height}",
            "width": width,
            "height": height,
            "role": "img",
            "aria-labelledby": f"{name}-title",
        }
    )
    label = ET.Element("title", {"id": f"{name}-title"})
    label.text = title
    root.insert(0, label)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _titles(root: ET.Element, *, whose: bool = False) -> None:
    # a mark's text becomes its title, which browsers show under the pointer; `whose`: with an attribute for its arm
    for element in root.iter():
        arm, known, text = element.attrib.pop("aria-label", "").partition(BY)
        if known and text:
            title = ET.Element(f"{_SVG}title")
            title.text = text
            element.insert(0, title)
        if known and whose:
            element.attrib["data-arm"] = arm


def _renamed(key: str, value: str, ids: Mapping[str, str]) -> str:
    if key == "id":
        return ids[value]
    found = _REFERENCE.fullmatch(value) if key in _REFERRING else None
    return value if found is None else f"url(#{ids[found[1]]})"


def _slim(root: ET.Element) -> dict[str, str]:
    texts = list(root.iter(f"{_SVG}text"))
    common = {key: texts[0].attrib[key] for key in _LETTERS if len({text.get(key) for text in texts}) == 1}
    for element in root.iter():
        for child in list(element):
            if child.get("opacity") == "0":  # a label of an axis that would have overlapped another
                element.remove(child)
        for key in list(element.attrib):
            default = key == "opacity" and element.attrib[key] == "1"
            if key in _NOISE or default or (key in common and element.tag == f"{_SVG}text"):
                del element.attrib[key]
    root.attrib.update(common)
    return common


def _prune(element: ET.Element) -> None:
    for child in list(element):
        _prune(child)
        tag = child.tag.removeprefix(_SVG)
        nothing = child.get("display") == "none" or (
            tag == "path" and child.get("class") == "background" and not {"fill", "stroke"} & set(child.attrib)
        )
        if nothing or (tag == "g" and len(child) == 0):
            element.remove(child)
