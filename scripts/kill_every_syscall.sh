#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills a process with SIGKILL at every system call of a save, and of the removal of an old checkpoint after
# it, on a real disk:
#
#   scripts/kill_every_syscall.sh [--async] [RANKS...]      # default: 1 2
#
# --async: saves in the background (use_async, wait_for_saves), while the ranks train on.
#
# strace (scripts/install_deps.sh strace) attaches when the program is about to save. It delivers the signal
# when a thread enters its K-th call of a kind, for K = 1, 2, ... until the program survives. Ranks are
# threads, and strace counts each thread's calls separately. Which thread is first differs from run to run, so
# with several ranks each K has three turns. After each kill:
#   - Every checkpoint must verify.
#   - The newest must be the acknowledged one or the one before it.
#   - No checkpoint may be missing, except the one that the save removes.
#   - The next save must resume from the newest, succeed, and leave nothing else behind.
mode=()
[[ "${1:-}" != --async ]] || { mode=(async) && shift; }
ranks=("$@")
((${#ranks[@]})) || ranks=(1 2)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
calls=(write pwrite64 fsync renameat2 rename unlinkat mkdir close openat)
command -v strace >/dev/null || {
  echo "kill_every_syscall: strace was not found; run scripts/install_deps.sh strace" >&2
  exit 1
}

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target save_once_program -j "$JOBS" >/dev/null
program="$PWD/build/release/tests/save_once_program"
export OMP_WAIT_POLICY=passive
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
trap '' PIPE  # a program that is killed early reads no input
cd "$work"
mkfifo input

lost=0
wrong() {
  lost=$((lost + 1))
  echo "WRONG: $*"
}

# save_traced RANKS CALL K: saves step 3 into `checkpoints`, and is killed at the K-th such call. Returns the
# program's exit code.
save_traced() {
  local pid tracer code=0
  "$program" save checkpoints "$1" 3 "${mode[@]}" <input >said 2>errors &
  pid=$!
  exec 3>input
  until grep -q '^saving' said 2>/dev/null; do sleep 0.005; done
  strace -f -qqq -o /dev/null -p "$pid" -e trace="$2" -e inject="$2:signal=KILL:when=$3" 2>tracer_errors &
  tracer=$!
  # Waits until strace has attached to all threads of the program.
  until (($(grep -L '^TracerPid:.*[1-9]' /proc/"$pid"/task/*/status | wc -l) == 0)); do
    kill -0 "$tracer" 2>/dev/null || { echo "kill_every_syscall: strace: $(cat tracer_errors)" && exit 1; }
    sleep 0.005
  done
  echo >&3 || true
  exec 3>&-
  wait "$pid" || code=$?
  wait "$tracer" || true
  return "$code"
} 2>/dev/null

# check_after WHERE RANKS SCENARIO: checks the files after a kill. Sets `named` to 1 if step 3 is there, else 0.
check_after() {
  local newest="" seen
  named=0
  seen="$("$program" check checkpoints 2>errors | head -n 1)" || true
  case "$3: $seen" in
    "first: valid" | "save+removal: valid 1 2") newest="${seen#valid}" newest="${newest##* }" ;;
    "first: valid 3" | "save+removal: valid 1 2 3" | "save+removal: valid 2 3") newest=3 named=1 ;;
    *) wrong "$1: left '$seen' $(cat errors)" ;;
  esac
  ! grep -q '^saved 3' said || ((named)) || wrong "$1: step 3 was acknowledged and is not there"
  "$program" save checkpoints "$2" 4 "${mode[@]}" </dev/null >said 2>errors || wrong "$1: next save: $(cat errors)"
  [[ -z "$newest" ]] || grep -q "^resumed $newest\$" said || wrong "$1: next save: $(cat said)"
  seen="$("$program" check checkpoints 2>errors | tr '\n' ' ')" || true
  [[ "$seen" == "valid ${newest:+$newest }4 leftovers 0 " ]] || wrong "$1: next save left '$seen' $(cat errors)"
}

printf '%-6s %-14s %-60s %6s %10s %5s\n' ranks scenario "calls of each kind" kills published lost
total=0
for n in "${ranks[@]}"; do
  for step in 1 2; do "$program" save "before_$n" "$n" "$step" </dev/null >/dev/null; done
  for scenario in first save+removal; do
    kills=0 published=0 lost_before=$lost counts=""
    for call in "${calls[@]}"; do
      k=0 survived=0
      while ((survived == 0)); do
        k=$((k + 1)) survived=1
        for ((turn = 0; turn < (n > 1 ? 3 : 1); ++turn)); do
          rm -rf checkpoints
          [[ "$scenario" == first ]] || cp -r "before_$n" checkpoints
          code=0
          save_traced "$n" "$call" "$k" || code=$?
          ((code != 0)) || continue
          where="$n ranks, $scenario, $call $k"
          ((code == 137)) || wrong "$where: exit code $code: $(cat errors)"
          check_after "$where" "$n" "$scenario"
          survived=0 kills=$((kills + 1)) published=$((published + named))
        done
      done
      ((k == 1)) || counts+="$call $((k - 1)) "
    done
    printf '%-6s %-14s %-60s %6d %10d %5d\n' "$n" "$scenario" "$counts" "$kills" "$published" \
      $((lost - lost_before))
    total=$((total + kills))
  done
done
echo "$total kills, $lost lost, $SECONDS s"
((lost == 0))
