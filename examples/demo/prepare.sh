#!/usr/bin/env bash
# Makes demo/data and demo/model, unless they are there already: a corpus, a tokenizer, and a model
# of random weights.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=examples/demo PYTHON=.venv/bin/python STAMP=demo/.prepared
export TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1

# They depend on these scripts alone, and on the packages that the scripts use.
wanted=$(cat $HERE/make_*.py scripts/requirements.txt | sha256sum)
if [[ -f $STAMP && $(<$STAMP) == "$wanted" ]]; then
  exit
fi
rm -rf demo/data demo/model
mkdir -p demo
$PYTHON $HERE/make_corpus.py demo/data
$PYTHON $HERE/make_tokenizer.py demo/data/vocabulary.jsonl demo/model
$PYTHON $HERE/make_model.py demo/model
printf '%s\n' "$wanted" >$STAMP
