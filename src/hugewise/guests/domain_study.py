"""A study of a libvirt domain: the machine as a guest of hugewise, and an arm for each backing. Pure.

    restate(domain, backing, request, offer)   the study's text, and what of the domain is not in it

What the domain says of memory, CPUs, NUMA nodes, pinning and disks is restated; what is not, is named with its line and
the reason. `budget_lines` decides how often the guests boot: emulated, their counts may be the same in every boot;
under KVM times are judged, which never are. Somebody else's text becomes names, comments and values of TOML.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from hugewise.errors import UserError
from hugewise.model.guest import PAGE_OF, Architecture, Backing, Domain, DomainDisk, Pages
from hugewise.quantity import format_size
from hugewise.stats.exact import least_budget
from hugewise.visible import printable

_CONFIDENCE = 0.99  # for a study that names none; written down, as the blocks follow from it
_SLACK = 2  # times the fewest blocks that can decide: a pair or two may point the other way


def budget_lines(comparisons: int, asked: int | None) -> Iterator[str]:
    """Yield the study's budget lines; `asked` blocks in place of those that the comparisons need."""
    blocks = _SLACK * least_budget((1 - _CONFIDENCE) / comparisons) if asked is None else asked
    yield "# Counts may be the same in every boot, and are judged by that; what varies is judged by the coin alone."
    yield from ('method = "exact"', f"confidence = {_CONFIDENCE}", "")
    yield from ("[budget]", f"blocks = {blocks}  # at most: what is decided is over", "")


def file_name(text: str) -> str:
    """Return the text reduced to characters that a study's name and folder may have."""
    kept = "".join(
        character if character.isascii() and (character.isalnum() or character in "._-") else "-" for character in text
    )
    return kept.lstrip("._-")[:64] or "domain"


def remark(text: str) -> str:
    """Return a comment of a study with somebody else's text in it, which never ends the line."""
    return f"#   {printable(text)}\n"


def quoted(text: str) -> str:
    """Return the text as a TOML basic string, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def listed(words: Sequence[str]) -> str:
    """Return the words as a TOML array."""
    return f"[{', '.join(map(quoted, words))}]"


_BASE_PAGE = 4096  # a <page> of it means ordinary memory
_UNLIKE = {
    "nosharepages": "whether pages are merged is the host's to say (KSM), but for pages of a pool, which never are",
    "locked": "the guest's memory can be swapped out, but for pages of a pool",
}


def domain_backing(domain: Domain, page: int | None) -> Backing:
    """Return the domain's backing; `page`: the size of a bare `<hugepages/>`. Raises UserError."""
    by_node = tuple(_pages_of_node(domain, node, page) for node in sorted(cell.id for cell in domain.cells) or [0])
    pooled = any(kind in PAGE_OF for kind in by_node)
    return Backing(
        pages=by_node[0],
        # libvirt's own default for huge pages is a file of a hugetlbfs
        source="file" if pooled and domain.source != "memfd" else "memfd",
        preallocate=pooled if domain.immediate is None else domain.immediate,
        nodes=domain.bind,
        share=domain.shared,
        by_node=by_node if len(set(by_node)) > 1 else (),
    )


def _pages_of_node(domain: Domain, node: int, page: int | None) -> Pages:
    named = [wish for wish in domain.huge if wish.nodes is not None and node in wish.nodes]
    wishes = named or [wish for wish in domain.huge if wish.nodes is None]
    if not wishes:
        return "thp"
    size = page if wishes[0].size is None else wishes[0].size
    if size == _BASE_PAGE:
        return "thp"
    for pages, bytes_ in PAGE_OF.items():
        if bytes_ == size:
            return pages
    sizes = ", ".join(format_size(bytes_) for bytes_ in PAGE_OF.values())
    raise UserError(
        f"{domain.at(wishes[0].line)}: pages of {'no size' if size is None else format_size(size)} back no guest",
        hint=f"choose from: {sizes}; write for example <page size='1' unit='GiB'/>",
    )


def backing_toml(backing: Backing) -> str:
    """Return the backing as a key of a policy's table in a study: what differs from a study's defaults."""
    default = Backing(pages=backing.pages)
    pairs = [f'pages = "{backing.pages}"']
    if backing.pages in PAGE_OF and backing.source != default.source:
        pairs.append(f'source = "{backing.source}"')
    if backing.preallocate != default.preallocate:
        pairs.append(f"preallocate = {'true' if backing.preallocate else 'false'}")
    if backing.nodes is not None:
        pairs.append(f"nodes = {list(backing.nodes)}")
    if backing.share:
        pairs.append("share = true")
    if backing.by_node:
        pairs.append(f"by_node = {listed(backing.by_node)}")
    return f'backing = "{backing.pages}"' if len(pairs) == 1 else f"backing = {{ {', '.join(pairs)} }}"


class StudyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a study of a domain: what runs in the guests, and how they boot.

    load      a command; `workload`: the name of a packaged one, in its place
    metric    the end point of either; `values`: metrics in the command's output, as a study has them
    packages  Debian packages that the command comes from; without them it comes from the domain's own disk
    files     path in the guest -> file of this host
    within    policies of the guests' kernel, the baseline first, on the domain's backing; empty: backings are compared
    blocks    None: as many as the number of comparisons asks for
    """

    name: str | None = None
    load: tuple[str, ...] = ()
    workload: str | None = None
    metric: str | None = None
    values: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    kernel: str | None = None
    modules: str | None = None
    within: tuple[str, ...] = ()
    blocks: int | None = None


class HostOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of this host that a study depends on.

    backs    why it cannot make a guest's memory so, or None
    absent   why there is no disk at the path, or None
    held     who writes a disk now, or None
    cpus     its CPUs; nodes: its NUMA nodes
    """

    backs: Callable[[Backing], str | None]
    absent: Callable[[str], str | None]
    held: Callable[[str], str | None]
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    qemu: str | None = None


_ARCHITECTURES: Mapping[str, Architecture] = {"x86_64": "x86-64", "aarch64": "arm64"}
_MIB = 1 << 20
_KERNEL: Mapping[Architecture, str] = {"x86-64": "linux-image-cloud-amd64", "arm64": "linux-image-cloud-arm64"}
# Names of arms, and the pages of the guest's memory in them.
_ARMS: tuple[tuple[str, Pages], ...] = (
    ("ram-4k", "base"),
    ("ram-thp", "thp"),
    ("ram-2m", "hugetlb-2m"),
    ("ram-1g", "hugetlb-1g"),
)
_AS_IS = "domain"


class Restated(msgspec.Struct, frozen=True, kw_only=True):
    """A study's text, what of the domain is not in it, and arms that this host cannot have."""

    text: str
    notes: tuple[str, ...]
    arms: tuple[str, ...]


def restate(domain: Domain, backing: Backing, wish: StudyRequest, offer: HostOffer) -> Restated:
    """Return the study. Raises UserError where there is none to be made of it."""
    return _Writer(domain, backing, wish, offer).study()


class _Writer:
    def __init__(self, domain: Domain, backing: Backing, wish: StudyRequest, offer: HostOffer) -> None:
        self.domain, self.request, self.offer = domain, wish, offer
        self.backing = backing
        self.notes: list[str] = []

    def note(self, line: int | None, text: str) -> None:
        self.notes.append(f"{self.domain.at(line)}: {text}" if line else f"{self.domain.file}: {text}")

    def line(self, tag: str) -> int | None:
        return self.domain.lines.get(tag)

    def study(self) -> Restated:
        domain, wish = self.domain, self.request
        if bool(wish.load) == bool(wish.workload):
            raise UserError(
                "name what the guests are to run: --load COMMAND or --workload NAME",
                hint="hugewise list workloads; a command is of the domain's own disk, or of --packages",
            )
        arch = _ARCHITECTURES.get(domain.arch)
        if arch is None:
            raise self.wrong("os", f"guests of {domain.arch} are not supported", "x86_64 and aarch64 are")
        if domain.memory < 64 * _MIB or domain.memory % _MIB:
            size = format_size(domain.memory)
            raise self.wrong("memory", f"a memory of {size} is no whole number of MiB from 64 on", "change <memory>")
        disks = list(self.disks())
        compared = self.within() if wish.within else self.policies()
        body = [*self.head(), *compared, *self.guest(arch, disks), *self.kernel(arch), *self.workload()]
        self.devices()
        text = "\n".join([*self.introduction(), *body]).rstrip() + "\n"
        return Restated(text=text, notes=tuple(self.notes), arms=self.names)

    def wrong(self, tag: str, message: str, hint: str) -> UserError:
        return UserError(f"{self.domain.at(self.line(tag) or 1)}: {message}", hint=hint)

    def introduction(self) -> Iterator[str]:
        yield printable(f"# The libvirt domain {self.domain.name} ({self.domain.file}) as a study of guests.")
        if self.notes:
            yield "# Not as in the domain:"
            yield from (f"#   {printable(note)}" for note in self.notes)
        yield ""

    def head(self) -> Iterator[str]:
        name = self.request.name or file_name(self.domain.name)
        yield "format = 1"
        yield f"name = {quoted(name)}"
        asked = (
            "Which pages should programs have in {}?"
            if self.request.within
            else "Which pages should back the memory of {}?"
        )
        yield f"question = {quoted(asked.format(printable(self.domain.name)[:80]))}"
        yield ""

    def policies(self) -> Iterator[str]:
        arms, refused = self.own()
        for name, pages in _ARMS:
            backing = self.of(pages)
            if backing == self.backing and arms:
                self.note(self.memory_line(), f"{name} is what the domain has already")
                continue
            why = self.not_whole(pages) or self.offer.backs(backing)
            if why is None:
                arms.append((name, backing))
            else:
                refused.append((name, backing, why))
        if len(arms) < 2:
            reasons = "; ".join(f"{name}: {why}" for name, _, why in refused)
            raise UserError(
                f"{self.domain.at(self.memory_line())}: of the backings this host has too few to compare: {reasons}",
                hint=self.cure(reasons),
            )
        for wish in self.domain.huge:
            if wish.size is None:
                default = f"this host's default, {self.backing.pages}, and another's may not be"
                self.note(wish.line, f"<hugepages/> names no size: it is {default}")
        yield "# In the guest pages are as its kernel has them. The arms differ in the pages of its memory on the host."
        if not self.backing.preallocate and arms[0][0] == _AS_IS:
            yield f"# {_AS_IS} has each page as it is touched, the other arms all before the guest starts."
        yield "policies = ["
        for name, backing in arms:
            yield f'    {{ name = "{name}", from = "as-is", {backing_toml(backing)} }},'
        for name, backing, why in refused:
            yield f"    # Not on this host: {printable(why)}"
            yield f'    # {{ name = "{name}", from = "as-is", {backing_toml(backing)} }},'
        self.names = tuple(name for name, _ in arms)
        yield "]"
        yield f'baseline = "{arms[0][0]}"'
        yield from budget_lines(len(arms) - 1, self.request.blocks)

    def memory_line(self) -> int:
        return self.line("memoryBacking") or self.line("memory") or 1

    def cure(self, why: str) -> str:
        if absent := [node for node in self.backing.nodes or () if node not in self.offer.nodes]:
            return f"change nodeset= of <numatune>, or call it on the host that has node {absent[0]}"
        return "call it as root" if "needs root" in why else "change what the reasons name, or call it elsewhere"

    def within(self) -> Iterator[str]:
        arms, refused = self.own()
        if not arms:
            hint = f"{self.cure(refused[0][2])}; or compare what can be had"
            raise UserError(f"{self.domain.at(self.memory_line())}: {refused[0][2]}", hint=hint)
        yield "# On the host, memory is as the domain has it. The arms differ in the options of the guest's kernel."
        yield "policies = ["
        for name in self.request.within:
            yield f"    {{ name = {quoted(name)}, {backing_toml(arms[0][1])} }},"
        yield from ("]", f"baseline = {quoted(self.request.within[0])}")
        yield from budget_lines(len(self.request.within) - 1, self.request.blocks)
        self.names = self.request.within

    def own(self) -> tuple[list[tuple[str, Backing]], list[tuple[str, Backing, str]]]:
        why = self.not_whole(None) or self.offer.backs(self.backing)
        line = self.memory_line()
        if why is not None and self.backing.kinds == ("thp",):
            # The guest starts all the same, of base pages: that is the baseline.
            small = msgspec.structs.replace(self.backing, pages="base", by_node=())
            if (other := self.offer.backs(small)) is None:
                self.note(line, f"transparent huge pages are what it could have, and it has base pages: {why}")
                self.backing, why = small, None
            else:
                why = other
        if why is None:
            return [(_AS_IS, self.backing)], []
        self.note(line, f"what the domain asks for cannot be had on this host: {why}")
        return [], [(_AS_IS, self.backing, why)]

    def of(self, pages: Pages) -> Backing:
        source = self.backing.source
        if pages in PAGE_OF and not any(kind in PAGE_OF for kind in self.backing.kinds):
            source = "memfd" if self.domain.source == "memfd" or self.domain.shared else "file"
        return Backing(
            pages=pages,
            source=source if pages in PAGE_OF else "memfd",
            nodes=self.backing.nodes,
            share=self.backing.share,
        )

    def not_whole(self, pages: Pages | None) -> str | None:
        own = self.backing.by_node or (self.backing.pages,) * len(self.domain.nodes)
        for place, (node, size) in enumerate(self.domain.nodes):
            page = PAGE_OF.get(own[place] if pages is None else pages, 1)
            if size % page:
                what = (
                    f"node {node} has {format_size(size)}" if self.domain.cells else f"a memory of {format_size(size)}"
                )
                return f"{what}, which is no multiple of {format_size(page)}"
        return None

    def guest(self, arch: Architecture, disks: Sequence[DomainDisk]) -> Iterator[str]:
        domain = self.domain
        yield "[guest]"
        yield f'arch = "{arch}"'
        yield f'memory = "{format_size(domain.memory)}"'
        yield f"cpus = {domain.vcpus}"
        if domain.cpu is not None:
            yield f"cpu = {quoted(domain.cpu)}"
        else:
            note = "the CPU model is the host's own under KVM, and `max` where guests are emulated"
            self.note(self.line("cpu"), note)
        if self.offer.qemu is not None:
            yield f"qemu = {quoted(self.offer.qemu)}"
        if pins := self.pins():
            yield f"pin = [{', '.join(quoted(','.join(map(str, cpus))) for cpus in pins)}]"
        if self.request.packages:
            yield f"packages = {listed(self.request.packages)}"
        if self.request.files:
            pairs = ", ".join(f"{quoted(path)} = {quoted(here)}" for path, here in self.request.files.items())
            yield f"files = {{ {pairs} }}"
        if disks:
            yield "# Never written: each guest has an overlay, which is thrown away. Not while the domain runs."
            yield f"image = {quoted(disks[0].source)}"
            yield f'image_format = "{disks[0].format}"'
        for disk in disks[1:]:
            yield from ("", "[[guest.disk]]", f"path = {quoted(disk.source)}", f'format = "{disk.format}"')
        for cell in domain.cells:
            yield from ("", "[[guest.node]]", f'memory = "{format_size(cell.memory)}"')
            if cpus := [cpu for cpu in cell.cpus if cpu < domain.vcpus]:
                yield f'cpus = "{",".join(map(str, cpus))}"'
            if cell.bind is not None and (bound := self.bound(cell.line, cell.bind)):
                yield f"bind = {list(bound)}"
        yield ""

    def bound(self, line: int, nodes: tuple[int, ...]) -> tuple[int, ...] | None:
        if nodes == self.backing.nodes:
            return None
        if absent := [node for node in nodes if node not in self.offer.nodes]:
            self.note(line, f"it is bound to node {absent[0]} of its host, which this host does not have: not bound")
            return None
        return nodes

    def pins(self) -> tuple[tuple[int, ...], ...]:
        pins = self.domain.pins
        if not pins:
            return ()
        line = self.line("cputune") or self.line("vcpu")
        absent = sorted({cpu for cpus in pins.values() for cpu in cpus} - set(self.offer.cpus))
        if absent:
            self.note(
                line, f"it pins virtual CPUs to CPU {absent[0]} of its host, which this host does not have: not pinned"
            )
            return ()
        return tuple(pins.get(number, self.offer.cpus) for number in range(self.domain.vcpus))

    def disks(self) -> Iterator[DomainDisk]:
        own = bool(self.request.load) and not self.request.packages
        for disk in self.domain.disks:
            named = f"the disk {disk.target}" + (f" ({disk.source})" if disk.source else "")
            if disk.device != "disk":
                self.note(disk.line, f"{named} is a {disk.device}: no guest needs it")
            elif disk.why:
                self.note(disk.line, f"{named} is left out: {disk.why}")
            elif disk.format not in ("raw", "qcow2"):
                self.note(disk.line, f"{named} is left out: its format {disk.format} is neither raw nor qcow2")
            elif not own:
                what = "packages" if self.request.packages else "packaged workloads"
                self.note(disk.line, f"{named} is left out: {what} have an image of their own (or: [[guest.disk]])")
            else:
                if (why := self.offer.absent(disk.source)) is not None:
                    raise UserError(
                        f"{self.domain.at(disk.line)}: {named}: {why} on this host",
                        hint="copy the disk there, or call it on the host that has it, as one who may look there;"
                        " without the domain's disk: --workload NAME, or --packages NAME,... with the command",
                    )
                if (who := self.offer.held(disk.source)) is not None:
                    note = f"{named} is open for writing by {who}: the run is refused until that ends"
                    self.note(disk.line, f"{note} (virsh shutdown {shlex.quote(self.domain.name)}, or name a copy)")
                yield disk
        if own and not any(
            disk.device == "disk" and not disk.why and disk.format in ("raw", "qcow2") for disk in self.domain.disks
        ):
            raise UserError(
                f"{self.domain.file}: the domain has no disk of this host that the command could be on",
                hint="name Debian packages that it comes from: --packages NAME,... ; or --workload NAME",
            )

    def kernel(self, arch: Architecture) -> Iterator[str]:
        path = self.request.kernel or self.domain.kernel
        yield "[[kernel]]"
        if path is not None and path.startswith("/"):
            yield 'name = "own"'
            yield f"path = {quoted(path)}"
            if self.request.modules is not None:
                yield f"modules = {quoted(self.request.modules)}"
        else:
            package = path or _KERNEL[arch]
            yield 'name = "debian"'
            yield f"package = {quoted(package)}"
            note = f"its kernel is that of Debian's {package}: the domain boots the one on its disk"
            self.note(self.line("os"), f"{note} (--kernel /boot/vmlinuz... --modules /lib/modules/... has it)")
        yield ""

    def workload(self) -> Iterator[str]:
        yield "[[workload]]"
        if self.request.workload is not None:
            yield f"name = {quoted(self.request.workload)}"
        else:
            yield 'name = "command"'
            values = f", values = {listed(self.request.values)}" if self.request.values else ""
            yield f"parameters = {{ argv = {listed(self.request.load)}{values} }}"
        if self.request.metric is not None:
            yield f"metric = {quoted(self.request.metric)}"

    def devices(self) -> None:
        domain = self.domain
        for device in domain.sharers:
            shared = (
                "its memory is shared all the same, as the domain's is"
                if domain.shared
                else "the domain's memory is not shared, so that it does not work there either"
            )
            self.note(device.line, f"{device.what} has no daemon here; {shared}")
        for device in domain.assigned:
            note = "it is not passed through: memory is not pinned here, and may be made huge later than there"
            self.note(device.line, f"{device.what}: {note}")
        if domain.balloon is not None:
            self.note(domain.balloon.line, "<memballoon>: guests have no balloon, and all of their memory")
        if domain.current < domain.memory:
            note = f"the guests have all of {format_size(domain.memory)}, and not {format_size(domain.current)}"
            self.note(self.line("currentMemory"), note)
        for memory in domain.plugged:
            self.note(
                memory.line, f"<memory model='{memory.model}'> is not plugged: guests have what the domain boots with"
            )
        if domain.limit is not None:
            self.note(None, f"<hard_limit> of {format_size(domain.limit)} is not set for the guests")
        for tag, given in (("locked", domain.locked), ("nosharepages", domain.unmerged)):
            if given:
                self.note(self.line("memoryBacking"), f"<{tag}/>: {_UNLIKE[tag]}")
        if domain.machine and not ("q35" in domain.machine or "virt" in domain.machine):
            self.note(self.line("os"), f"the machine is q35 here, and {domain.machine} there")
        for other in domain.others:
            self.note(other.line, f"{other.what} is not restated")
        self.note(None, "networks, displays and other devices are left out: a guest has its memory, CPUs and disks")
