"""Programs that people have, made or found here, for `bench.programs`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hugewise.errors import HugewiseError

NODES = (1 << 30) // 64

_HEAP = r"""
#include <malloc.h>
#include <stdlib.h>
struct node { struct node *next; unsigned long value[7]; };
int main(void) {
  const unsigned long count = NODES;
  struct node **all = malloc(count * sizeof *all), *at;
  unsigned long sum = 0;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  for (unsigned long i = 0; i < count; i++) all[i] = malloc(sizeof(struct node) - 8);
  for (unsigned long i = 0; i < count; i++) {  /* one ring of all: count is a power of two (Hull and Dobell) */
    all[i]->next = all[(i * 6364136223846793005ul + 1442695040888963407ul) % count];
    all[i]->value[0] = i;
  }
  at = all[0];
  for (unsigned long i = 0; i < 8000000; i++) { sum += at->value[0]; at = at->next; }
  return sum == 42;
}
"""
_OFF = r"""
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
int main(void) {
  unsigned long sum = 0;
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  for (int round = 0; round < 24; round++) {
    volatile char *buffer = malloc(64ul << 20);
    memset((void *)buffer, round, 64ul << 20);
    for (unsigned long at = 0; at < 64ul << 20; at += 4099) sum += buffer[at];
    free((void *)buffer);
  }
  return sum == 42;
}
"""
_GO = """
package main

func main() {
	sum := 0
	for round := 0; round < 2; round++ {
		known := make(map[int]int)
		for i := 0; i < 2500000; i++ {
			known[i*7919] = i
		}
		for i := 0; i < 5000000; i++ {
			sum += known[i]
		}
	}
	if sum == 42 {
		panic(sum)
	}
}
"""
_PYTHON = "known = {i * 7919: str(i) for i in range(1_500_000)}; sum(len(known[i * 7919]) for i in range(1_500_000))"


class Programs(NamedTuple):
    """Folder in which the programs are compiled."""

    folder: Path

    def compiled(self, name: str, source: str, *options: str) -> str:
        """Compile a program of C. Raises HugewiseError."""
        text, made = self.folder / f"{name}.c", self.folder / name
        text.write_text(source)
        done(["gcc", "-O2", *options, "-o", str(made), str(text)], "apt install gcc libc6-dev")
        made.chmod(0o755)
        return str(made)

    def heap(self) -> list[str]:
        return [self.compiled("heap", _HEAP, f"-DNODES={NODES}")]

    def static(self) -> list[str]:
        return [self.compiled("static", _HEAP, f"-DNODES={NODES // 4}", "-static")]

    def off(self) -> list[str]:
        return [self.compiled("off", _OFF)]

    def gcc(self) -> list[str]:
        text = self.folder / "large.c"
        body = "int f{0}(int *a, int n) {{ int s = {0}; for (int i = 0; i < n; i++) s += a[i] * {0} ^ s; return s; }}\n"
        text.write_text("".join(body.format(number) for number in range(600)))
        return [program("gcc", "gcc"), "-O2", "-c", str(text), "-o", "/dev/null"]

    def python(self) -> list[str]:
        return ["/usr/bin/python3", "-IS", "-c", _PYTHON]

    def ffmpeg(self) -> list[str]:
        options = "-nostdin -v error -f lavfi -i testsrc2=size=1280x720 -frames:v 120 -c:v libx264 -preset veryfast"
        return [program("ffmpeg", "ffmpeg"), *options.split(), "-threads", "1", "-f", "null", "-"]

    def sort(self) -> list[str]:
        text = self.folder / "lines"
        with text.open("w") as to:
            to.writelines(f"{number * 2654435761 % (1 << 32):x} line {number}\n" for number in range(2_500_000))
        return ["/usr/bin/sort", "-S", "1G", "--parallel=1", "-o", "/dev/null", str(text)]

    def gzip(self) -> list[str]:
        self.sort()
        text = self.folder / "lines"
        done(["gzip", "-kf1", str(text)], "apt install gzip")
        return ["/usr/bin/gzip", "-t", str(text.with_suffix(".gz"))]

    def go(self) -> list[str]:
        source, made = self.folder / "maps.go", self.folder / "maps"
        source.write_text(_GO)
        variables = {**os.environ, "GOCACHE": str(self.folder / "cache"), "GO111MODULE": "off"}
        done([program("go", "golang-go"), "build", "-o", str(made), str(source)], "apt install golang-go", variables)
        made.chmod(0o755)
        return [str(made)]


COMMANDS: Mapping[str, Callable[[Programs], list[str]]] = {
    "heap": Programs.heap,
    "gcc": Programs.gcc,
    "python": Programs.python,
    "ffmpeg": Programs.ffmpeg,
    "sort": Programs.sort,
    "gzip": Programs.gzip,
    "go": Programs.go,
    "static": Programs.static,
    "off": Programs.off,
}


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise HugewiseError(f"{name} is not installed", hint=f"apt install {package}")
    return found


def done(words: Sequence[str], hint: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise HugewiseError(f"{words[0]} failed: {error}", hint=hint) from None
