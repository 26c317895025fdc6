"""An open set of integer programs, after SPECint: compiler, interpreter, compressors, chess engine, SAT solver.

Each program is a cell of its own (`program` is a list in the study); what is judged is its time, and the report adds
the geometric mean over the programs (`analysis.changes`), as SPEC does. Programs are Debian's, and every result is held
against the one that was made with the data. Inputs are drawn from a fixed seed by `Random.random` alone, whose sequence
Python promises to keep: they are the same on every machine and version of Python.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources

import msgspec

from hugewise.machine import programs
from hugewise.model.metric import COMMON
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Act, Data, Outputs, Places, Procedure, Reading, Step, Write
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.quantity import format_size
from hugewise.workloads import _staged
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._outputs import only
from hugewise.workloads._staged import TimedAsAWhole, Values, float_value

Draw = Callable[[], float]


def _below(draw: Draw, limit: int) -> int:
    return int(draw() * limit)


def random_text(size: int, seed: int) -> str:
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


def random_formula(variables: int, ratio: float, seed: int) -> str:
    """Return a random 3-SAT formula in DIMACS form; far below 4.27 clauses a variable it needs little search."""
    draw = random.Random(seed).random  # noqa: S311  (no secret)
    clauses = int(variables * ratio)
    lines = [f"p cnf {variables} {clauses}"]
    for _ in range(clauses):
        literals = (str((1 + _below(draw, variables)) * (1 if draw() < 0.5 else -1)) for _ in range(3))
        lines.append(" ".join(literals) + " 0")
    return "\n".join(lines) + "\n"


def random_source(functions: int, seed: int) -> str:
    """Return a C file without preprocessor lines: functions with loops, switches and calls, and structures."""
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


_SEED = 1
_MIB = 1 << 20

# Runs a command with its output in a file, without a shell, for the reference. What a solver exits with is no failure.
_KEEPING = (
    "my ($file, @good) = (shift, split /,/, shift);"
    " open(STDOUT, '>', $file) or die $!; open(STDERR, '>&', \\*STDOUT) or die $!;"
    " system { $ARGV[0] } @ARGV; exit((grep { $_ << 8 == $? } @good) ? 0 : 1)"
)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Program of the set. It runs in a folder with its inputs.

    arguments    in which `{depth}` is the depth of a search
    draw         its input, by size; None: it has none
    files        other inputs, by name
    result       the file that it makes; None: what `pattern` finds in its output
    memory       MiB at its peak: fixed, and for each unit of size (measured at size 1, rounded up)
    collector    its memory comes from a collector of its own, which glibc's tunables do not reach
    """

    package: str
    arguments: tuple[str, ...]
    draw: Callable[[float], str] | None
    memory: tuple[int, int]
    files: Mapping[str, str] = {}
    result: str | None = "result"
    pattern: str | None = None
    success: tuple[int, ...] = (0,)
    environment: Mapping[str, str] = {}
    collector: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*(("input",) if self.draw is not None else ()), *self.files)

    def argv(self, path: str, size: float) -> tuple[str, ...]:
        """Return the command. A ply takes about 1.6 times the time of the one before."""
        depth = str(max(1, 13 + round(math.log(size, 1.6))))
        return (path, *(word.replace("{depth}", depth) for word in self.arguments))


PROGRAMS: Mapping[str, Program] = {
    "gcc": Program(
        package="gcc",
        arguments=("-w", "-S", "-O2", "-x", "cpp-output", "input", "-o", "result"),
        draw=lambda size: random_source(max(1, round(150 * size)), _SEED),
        memory=(140, 40),
        collector=True,
    ),
    "perl": Program(
        package="perl-base",
        arguments=("words.pl", "input", "result"),
        draw=lambda size: random_text(round(3_500_000 * size), _SEED),
        files={"words.pl": resources.files(__package__).joinpath("words.pl").read_text(encoding="utf-8")},
        memory=(40, 70),
        environment={"PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"},  # otherwise the order of hashes is random
    ),
    "xz": Program(
        package="xz-utils",
        arguments=("-4", "-T1", "-k", "-f", "input"),
        draw=lambda size: random_text(round(4_000_000 * size), _SEED),
        memory=(60, 0),
        result="input.xz",
    ),
    "zstd": Program(
        package="zstd",
        arguments=("-15", "--single-thread", "-q", "-f", "input", "-o", "result"),
        draw=lambda size: random_text(round(6_000_000 * size), _SEED),
        memory=(90, 0),
    ),
    "stockfish": Program(
        package="stockfish",
        arguments=("bench", "256", "1", "{depth}", "default", "depth"),  # a table of 256 MiB, one thread
        draw=None,
        memory=(400, 0),
        result=None,
        pattern=r"^Nodes searched\s*: (\d+)$",
    ),
    "minisat": Program(
        package="minisat",
        arguments=("-verb=0", "input", "result"),
        draw=lambda size: random_formula(max(100, round(300_000 * size)), 3.0, _SEED),
        memory=(10, 120),
        success=(0, 10, 20),
    ),
}


class IntegerSet(TimedAsAWhole):
    """Program of the set, timed as a whole, pinned to one CPU."""

    name = "integer-set"
    description = "integer programs after SPECint (gcc, perl, xz, zstd, stockfish, minisat), each on a fixed input"
    choices = (("program", PROGRAMS),)
    positive = ("size",)
    parameters = (
        Parameter("program", "text", "gcc", f"one of {', '.join(PROGRAMS)}; a list makes a cell of each"),
        Parameter("size", "number", 1.0, "size of the inputs; 1 is some 3 to 6 seconds a program"),
    )
    metrics = tuple(metric for metric in COMMON if metric.name in ("wall_s", "cpu_s"))
    # Measured at size 1, in the order of `PROGRAMS`: `thp` 89, 7, 87, 98, 99 and 4%; `mthp-64k` 92, 59, 81, 99, 100 and
    # 43%; the pool 7 (refused), 82, 100, 99, 100 and 74%. perl and minisat live on the brk heap, which grows in steps
    # without room for a huge page; they are judged by the setting there, or by `thp-advised` (76 and 55%). minisat's
    # growing arrays are moved by mremap, which leaves folios that are mapped in part.
    delivered_share = 0.7

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        name, kind = str(values["program"]), treatment.target.kind
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        if kind == "hugetlb" and PROGRAMS[name].collector:
            return f"{name} keeps its objects in a collector of its own, which malloc's tunable does not reach"
        if kind == "hugetlb" and treatment.target.size > 32 * _MIB:
            return f"the heap of {name} is smaller than a page of {format_size(treatment.target.size)}"
        return None

    def stand_ins(self, values: Values) -> tuple[str, ...]:
        return ("open programs with inputs of their own in place of SPECint",)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        wanted = {"perl": "perl-base", "taskset": "util-linux"}
        program = PROGRAMS.get(str(values["program"]))
        if program is not None:
            wanted[str(values["program"])] = program.package
        return tuple(
            Missing(f"{name}: no such program on PATH or in /usr/games", package)
            for name, package in wanted.items()
            if _staged.find(name) is None
        )

    def memory(self, treatment: Treatment, values: Values) -> int:
        fixed, growing = _chosen(values).memory
        return round((fixed + growing * _size(values)) * _MIB)

    def pooled(self, treatment: Treatment, values: Values) -> int:
        """Return the memory and a tenth: malloc rounds each large block up to whole pages."""
        if _chosen(values).collector:
            return 0
        return whole_pages(self.memory(treatment, values) * 11 // 10 + 16 * _MIB, treatment.target.size)

    def data(self, values: Values) -> Data:
        name, size, program = str(values["program"]), _size(values), _chosen(values)
        path = _staged.find(name) or name
        perl = _staged.find("perl") or "perl"

        def recipe(places: Places) -> Iterable[Act]:
            for file, text in program.files.items():
                yield Write(file, text)
            if program.draw is not None:
                yield Write("input", program.draw(size))
            good = ",".join(str(status) for status in program.success)
            argv = (perl, "-e", _KEEPING, "said", good, *program.argv(path, size))
            yield Step(name="reference", argv=argv, environment=program.environment, cwd=places.data, timeout=86400.0)
            yield Step(name="keep", argv=("mv", program.result or "said", "reference"), cwd=places.data)
            yield Step(name="tidy", argv=("rm", "-f", "said"), cwd=places.data)

        key: dict[str, str | int | float | bool] = {
            "program": programs.stamp(path),
            "size": size,
            "seed": _SEED,
            "made": 1,
        }
        return Data(name=f"integer-set-{name}", key=key, recipe=recipe, bytes=round(64 * size) * _MIB)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        """Return the program on the last CPU: interrupts tend to be served by the first."""
        name, size, program = str(values["program"]), _size(values), _chosen(values)
        files = [f"{places.data}/{file}" for file in (*program.inputs, "reference")]
        argv = ("taskset", "-c", str(places.sut[-1]), *program.argv(_staged.find(name) or name, size))
        return Procedure(
            before=(Step(name="inputs", argv=("mv", "-t", places.run, "--", *files)),),
            timed=Launch(
                argv=argv,
                proof="twin",
                environment={**program.environment, **treatment.environment},
                cwd=places.run,
                success=program.success,
            ),
        )

    def read(self, outputs: Outputs, values: Values) -> Reading:
        program = _chosen(values)
        reference = only(outputs, "reference")
        if program.result is not None:
            made, expected = only(outputs, program.result), reference
        else:
            made = _found(program, outputs.stdout() + outputs.stderr())
            expected = _found(program, reference.decode(errors="replace"))
        digest = hashlib.sha256(made).hexdigest()
        return Reading(
            facts={"result_sha256": digest, "result_bytes": len(made)},
            problem=None if made == expected else f"the result is not that of the reference (SHA-256 {digest[:12]})",
        )


def _size(values: Values) -> float:
    return float_value(values, "size")


def _chosen(values: Values) -> Program:
    return PROGRAMS[str(values["program"])]


def _found(program: Program, said: str) -> bytes:
    assert program.pattern is not None
    match = re.search(program.pattern, said, re.MULTILINE)
    if match is None:
        raise ValueError(f"{program.pattern} is not in its output: {said[-200:]!r}")
    return match[1].encode()


WORKLOAD = IntegerSet()
