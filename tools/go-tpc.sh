#!/bin/sh
# Build go-tpc, the TPC-C client of the workload `tpcc`, beside hugewise's own Python: .venv/bin/go-tpc.
# Its version is pinned in tools/go-tpc/go.mod, and every source is checked against tools/go-tpc/go.sum.
set -eu
cd "$(dirname "$0")/.."
GO_MIN=1.21

need() { echo "hugewise: $1" >&2; exit 1; }

command -v go >/dev/null || need "go not found: apt install golang-go (version $GO_MIN or newer), or https://go.dev/dl"
go=$(go env GOVERSION | sed 's/^go//')
[ "$(printf '%s\n%s\n' "$GO_MIN" "$go" | sort -V | head -n1)" = "$GO_MIN" ] ||
  need "go $go is older than $GO_MIN: install a newer one (Debian 12: apt install -t bookworm-backports golang-go)"

echo "setup: building go-tpc (a minute)" >&2
to=$PWD/.venv/bin/go-tpc
(cd tools/go-tpc && go build -mod=readonly -trimpath -buildvcs=false -o "$to" github.com/pingcap/go-tpc/cmd/go-tpc) ||
  need "go-tpc was not built: the module proxy must be reachable (go env GOPROXY), and its sources must match go.sum"
echo "setup: ready: .venv/bin/go-tpc" >&2
