"""memtier_benchmark as the client, where the user has it: the published study's own.

It drives one server, fills it by itself (`--ratio=1:0 --key-pattern=P:P`), and has no key that is never stored: the
misses are gets above the filled range, some of which its own sets fill while it runs.

Source: github.com/RedisLabs/memtier_benchmark, memtier_benchmark.1 and run_stats.cpp.
"""

from __future__ import annotations

import math
import re

from hugewise import reading
from hugewise.model.scene import Outputs, Places, Reading, Step
from hugewise.model.workload import Launch
from hugewise.reading import count, figure, number
from hugewise.workloads._parameters import Values

__all__ = ["PROGRAM", "fill", "launch", "read", "refuses"]

PROGRAM = "memtier_benchmark"

_FILE = "memtier.json"
_PROTOCOLS = {"redis": "redis", "memcached": "memcache_text"}
_PERCENTILES = {"p50.00": "p50_us", "p90.00": "p90_us", "p99.00": "p99_us", "p99.90": "p999_us"}


def refuses(values: Values) -> str | None:
    """What the load generator of hugewise can, and this one cannot."""
    if values["instances"] != 1:
        return "memtier_benchmark drives one server: instances = 1"
    if values["mode"] != "throughput":
        return f"memtier_benchmark is used in the closed loop only: mode = {values['mode']!r} needs client = 'probe'"
    if values["popularity"] != "uniform":
        return f"with memtier_benchmark keys are drawn uniformly: popularity = {values['popularity']!r}"
    return None


def _common(protocol: str, socket: str, values: Values, places: Places) -> tuple[str, ...]:
    """Whom it asks, from where, and what values are like."""
    threads = max(1, min(len(places.client), int(str(values["connections"]))))
    each = max(1, round(int(str(values["connections"])) / threads))
    return (
        PROGRAM,
        f"--unix-socket={socket}",
        f"--protocol={_PROTOCOLS[protocol]}",
        f"--threads={threads}",
        f"--clients={each}",
        "--random-data",
        f"--data-size-list={values['payload']}",
        "--key-minimum=1",
        "--hide-histogram",
    )


def fill(protocol: str, socket: str, values: Values, places: Places) -> tuple[Step, ...]:
    """Every key once, then the untimed mix."""
    common = _common(protocol, socket, values, places)
    store = ("--ratio=1:0", "--key-pattern=P:P", "--requests=allkeys", "--pipeline=64")
    steps = [Step(name="fill", argv=(*common, *store, f"--key-maximum={values['keys']}"), timeout=7200.0)]
    lead = math.ceil(float(str(values["lead"])))
    if lead:
        steps.append(Step(name="lead", argv=(*_mix(common, values), f"--test-time={lead}"), timeout=lead + 300.0))
    return tuple(steps)


def _mix(common: tuple[str, ...], values: Values) -> tuple[str, ...]:
    """Gets miss where they ask for a key above the range that was filled."""
    share = float(str(values["hit_ratio"]))
    above = round(int(str(values["keys"])) / max(share, 1e-3))
    return (
        *common,
        f"--ratio={values['set_get']}",
        "--key-pattern=R:R",
        "--distinct-client-seed",
        f"--key-maximum={above}",
        f"--pipeline={values['pipeline']}",
    )


def launch(protocol: str, socket: str, values: Values, places: Places) -> Launch:
    """The timed command."""
    duration = math.ceil(float(str(values["duration"])))
    argv = (
        *_mix(_common(protocol, socket, values, places), values),
        f"--test-time={duration}",
        "--print-percentiles=50,90,99,99.9",
        f"--json-out-file={places.run}/{_FILE}",
    )
    return Launch(argv=argv, proof="live")


def read(outputs: Outputs) -> Reading:
    """Rate, latencies and hits of its one run. Raises ValueError when the file is not as expected."""
    texts = list(outputs.files(re.compile(re.escape(_FILE))))
    if not texts:
        raise ValueError(f"{PROGRAM} wrote no {_FILE}")
    with reading.believing(_FILE):
        run = reading.json(texts[0], _FILE)["ALL STATS"]
        totals = run["Totals"]
        duration_ms = number(run["Runtime"]["Total duration"], "its duration", low=0)
        operations = count(totals["Count"], "Count")
        hits, misses, rate, worst = (
            number(totals[name], name, low=0) for name in ("Hits/sec", "Misses/sec", "Ops/sec", "Max Latency")
        )
        said = {key: number(value, key, low=0) for key, value in totals["Percentile Latencies"].items()}
        rows = [
            (figure(at, "a second", low=0), number(row["Count"], at, low=0)) for at, row in totals["Time-Serie"].items()
        ]
    metrics: dict[str, float | None] = {"ops_per_s": rate, "max_us": worst * 1e3}
    metrics |= {_PERCENTILES[key]: value * 1e3 for key, value in said.items() if key in _PERCENTILES}
    if hits + misses > 0:
        metrics["hit_ratio"] = hits / (hits + misses)
    length, cpu = outputs.end - outputs.begin, outputs.client.cpu_s
    absent = {}
    if cpu is None or length <= 0:
        absent["client_busy"] = "the client's CPU time was not counted"
    else:
        metrics["client_busy"] = cpu / length
    return Reading(
        metrics=metrics,
        absent=absent,
        series=tuple(count for at, count in rows if (at + 1) * 1e3 <= duration_ms),
        facts={"operations": operations, "client": PROGRAM},
    )
