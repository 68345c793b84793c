#!/usr/bin/env bash
# Prints the folder of TorchConfig.cmake: that of TESSERA_TORCH, or of the wheel in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

shopt -s nullglob
if [[ -n ${TESSERA_TORCH:-} ]]; then
  candidates=("$TESSERA_TORCH/share/cmake/Torch")
else
  candidates=(.venv/lib/python3*/site-packages/torch/share/cmake/Torch)
fi
for candidate in "${candidates[@]}"; do
  if [[ -f $candidate/TorchConfig.cmake ]]; then
    (cd "$candidate" && pwd)
    exit
  fi
done
echo "torch-dir: no LibTorch in ${TESSERA_TORCH:-.venv}; run scripts/setup.sh" >&2
exit 1
