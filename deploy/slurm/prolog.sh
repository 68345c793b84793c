#!/usr/bin/env bash
# Slurm prolog: a node gets a job only when its GPUs answer, are whole, and are free.
#
# Set in slurm.conf as Prolog=. A non-zero exit drains the node and requeues the job, which is what
# is wanted of a broken device. Slurm gives the job's devices in SLURM_JOB_GPUS, by index.
#   TESSERA_MIN_FREE_MIB   space that NCCL needs in /dev/shm (default 1024)
set -euo pipefail

readonly MIN_FREE_MIB=${TESSERA_MIN_FREE_MIB:-1024}

die() {
  printf 'tessera prolog: %s\n' "$*" >&2
  exit 1
}

# Answers within a time: the driver of a lost device may not.
smi() { timeout 30 nvidia-smi --id="$1" --query-gpu="$2" --format=csv,noheader,nounits; }

check_gpu() {
  local gpu=$1 errors holders
  smi "$gpu" name >/dev/null || die "GPU $gpu does not answer"
  errors=$(smi "$gpu" ecc.errors.uncorrected.volatile.total) || die "GPU $gpu does not answer"
  # A device without ECC says "[N/A]".
  if [[ $errors =~ ^[0-9]+$ && $errors -gt 0 ]]; then
    die "GPU $gpu has $errors uncorrected memory errors"
  fi
  holders=$(timeout 30 nvidia-smi --id="$gpu" --query-compute-apps=pid --format=csv,noheader) ||
    die "GPU $gpu does not answer"
  [[ -z $holders ]] || die "GPU $gpu is held by processes ${holders//$'\n'/, }"
}

check_shared_memory() {
  local free_kib
  free_kib=$(df --output=avail -k /dev/shm | tail -n 1)
  ((free_kib >= MIN_FREE_MIB * 1024)) ||
    die "/dev/shm has $((free_kib / 1024)) MiB free; ranks need $MIN_FREE_MIB"
}

main() {
  local gpu gpus
  check_shared_memory
  [[ -n ${SLURM_JOB_GPUS:-} ]] || return 0
  command -v nvidia-smi >/dev/null || die "the job has GPUs and there is no nvidia-smi"
  IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
  for gpu in "${gpus[@]}"; do check_gpu "$gpu"; done
}

main "$@"
