"""Kernels for the terminal: what there is, and how two of them differ."""

from __future__ import annotations

from rich.table import Table

from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.guests import kernels
from hugewise.guests.kernels import catalogue
from hugewise.guests.kernels.recipe import RECIPES
from hugewise.quantity import format_size

__all__ = ["show", "show_difference"]


def show(suite: str) -> None:
    """Print recipes, Debian's packages and what the user has built, with the release of those that are in the cache."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("kernel", "arch", "page", "cached"):
        table.add_column(head, no_wrap=True)
    table.add_column("what it is", overflow="fold")
    rows = [(each.name, each.arch, each.page_size, each.about) for each in RECIPES.values()]
    rows += [(name, arch, page, suite) for name, (arch, page) in catalogue.DEBIAN.items()]
    for name, arch, page, origin in rows:
        found = catalogue.known(name, suite)
        table.add_row(name, arch, format_size(page), found.release if found else "no", origin)
    for own in catalogue.own_builds():
        size = kernels.base_page(own)
        table.add_row(own.name, own.arch, format_size(size) if size else "", own.release, f"yours: {own.image}")
    TextConsole().print(table)


def show_difference(first: str, second: str, suite: str) -> None:
    """Print the symbols that differ. Raises UserError where one is not in the cache."""
    found = []
    for name in (first, second):
        kernel = catalogue.known(name, suite)
        if kernel is None:
            raise UserError(
                f"the kernel {name} is not in the cache", hint=f"hugewise guest kernel get {name} --suite {suite}"
            )
        found.append(kernel)
    differences = kernels.difference(*found)
    if differences is None:
        raise UserError(f"the configuration of {first} or {second} is not known")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("symbol", first, second):
        table.add_column(head, overflow="fold")
    for each in differences:
        table.add_row(f"CONFIG_{each.symbol}", each.first, each.second)
    TextConsole().print(table)
