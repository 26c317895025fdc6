#!/bin/sh
# Set up .venv from hash-pinned wheels and build the Rust programs into it, by their own lock. What is fetched stays inside the project's folder.
# WHEEL names one of this project to install instead of a build.
# Packages of the system that this needs are installed by root with apt; anybody else is given the line for that.
# uv does not read pip's configuration, so what pip knows of index, mirror and certificate is handed on.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
RUST_MIN=1.88

need() { echo "hugewise: $1" >&2; exit 1; }
say() { printf 'setup: %s\n' "$1" >&2; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1)" = "$1" ]; } # MINIMUM VERSION
has() { command -v "$1" >/dev/null; }

rust() { cargo --version 2>/dev/null | cut -d' ' -f2; }
has_rust() { has cargo && at_least "$RUST_MIN" "$(rust)"; }
has_uv() { has uv || cmp -s tools/uv.txt .tools/uv.txt; }
has_certificates() { [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ]; }

# The packages of Debian that are missing, in one line. Debian 12 has a new cargo by another name, for browsers.
lacking() {
  has "$PYTHON" || echo python3
  has_uv || { has "$PYTHON" && "$PYTHON" -m pip --version >/dev/null 2>&1; } || echo python3-pip
  has_certificates || echo ca-certificates
  has cc || echo gcc libc6-dev
  has_rust || has rustup || new_cargo
}
candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9.]*\).*/\1/p'; }
new_cargo() {
  for name in cargo cargo-web; do
    if at_least "$RUST_MIN" "$(candidate "$name")"; then echo "$name"; return; fi
  done
  [ -n "$(candidate cargo)" ] || echo cargo-web # nothing is known before the first apt update
}

if has apt-get && [ -e /etc/debian_version ]; then
  if [ "$(id -u)" = 0 ] && [ -n "$(lacking)" ]; then
    apt-get -q update >&2
    missing=$(lacking | tr '\n' ' ')
    say "installing with apt: $missing"
    # shellcheck disable=SC2086  # a list of names; nothing that is installed is removed for them
    [ -z "$missing" ] || DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends --no-remove install $missing >&2 ||
      need "apt did not install them, or only by removing others (an older cargo): by hand, apt install ${missing% }; or Rust from https://rustup.rs"
  fi
  missing=$(lacking | tr '\n' ' ')
  [ -z "$missing" ] || need "packages are missing: sudo apt update && sudo apt install ${missing% }"
fi

has "$PYTHON" || need "$PYTHON not found: install Python 3.11 or newer"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || need "$PYTHON is older than 3.11: name a newer one, as in PYTHON=python3.12 make"
has cargo || need "cargo not found: install Rust $RUST_MIN or newer (https://rustup.rs), then open a new shell"
has_rust || need "cargo $(rust) is older than $RUST_MIN: run rustup update, or install Rust from https://rustup.rs"
has cc || need "no C linker (cc) found, which Rust needs: install gcc"
has_uv || "$PYTHON" -m pip --version >/dev/null 2>&1 || need "$PYTHON has no pip: install it, or uv"

if has uv; then uv=uv; else
  uv=.tools/bin/uv
  if ! has_uv; then
    say "fetching uv into .tools"
    rm -rf .tools
    "$PYTHON" -m pip install -q --disable-pip-version-check --root-user-action=ignore \
      --require-hashes --only-binary :all: --target .tools -r tools/uv.txt
    cp tools/uv.txt .tools/
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
# Wheels alone: a source would be built by what nothing pins.
# Compiled once: where Python may write no bytecode, each start would compile scipy anew, for seconds.
"$uv" pip sync -q --compile-bytecode --python .venv --require-hashes --only-binary :all: requirements.lock
if [ -n "${WHEEL:-}" ]; then
  say "installing $WHEEL, which has all that is built"
  "$uv" pip install -q --python .venv --no-deps "$WHEEL"
else
  "$uv" pip install -q --python .venv --no-deps --no-build-isolation -e .
  say "building the probe, the launcher and the layout library (Rust)"
  if [ "$(uname -m)" = x86_64 ]; then
    # Guests and wheels have the same static probe, so that it is compiled once.
    tools/guest-probe.sh .venv/share/hugewise x86-64
    built=.venv/share/hugewise/probe-x86-64
  else
    cargo build --locked --quiet --release --manifest-path probe/Cargo.toml -p hugewise-probe
    built=probe/target/release/hugewise-probe
  fi
  cp "$built" .venv/bin/hugewise-probe.new
  mv .venv/bin/hugewise-probe.new .venv/bin/hugewise-probe
  tools/launcher.sh .venv
fi
say "ready: .venv/bin/hugewise"

# The outermost folder on the way to FILE, and to where its links lead, that other accounts may not enter.
barrier() {
  at=$1
  while :; do
    closed='' up=$(dirname "$at")
    while [ "$up" != / ]; do
      case $(stat -L -c %A "$up") in *[xt]) ;; *) closed=$up ;; esac
      up=$(dirname "$up")
    done
    if [ -n "$closed" ]; then echo "$closed"; return; fi
    [ -L "$at" ] || return 0
    to=$(readlink "$at")
    case $to in /*) at=$to ;; *) at=$(dirname "$at")/$to ;; esac
  done
}
if [ "$(id -u)" = 0 ]; then
  here=$(barrier "$PWD/.venv")
  closed=$(barrier "$PWD/.venv/bin/python")
  if [ -n "$here" ]; then
    say "only root can run it: other accounts may not enter $here"
    say "  cure, where they should: set it up in a checkout that they can reach"
  elif [ -n "$closed" ]; then
    say "only root can run it: its Python ($(readlink -f .venv/bin/python)) is in $closed, which other accounts may not enter"
    say "  cure, where they should: rm -r .venv && PYTHON=/usr/bin/python3 make setup"
  fi
fi
