#!/usr/bin/env bash
# Installs what the fuzz preset takes beside scripts/setup.sh: clang with libFuzzer, of the same
# version on Debian 12 and Ubuntu 24.04.
set -euo pipefail

readonly PACKAGES=(clang-16 libclang-rt-16-dev llvm-16)

missing=()
for package in "${PACKAGES[@]}"; do
  dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
    missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

root=()
[[ $EUID -eq 0 ]] || root=(sudo)
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
  install -y --no-install-recommends "${missing[@]}" >/dev/null
