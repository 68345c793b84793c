#!/usr/bin/env bash
# Makes .venv-cuda for the `cuda` preset: LibTorch with CUDA, and the headers it includes. No nvcc,
# no GPU needed.
#
#   scripts/setup-cuda.sh          what compiling and linking needs (about 2.5 GB)
#   scripts/setup-cuda.sh --run    all that running on a GPU needs, too (several GB more)
#   TESSERA_CUDA_VENV=DIR          make it there
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=${TESSERA_CUDA_VENV:-.venv-cuda}
readonly TORCH=torch==2.11.0
# As torch 2.11.0 pins them.
readonly BUILD_PACKAGES=(
  nvidia-nccl-cu13==2.28.9
  'cuda-toolkit[cccl,cublas,crt,cudart,cusolver,cusparse]==13.0.2'
)

[[ -x $VENV/bin/pip ]] || python3 -m venv "$VENV"
if [[ ${1:-} == --run ]]; then
  "$VENV/bin/pip" install --quiet "$TORCH" "${BUILD_PACKAGES[@]}"
else
  "$VENV/bin/pip" install --quiet --no-deps "$TORCH"
  "$VENV/bin/pip" install --quiet "${BUILD_PACKAGES[@]}"
fi
echo "setup-cuda: $VENV is ready; cmake --preset cuda"
