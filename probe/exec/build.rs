//! The launcher is linked with nothing: its first instruction is its own, and so it needs no library where it runs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,norelro"] {
        println!("cargo::rustc-link-arg-bin=hugewise-exec={argument}");
    }
}
