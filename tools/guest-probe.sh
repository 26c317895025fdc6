#!/bin/sh
# Build the probe as a program that needs no library: for this machine, for wheels, and for guests, whose image holds
# nothing else.
#   tools/guest-probe.sh [FOLDER [x86-64]]   FOLDER/probe-x86-64 and, where Rust has the target, FOLDER/probe-arm64;
#                                            with x86-64 the first alone
# The target folder is one of its own, so that the ordinary build stays as it is.
set -eu
cd "$(dirname "$0")/.."
to=${1:-.venv/share/hugewise}
only=${2:-}
built=probe/target/guest

need() { echo "hugewise: $1" >&2; }

# target, name, and what the build needs besides
build() {
  echo "setup: building the static probe for $2" >&2
  cargo build --locked --quiet --release --manifest-path probe/Cargo.toml -p hugewise-probe --target "$1" --target-dir "$built"
  mkdir -p "$to"
  cp "$built/$1/release/hugewise-probe" "$to/.probe-$2"
  mv "$to/.probe-$2" "$to/probe-$2"
}

export CARGO_PROFILE_RELEASE_STRIP=symbols

# glibc linked in (crt-static), as libc6-dev has it: the same allocator as on the host.
if [ "$(uname -m)" = x86_64 ]; then
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' \
    build x86_64-unknown-linux-gnu x86-64
else
  need "x86-64 guests are built on x86-64 only"
fi

[ "$only" != x86-64 ] || exit 0

# musl comes with the Rust target, and so does the linker: no other package is needed.
arm=aarch64-unknown-linux-musl
has_arm() { [ -d "$(rustc --print sysroot)/lib/rustlib/$arm/lib" ]; }
# A build of a wheel takes Rust as it is.
[ $# -gt 0 ] || has_arm || { command -v rustup >/dev/null && rustup --quiet target add "$arm" >&2; } || true
if has_arm; then
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUSTFLAGS="-C relocation-model=static" \
    build "$arm" arm64
elif [ $# -eq 0 ]; then
  need "arm64 guests require the Rust target $arm, which could not be added: rustup target add $arm"
fi
