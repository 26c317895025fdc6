#!/bin/sh
# Build the launcher and the layout library, which need no library where they run, and the plugin of QEMU, which needs
# the C library of this machine, into a folder as installations have it.
#   tools/launcher.sh [FOLDER]   FOLDER/bin/hugewise-exec and, in FOLDER/share/hugewise, libhugewise-layout.so and
#                                libhugewise-trace.so
# The target folder is one of its own, so that the ordinary build stays as it is.
set -eu
cd "$(dirname "$0")/.."
to=${1:-.venv}
built=probe/target/launcher

cargo build --locked --quiet --release --manifest-path probe/Cargo.toml --target-dir "$built" \
  -p hugewise-exec -p hugewise-layout -p hugewise-trace
mkdir -p "$to/bin" "$to/share/hugewise"

# One that runs at this moment stays as it is.
place() {
  cp "$built/release/$1" "$to/$2.new"
  chmod "$3" "$to/$2.new"
  mv "$to/$2.new" "$to/$2"
}
place hugewise-exec bin/hugewise-exec 755
place libhugewise_layout.so share/hugewise/libhugewise-layout.so 644
place libhugewise_trace.so share/hugewise/libhugewise-trace.so 644
