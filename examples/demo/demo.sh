#!/usr/bin/env bash
# From nothing to a trained model: builds Tessera, makes a corpus, a tokenizer and a model of 26M
# parameters, trains it on two sharded ranks, and lets transformers check the result. Everything it
# writes is under demo/; what is there already is used again.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '\n== %s\n' "$*"; }

say "Build"
scripts/build.sh release tesserad tessera-agent tessera-trainer tessera

say "Corpus, tokenizer and model, in demo/"
examples/demo/prepare.sh

readonly -a TESSERA=(build/bin/tessera --state-dir demo/state)
say "Train: ${TESSERA[*]} run demo/sft-demo.yaml --events demo/events.jsonl"
rm -rf demo/out
cp examples/demo/sft-demo.yaml demo/
# A job survives its client; this one need not.
trap '"${TESSERA[@]}" cancel sft-demo; exit 130' INT TERM
"${TESSERA[@]}" run demo/sft-demo.yaml --events demo/events.jsonl
trap - INT TERM

say "Check demo/out/final with transformers"
TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 .venv/bin/python examples/demo/check_demo.py demo
