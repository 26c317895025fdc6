#!/bin/sh
# In a machine without compilers (tools/bare.sh wheel): the wheel of dist/ by pipx and by uv, and the demo by its name.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(echo "$root"/dist/*.whl)
cd "$(mktemp -d)" # no checkout and no studies here
export PATH="$PATH:$HOME/.local/bin"
say() { printf 'installed: %s\n' "$1" >&2; }
now() { cut -d. -f1 /proc/uptime; }

say "by pipx"
begun=$(now)
pipx install "$wheel[vm]"
hugewise --version
say "it took $(($(now) - begun)) s; the demo"
begun=$(now)
hugewise run demo
took=$(($(now) - begun))
say "the demo took $took s"
[ "$took" -le 300 ]
hugewise list studies >/dev/null
hugewise doctor redhat-2021-vm | grep "ok  *agent" # in the wheel, for guests of both architectures
hugewise doctor lpc-2024-base-pages | grep "ok  *agent"
pipx uninstall hugewise
[ ! -e "$HOME/.local/bin/hugewise" ]

say "by uv, of the version that the checkout pins"
python3 -m venv uv
uv/bin/pip install -q --require-hashes -r "$root/tools/uv.txt"
uv/bin/uv tool install -q --python /usr/bin/python3 "$wheel"
hugewise --version
hugewise run demo --blocks 3 --time 30s
say "done"
