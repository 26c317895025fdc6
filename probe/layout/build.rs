//! The library is linked with nothing: what it calls of the C library is the program's, whatever version that is.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in ["-nostdlib", "-nostartfiles", "-Wl,-soname,libhugewise-layout.so", "-Wl,-z,relro,-z,now"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
