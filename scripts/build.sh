#!/usr/bin/env bash
# Configures a CMake preset where that is needed, and builds it.
#
#   scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
case $preset in
  release) folder=build ;;
  *) folder=build/$preset ;;
esac

torch_dir=$(scripts/torch_dir.sh)
if [[ ! -f $folder/build.ninja ]] ||
  ! grep -qsxF "Torch_DIR:PATH=$torch_dir" "$folder/CMakeCache.txt"; then
  cmake --preset "$preset" -DTorch_DIR:PATH="$torch_dir"
fi
cmake --build "$folder" --parallel "$(scripts/jobs.sh)" ${1:+--target "$@"}
