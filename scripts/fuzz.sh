#!/usr/bin/env bash
# Runs fuzzers that the `fuzz` preset built, one after the other, and ends with a table: inputs
# that were tried, how many a second, edges of the code that they reach, inputs that reached
# something new, memory, and what was found.
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

# The last value of what libFuzzer tells in a log, as in "cov: 312" and "stat::peak_rss_mb: 80".
last() { grep -oE "$1:? +[0-9]+" "$2" | tail -n 1 | grep -oE '[0-9]+$' || echo -; }

# A line of the table: of a target, its log and what became of it.
row() {
  printf '%-16s %10s %10s %8s %8s %8s  %s\n' "$1" \
    "$(last stat::number_of_executed_units "$2")" "$(last stat::average_exec_per_sec "$2")" \
    "$(last cov "$2")" "$(last stat::new_units_added "$2")" "$(last stat::peak_rss_mb "$2")" "$3"
}

failed=() rows=()
for target in "${targets[@]}"; do
  kept=$build/fuzz/corpus/$target
  found=$build/fuzz/found
  log=$build/fuzz/$target.log
  mkdir -p "$kept" "$found"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=3072 -max_len=65536
    -artifact_prefix="$found/$target-" -print_final_stats=1)
  dictionary=tests/fuzz/dictionaries/$target.dict
  [[ ! -f $dictionary ]] || options+=(-dict="$dictionary")
  echo "$target: $seconds s"
  if "$build/tests/fuzz_$target" "${options[@]}" "$kept" "tests/fuzz/corpus/$target" >"$log" 2>&1
  then
    rows+=("$(row "$target" "$log" ok)")
  else
    rows+=("$(row "$target" "$log" "FOUND, see $log")")
    failed+=("$target")
  fi
done

echo
printf '%-16s %10s %10s %8s %8s %8s\n' target inputs 'a second' edges new MiB
printf '%s\n' "${rows[@]}"
echo "${#targets[@]} targets, ${#failed[@]} with findings${failed[*]:+: ${failed[*]}}"
[[ ${#failed[@]} -eq 0 ]]
