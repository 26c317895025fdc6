"""The tables of an inventory, with the keys that each may have: docs/reference/inventory.md is generated from them.

Whatever stands in them goes to programs as an argument of its own or, where ssh joins words for the remote shell,
quoted; so that every value has a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from hugewise.model.client import ClientHost
from hugewise.study import keys
from hugewise.study.keys import Key, Name

__all__ = ["ClientEntry", "FleetTable", "HostEntry"]

# A word for ssh: a name or user@name, as ssh_config(5) has them; never an option.
_TARGET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]{0,254}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:-]{0,254}")
_FOLDER = re.compile(r"/[A-Za-z0-9._/@+=-]{0,399}")
# What stands before a job; those that hugewise writes itself are not to be written again.
_SBATCH = re.compile(
    r"--(?!(?:job-name|nodelist|nodes|output|export|open-mode|partition|array|wrap|requeue)=)[a-z][a-z-]{0,40}"
    r"=[A-Za-z0-9._/@+=:,%-]{1,200}"
)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOLDER_CURE = "write an absolute path of letters, digits, dots, -, _, +, = and @"

_PATH = keys.text(pattern=_FOLDER, words="an absolute folder", cure=_FOLDER_CURE)
_LABELS = keys.mapping(
    _LABEL, "a label's name", keys.text(pattern=_LABEL, words="a label", cure="use letters, digits, dots, - and _")
)


class HostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A host: `[[host]]`. How it is reached goes by the engine: by `ssh`, as the node `slurm`, or by its name."""

    name: Annotated[Name, Key("What the fleet calls it; also the folder of its runs.", 'name = "rack1-a"')]
    ssh: Annotated[
        str | None,
        keys.text(pattern=_TARGET, words="a target of ssh", cure="write HOST or USER@HOST, as for ssh"),
        Key(
            "The target of `ssh`, with whatever your ssh_config says of it (keys, jump hosts, ports).",
            'ssh = "admin@10.0.0.2"',
            default="required by the engines ssh and dask",
        ),
    ] = None
    slurm: Annotated[
        str | None,
        keys.text(pattern=_NODE, words="a node of Slurm", cure="write it as sinfo -N shows it"),
        Key("The node of Slurm.", 'slurm = "node017"', default="required by the engine slurm"),
    ] = None
    address: Annotated[
        str | None,
        keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port"),
        Key(
            "The address that listens on this host: of the engine's worker, and of servers with a client elsewhere.",
            'address = "10.0.0.2"',
            default="required by the engine dask",
        ),
    ] = None
    labels: Annotated[
        Mapping[str, str],
        _LABELS,
        Key("Words for the report, such as the place of the host.", 'labels = { rack = "r1" }'),
    ] = {}
    root: Annotated[
        bool,
        Key(
            "Whether hugewise runs there as root, by `sudo -n`, where it does not arrive as root anyway.",
            "root = true",
        ),
    ] = False
    installation: Annotated[
        str | None,
        _PATH,
        Key("The folder of its hugewise.", 'installation = "/opt/hugewise"', default="the fleet's"),
    ] = None
    spool: Annotated[
        str | None,
        _PATH,
        Key("The folder of its runs until they are shipped.", 'spool = "/var/tmp/hw"', default="the fleet's"),
    ] = None
    directory: Annotated[str, _PATH, Key("Where commands of the study run on it.", 'directory = "/srv/benchmarks"')] = (
        "/"
    )
    housekeeping_cpu: Annotated[
        int | None,
        keys.integer(0, 4095),
        Key("The CPU that the engine's worker is bound to.", "housekeeping_cpu = 0", default="the fleet's"),
    ] = None
    client: Annotated[
        Name | None,
        Key(
            "The table `[[client]]` of the host that clients of its servers are on; no two hosts share one at a time.",
            'client = "loads-1"',
            default="beside the servers",
        ),
    ] = None


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A host for the clients of servers: `[[client]]`. Nothing is measured on it; hugewise need not be installed."""

    name: Annotated[Name, Key("What it is called: `--client NAME`.", 'name = "loads-1"')]
    ssh: Annotated[
        str,
        keys.text(pattern=_TARGET, words="a target of ssh", cure="write HOST or USER@HOST, as for ssh"),
        Key("The target of `ssh` from the host that measures.", 'ssh = "loads-1.example"'),
    ]
    ssh_config: Annotated[
        str | None,
        keys.text(pattern=_FOLDER, words="an absolute path", cure=_FOLDER_CURE),
        Key(
            "A configuration of ssh on the host that measures, in place of the account's own.",
            'ssh_config = "/etc/hugewise/ssh_config"',
            default="the account's own",
        ),
    ] = None
    address: Annotated[
        str,
        keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port"),
        Key(
            "Its address on the network that is measured over. Servers listen at the address that this host has towards"
            " it, and nowhere else.",
            'address = "10.0.1.2"',
        ),
    ]
    cpus: Annotated[
        tuple[int, ...],
        keys.listing(keys.integer(0, 65_535)),
        Key("CPUs that the clients have there.", "cpus = [2, 3]", default="all"),
    ] = ()
    folder: Annotated[
        str,
        _PATH,
        Key(
            "Where hugewise has a folder of its own there while it runs; programs must be allowed to run in it.",
            'folder = "/var/tmp"',
        ),
    ] = "/tmp"  # noqa: S108  (a new folder of its own in it)

    def toml(self) -> str:
        """An inventory that has nothing else: what `hugewise run --hosts` reads on a host of a fleet."""
        said = {name: value for name, value in msgspec.to_builtins(self).items() if value not in (None, [], ())}
        # A string of JSON is one of TOML.
        lines = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in said.items())
        return "\n".join(["[[client]]", *lines, ""])

    @property
    def host(self) -> ClientHost:
        """As a run is told of it."""
        options = () if self.ssh_config is None else ("-F", self.ssh_config)
        words = (*options, self.ssh)
        return ClientHost(name=self.name, ssh=words, address=self.address, cpus=self.cpus, folder=self.folder)


class FleetTable(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole fleet: `[fleet]`. Durations in seconds."""

    engine: Annotated[
        str,
        keys.choice("ssh", "dask", "slurm", "local"),
        Key("What carries orders to hosts; local: this machine is the only one.", 'engine = "dask"'),
    ] = "ssh"
    installation: Annotated[
        str, _PATH, Key("The folder of hugewise on hosts (`bin/hugewise` is in it).", 'installation = "/opt/hugewise"')
    ] = "/opt/hugewise"
    spool: Annotated[
        str | None,
        _PATH,
        Key(
            "The folder of runs on hosts, until they are shipped.",
            'spool = "/var/lib/hugewise/fleet"',
            default="/var/lib/hugewise/fleet for root, ~/.local/state/hugewise/fleet for others",
        ),
    ] = None
    stop_worker: Annotated[
        bool, Key("Whether the engine's worker is stopped while an attempt is measured.", "stop_worker = false")
    ] = True
    housekeeping_cpu: Annotated[
        int | None, keys.integer(0, 4095), Key("The CPU that workers are bound to.", "housekeeping_cpu = 0")
    ] = None
    hosts_per_stratum: Annotated[
        int | None,
        keys.integer(1, 10_000),
        Key(
            "How many hosts of each stratum measure; the others of it stand by to replace one that is lost.",
            "hosts_per_stratum = 5",
            default="all",
        ),
    ] = None
    replace: Annotated[
        bool, Key("Whether a host that is lost is replaced by another one of its stratum.", "replace = false")
    ] = True
    patience: Annotated[
        float,
        keys.duration(1.0),
        Key("How long a host may be out of reach before it is replaced.", 'patience = "10m"', default='`"10m"`'),
    ] = 600.0
    wait: Annotated[
        float,
        keys.duration(1.0),
        Key(
            "How long one that nobody replaces is waited for before the fleet ends without it.",
            'wait = "1h"',
            default='`"1h"`',
        ),
    ] = 3600.0
    largest_run: Annotated[
        int,
        keys.size(1 << 20),
        Key("The largest run that is brought from a host.", 'largest_run = "4g"', default='`"4g"`'),
    ] = 4 << 30
    same_machine: Annotated[
        bool,
        Key(
            "Whether several hosts may be one machine: for trials, as they are no sample of machines.",
            "same_machine = true",
        ),
    ] = False
    look: Annotated[
        float, keys.duration(0.05), Key("How often a host is asked how it is.", 'look = "60s"', default='`"60s"`')
    ] = 60.0
    check: Annotated[
        int,
        keys.integer(0, 1000),
        Key(
            "Blocks of the check that comes before the study on each host: the same against the same. 0: none.",
            "check = 20",
        ),
    ] = 20
    restarts: Annotated[
        int, keys.integer(0, 1000), Key("How often a run that died on a host is resumed.", "restarts = 3")
    ] = 3
    port: Annotated[
        int | None,
        keys.integer(1024, 65535),
        Key("The port of Dask's scheduler on the coordinator's address.", "port = 8786", default="any free one"),
    ] = None
    address: Annotated[
        str | None,
        keys.text(pattern=_ADDRESS, words="an address", cure="write an IP address or a host name, without a port"),
        Key(
            "The coordinator's address, at which Dask's scheduler listens.",
            'address = "10.0.0.1"',
            default="required by the engine dask",
        ),
    ] = None
    partition: Annotated[
        str | None,
        keys.text(pattern=_NODE, words="a partition of Slurm", cure="write it as sinfo shows it"),
        Key("The partition of Slurm.", 'partition = "bench"', default="Slurm's"),
    ] = None
    sbatch: Annotated[
        tuple[str, ...],
        keys.listing(
            keys.text(pattern=_SBATCH, words="an option of sbatch", cure="write --NAME=VALUE, as for sbatch"), least=0
        ),
        Key("More options of sbatch for each job.", 'sbatch = ["--account=mm", "--time=2-0"]'),
    ] = ()
