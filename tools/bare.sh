#!/bin/bash
# The proof that a bare Debian 12 is enough: a root of bookworm and bookworm-security with make and git and nothing else
# (no Python, no certificates, no cargo, no compiler), and `make run` or another target in it.
#
#   tools/bare.sh [TARGET | -- COMMAND...]
#   tools/bare.sh wheel                      the root has pipx instead, and still no compiler: tools/installed.sh in it
#
# As root, on Debian 12 with mmdebstrap, and 5 GB below $TMPDIR (/var/tmp).
#
# The root gets the commit that is checked out here, and this machine's own settings of apt, pip and cargo, its
# certificates and proxies. Kernel and page settings are the machine's. Everything that mounts runs in a mount and a PID
# namespace of its own: mounts and processes end with this script however it ends. The folder stays if it is killed (9).
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "bare: $1" >&2; exit 1; }

packages=make,git command=(make "${1:-run}")
case ${1:-run} in
  --) command=("${@:2}") ;;
  wheel) packages=pipx,ca-certificates command=(tools/installed.sh) ;;
esac

if [ -z "${BARE_WORK:-}" ]; then # outside: the folder, and the namespaces
  [ "$(id -u)" = 0 ] || fail "mounting and chroot are root's: sudo tools/bare.sh"
  # shellcheck source=/dev/null
  [ "$(. /etc/os-release; echo "${VERSION_CODENAME:-}")" = bookworm ] || fail "this machine's sources of apt must be Debian 12's"
  command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: apt install mmdebstrap"
  [ "$packages" = make,git ] || compgen -G 'dist/*.whl' >/dev/null || fail "there is no wheel in dist: make wheel"
  BARE_WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/hugewise-bare.XXXXXX")
  export BARE_WORK
  chmod 711 "$BARE_WORK" # for the account that apt fetches as
  # A job of its own, so that it can be ended as a whole: what is asked to end puts the machine back first.
  set -m
  setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child "$0" "$@" &
  job=$!
  trap 'kill -TERM -- "-$job"' INT TERM HUP
  trap 'kill -KILL -- "-$job" 2>/dev/null || true; wait || true; rm -rf --one-file-system "$BARE_WORK"' EXIT
  code=128
  while [ "$code" -ge 128 ] && kill -0 "$job" 2>/dev/null; do code=0; wait "$job" || code=$?; done # a signal ends a wait
  echo "bare: ${command[*]} ended with status $code" >&2
  exit "$code"
fi

root=$BARE_WORK/root
mount -t proc proc /proc # of this namespace
cat >"$BARE_WORK/hand" <<'HOOK'
#!/bin/sh
set -eu
for each in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/preferences.d /etc/apt/auth.conf.d /etc/apt/auth.conf \
  /etc/apt/keyrings /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d /usr/share/keyrings /usr/local/share/ca-certificates \
  /etc/pip.conf "$HOME/.config/pip" "$HOME/.cargo/config.toml" "$HOME/.cargo/credentials.toml" /etc/hosts /etc/resolv.conf; do
  [ ! -e "$each" ] || { mkdir -p "$1${each%/*}"; cp -aL --remove-destination "$each" "$1${each%/*}/"; }
done
HOOK
chmod +x "$BARE_WORK/hand"
apt-config dump Acquire | grep -Ev '^Acquire(::(IndexTargets|cdrom|Changelogs|CompressionTypes).*)? ' >"$BARE_WORK/apt.conf"
# An empty suite: the sources are those of this machine.
mmdebstrap --quiet --mode=root --variant=apt --include="$packages" --aptopt="$BARE_WORK/apt.conf" \
  --setup-hook="$BARE_WORK/hand \"\$1\"" '' "$root" - </dev/null
unwanted=(usr/bin/cargo usr/bin/rustc usr/bin/cc usr/bin/gcc)
[ "$packages" != make,git ] || unwanted+=(usr/bin/python3 usr/bin/pip etc/ssl/certs/ca-certificates.crt)
for each in "${unwanted[@]}"; do [ ! -e "$root/$each" ] || fail "the root is not bare: it has /$each"; done
git clone -q --no-hardlinks . "$root/hugewise"
[ "$packages" = make,git ] || cp -a dist "$root/hugewise/"
echo "bare: ${command[*]} of $(git rev-parse --short HEAD), in a root of $(du -sm "$root" | cut -f1) MB with $(chroot "$root" dpkg-query -W | wc -l) packages" >&2

mount -t proc proc "$root/proc"
for each in sys dev; do mount --rbind "/$each" "$root/$each"; done
# What a killed run leaves turned is put back by this machine's hugewise: the journal is the machine's too.
mkdir -p /var/lib/hugewise "$root/var/lib/hugewise"
mount --bind /var/lib/hugewise "$root/var/lib/hugewise"

# The settings of the environment that name registries, proxies and certificates, and folders of wheels that pip is told.
for each in ${PIP_FIND_LINKS:-} ${UV_FIND_LINKS:-}; do
  [ ! -d "$each" ] || { mkdir -p "$root$each"; mount --bind -o ro "$each" "$root$each"; }
done
handed=()
while IFS= read -r -d '' each; do
  case ${each%%=*} in
    *_[pP][rR][oO][xX][yY] | SSL_CERT_* | *_CA_BUNDLE | PIP_* | UV_* | CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTR* | CARGO_SOURCE_* | GIT_SSL_* | GOPROXY | GOSUMDB)
      handed+=("$each") ;;
  esac
done < <(env -0)
# Not exec: as the first process of its namespace this shell takes in orphans, as init does.
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
  "${handed[@]}" chroot "$root" /bin/sh -c 'cd /hugewise && exec "$@"' sh "${command[@]}"
exit
