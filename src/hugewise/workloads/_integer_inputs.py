"""The inputs of the open integer set, drawn from a fixed seed. Pure: the same on every machine and version of Python.

Only `Random.random` is used, whose sequence Python promises to keep for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["formula", "source", "text"]

Draw = Callable[[], float]


def _below(draw: Draw, limit: int) -> int:
    return int(draw() * limit)


def text(size: int, seed: int) -> str:
    """About `size` bytes of lines of invented words, of which a few are frequent and most are rare."""
    draw = random.Random(seed).random  # noqa: S311  (no secret)
    consonants, vowels = "bcdfghjklmnprstvwz", "aeiou"

    def syllable() -> str:
        end = consonants[_below(draw, 18)] if draw() < 0.3 else ""
        return consonants[_below(draw, 18)] + vowels[_below(draw, 5)] + end

    words = ["".join(syllable() for _ in range(1 + int(draw() * draw() * 5))) for _ in range(20_000)]
    lines, length = [], 0
    while length < size:
        line = " ".join(words[int(20_000 * draw() ** 4)] for _ in range(4 + _below(draw, 12)))
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines) + "\n"


def formula(variables: int, ratio: float, seed: int) -> str:
    """A random 3-SAT formula with `ratio` clauses for each variable, in DIMACS form.

    Far below the threshold of 4.27 it is satisfiable, and solved without much search: the work is in simplifying and
    propagating over a large memory.
    """
    draw = random.Random(seed).random  # noqa: S311  (no secret)
    clauses = int(variables * ratio)
    lines = [f"p cnf {variables} {clauses}"]
    for _ in range(clauses):
        literals = (str((1 + _below(draw, variables)) * (1 if draw() < 0.5 else -1)) for _ in range(3))
        lines.append(" ".join(literals) + " 0")
    return "\n".join(lines) + "\n"


def source(functions: int, seed: int) -> str:
    """A C file without preprocessor lines: functions with loops, switches, calls of earlier ones, and structures."""
    draw = random.Random(seed).random  # noqa: S311  (no secret)
    parts = [
        "struct node { struct node *next; unsigned key; long weight; unsigned char tag[16]; };\n"
        "extern unsigned table[4096];\nextern void sink(unsigned);\n"
    ]
    parts += [_function(draw, number) for number in range(functions)]
    return "".join(parts)


def _function(draw: Draw, number: int) -> str:
    body = [_statement(draw, number, 0) for _ in range(6 + _below(draw, 10))]
    kind = "static " if draw() < 0.5 and number else ""
    return (
        f"{kind}unsigned f{number}(struct node *p, unsigned a, unsigned b)\n"
        f"{{\n  unsigned c = a ^ {_below(draw, 1 << 16)}u, d = b + {_below(draw, 1 << 16)}u, i;\n"
        f"{''.join(body)}  return c + d;\n}}\n"
    )


def _expression(draw: Draw, depth: int = 0) -> str:
    if depth > 2 or draw() < 0.3:
        names = ("a", "b", "c", "d", "p->key", "(unsigned)p->weight", "p->tag[c & 15]", "table[d & 4095]")
        return names[_below(draw, len(names))] if draw() < 0.75 else f"{_below(draw, 1 << 20)}u"
    operators = ("+", "-", "*", "^", "&", "|", "<<", ">>", "/", "%")
    operator = operators[_below(draw, len(operators))]
    right = _expression(draw, depth + 1)
    if operator in ("<<", ">>"):
        right = f"(({right}) & 31)"
    if operator in ("/", "%"):
        right = f"(({right}) | 1)"
    return f"({_expression(draw, depth + 1)} {operator} {right})"


def _statement(draw: Draw, number: int, depth: int) -> str:
    pad = "  " * (depth + 1)
    target = "cd"[_below(draw, 2)]
    kind = draw()
    if depth < 2 and kind < 0.15:
        inner = "".join(_statement(draw, number, depth + 1) for _ in range(2 + _below(draw, 2)))
        return f"{pad}for (i = {_expression(draw)} & 63; i; i--) {{\n{inner}{pad}}}\n"
    if depth < 2 and kind < 0.3:
        one, other = _statement(draw, number, depth + 1), _statement(draw, number, depth + 1)
        return f"{pad}if ({_expression(draw)} > {_expression(draw)}) {{\n{one}{pad}}} else {{\n{other}{pad}}}\n"
    if depth < 2 and kind < 0.36:
        cases = "".join(
            f"{pad}case {each}:\n{_statement(draw, number, depth + 1)}{pad}  break;\n"
            for each in range(3 + _below(draw, 6))
        )
        return f"{pad}switch ({_expression(draw)} & 15) {{\n{cases}{pad}default: {target} ^= 1;\n{pad}}}\n"
    if number and kind < 0.45:
        callee = max(0, number - 1 - _below(draw, 20))
        return f"{pad}{target} += f{callee}(p->next, {_expression(draw)}, {_expression(draw)});\n"
    if kind < 0.55:
        return f"{pad}while (p->next && p->key < ({_expression(draw)} & 1023)) p = p->next;\n"
    if kind < 0.62:
        return f"{pad}table[{_expression(draw)} & 4095] = {_expression(draw)};\n"
    if kind < 0.66:
        return f"{pad}sink({_expression(draw)});\n"
    return f"{pad}{target} = {_expression(draw)};\n"
