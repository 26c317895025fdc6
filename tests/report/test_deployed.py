"""The files of a run's recommended settings, below a folder; nothing is put into force, and nothing lies elsewhere."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.deployment import configuration as host_files
from hugewise.deployment.program import BY_HAND, Destination, UnitStart, for_program
from hugewise.errors import StorageError, UserError
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import Integrity, Results
from hugewise.report import deployed
from hugewise.report.deployed import recommended, write_files
from tests.build.results import HOSTILE, example, plain
from tests.report.test_answers import COST, FORK, beside, judged
from tests.requirements import need_root

OFF = Treatment(policy="base", mechanism="process", target=PageTarget("base", 4096), thp_disable="all")
ELSEWHERE = "Not measured on this host: know where the run comes from, and read each file before it is used."
SERVICE = Deployment(files=for_program(OFF, Destination(policy="p", words=("/usr/bin/demo",))), note="for one program")


def deploying(results: Results, deployment: Deployment | None, cell: int = 0) -> Results:
    """The results with that deployment for every arm of a cell."""
    cells = list(results.cells)
    arms = tuple(replace(arm, deployment=deployment) for arm in cells[cell].arms)
    cells[cell] = replace(cells[cell], arms=arms)
    return replace(results, cells=tuple(cells))


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_the_best_arm_lie_as_below_the_root(tmp_path: Path) -> None:
    results = replace(plain(), integrity=Integrity(state="consistent", hash="ab" * 32))
    told = write_files(results, tmp_path / "out")
    assert told == [
        ELSEWHERE,
        f"chase bytes=1g: hugetlb-2m: {tmp_path / 'out'}",
        "fault bytes=256m: no files: no policy was better than its baseline base",
    ]
    assert below(tmp_path / "out") == {"README.md", "usr/local/sbin/page-sizes-now", "etc/sysctl.d/60-page-sizes.conf"}
    made = (tmp_path / "out/etc/sysctl.d/60-page-sizes.conf").read_text()
    assert made.endswith("\nvm.nr_hugepages = 512\n" + made.split("vm.nr_hugepages = 512\n", 1)[1])
    for evidence in (results.run, results.seed_hash, "ab" * 32, "hugetlb-2m is better than base"):
        assert evidence in made
        assert evidence in (tmp_path / "out/usr/local/sbin/page-sizes-now").read_text()
    assert (tmp_path / "out/usr/local/sbin/page-sizes-now").stat().st_mode & 0o777 == 0o755
    readme = (tmp_path / "out/README.md").read_text()
    for said in ("Nothing has been applied", "sysctl vm.nr_hugepages", "read by sysctl", "No files:", "host-boot"):
        assert said in readme
    # as it stood when the run began
    assert "    echo 0 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages\n" in readme


def test_a_run_of_this_host_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, told in (("here", False), ("there", True), (None, True)):
        monkeypatch.setattr(deployed, "machine_id", lambda _: "here")
        out = tmp_path / str(machine)
        run = replace(plain(), host={**plain().host, "machine": machine})
        assert (ELSEWHERE in write_files(run, out)) == told
        assert (out / "README.md").read_text().startswith(f"# Page sizes: files to deploy\n\n**{ELSEWHERE}**") == told
    both = write_files(replace(plain(), host={"machine": "here"}), tmp_path / "two", also=[plain()])
    assert both[0] == ELSEWHERE


def test_what_a_file_needs_is_told_with_how_it_is_had(tmp_path: Path) -> None:
    write_files(deploying(plain(), SERVICE), tmp_path / "out")
    readme = (tmp_path / "out/README.md").read_text()
    assert "    install -D -m 755 FOLDER/hugewise-exec /usr/local/bin/hugewise-exec\n" in readme
    pool = replace(OFF, target=PageTarget("hugetlb", 2 << 20), environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"})
    where = Destination(policy="hugetlb-2m", words=("/usr/bin/demo",), environment=pool.environment)
    for launched in (pool, replace(pool, thp_disable="none")):
        told = [file for file in for_program(launched, where, 4 << 20) if file.kind in ("launcher", "unit", "compose")]
        assert len(told) == 3
        assert all("a pool that is filled before it starts" in "; ".join(file.needs) for file in told)


def test_the_hosts_settings_are_to_be_typed_before_the_program_is_started() -> None:
    both = Deployment(files=(*SERVICE.files, host_files.now({"/sys/pool": "5"})), note="n")
    started = 'exec /usr/local/bin/hugewise-exec --pages off -- /usr/bin/demo "$@"'
    assert both.commands() == ("echo 5 > /sys/pool", started)


def test_settings_that_differ_have_a_folder_each_and_equal_ones_share_it(tmp_path: Path) -> None:
    first = deploying(plain(), SERVICE)
    again = replace(first.cells[0], cell="again")
    other = deploying(
        replace(plain(), cells=(replace(plain().cells[0], cell="../x y"),)),
        Deployment(files=(host_files.now({"/sys/x": "1"}),), note="n"),
    )
    results = replace(first, cells=(first.cells[0], again, *other.cells))
    assert [one.cells for one in recommended(results)] == [("chase bytes=1g", "again"), ("../x y",)]
    told = write_files(results, tmp_path / "out")
    assert len(told) == 3
    assert {path.split("/")[0] for path in below(tmp_path / "out")} == {
        "README.md",
        "1-hugetlb-2m-chase-bytes=1g",
        "2-hugetlb-2m-x-y",
    }


def test_what_is_better_beside_the_metric_alone_has_its_files_as_the_answer_says(tmp_path: Path) -> None:
    same = judged(("equivalent", 1.0), ("equivalent", 1.01))
    results = deploying(beside(same, (COST, "thp", "better", 0.8)), SERVICE)
    (found,) = recommended(results)
    assert (found.arm, found.deployment) == ("thp", SERVICE)
    said = "chase bytes=1g: Yours to weigh, as `thp` usually makes no difference above 0.5% in latency_ns"
    assert found.found[0].startswith(said)
    write_files(results, tmp_path / "out")
    assert "is better in server_cpu_us" in (tmp_path / "out/README.md").read_text()
    # Where an arm was to be chosen, and none was, it is not chosen here.
    (unchosen,) = recommended(results, arms=(None,))
    assert unchosen.why == "no policy was better than its baseline base"
    open_ = judged(("equivalent", 1.0), ("equivalent", 1.01), ("undecided", 0.9))
    (undecided,) = recommended(deploying(beside(open_, (COST, "thp", "better", 0.8)), SERVICE))
    assert undecided.deployment is None, "the answer is that it is open"
    dear = beside(same, (COST, "thp", "better", 0.8), (FORK, "thp", "worse", 2.0))
    assert [one.deployment for one in recommended(deploying(dear, SERVICE))] == [None]


def test_the_unit_that_is_named_has_the_drop_in(tmp_path: Path) -> None:
    results = deploying(plain(), SERVICE)
    write_files(results, tmp_path / "out", "demo")
    assert "etc/systemd/system/demo.service.d/50-page-sizes.conf" in below(tmp_path / "out")
    assert "systemctl restart demo.service" in (tmp_path / "out/README.md").read_text()
    for other, why in (("../../etc/passwd", "not the name of a unit"), ("demo.socket", "not a service")):
        with pytest.raises(UserError, match=why):
            write_files(results, tmp_path / "other", other)
    assert not (tmp_path / "other").exists()


def test_the_drop_in_has_the_words_of_the_unit_that_is_there(tmp_path: Path) -> None:
    """A server that was measured with a port and a folder of each attempt has no words that a unit could have."""
    unknown = Deployment(files=for_program(OFF, Destination(policy="p")), note="n")
    results = deploying(plain(), unknown)
    there = UnitStart(name="demo.service", starts=(("/lib/demo.service:4", "-/usr/bin/demo --port $PORT"),))
    told = write_files(results, tmp_path / "there", "demo", start=there)
    assert told[-1] == "demo.service: the drop-in has its own ExecStart= (/lib/demo.service:4)"
    made = (tmp_path / "there/etc/systemd/system/demo.service.d/50-page-sizes.conf").read_text()
    assert made.endswith(
        '\nExecStart=\nExecStart=-/usr/local/bin/hugewise-exec "--pages" "off" -- /usr/bin/demo --port $PORT\n'
    )
    assert BY_HAND not in (tmp_path / "there/README.md").read_text()
    told = write_files(results, tmp_path / "absent", "demo")
    assert told[-1].startswith("demo.service: this host has no such service: its ExecStart= in the drop-in is to be")
    assert BY_HAND in (tmp_path / "absent/README.md").read_text()
    told = write_files(
        results, tmp_path / "shell", "demo", start=replace(there, starts=(("/lib/demo.service:4", "|x"),))
    )
    assert "could not be taken over" in told[-1]
    environment = Destination(policy="p", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    tuned = Deployment(files=for_program(replace(OFF, thp_disable="none"), environment), note="n")
    assert not any("demo.service" in line for line in write_files(deploying(plain(), tuned), tmp_path / "e", "demo"))


def test_what_belongs_into_a_guest_lies_apart(tmp_path: Path) -> None:
    inside = replace(host_files.now({"/sys/x": "1"}), on="guest")
    write_files(deploying(plain(), Deployment(files=(inside,), note="n")), tmp_path / "out")
    assert below(tmp_path / "out") == {"README.md", "in-the-guest/usr/local/sbin/page-sizes-now"}


def test_nothing_is_put_into_force(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    for root in (Path("/"), tmp_path / "link", tmp_path / "x" / ".." / "link"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UserError, match="would put the files into force"):
            write_files(plain(), root)
    assert not Path("/usr/local/sbin/page-sizes-now").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="there is something in that folder") as raised:
        write_files(plain(), tmp_path)
    assert raised.value.hint == "name a new one, or an empty one"
    assert below(tmp_path) == {"mine"}


@pytest.mark.parametrize("path", ["/../../outside", "/etc/../../outside", "/a\0b", "/"])
def test_a_path_of_a_run_leads_nowhere_else(path: str, tmp_path: Path) -> None:
    """A run folder may be somebody else's, and say anything."""
    evil = replace(host_files.now({"/sys/x": "1"}), path=path)
    with pytest.raises(StorageError):
        write_files(deploying(plain(), Deployment(files=(evil,), note="n")), tmp_path / "a" / "out")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "a" / "outside").exists()


def test_another_accounts_folder_is_none_for_root(reached: Path) -> None:
    need_root()
    theirs = reached / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(UserError, match="belongs to the account 65534"):
        write_files(plain(), theirs / "out")


def test_hostile_names_are_text(tmp_path: Path) -> None:
    results = example()
    hostile = replace(results.cells[0], cell=HOSTILE)
    write_files(replace(results, run=HOSTILE, study=f"{HOSTILE}\nx", cells=(hostile,)), tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert path.read_text().replace("\n", "").isprintable()
    conf = (tmp_path / "out/etc/sysctl.d/60-page-sizes.conf").read_text().splitlines()
    assert [line for line in conf if not line.startswith("#")] == ["vm.nr_hugepages = 512"]


@pytest.mark.parametrize("deployment", [None, Deployment(note="this machine is already set so")])
def test_why_there_are_none_is_said(deployment: Deployment | None, tmp_path: Path) -> None:
    told = write_files(deploying(plain(), deployment), tmp_path / "out")
    why = "none were kept" if deployment is None else deployment.note
    assert told[1] == f"chase bytes=1g: no files: hugetlb-2m was best, but has no files: {why}"
    assert below(tmp_path / "out") == {"README.md"}
