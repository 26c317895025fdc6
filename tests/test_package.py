"""The package's own names."""

from __future__ import annotations

import pkgutil

import hugewise


def test_no_module_takes_the_name_of_a_public_function() -> None:
    """Importing a module of that name would replace the function in the package."""
    assert not {info.name for info in pkgutil.iter_modules(hugewise.__path__)} & set(hugewise.__all__)
