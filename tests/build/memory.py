"""Texts of the kernel about free memory."""

from collections.abc import Sequence

_ORDERS = 11
_DMA = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3]

ZONES = """\
Node 0, zone      DMA
  pages free     3840
        min      39
        protection: (0, 3019, 24000, 24000, 24000)
Node 0, zone   Normal
  pages free     100
        min      10
        protection: (0, 0, 0, 0, 0)
Node 0, zone  Movable
  pages free     0
        min      0
        protection: (0, 0, 0, 0, 0)
"""


def memory_files(normal: Sequence[int], total: int = 24 << 30) -> dict[str, str]:
    """A machine of `total` bytes with these numbers of free blocks by order in its zone Normal, and a full zone DMA."""
    counts = [*normal, *[0] * (_ORDERS - len(normal))]
    free = sum(number << order for order, number in [*enumerate(counts), *enumerate(_DMA)]) << 2
    lists = "".join(
        f"Node 0, zone {zone:>8} {' '.join(f'{number:6}' for number in each)} \n"
        for zone, each in (("DMA", _DMA), ("Normal", counts))
    )
    said = f"MemTotal: {total >> 10} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\n"
    return {"/proc/buddyinfo": lists, "/proc/zoneinfo": ZONES, "/proc/meminfo": said}
