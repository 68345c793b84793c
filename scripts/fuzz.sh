#!/usr/bin/env bash
# Runs fuzzers that the `fuzz` preset built, one after the other, and says what each found.
#
#   scripts/fuzz.sh BUILD_DIR SECONDS [TARGET...]
#
# Inputs that reach something new are kept in BUILD_DIR/fuzz/corpus/TARGET, for the next run; those
# that end the process, hang it or leak in BUILD_DIR/fuzz/found. Such a one becomes a seed, in
# tests/fuzz/corpus/TARGET, with the change that mends it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly build=$1 seconds=$2
shift 2

targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  for program in "$build"/tests/fuzz_*; do
    targets+=("${program##*/fuzz_}")
  done
fi

ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-16 || true)
export ASAN_SYMBOLIZER_PATH
export UBSAN_OPTIONS=print_stacktrace=1
export ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1

failed=()
for target in "${targets[@]}"; do
  kept=$build/fuzz/corpus/$target
  found=$build/fuzz/found
  log=$build/fuzz/$target.log
  mkdir -p "$kept" "$found"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=3072 -max_len=65536
    -artifact_prefix="$found/$target-" -print_final_stats=1)
  dictionary=tests/fuzz/dictionaries/$target.dict
  [[ ! -f $dictionary ]] || options+=(-dict="$dictionary")
  if "$build/tests/fuzz_$target" "${options[@]}" "$kept" "tests/fuzz/corpus/$target" >"$log" 2>&1
  then
    printf '%-16s %s inputs\n' "$target" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  else
    printf '%-16s FOUND, see %s\n' "$target" "$log"
    failed+=("$target")
  fi
done
[[ ${#failed[@]} -eq 0 ]]
