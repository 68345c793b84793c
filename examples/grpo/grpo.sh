#!/usr/bin/env bash
# Teaches a small model to add by GRPO: makes the model, shows it the format by supervised
# fine-tuning, then rewards right answers. Everything it writes is under grpo/.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '\n== %s\n' "$*"; }

say "Build"
scripts/build.sh release tesserad tessera-agent tessera-trainer tessera

say "Model and data, in grpo/"
rm -rf grpo
TRANSFORMERS_VERBOSITY=error .venv/bin/python examples/grpo/make_assets.py grpo
cp examples/grpo/*.yaml grpo/

readonly -a TESSERA=(build/bin/tessera --state-dir grpo/state)
for job in format grpo; do
  say "Train: ${TESSERA[*]} run grpo/$job.yaml --events grpo/$job-events.jsonl"
  trap '"${TESSERA[@]}" cancel "$job"; exit 130' INT TERM
  "${TESSERA[@]}" run "grpo/$job.yaml" --events "grpo/$job-events.jsonl"
  trap - INT TERM
done

say "Curve: grpo/curve.svg"
.venv/bin/python examples/grpo/plot_curve.py grpo/grpo-events.jsonl grpo/curve.svg
