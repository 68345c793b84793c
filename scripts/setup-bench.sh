#!/usr/bin/env bash
# Makes .venv-bench: TRL and what it needs, on top of the torch of .venv. Costs nothing when done.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-bench REQUIREMENTS=tests/parity/requirements.txt
readonly STAMP=$VENV/.setup-stamp
wanted=$(cat "$0" scripts/requirements.txt $REQUIREMENTS | sha256sum)
if [[ -f $STAMP && $(<$STAMP) == "$wanted" ]]; then
  exit
fi
rm -rf $VENV
python3 -m venv $VENV
# pip counts what it finds there as installed.
(cd .venv/lib/python3*/site-packages && pwd) >"$(echo $VENV/lib/python3*/site-packages)/base.pth"
$VENV/bin/pip install --quiet --requirement $REQUIREMENTS
printf '%s\n' "$wanted" >$STAMP
