"""Words of the kernel's command line about pages: which the kernel knows, what it takes of them, and who asks for them.

A boot loader's files say what the kernel is booted with the next time; /proc/cmdline says what it was booted with. Read
are /etc/default/grub with grub.d, entries of the Boot Loader Specification, grub.cfg, /etc/kernel/cmdline and the
cmdline.txt of a Raspberry Pi.

Sources: kernel-parameters.txt, transhuge.rst and hugetlbpage.rst of the Linux kernel; its lib/cmdline.c (memparse,
next_arg), kernel/params.c (dashes are underscores; `--` ends them) and mm/hugetlb.c (the order of hugepagesz= and
hugepages=); the GRUB manual; the Boot Loader Specification.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from hugewise.audit.facts import BootLine, HostFacts, boot_size
from hugewise.audit.root import Root
from hugewise.audit.running import shown_value
from hugewise.quantity import format_size

_SIZES = r"\d+[kKmMgG]?"
_STATES = "always|madvise|never|inherit"
_SHARED = "always|within_size|advise|never|inherit"
_EACH = rf"{_SIZES}(?:[-,]{_SIZES})*:(?:{{0}})(?:;{_SIZES}(?:[-,]{_SIZES})*:(?:{{0}}))*"
# Name -> what its value must be; None: any. What a word of another value does is nothing, but a line in the log.
_KNOWN: Mapping[str, str | None] = {
    "transparent_hugepage": "always|madvise|never",
    "transparent_hugepage_shmem": "always|within_size|advise|never|deny|force",
    "transparent_hugepage_tmpfs": "always|within_size|advise|never",
    "thp_anon": _EACH.format(_STATES),
    "thp_shmem": _EACH.format(_SHARED),
    **dict.fromkeys(("hugepagesz", "hugepages", "default_hugepagesz", "hugetlb_cma", "hugetlb_cma_only")),
    **dict.fromkeys(("hugetlb_free_vmemmap", "hugepage_alloc_threads", "nohugeiomap", "nohugevmalloc", "gbpages")),
    "nogbpages": None,
}
_LIKE = re.compile(r"huge|(?:^|[_-])thp(?:[_-]|$)", re.IGNORECASE)
_CLOSE = 0.8
_WORD = re.compile(r'(?:[^\s"]|"[^"]{0,65536}"?)+')
_MOST_WORDS = 4096
_NUMBER = re.compile(r"\s*\+?(\d{1,15})")

_GRUB = re.compile(r"(?:export\s+)?(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?=)(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{?(\w{1,64})\}?")
_LINUX = re.compile(r"\s*linux(?:16|efi)?\s+(\S{1,512})\s+(.*)")
_RELEASE = re.compile(r"(?:vmlinu[xz]|kernel|linux)-([^/\s]{1,200})")
_ENTRIES = ("/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries")
_ENVIRONMENTS = ("/boot/grub2/grubenv", "/boot/grub/grubenv")
_WHOLE_LINES = ("/etc/kernel/cmdline", "/boot/firmware/cmdline.txt", "/boot/cmdline.txt")
_MOST_ENTRIES = 64


def words_of(text: str) -> Iterator[str]:
    """Yield the words between blanks, without double quotes, as far as the kernel reads them: `--` ends them."""
    for match, _ in zip(_WORD.finditer(text), range(_MOST_WORDS), strict=False):
        word = match[0].replace('"', "")
        if word == "--":
            return
        yield word


def about_pages(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words about pages, unknown ones included; known names in the kernel's spelling."""
    kept = []
    for word in words:
        name, equals, value = word.partition("=")
        plain = name.replace("-", "_")
        if plain in _KNOWN:
            kept.append(f"{plain}{equals}{shown_boot(value)}")
        elif _seems(name):
            kept.append(f"{shown_value(name)}{equals}{shown_boot(value)}")
    return tuple(kept)


def shown_boot(value: str) -> str:
    """Return a value as it may be printed; `;` stands between the sizes of thp_anon=."""
    plain = value.replace(";", ",")
    return value if shown_value(plain) == plain else shown_value(plain)


def _seems(name: str) -> bool:
    """Return whether an unknown word was probably meant to be about pages. Modules' words have a dot in their name."""
    if not name or "." in name or "/" in name or len(name) > 64:
        return False
    return _LIKE.search(name) is not None or bool(_meant(name))


def _meant(name: str) -> str:
    """Return the name that was meant; nothing where none is like it."""
    plain = name.replace("-", "_").lower()
    if plain in ("thp", "transparent_huge_pages", "hugepage", "transparent_huge_page"):
        return "hugepages" if plain == "hugepage" else "transparent_hugepage"
    close = difflib.get_close_matches(plain, sorted(_KNOWN), 1, _CLOSE)
    return close[0] if close else ""


def misread(word: str) -> str:
    """Return why the kernel ignores a word, with the word that was probably meant; empty where it heeds the word."""
    name, equals, value = word.partition("=")
    if name not in _KNOWN:
        meant = _meant(name)
        cure = f"; did you mean {meant}{equals}{value}?" if meant else ""
        return f"the kernel knows no {name}{equals}{cure}"
    pattern = _KNOWN[name]
    if pattern is not None and re.fullmatch(pattern, value) is None:
        choice = f"; choose from: {pattern.replace('|', ', ')}" if "(" not in pattern else ""
        return f"{value!r} is no value of {name}={choice}"
    return ""


class PoolWord(NamedTuple):
    """A pool that a command line asks for: bytes of a page, pages, the words, and why the kernel ignores them."""

    size: int | None
    pages: int | None
    written: str
    why: str = ""


def pool_words(words: Iterable[str], default: int) -> Iterator[PoolWord]:
    """Yield each pool of the command line, as mm/hugetlb.c reads it.

    hugepages= counts pages of the hugepagesz= or default_hugepagesz= before it; of the default size where none is,
    also where default_hugepagesz= stands behind it.
    After a size that is none it is ignored, and so is the second one of a size.
    """
    size: int | None = default
    before = ""
    waiting = False
    counted: set[int] = set()
    for word in words:
        key, _, value = word.partition("=")
        if key in ("hugepagesz", "default_hugepagesz"):
            if waiting:
                yield PoolWord(size, None, before)
            size, before, waiting = boot_size(value), word, key == "hugepagesz"
        elif key == "hugepages":
            pages = boot_pages(value)
            again = size is not None and size in counted
            why = f"{format_size(size)} pages were counted before" if again and size is not None else ""
            yield PoolWord(size, pages, f"{before} {word}".strip(), why)
            counted |= set() if size is None or pages is None else {size}
            waiting = False
    if waiting:
        yield PoolWord(size, None, before)


def boot_pages(value: str) -> int | None:
    """Return a number, or the sum over nodes (`0:2,1:2`), as sscanf reads it: what follows a number is passed over."""
    found = 0
    for place, part in enumerate(value.split(",")):
        node, colon, number = part.partition(":")
        match = _NUMBER.match(number if colon else node)
        if match is None:
            return None
        found += int(match[1])
        if not colon and place == 0:
            return found
    return found


def settings(words: Iterable[str], default: int) -> dict[str, str]:
    """Return the settings of a command line: of each name the last value, of each pool its pages."""
    listed = list(words)
    found = {}
    for word in listed:
        name, equals, value = word.partition("=")
        if name not in ("hugepagesz", "hugepages"):
            found[name] = value if equals else "on"
    if (named := found.get("default_hugepagesz")) is not None:
        default = boot_size(named) or default
        found["default_hugepagesz"] = format_size(default)
    for one in pool_words(listed, default):
        if one.size and one.pages is not None and not one.why:
            found[f"hugepages of {format_size(one.size)}"] = str(one.pages)
    return found


def differing(line: BootLine, facts: HostFacts) -> Iterator[tuple[str, str, str | None]]:
    """Yield the settings that a file asks for at boot and the running kernel lacks: name, value, value in force."""
    now = settings(facts.boot, facts.pmd)
    for name, value in settings(line.words, facts.pmd).items():
        if now.get(name) != value:
            yield name, value, now.get(name)


def boot_lines(root: Root) -> tuple[BootLine, ...]:
    """Return the words about pages that the boot loader's files ask for."""
    environment = _environment(root)
    return tuple(
        line for line in (*_grub(root), *_entries(root, environment), *_menus(root), *_whole(root)) if line.words
    )


def _environment(root: Root) -> dict[str, str]:
    """Variables of GRUB's environment block: kernelopts and tuned_params are words of the command line."""
    found: dict[str, str] = {}
    for path in _ENVIRONMENTS:
        for line in (root.text(path) or "").split("\n"):
            key, equals, value = line.partition("=")
            if equals:
                found.setdefault(key.strip(), value)
    return found


def _grub(root: Root) -> Iterator[BootLine]:
    """/etc/default/grub and the files of grub.d after it, which are shell: the two variables about Linux."""
    held: dict[str, list[tuple[str, str]]] = {}
    more = [name for name in root.names("/etc/default/grub.d") if name.endswith(".cfg")]
    for path in ("/etc/default/grub", *(f"/etc/default/grub.d/{name}" for name in more)):
        for number, text in _joined(root.text(path) or ""):
            match = _GRUB.fullmatch(text.strip())
            if match is None:
                continue
            try:
                value = next(iter(shlex.split(match[3], comments=True)), "")
            except ValueError:  # an open quote
                root.tell(f"{path}:{number}", f"{match[1]} is not as a shell reads it")
                continue
            taken = list(held.get(match[1], [])) if match[2] == "+=" else []
            for word in words_of(value):
                reference = _REFERENCE.fullmatch(word)
                taken += [(word, f"{path}:{number}")] if reference is None else held.get(reference[1], [])
            held[match[1]] = taken
    # grub-mkconfig puts them in this order; entries for recovery have the first alone.
    words = [one for name in ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT") for one in held.get(name, [])]
    kept = about_pages(word for word, _ in words)
    places = [where for word, where in words if about_pages([word])]
    yield BootLine(by="GRUB", where=", ".join(dict.fromkeys(places)), words=kept)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a shell, those that a backslash continues as one; with the number of the first, from 1."""
    begun, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if begun else number
        if line.endswith("\\"):
            begun += line[:-1]
            continue
        yield first, begun + line
        begun = ""


def _entries(root: Root, environment: Mapping[str, str]) -> Iterator[BootLine]:
    """Entries of the Boot Loader Specification; those for rescue are left out."""
    for folder in _ENTRIES:
        names = [name for name in root.names(folder) if name.endswith(".conf") and "rescue" not in name]
        for name in names[:_MOST_ENTRIES]:
            path = f"{folder}/{name}"
            words: list[str] = []
            place, release = 0, None
            for number, line in enumerate((root.text(path) or "").split("\n"), 1):
                key, _, value = line.strip().partition(" ")
                if key == "options":
                    place = place or number
                    words += words_of(_REFERENCE.sub(lambda match: environment.get(match[1], ""), value.strip()))
                elif key == "version":
                    release = value.strip()
                elif key == "linux" and release is None and (match := _RELEASE.search(value)):
                    release = match[1]
            yield BootLine(by="boot entry", where=f"{path}:{place}", words=about_pages(words), release=release)


def _menus(root: Root) -> Iterator[BootLine]:
    """Entries that grub-mkconfig has written; those for recovery are left out."""
    for path in ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"):
        lines = enumerate((root.text(path) or "").split("\n"), 1)
        entries = [(number, match) for number, line in lines if (match := _LINUX.fullmatch(line)) is not None]
        for number, match in entries[:_MOST_ENTRIES]:
            words = list(words_of(match[2]))
            release = _RELEASE.search(match[1])
            if not {"single", "recovery"} & set(words):
                kept = about_pages(words)
                yield BootLine(
                    by="grub.cfg", where=f"{path}:{number}", words=kept, release=release[1] if release else None
                )


def _whole(root: Root) -> Iterator[BootLine]:
    """Files that hold a command line and nothing else."""
    for path in _WHOLE_LINES:
        lines = (root.text(path) or "").split("\n")
        text = " ".join(line for line in lines if not line.lstrip().startswith("#"))
        with suppress(ValueError):
            yield BootLine(by="boot loader", where=path, words=about_pages(words_of(text)))


def to_be_booted(lines: Iterable[BootLine]) -> BootLine | None:
    """Return the line that an image's kernel is booted with: a boot entry, or else the entries' source."""
    known = list(lines)
    order = ("boot entry", "grub.cfg", "boot loader", "GRUB")
    return next((line for by in order for line in known if line.by == by), None)
