#!/usr/bin/env bash
# Formats the tree, or checks it.
#
#   scripts/lint.sh format            clang-format and ruff, in place
#   scripts/lint.sh check [FILE...]   every check; clang-tidy on FILEs only, where given
#   scripts/lint.sh style             what needs no compilation (the pre-commit hook)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUF_VERSION=1.75.0
readonly TOOLS=.venv-lint/bin

install_tools() {
  local stamp=.venv-lint/.stamp wanted
  wanted=$(sha256sum <scripts/requirements-lint.txt)
  [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && return
  python3 -m venv --clear .venv-lint
  "$TOOLS/pip" install --quiet --disable-pip-version-check -r scripts/requirements-lint.txt
  printf '%s\n' "$wanted" >"$stamp"
}

tracked() { git ls-files --cached --others --exclude-standard -- "$@"; }
cxx_files() { tracked '*.cc' '*.h' '*.cu'; }

format() {
  cxx_files | xargs -r "$TOOLS/clang-format" -i
  "$TOOLS/ruff" format --quiet .
}

check_style() {
  cxx_files | xargs -r "$TOOLS/clang-format" --dry-run --Werror
  "$TOOLS/ruff" format --check --quiet .
  "$TOOLS/ruff" check --quiet .
  if command -v shellcheck >/dev/null; then
    { tracked '*.sh'; echo .ci/run; } | xargs shellcheck
  else
    echo "lint: no shellcheck (apt-get install shellcheck): shell scripts not checked" >&2
  fi
}

check_protos() {
  if command -v npx >/dev/null; then
    npx --yes "@bufbuild/buf@$BUF_VERSION" lint
  else
    echo "lint: no npx (apt-get install npm): protos not checked" >&2
  fi
}

# Needs build/compile_commands.json and the generated protobuf headers: `make build` comes first.
check_tidy() {
  local files=("$@")
  if [[ ${#files[@]} -eq 0 ]]; then
    mapfile -t files < <(tracked 'client/*.cc' 'proto/*.cc' 'server/*.cc' 'worker/*.cc')
  fi
  [[ -f build/compile_commands.json ]] || { echo "lint: run 'make build' first" >&2; exit 1; }
  # clang takes no header that GCC precompiled; flags of GCC that it does not know are no finding.
  mkdir -p build/clang
  sed 's/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//' build/compile_commands.json \
    >build/clang/compile_commands.json
  printf '%s\n' "${files[@]}" | xargs -P "$(scripts/jobs.sh)" -n 1 \
    "$TOOLS/clang-tidy" --quiet -p build/clang --extra-arg=-Wno-unknown-warning-option
}

install_tools
case ${1:-} in
  format) format ;;
  style) check_style ;;
  check)
    shift
    check_style
    check_protos
    check_tidy "$@"
    ;;
  *)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
