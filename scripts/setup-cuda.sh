#!/usr/bin/env bash
# Makes a Python environment for the `cuda` preset: LibTorch with CUDA, the headers it includes, and
# nvcc. No GPU needed.
#
#   scripts/setup-cuda.sh          what compiling and linking needs (about 2.5 GB)
#   scripts/setup-cuda.sh --run    all that running on a GPU needs, too (several GB more)
#   TESSERA_CUDA_TORCH=VERSION     of this release of torch; default: 2.11.0
#   TESSERA_CUDA_VENV=DIR          make it there; default: .venv-cuda
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=${TESSERA_CUDA_VENV:-.venv-cuda}
# Exactly that, and no +cpu build of it.
readonly TORCH=torch===${TESSERA_CUDA_TORCH:-2.11.0}

# Of what torch pins, what is compiled and linked against; and the compiler of the same toolkit.
build_packages() {
  "$VENV/bin/python" - <<'PY'
import importlib.metadata
import re

PARTS = "cccl,cublas,crt,cudart,cusolver,cusparse,nvcc,nvvm"
for requirement in importlib.metadata.requires("torch"):
    package = re.sub(r"\s|;.*", "", requirement)
    if package.startswith("nvidia-nccl"):
        print(package)
    if toolkit := re.match(r"cuda-toolkit(\[.*\])?(==[\d.]+)", package):
        print(f"cuda-toolkit[{PARTS}]{toolkit[2]}")
PY
}

[[ -x $VENV/bin/pip ]] || python3 -m venv "$VENV"
if [[ ${1:-} == --run ]]; then
  "$VENV/bin/pip" install --quiet "$TORCH"
else
  "$VENV/bin/pip" install --quiet --no-deps "$TORCH"
fi
mapfile -t packages < <(build_packages)
[[ ${#packages[@]} -eq 2 ]] || {
  echo "setup-cuda: $TORCH pins other CUDA packages than expected: ${packages[*]}" >&2
  exit 1
}
"$VENV/bin/pip" install --quiet "${packages[@]}"
echo "setup-cuda: $VENV is ready; cmake --preset cuda"
