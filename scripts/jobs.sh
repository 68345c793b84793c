#!/usr/bin/env bash
# Prints how many compilers to run at once: one a core, and no more than memory holds. A file that
# includes LibTorch takes about 1.5 GB.
set -euo pipefail

readonly KIB_A_JOB=$((1536 * 1024))
available_kib=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
jobs=$((available_kib / KIB_A_JOB))
cores=$(nproc)
jobs=$((jobs < cores ? jobs : cores))
echo $((jobs > 1 ? jobs : 1))
