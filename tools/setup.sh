#!/bin/sh
# Set up .venv from hash-pinned wheels and build the Rust probe into it. Everything stays inside the project's folder.
# uv does not read pip's configuration, so what pip knows of index, mirror and certificate is handed on.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
RUST_MIN=1.88

need() { echo "hugewise: $1" >&2; exit 1; }
say() { printf 'setup: %s\n' "$1" >&2; }

command -v "$PYTHON" >/dev/null || need "$PYTHON not found: apt install python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || need "$PYTHON is older than 3.11: name a newer one, as in PYTHON=python3.12 make"
command -v cargo >/dev/null || need "cargo not found: install Rust $RUST_MIN or newer (https://rustup.rs), then open a new shell"
rust=$(cargo --version | cut -d' ' -f2)
[ "$(printf '%s\n%s\n' "$RUST_MIN" "$rust" | sort -V | head -n1)" = "$RUST_MIN" ] || need "cargo $rust is older than $RUST_MIN: run rustup update"
command -v cc >/dev/null || need "no C linker (cc) found, which Rust needs: apt install gcc"

if command -v uv >/dev/null; then uv=uv; else
  uv=.tools/bin/uv
  if [ ! -x "$uv" ]; then
    "$PYTHON" -m pip --version >/dev/null 2>&1 || need "pip not found: apt install python3-pip"
    say "fetching uv into .tools"
    "$PYTHON" -m pip install -q --disable-pip-version-check --root-user-action=ignore --target .tools uv
  fi
fi
conf=$("$PYTHON" -m pip config list 2>/dev/null | tr -d "'" || true)
known() { printf '%s\n' "$conf" | sed -n "s/^[^=]*\.$1=//p" | head -n1; }
hand() { [ -z "$2" ] || export "$1=$2"; }
hand UV_DEFAULT_INDEX "${UV_DEFAULT_INDEX:-$(known index-url)}"
hand UV_FIND_LINKS "${UV_FIND_LINKS:-$(known find-links)}"
hand SSL_CERT_FILE "${SSL_CERT_FILE:-$(known cert)}"

say "installing the locked packages into .venv"
"$uv" venv -q --allow-existing --python "$PYTHON" .venv
# sync removes what the lock does not name, the two packages of this project included: so it comes first.
"$uv" pip sync -q --python .venv --require-hashes requirements.lock
say "building the probe (Rust)"
"$uv" pip install -q --python .venv --no-deps --no-build-isolation -e . ./probe
say "ready: .venv/bin/hugewise"
