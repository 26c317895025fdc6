"""Configurations and fragments: read, merged, checked and compared; the recipes that come along."""

from __future__ import annotations

import pytest

from hugewise.guests.kernels import build
from hugewise.guests.kernels.build import _BASE, RECIPES, SymbolDifference, _fragment

# As the kernel writes them.
HERE = """#
# Automatically generated file; DO NOT EDIT.
# Linux/arm64 6.12.107 Kernel Configuration
#
CONFIG_CC_VERSION_TEXT="aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0"
CONFIG_PGTABLE_LEVELS=4
CONFIG_ARM64_4K_PAGES=y
# CONFIG_ARM64_16K_PAGES is not set
# CONFIG_SWAP is not set
CONFIG_NET=y
# end of Kernel Features
"""


def test_the_form_of_configurations() -> None:
    assert build.parse_config(HERE) == {
        "CC_VERSION_TEXT": '"aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0"',
        "PGTABLE_LEVELS": "4",
        "ARM64_4K_PAGES": "y",
        "ARM64_16K_PAGES": "n",
        "SWAP": "n",
        "NET": "y",
    }


@pytest.mark.parametrize("line", ["NET=y", "CONFIG_NET", "CONFIG-NET=y", "export X=1"])
def test_a_line_that_is_no_symbol_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        build.parse_config(f"# words\n{line}\n")


def test_fragments_take_the_place_of_what_is_there_and_later_ones_of_earlier_ones() -> None:
    text = build.merged_config(HERE, ["CONFIG_SWAP=y\nCONFIG_NET=y\n", "# CONFIG_SWAP is not set\nCONFIG_EXT4_FS=y\n"])
    assert build.parse_config(text) == {**build.parse_config(HERE), "SWAP": "n", "NET": "y", "EXT4_FS": "y"}
    assert text.count("CONFIG_SWAP") == 1


def test_what_was_asked_for_and_dropped_is_named() -> None:
    asked = ["CONFIG_NET=y\nCONFIG_EXT4_FS=y\nCONFIG_PGTABLE_LEVELS=3\n", "# CONFIG_GONE is not set\nCONFIG_SWAP=y\n"]
    assert build.unmet_symbols(asked, HERE) == [
        SymbolDifference("EXT4_FS", "y", "n"),
        SymbolDifference("PGTABLE_LEVELS", "3", "4"),
        SymbolDifference("SWAP", "y", "n"),
    ]
    assert build.unmet_symbols([*asked, "# CONFIG_SWAP is not set"], HERE)[-1].symbol == "PGTABLE_LEVELS"


def test_what_differs_between_two_configurations() -> None:
    other = HERE.replace("CONFIG_ARM64_4K_PAGES=y", "# CONFIG_ARM64_4K_PAGES is not set")
    other = other.replace("# CONFIG_ARM64_16K_PAGES is not set", "CONFIG_ARM64_16K_PAGES=y").replace("12.2.0", "14.2.0")
    other = other.replace("# CONFIG_SWAP is not set\n", "")  # not there is not set
    differences = build.differing_symbols(HERE, other)
    assert [each.symbol for each in differences] == ["ARM64_16K_PAGES", "ARM64_4K_PAGES", "CC_VERSION_TEXT"]
    assert differences[0] == SymbolDifference("ARM64_16K_PAGES", "n", "y")
    assert build.differing_symbols(HERE, HERE) == []


def test_the_base_page() -> None:
    assert build.base_page(build.parse_config(HERE)) == 4096
    assert build.base_page({"ARM64_16K_PAGES": "y"}) == 16384
    assert build.base_page({"ARM64_64K_PAGES": "y", "ARM64_4K_PAGES": "n"}) == 65536


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_differ_from_their_base_in_one_fragment(name: str) -> None:
    recipe = RECIPES[name]
    assert [each for each, _ in recipe.fragments] == [*_BASE[recipe.arch], name]
    asked = build.merged_fragments(recipe.texts)
    # No fragment takes back what the base asks for: comparisons are of what is added.
    base = build.merged_fragments(_fragment(each) for each in _BASE[recipe.arch])
    assert {symbol: asked[symbol] for symbol in base} == base


def test_the_arm64_kernels_differ_in_their_page_size_alone() -> None:
    own = {name: build.parse_config(_fragment(name)) for name in RECIPES if name.startswith("arm64")}
    assert own == {
        "arm64-4k": {"ARM64_4K_PAGES": "y"},
        "arm64-16k": {"ARM64_16K_PAGES": "y"},
        "arm64-64k": {"ARM64_64K_PAGES": "y"},
    }
