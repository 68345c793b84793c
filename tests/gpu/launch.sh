#!/usr/bin/env bash
# Runs the program that it is called by the name of, with the LibTorch that python3 imports.
#
#   TESSERA_PYTHON=PATH   take that Python's torch
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

# The release of torch, and the folders of what it and the programs are linked to. torch is not
# imported: that takes seconds.
mapfile -t torch < <("${TESSERA_PYTHON:-python3}" - <<'PY'
import importlib.util
import pathlib
import runpy
import sys

spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit(f"{sys.executable} has no torch; name a Python that has with TESSERA_PYTHON")
torch = pathlib.Path(spec.origin).parent
version = runpy.run_path(str(torch / "version.py"))["__version__"]
print(".".join(version.split(".")[:2]))
print(":".join(map(str, [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))])))
PY
)
[[ ${#torch[@]} -eq 2 ]] || exit 1
programs=$here/torch-${torch[0]}
if [[ ! -d $programs ]]; then
  built=("$here"/torch-*)
  echo "torch is ${torch[0]}; this bundle has programs for ${built[*]##*/torch-}" >&2
  exit 1
fi
export LD_LIBRARY_PATH=$here/lib:${torch[1]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$programs/$(basename "$0")" "$@"
