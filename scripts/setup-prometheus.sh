#!/usr/bin/env bash
# Puts prometheus and promtool, which tests run, into DIRECTORY where the system has none.
#
#   scripts/setup-prometheus.sh DIRECTORY
#
# Out of the distribution's package, which is unpacked and not installed: installing it would start
# a daemon on this machine.
set -euo pipefail

readonly DIRECTORY=$1
readonly PROGRAMS=(prometheus promtool)

are_there() {
  local program
  for program in "${PROGRAMS[@]}"; do
    [[ -x $DIRECTORY/$program ]] || command -v "$program" >/dev/null || return 1
  done
}

download() { (cd "$1" && apt-get -qq download prometheus) 2>/dev/null; }

update() {
  local sudo=()
  [[ $EUID -eq 0 ]] || sudo=(sudo)
  "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update
}

main() {
  ! are_there || return 0
  if [[ -n ${TESSERA_SKIP_APT:-} ]]; then
    echo "setup: prometheus and promtool are missing" >&2
    return 1
  fi
  echo "setup: unpacking Prometheus into $DIRECTORY"
  # Not local: the trap runs once main is left.
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  download "$folder" || { update && download "$folder"; }
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb |
    tar -x -C "$folder" "${PROGRAMS[@]/#/./usr/bin/}"
  install -m 0755 "${PROGRAMS[@]/#/$folder/usr/bin/}" "$DIRECTORY"
}

main
