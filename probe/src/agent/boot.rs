//! What init does before it serves: file systems, modules, the root folder, control groups, the loopback.
//!
//! What a kernel does not have (a module for another machine, a file system that was left out) is said on the console
//! and is no reason to stop: the host asks for what it needs, and is told by then.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::files::mount_at;
use super::network;

/// Source and type, folder, flags, options.
const MOUNTS: [(&str, &str, libc::c_ulong, &str); 8] = [
    ("proc", "/proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, ""),
    ("sysfs", "/sys", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, ""),
    ("devtmpfs", "/dev", libc::MS_NOSUID, "mode=0755"),
    ("devpts", "/dev/pts", libc::MS_NOSUID | libc::MS_NOEXEC, "mode=0620,ptmxmode=0666"),
    ("tmpfs", "/dev/shm", libc::MS_NOSUID | libc::MS_NODEV, "mode=1777"),
    ("tmpfs", "/run", libc::MS_NOSUID | libc::MS_NODEV, "mode=0755"),
    ("tmpfs", "/tmp", libc::MS_NOSUID | libc::MS_NODEV, "mode=1777"),
    ("cgroup2", "/sys/fs/cgroup", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, ""),
];
/// What is moved into another root; the others lie below these.
const MOVED: [&str; 5] = ["/proc", "/sys", "/dev", "/run", "/tmp"];
const MODULES: &str = "/modules";
const NEW_ROOT: &str = "/new-root";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// File systems that a root folder may be in, with the options to try: a subvolume of btrfs is named by its distribution.
const KINDS: [(&str, &[&str]); 3] =
    [("ext4", &[""]), ("xfs", &["nouuid"]), ("btrfs", &["", "subvol=root", "subvol=@"])];
/// What the root folder of a system has, one of them.
const SYSTEM: [&str; 5] = ["sbin/init", "usr/lib/systemd/systemd", "bin/sh", "usr/bin/env", "usr/bin/hugewise-probe"];
/// How long the disk may take to appear.
const PATIENCE: Duration = Duration::from_secs(10);
const PASS: Duration = Duration::from_millis(20);

/// From the kernel's start of init to a machine that the host can use.
pub fn boot() -> Result<()> {
    for (kind, folder, flags, options) in MOUNTS {
        let mounted = fs::create_dir_all(folder).and_then(|()| mount_at(kind, Path::new(folder), kind, flags, options));
        complain(&format!("{kind} on {folder}"), mounted);
    }
    complain("the console", open_console());
    for module in modules(Path::new(MODULES)) {
        complain(&module, load(Path::new(&module)));
    }
    for controller in CONTROLLERS {
        let control = "/sys/fs/cgroup/cgroup.subtree_control";
        complain(&format!("controller {controller}"), fs::write(control, format!("+{controller}")));
    }
    complain("the loopback", network::up("lo"));
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    if let Some(device) = root_device(&line) {
        enter(device).with_context(|| format!("hugewise.root={device}"))?;
    }
    Ok(())
}

/// End the guest: QEMU's -no-reboot makes the reset its end. A machine without firmware cannot be switched off.
pub fn leave() -> ! {
    // SAFETY: everything but init.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    // QEMU takes what was written to the port when its main loop comes by.
    sleep(Duration::from_millis(50));
    loop {
        // SAFETY: resets the machine, which is what it is for.
        unsafe { libc::reboot(libc::RB_AUTOBOOT) };
        sleep(Duration::from_secs(1));
    }
}

fn complain(what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        eprintln!("hugewise-probe agent: {what}: {error}");
    }
}

/// The initramfs may lack the device; the kernel then starts init without stdin, stdout and stderr.
fn open_console() -> io::Result<()> {
    let console = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/console")?;
    for target in 0..3 {
        // SAFETY: both are descriptors of this process, and nobody else owns the standard ones.
        if unsafe { libc::dup2(console.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Were it one of them itself, it must stay open.
    if console.as_raw_fd() < 3 {
        std::mem::forget(console);
    }
    Ok(())
}

/// Modules in the order of their names, which whoever made the image chose.
fn modules(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<String> = entries.map(|entry| entry.path().to_string_lossy().into_owned()).collect();
    paths.sort_unstable();
    paths
}

fn load(module: &Path) -> io::Result<()> {
    const COMPRESSED: libc::c_int = 4;
    let file = File::open(module)?;
    let flags = if module.extension().is_some_and(|name| name == "ko") { 0 } else { COMPRESSED };
    let none: &CStr = c"";
    // SAFETY: an open file, a C string and flags.
    match unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), none.as_ptr(), flags) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            error => Err(error),
        },
    }
}

/// The value of hugewise.root in the kernel's command line.
fn root_device(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("hugewise.root="))
}

/// Make the root folder on `device`, or on the first of its partitions that has one, the root, with the mounts in it.
fn enter(device: &str) -> Result<()> {
    let started = Instant::now();
    while !Path::new(device).exists() {
        if started.elapsed() > PATIENCE {
            bail!("no such device after {} s", PATIENCE.as_secs());
        }
        sleep(PASS);
    }
    let root = Path::new(NEW_ROOT);
    fs::create_dir_all(root)?;
    let mut refused = Vec::new();
    if !places(device).iter().any(|place| mount_system(place, root, &mut refused)) {
        bail!(
            "no root folder in ext4, xfs or btrfs there ({}); volumes of LVM or encrypted ones are not opened",
            refused.join("; ")
        );
    }
    for folder in MOVED {
        let target = root.join(&folder[1..]);
        fs::create_dir_all(&target)?;
        mount_at(folder, &target, "", libc::MS_MOVE, "").with_context(|| format!("cannot move {folder}"))?;
    }
    std::env::set_current_dir(root)?;
    mount_at(".", Path::new("/"), "", libc::MS_MOVE, "").context("cannot move it to /")?;
    std::os::unix::fs::chroot(".")?;
    std::env::set_current_dir("/")?;
    Ok(())
}

/// The device and its partitions, in their order.
fn places(device: &str) -> Vec<String> {
    let name = device.rsplit('/').next().unwrap_or(device);
    let below = fs::read_dir(format!("/sys/class/block/{name}")).into_iter().flatten().flatten();
    let mut found: Vec<(usize, String)> = below
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|part| part.starts_with(name) && Path::new(&format!("/sys/class/block/{part}/partition")).exists())
        .map(|part| (part.len(), part))
        .collect();
    found.sort();
    let parts = found.into_iter().map(|(_, part)| format!("/dev/{part}"));
    std::iter::once(device.to_owned()).chain(parts).collect()
}

/// Mount a root folder of that device; what is none is unmounted, and why is remembered.
fn mount_system(device: &str, root: &Path, refused: &mut Vec<String>) -> bool {
    let mut why = String::new();
    for (kind, several) in KINDS {
        for options in several {
            match mount_at(device, root, kind, libc::MS_NOATIME, options) {
                Ok(()) if is_system(root) => return true,
                Ok(()) => {
                    why = format!("{device}: {kind} without a system");
                    complain("umount", unmount(root));
                }
                Err(error) if why.is_empty() => why = format!("{device}: {error}"),
                Err(_) => {}
            }
        }
    }
    refused.push(why);
    false
}

/// Whether a folder is the root of a system. Links are not followed: they lead to the other root.
fn is_system(root: &Path) -> bool {
    SYSTEM.iter().any(|path| fs::symlink_metadata(root.join(path)).is_ok())
}

fn unmount(folder: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes())?;
    // SAFETY: a C string.
    match unsafe { libc::umount2(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_named_on_the_command_line() {
        assert_eq!(root_device("console=ttyS0 hugewise.root=/dev/vda panic=-1\n"), Some("/dev/vda"));
        assert_eq!(root_device("root=/dev/vda quiet\n"), None);
    }

    #[test]
    fn a_system_is_known_by_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_system(folder.path()));
        fs::create_dir_all(folder.path().join("usr/lib/systemd")).unwrap();
        fs::create_dir_all(folder.path().join("sbin")).unwrap();
        assert!(!is_system(folder.path()));
        std::os::unix::fs::symlink("/usr/lib/systemd/systemd", folder.path().join("sbin/init")).unwrap();
        assert!(is_system(folder.path()));
    }

    #[test]
    fn a_disk_is_looked_at_before_its_partitions() {
        assert_eq!(places("/dev/hugewise-none"), ["/dev/hugewise-none"]);
    }

    #[test]
    fn modules_come_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["02-b.ko", "01-z.ko", "10-a.ko"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> =
            modules(folder.path()).iter().map(|path| path.rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(names, ["01-z.ko", "02-b.ko", "10-a.ko"]);
        assert!(modules(&folder.path().join("absent")).is_empty());
    }
}
