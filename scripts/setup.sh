#!/usr/bin/env bash
# Installs what the build needs: packages of the system, a .venv with the torch wheel, and the
# dashboard's packages.
#
# Debian 12 and Ubuntu 24.04, as root or with sudo. A run that would change nothing ends at once:
# a stamp holds the hash of everything the result depends on.
#   TESSERA_TORCH=DIR   build against this LibTorch (or installed torch package) instead of a wheel
#   TESSERA_SKIP_APT=1  install no system packages; say which are missing
set -euo pipefail
cd "$(dirname "$0")/.."

# The one list of system packages. grpc and protobuf must come from the same distribution.
readonly APT_PACKAGES=(
  build-essential ca-certificates ccache cmake git ninja-build pkg-config
  python3 python3-venv
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libcli11-dev libcpp-httplib-dev libspdlog-dev libsqlite3-dev libsqlitecpp-dev
  libyaml-cpp-dev nlohmann-json3-dev prometheus-cpp-dev
  libgloo-dev libpcre2-dev libpq-dev libsimdjson-dev libssl-dev libutf8proc-dev libxxhash-dev
  json-schema-test-suite libbenchmark-dev libgmock-dev libgtest-dev librapidcheck-dev
  iproute2 munge nftables postgresql shellcheck slurm-client slurmctld slurmd systemd
)

readonly VENV=.venv
readonly STAMP=$VENV/.setup-stamp

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

say() { printf 'setup: %s\n' "$*"; }

torch_is_there() {
  if [[ -n ${TESSERA_TORCH:-} ]]; then
    [[ -f $TESSERA_TORCH/share/cmake/Torch/TorchConfig.cmake ]]
  else
    compgen -G "$VENV/lib/python3*/site-packages/torch/share/cmake/Torch/TorchConfig.cmake" \
      >/dev/null
  fi
}

fingerprint() {
  {
    cat "$0" scripts/requirements.txt client/web/package-lock.json
    sed -n -e '/^ID=/p' -e '/^VERSION_ID=/p' /etc/os-release
    printf 'torch=%s\n' "${TESSERA_TORCH:-}"
  } | sha256sum | cut -d ' ' -f 1
}

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      printf '%s\n' "$package"
  done
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  else
    sudo "$@"
  fi
}

# Quiet; what went wrong is on standard error.
apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

install_system_packages() {
  local missing
  mapfile -t missing < <(missing_packages "${APT_PACKAGES[@]}")
  local linker
  linker=$(command -v mold || command -v ld.lld || true)
  if [[ ${#missing[@]} -eq 0 && -n $linker ]]; then
    return
  fi
  if [[ -n ${TESSERA_SKIP_APT:-} ]]; then
    [[ ${#missing[@]} -eq 0 ]] || die "these packages are missing: ${missing[*]}"
    return
  fi
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    die "not root and no sudo. Ask an administrator to run: apt-get install ${missing[*]} mold"
  fi

  say "installing ${#missing[@]} system packages and what they need"
  apt_get update || die "apt-get update failed. Setting up needs the network once; see above."
  if [[ ${#missing[@]} -gt 0 ]]; then
    apt_get install -y --no-install-recommends "${missing[@]}" ||
      die "apt-get install failed; see above. On Ubuntu the 'universe' component must be enabled."
  fi
  if [[ -z $linker ]]; then
    apt_get install -y --no-install-recommends mold ||
      apt_get install -y --no-install-recommends lld ||
      say "neither mold nor lld could be installed: linking will be slower"
  fi
}

# The dashboard is tested in a browser. Ubuntu has Chromium as a snap only: there, as where it
# cannot be installed, these tests take the browser that is there, or say that they were skipped.
install_browser() {
  if [[ $1 != debian || -n ${TESSERA_SKIP_APT:-} || -z $(missing_packages chromium) ]]; then
    return
  fi
  say "installing Chromium for the tests of the dashboard"
  { apt_get update && apt_get install -y --no-install-recommends chromium; } ||
    say "Chromium could not be installed: the tests of the dashboard in a browser are skipped"
}

install_python_packages() {
  # A .venv whose interpreter has gone (an upgraded system) is made anew.
  if ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      die "Python 3.11 or newer is needed"
    python3 -m venv --clear "$VENV" || die "python3 -m venv failed; is python3-venv installed?"
  fi

  local requirements=$VENV/.requirements.txt
  cp scripts/requirements.txt "$requirements"
  if [[ -n ${TESSERA_TORCH:-} ]]; then
    sed -i '/^torch==/d' "$requirements"
    link_torch_package
  fi
  scripts/setup-prometheus.sh "$VENV/bin"
  say "installing Python packages into $VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" ||
    die "pip install failed; see above. It needs the network, or a mirror in pip's settings."
}

# Where TESSERA_TORCH is a Python package and not a bare LibTorch, the demo's scripts can import
# it too.
link_torch_package() {
  local site
  site=$(echo "$VENV"/lib/python3*/site-packages)
  rm -f "$site/tessera_torch.pth"
  if [[ -f $TESSERA_TORCH/__init__.py ]]; then
    (cd "$TESSERA_TORCH/.." && pwd) >"$site/tessera_torch.pth"
  fi
}

main() {
  if [[ -n ${TESSERA_TORCH:-} ]] && ! torch_is_there; then
    die "TESSERA_TORCH=$TESSERA_TORCH has no share/cmake/Torch/TorchConfig.cmake"
  fi
  local wanted
  wanted=$(fingerprint)
  if [[ -f $STAMP && $(<"$STAMP") == "$wanted" && -x $VENV/bin/python ]] && torch_is_there; then
    return
  fi

  [[ -f /etc/os-release ]] || die "this is not Debian or Ubuntu"
  # shellcheck source=/dev/null
  . /etc/os-release
  case "${ID:-}-${VERSION_ID:-}" in
    debian-12 | ubuntu-24.04) ;;
    *) say "untested on ${PRETTY_NAME:-this system}: Debian 12 and Ubuntu 24.04 are supported" ;;
  esac
  command -v apt-get >/dev/null || die "apt-get is needed; this is ${PRETTY_NAME:-another system}"

  install_system_packages
  install_browser "${ID:-}"
  install_python_packages
  scripts/web.sh install
  torch_is_there || die "the torch package in $VENV has no TorchConfig.cmake"
  printf '%s\n' "$wanted" >"$STAMP"
  say "done"
}

main "$@"
