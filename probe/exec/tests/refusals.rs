//! What the launcher does not do, and says why: real programs, some of them compiled here.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Place, base, copy, is_root, need, printed};

#[test]
fn wrong_words_end_with_2_and_the_cure() {
    let place = Place::new();
    for words in [
        &[][..],
        &["true"],
        &["--pages", "off"],
        &["--pages"],
        &["--pages", "on", "true"],
        &["--pages", "thp,heap=1", "true"],
        &["--pages", "off", "--pages", "advised", "true"],
        &["--pages", "thp", "--pages", "base", "true"],
        &["--pages", "off", "--pages", "thp", "true"],
        &["--pages", "", "true"],
        &["--wrong", "true"],
        &["--pages", "off", "--library", "/x", "true"],
        &["--tunable", "malloc=1", "true"],
        &["--tunable", "glibc.malloc.hugetlb=1:x", "true"],
        &["--tunable", "glibc.malloc.hugetlb=", "true"],
        &["--tunable", "glibc.malloc.hugetlb=1", "--tunable", "glibc.malloc.hugetlb=2", "true"],
        &["--tunable", "glibc.malloc.hugetlb=1", "--pages", "thp", "true"],
    ] {
        let (code, said) = place.refused(words);
        assert!(code == Some(2) && said.contains("\n  cure: "), "{words:?}: {said}");
    }
    let (_, said) = place.refused(&["--pages", "\x1b[31m", "true"]);
    assert!(!said.contains('\x1b') && said.contains("\\x1b[31m"), "{said}");
}

#[test]
fn what_a_layout_cannot_reach_is_refused() {
    let Some(place) = Place::with_library() else { return };
    let source = "int main(void) { return 0; }";
    for (name, options, word) in [
        ("static", &["-static"][..], "statically linked"),
        ("static-pie", &["-static-pie"], "statically linked"),
        ("musl", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"], "musl"),
        ("other", &["-Wl,--dynamic-linker=/lib/ld-other.so"], "loader is not glibc's"),
        ("object", &["-c"], "no program"),
    ] {
        if place.compile(name, source, options) {
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).unwrap();
            let (code, said) = place.refused(&base(&place.path(name)));
            assert!(code == Some(125) && said.contains(word), "{name}: {said}");
        }
    }
    let foreign = place.path("foreign");
    let mut bytes = fs::read("/bin/true").unwrap();
    bytes[18] = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    fs::write(&foreign, bytes).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(place.refused(&base(&foreign)).1.contains("another architecture"));
    // The same programs take what reaches every program.
    assert_eq!(place.out(&["--pages".as_ref(), "off".as_ref(), place.path("static").as_os_str()]), "");
}

#[test]
fn scripts_are_what_their_interpreters_are() {
    let Some(place) = Place::with_library() else { return };
    if !place.compile("static", "int main(void) { return 0; }", &["-static"]) {
        return;
    }
    let fine = place.script("fine", "#!/bin/sh\necho fine\n");
    assert_eq!(place.out(&base(&fine)), "fine\n");
    let by_env = place.script("by-env", "#!/usr/bin/env sh\necho fine\n");
    assert_eq!(place.out(&base(&by_env)), "fine\n");
    let unreached = place.script("unreached", &format!("#!{}\n", place.path("static").display()));
    let nested = place.script("nested", &format!("#!{} x\n", unreached.display()));
    for script in [&unreached, &nested] {
        let (code, said) = place.refused(&base(script));
        assert!(code == Some(125) && said.contains("statically linked"), "{said}");
    }
    let mut through = place.command(&base(&place.script("env-static", "#!/usr/bin/env static\n")));
    let done = through.env("PATH", format!("/usr/bin:{}", place.folder.path().display())).output().unwrap();
    assert_eq!(done.status.code(), Some(125), "{done:?}");
    for words in ["-S -i sh", "-S LD_PRELOAD= sh", "-S -u LD_PRELOAD sh", "-i"] {
        let (code, said) = place.refused(&base(&place.script("options", &format!("#!/usr/bin/env {words}\n"))));
        assert!(code == Some(125) && said.contains("env and options"), "{words}: {said}");
    }
    let lost = place.script("lost", "#!/nowhere/at/all\n");
    assert_eq!(place.refused(&base(&lost)).0, Some(127));
    let itself = place.script("itself", &format!("#!{}\n", place.path("itself").display()));
    assert_eq!(place.refused(&base(&itself)).0, Some(126));
    let ends = ["--pages".as_ref(), "base,children=no".as_ref(), by_env.as_os_str()];
    assert!(place.refused(&ends).1.contains("would end with env"));
}

#[test]
fn a_static_program_has_the_tunables_that_are_linked_in() {
    let place = Place::new();
    let source = "#include <stdlib.h>\nint main(void) { return malloc(1) == 0; }";
    if !place.compile("static", source, &["-static"])
        || !place.compile("bare", "int x;", &["-static", "-nostdlib", "-Wl,-e,x"])
    {
        return;
    }
    let tuned = |name: &str, tunable: &str| {
        place.command(&["--tunable", tunable, "--check", "--", place.path(name).to_str().unwrap()]).output().unwrap()
    };
    assert_eq!(tuned("static", "glibc.malloc.arena_max=1").status.code(), Some(0));
    assert_eq!(tuned("static", "glibc.malloc.no_such_thing=1").status.code(), Some(125));
    assert_eq!(tuned("bare", "glibc.malloc.arena_max=1").status.code(), Some(125));
}

/// As another account that may do nothing but start programs.
fn as_nobody(mut command: Command) -> Command {
    command.uid(65534).gid(65534).current_dir("/");
    command
}

#[test]
fn what_gets_rights_by_its_file_is_refused_unless_nobody_gets_any() {
    let Some(place) = Place::with_library() else { return };
    if !need(is_root(), "root") {
        return;
    }
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755)] {
        copy("/bin/true".as_ref(), &place.path(name));
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
        let program = place.path(name);
        let refused = as_nobody(place.command(&base(&program))).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{name}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("setuid or setgid"));
        assert_eq!(
            place.command(&base(&program)).status().unwrap().code(),
            Some(0),
            "{name}: it is root's, and root starts it"
        );
        let off = ["--pages".as_ref(), "off".as_ref(), program.as_os_str()];
        assert_eq!(as_nobody(place.command(&off)).status().unwrap().code(), Some(0), "{name}: the prctl reaches it");
        let mut without = as_nobody(place.command(&base(&program)));
        // SAFETY: between fork and exec only what is async-signal-safe.
        unsafe {
            without.pre_exec(|| {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                Ok(())
            });
        }
        assert_eq!(without.status().unwrap().code(), Some(0), "{name}: the kernel gives it no rights then");
    }
    // The launcher itself, made setuid by somebody.
    fs::set_permissions(place.path("hugewise-exec"), fs::Permissions::from_mode(0o4755)).unwrap();
    let refused = as_nobody(place.command(&base(Path::new("/bin/true")))).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another account"), "{refused:?}");
    assert_eq!(refused.status.code(), Some(125));
}

#[test]
fn root_loads_no_library_that_others_can_change() {
    let Some(place) = Place::with_library() else { return };
    if !need(is_root(), "root") {
        return;
    }
    let run = |library: &Path| {
        place.command(&["--pages", "base", "--library", library.to_str().unwrap(), "--", "true"]).output().unwrap()
    };
    let library = place.path("libhugewise-layout.so");
    assert!(run(&library).status.success());
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&library, 0o777);
    assert_eq!(run(&library).status.code(), Some(125), "others may write it");
    set(&library, 0o755);
    std::os::unix::fs::chown(&library, Some(65534), None).unwrap();
    assert_eq!(run(&library).status.code(), Some(125), "it is another account's");
    std::os::unix::fs::chown(&library, Some(0), None).unwrap();
    let open = place.path("open");
    fs::create_dir(&open).unwrap();
    fs::copy(&library, open.join("libhugewise-layout.so")).unwrap();
    set(&open, 0o777);
    assert_eq!(run(&open.join("libhugewise-layout.so")).status.code(), Some(125), "its folder is open to all");
    // A link to a fine one is fine: what is loaded is what it led to.
    symlink(&library, open.join("link.so")).unwrap();
    let done = place
        .command(&["--pages", "base", "--library", open.join("link.so").to_str().unwrap(), "--", "env"])
        .output()
        .unwrap();
    assert!(printed(&done).contains(&format!("LD_PRELOAD={}\n", library.canonicalize().unwrap().display())));
}

#[test]
fn the_library_must_be_one() {
    let Some(place) = Place::with_library() else { return };
    let run =
        |library: &Path| place.refused(&["--pages", "base", "--library", library.to_str().unwrap(), "--", "true"]);
    assert!(run(&place.path("nowhere.so")).1.contains("cannot be opened"));
    fs::create_dir(place.path("a b")).unwrap();
    fs::copy(place.path("libhugewise-layout.so"), place.path("a b/libhugewise-layout.so")).unwrap();
    assert!(run(&place.path("a b/libhugewise-layout.so")).1.contains("a blank or a colon"));
    fs::create_dir(place.path("text")).unwrap();
    fs::write(place.path("text/libhugewise-layout.so"), "no library").unwrap();
    assert!(run(&place.path("text/libhugewise-layout.so")).1.contains("no shared library"));
    fs::remove_file(place.path("libhugewise-layout.so")).unwrap();
    let (code, said) = place.refused(&["--pages", "base", "true"]);
    assert!(code == Some(125) && said.contains("not beside this program"), "{said}");
    // In an installation it is beside the folder of programs.
    fs::create_dir_all(place.path("bin")).unwrap();
    fs::create_dir_all(place.path("share/hugewise")).unwrap();
    fs::copy(place.path("a b/libhugewise-layout.so"), place.path("share/hugewise/libhugewise-layout.so")).unwrap();
    fs::rename(place.path("hugewise-exec"), place.path("bin/hugewise-exec")).unwrap();
    let done = Command::new(place.path("bin/hugewise-exec")).args(["--pages", "base", "true"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_check_starts_nothing() {
    let Some(place) = Place::with_library() else { return };
    let mark = place.path("mark");
    let words = ["--pages", "base", "--check", "--", "touch", mark.to_str().unwrap()];
    assert!(place.command(&words).status().unwrap().success());
    assert!(!mark.exists());
    let report = place.path("report");
    let words = ["--pages", "base", "--report", report.to_str().unwrap(), "--check", "--", "true"];
    assert!(place.command(&words).status().unwrap().success());
    assert!(!report.exists());
}

#[test]
fn help_and_version() {
    let place = Place::new();
    assert!(place.out(&["--help"]).contains("Usage: hugewise-exec"));
    assert_eq!(place.out(&["--version"]), concat!("hugewise-exec ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(place.out(&["--help"]).lines().all(|line| line.chars().count() <= 120));
}
