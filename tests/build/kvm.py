"""What KVM says of its virtual machines, as the files of a host that has none."""

from pathlib import Path


def debugfs(folder: Path, pid: int = 100, **counts: int) -> tuple[Path, Path]:
    """The folders of a host where QEMU 100 has a VM at descriptor 11, and another process has one too."""
    tree, proc = folder / "kvm", folder / "proc"
    for number, file in ((pid, 11), (pid, 12), (200, 11)):
        (tree / f"{number}-{file}").mkdir(parents=True)
        (proc / str(number) / "fd").mkdir(parents=True, exist_ok=True)
        what = "anon_inode:kvm-vm" if file == 11 else "socket:[7]"  # that VM is gone, and its folder is still there
        (proc / str(number) / "fd" / str(file)).symlink_to(what)
        for name, count in ({"pages_4k": 1, "pages_2m": 1, "pages_1g": 1} | (counts if file == 11 else {})).items():
            (tree / f"{number}-{file}" / name).write_text(f"{count}\n")
    return tree, proc
