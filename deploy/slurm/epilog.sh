#!/usr/bin/env bash
# Slurm epilog: ends what a job has left of tessera on the node, and deletes its agent's state.
#
# Set in slurm.conf as Epilog=. A process is the job's when it is one of tessera's programs and has
# the job's number in its environment; others, of other jobs or of a service, are left alone. The
# state is what an agent was given as --state-dir /tmp/tessera-$SLURM_JOB_ID.
#   TESSERA_GRACE_SECONDS   from SIGTERM to SIGKILL (default 10)
set -euo pipefail

readonly GRACE_SECONDS=${TESSERA_GRACE_SECONDS:-10}
readonly STATE=${TMPDIR:-/tmp}/tessera-${SLURM_JOB_ID:?}

say() { printf 'tessera epilog: job %s: %s\n' "$SLURM_JOB_ID" "$*" >&2; }

# Numbers of the job's processes. One that ends while it is looked at is none of them.
leftovers() {
  local entry program
  while read -r entry program; do
    program=${program##*/}
    program=${program% (deleted)}
    [[ $program == tessera-* || $program == tesserad ]] || continue
    tr '\0' '\n' 2>/dev/null <"$entry/environ" | grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
    echo "${entry#/proc/}"
  done < <(find /proc/[0-9]*/exe -maxdepth 0 -printf '%h %l\n' 2>/dev/null)
}

signal_leftovers() {
  local pids
  mapfile -t pids < <(leftovers)
  [[ ${#pids[@]} -gt 0 ]] || return 1
  say "SIG$1 to ${pids[*]}"
  kill -s "$1" "${pids[@]}" 2>/dev/null || true
}

end_leftovers() {
  local deadline
  signal_leftovers TERM || return 0
  deadline=$((SECONDS + GRACE_SECONDS))
  while [[ -n $(leftovers) && $SECONDS -lt $deadline ]]; do sleep 0.2; done
  signal_leftovers KILL || true
}

# As the job's user: root would follow whatever that user has put there.
delete_state() {
  [[ -d $STATE && ! -L $STATE ]] || return 0
  if [[ $EUID -eq 0 ]]; then
    setpriv --reuid="${SLURM_JOB_UID:?}" --clear-groups rm -rf --one-file-system -- "$STATE"
  else
    rm -rf --one-file-system -- "$STATE"
  fi
}

end_leftovers
# Not the node's fault, and no reason to drain it.
delete_state || say "$STATE could not be deleted"
