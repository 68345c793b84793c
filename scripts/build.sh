#!/usr/bin/env bash
# Configures a CMake preset where that is needed, and builds it.
#
#   scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

# Paths in the cache are relative to the checkout: a fresh clone finds what another compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

preset=$1
shift
case $preset in
  release) folder=build ;;
  *) folder=build/$preset ;;
esac

# The cuda preset finds its own, in .venv-cuda.
torch=()
if [[ $preset != cuda ]]; then
  torch=(-DTorch_DIR:PATH="$(scripts/torch-dir.sh)")
fi
if [[ ! -f $folder/build.ninja ]] ||
  ! grep -qsxF -- "${torch[*]#-D}" "$folder/CMakeCache.txt"; then
  cmake --preset "$preset" "${torch[@]}"
fi
cmake --build "$folder" --parallel "$(scripts/jobs.sh)" ${1:+--target "$@"}
