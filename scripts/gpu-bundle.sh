#!/usr/bin/env bash
# Packs build/tessera-gpu.tar.gz: the trainer with CUDA, for machines that have a torch wheel and
# nothing else of what it links, and docs/gpu-checklist.md as one command.
#
#   scripts/gpu-bundle.sh [VERSION...]   for these releases of torch; default: 2.11.0 2.13.0
set -euo pipefail
cd "$(dirname "$0")/.."

versions=("$@")
[[ ${#versions[@]} -gt 0 ]] || versions=(2.11.0 2.13.0)
programs=()
for version in "${versions[@]}"; do
  venv=.venv-cuda-$version build=build/cuda-$version
  TESSERA_CUDA_TORCH=$version TESSERA_CUDA_VENV=$venv scripts/setup-cuda.sh
  torch=$(echo "$PWD/$venv"/lib/python3*/site-packages/torch/share/cmake/Torch)
  cmake --preset cuda -B "$build" -DTorch_DIR:PATH="$torch"
  cmake --build "$build" --parallel "$(scripts/jobs.sh)" \
    --target tessera-trainer engine_benchmark cuda_kernels_test
  programs+=("${version%.*}=$build/bin")
done
.venv/bin/python -B scripts/pack_gpu_bundle.py --out build/tessera-gpu.tar.gz "${programs[@]}"
