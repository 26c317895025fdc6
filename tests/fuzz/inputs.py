"""Broken inputs: made from whole ones, or of nothing."""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["HOSTILE", "broken", "corpus", "fuzzed", "in_time", "kept", "varied"]

CORPUS = Path(__file__).parent / "corpus"
LONG = int(os.environ.get("HUGEWISE_FUZZ", "0"))
"""Inputs for each reader in the long form; 0 in `make test`."""

# Digits in a row: time that grows as their square is within patience with either number, as their cube with neither.
MANY = 20_000 if LONG else 3_000
_PATIENCE = 20.0  # seconds of processor time for one input: none that is read takes a tenth of one

HOSTILE = (
    *(
        b"",
        b"0",
        b"-1",
        b"-0.0",
        b"1e400",
        b"-1e400",
        b"1e308",
        b"1e-320",
        b"nan",
        b"NaN",
        b"inf",
        b"Infinity",
        b"-inf",
    ),
    *(b"9" * 19, b"9" * 400, b"9" * 5000, b"1" * MANY + b"x", b"1.2.3", b"0x1p3", b"1_0", b"1,5", b"\xd9\xa3"),
    *(b"null", b"true", b"[]", b"{}", b"[1]", b'"x"', b'"', b"[" * 200 + b"]" * 200, b"[" * 2000, b"{" * 2000),
    *(
        b"\x00",
        b"\xff",
        b"\xfe\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\x85",
        b"\x1c",
        b'"\\ud800"',
    ),
    *(
        b"\n",
        b"\r\n",
        b"\r",
        b"\t",
        b" " * 3000,
        b"\n" * 3000,
        b"\x1b[31m",
        b"\xc2\x9b1m",
        b"\xe2\x80\xae",
        b"\xe2\x80\xa8",
    ),
    *(b"constructor", b"__proto__", b"<script>", b"url(#x)", b"=1+1", b"a" * 70_000, b"%s%n", b"{0}", b"../../x"),
)
_WORDS = re.compile(rb"[A-Za-z_]+|\d+(?:\.\d+)?|[^\S\n]+|\n|.", re.DOTALL)
_DEEDS = ("drop", "double", "swap", "replace", "insert", "cut", "flip", "tail", "many")

_TOKENS = re.compile(rb'"[^"\n]*"|(?<![\w"])-?\d+(?:\.\d+)?(?![\w"])|\b(?:true|false)\b')
_NUMBERS = (b"0", b"-1", b"1", b"3", b"0.5", b"1e9", b"999999999999", b"9" * 19, b"1e308")

_Test = TypeVar("_Test", bound=Callable[..., None])


def broken(whole: Iterable[Path | bytes]) -> st.SearchStrategy[bytes]:
    """One of the whole inputs with up to six faults in it, or bytes of nothing."""
    contents = [each if isinstance(each, bytes) else each.read_bytes() for each in whole]
    words = [_WORDS.findall(content) for content in contents]
    fault = st.tuples(st.sampled_from(_DEEDS), st.integers(0, 1 << 16), st.integers(0, 1 << 16))
    made = st.builds(_broken, st.sampled_from(words), st.lists(fault, max_size=6))
    return st.one_of(made, made, made, st.binary(max_size=200), st.sampled_from(HOSTILE))


def _broken(words: list[bytes], faults: list[tuple[str, int, int]]) -> bytes:
    words = list(words)
    for deed, first, second in faults:
        if not words:
            break
        at, other = first % len(words), second % len(words)
        hostile = HOSTILE[second % len(HOSTILE)]
        match deed:
            case "drop":
                del words[at : at + 1 + second % 4]
            case "double":
                words.insert(at, words[at])
            case "swap":
                words[at], words[other] = words[other], words[at]
            case "replace":
                words[at] = hostile
            case "insert":
                words.insert(at, hostile)
            case "cut":
                del words[at:]
            case "flip":
                word = bytearray(words[at] or b" ")
                word[second % len(word)] ^= 1 << first % 8
                words[at] = bytes(word)
            case "tail":
                words += words[at:][:500]
            case "many":  # a number in place of every number like it
                words = [hostile if word == words[at] else word for word in words[:3000]]
    return b"".join(words)


def varied(whole: Iterable[Path]) -> st.SearchStrategy[bytes]:
    """One of the whole TOML documents, with up to four texts, numbers or truths from any of them in place of its own:
    most can be parsed, and are wrong in what they mean.
    """
    contents = [each.read_bytes() for each in whole]
    tokens = sorted({token for content in contents for token in _TOKENS.findall(content)}) + list(_NUMBERS)
    like = {kind: [token for token in tokens if _kind(token) == kind] for kind in map(_kind, tokens)}
    places = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), min_size=1, max_size=4)
    return st.builds(_varied, st.sampled_from(contents), places, st.just(like))


def _kind(token: bytes) -> str:
    return "text" if token[:1] == b'"' else "truth" if token[:1].isalpha() else "number"


def _varied(content: bytes, places: list[tuple[int, int]], like: Mapping[str, list[bytes]]) -> bytes:
    for first, second in places:
        found = list(_TOKENS.finditer(content))
        at = found[first % len(found)]
        others = like[_kind(at[0])]
        content = content[: at.start()] + others[second % len(others)] + content[at.end() :]
    return content


def fuzzed(examples: int, *, of: int = 1) -> Callable[[_Test], _Test]:
    """So many inputs in `make test`, some seconds of them; in the long form as many as are asked for.

    `of`: so many tests share them, of one reader.
    """

    def decorated(test: _Test) -> _Test:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
        chosen = settings(max_examples=-(-LONG // of) or examples, deadline=None, suppress_health_check=checks)
        return chosen(test)

    return decorated


@contextmanager
def in_time() -> Iterator[None]:
    """What runs here comes to its end: no input may take the reader's time without bound."""

    def give_up(_: int, __: FrameType | None) -> NoReturn:
        raise AssertionError(f"not done after {_PATIENCE:g} s of processor time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def corpus(name: str) -> list[Path]:
    """Inputs that once broke that reader."""
    return sorted((CORPUS / name).iterdir())


def kept(name: str) -> pytest.MarkDecorator:
    """The test is tried on each input of the corpus, as `path`."""
    return pytest.mark.parametrize("path", corpus(name), ids=lambda path: path.name)
