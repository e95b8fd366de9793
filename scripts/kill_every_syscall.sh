#!/usr/bin/env bash
# Kills a process with SIGKILL at every system call of a save and of the removal behind it, on a real disk:
#
#   scripts/kill_every_syscall.sh [RANKS...]      # default: 1 2
#
# strace (scripts/install_deps.sh strace) delivers the signal as thread after thread enters its K-th call of
# those below, K = 1, 2, ... until the program survives. Several ranks are threads, counted each for itself,
# and which one is first differs: with them each K has three turns. After each kill every checkpoint must
# verify, the newest be the acknowledged one or the one before, none but the retired one be gone, and the
# next save resume from the newest, work, and leave nothing else behind.
ranks=("${@:-1 2}")
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
read -ra ranks <<<"${ranks[*]}"
calls=write,pwrite64,fsync,renameat2,rename,unlink,mkdir,rmdir,close,openat
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
cd "$work"

lost=0
wrong() {
  lost=$((lost + 1))
  echo "WRONG: $*"
}

# One kill at call K: 0 when the program survived it. Sets saving and publishing, what it was at.
kill_at() {
  local k="$1" n="$2" scenario="$3" newest want
  rm -rf checkpoints
  [[ "$scenario" == first ]] || cp -r "before_$n" checkpoints
  local code=0
  strace -f -qqq -o /dev/null -e trace="$calls" -e inject="$calls:signal=KILL:when=$k" \
    "$program" save checkpoints "$n" 3 >said 2>errors || code=$?
  ((code != 0)) || return 0
  ((code == 137)) || wrong "$n ranks, call $k: exit code $code: $(cat errors)"
  grep -q '^saving 3' said && saving=1 || saving=0
  "$program" check checkpoints >seen 2>errors || wrong "$n ranks, call $k: $(cat errors)"
  case "$(head -n 1 seen)" in
    "valid") newest="" ;;
    "valid 3" | "valid 1 2 3" | "valid 2 3") newest=3 ;;
    "valid 1 2") newest=2 ;;
    *) wrong "$n ranks, call $k: $(head -n 1 seen)" ;;
  esac
  [[ "$scenario" == first || -n "$newest" ]] || wrong "$n ranks, call $k: all are gone"
  [[ "$(head -n 1 seen)" != "valid 3" || "$scenario" == first ]] || wrong "$n ranks, call $k: step 2 is gone"
  ! grep -q '^saved 3' said || [[ "$newest" == 3 ]] || wrong "$n ranks, call $k: step 3 was acknowledged"
  published=0
  [[ "$newest" != 3 ]] || published=1
  want="valid ${newest:+$newest }4"
  "$program" save checkpoints "$n" 4 >said 2>errors || wrong "$n ranks, call $k: next save: $(cat errors)"
  [[ -z "$newest" ]] || grep -q "^resumed $newest\$" said || wrong "$n ranks, call $k: $(cat said)"
  "$program" check checkpoints >seen 2>errors || wrong "$n ranks, call $k: $(cat errors)"
  [[ "$(tr '\n' ' ' <seen)" == "$want leftovers 0 " ]] || wrong "$n ranks, call $k: next save left $(cat seen)"
  return 1
}

printf '%-6s %-22s %6s %6s %14s %16s %6s\n' ranks scenario calls kills "within a save" "when it had name" lost
total=0
for n in "${ranks[@]}"; do
  "$program" save "before_$n" "$n" 1 >/dev/null
  "$program" save "before_$n" "$n" 2 >/dev/null
  for scenario in first save+removal; do
    kills=0 within=0 named=0 lost_before=$lost k=0 survived=0
    # A thread's own count: the program survives K only if no thread comes so far.
    while ((survived == 0)); do
      k=$((k + 1)) survived=1
      for ((turn = 0; turn < (n > 1 ? 3 : 1); ++turn)); do
        if ! kill_at "$k" "$n" "$scenario"; then
          survived=0 kills=$((kills + 1)) within=$((within + saving)) named=$((named + published))
        fi
      done
    done
    printf '%-6s %-22s %6d %6d %14d %16d %6d\n' "$n" "$scenario" $((k - 1)) "$kills" "$within" "$named" \
      $((lost - lost_before))
    total=$((total + kills))
  done
done
echo "$total kills, $lost lost, $SECONDS s"
((lost == 0))
