#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains with disks that are full, limited, read-only or gone. Uses tmpfs mounts (skipped unless root),
# ulimit -f, and strace, which makes single system calls fail (skipped if strace is not installed).
#
#   scripts/bad_disks.sh
#
# In each case:
#   - The program must end with exit code 1 and an error that names the path and the reason.
#   - Earlier checkpoints must verify, and nothing else may be left.
#   - When there is room again, the run must go on from the newest checkpoint.
# Prints the program's messages, and as its last line `N passed, M failed, K skipped`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target save_once_program 01_train_gpt -j "$JOBS" >/dev/null
build="$PWD/build/release"
once="$build/tests/save_once_program"
export OMP_WAIT_POLICY=passive
work="$(mktemp -d)"
mounted=""
trap '[[ -z "$mounted" ]] || umount "$work/$mounted"; rm -rf "$work"' EXIT
cd "$work"
for i in {1..200}; do echo "line $((i % 40)) of the text"; done >text.txt

passed=0 failed=0 skipped=0
# report NAME WHY: passed when WHY is empty.
report() {
  if [[ -z "$2" ]]; then
    passed=$((passed + 1))
    echo "ok $1"
  else
    failed=$((failed + 1))
    echo "FAILED $1: $2"
  fi
}

train() {  # OUT RANKS...: six steps, each saved
  "$build/examples/01_train_gpt/01_train_gpt" --data text.txt --layers 1 --heads 2 --dim 16 --block 16 \
    --batch 4 --sample 1 --log-every 1000 --threads 4 --steps 6 --save-every 1 --keep 2 --resume auto \
    --out "$1" "${@:2}" >said 2>errors
}

# fails NAME CHECKPOINTS STEPS TEXT... -- COMMAND...: the command must fail with all texts in its error and
# leave these steps, all valid, and nothing else.
fails() {
  local name="$1" folder="$2" steps="$3" texts=() why="" code=0 seen
  shift 3
  while [[ "$1" != -- ]]; do texts+=("$1") && shift; done
  "${@:2}" || code=$?
  echo "  exit code $code: $(cat errors)"
  ((code == 1)) || why+="exit code $code; "
  for text in "${texts[@]}"; do grep -qF -- "$text" errors || why+="the error lacks '$text'; "; done
  seen="$("$once" check "$folder" 2>&1 | tr '\n' ' ')" || true
  [[ "$seen" == "valid${steps:+ $steps} leftovers 0 " ]] || why+="left: $seen; "
  report "$name" "$why"
}

# goes_on NAME OUT STEP RANKS...: resumes from that step, to the end.
goes_on() {
  local code=0
  train "$2" "${@:4}" || code=$?
  if ((code == 0)) && grep -q "at step $3\$" said && grep -q "saved step 6" said; then
    report "$1" ""
  else
    report "$1" "exit code $code: $(cat said errors)"
  fi
}

no_space="No space left on device"
mkdir disk
if mount -t tmpfs -o size=300k tmpfs disk 2>/dev/null; then
  mounted=disk
  for ranks in 1 2; do
    flags=(--ranks "$ranks")
    ((ranks == 1)) || flags+=(--plugin zero2)
    mount -o remount,size=300k disk
    rm -rf disk/out
    fails "a full disk, $ranks ranks" disk/out/checkpoints "1 2" disk/out/checkpoints/.tmp-step-00000003 \
      "bytes (" "are free there)" "$no_space" -- train disk/out "${flags[@]}"
    mount -o remount,size=1m disk
    goes_on "... and it goes on when there is room" disk/out 2 "${flags[@]}"
  done
  umount disk
  mkdir -p out/checkpoints && mount -t tmpfs -o size=1m tmpfs out/checkpoints
  mounted=out/checkpoints
  train out --steps 2
  mount -o remount,ro out/checkpoints
  fails "a read-only folder of checkpoints" out/checkpoints "1 2" out/checkpoints/.tmp-step-00000003 \
    "Read-only file system" -- train out
  mount -o remount,rw out/checkpoints
  goes_on "... and it goes on when it is writable" out 2
  umount out/checkpoints
  mounted=""
else
  skipped=$((skipped + 6))
  echo "skipped: full and read-only disks: cannot mount a tmpfs (needs root)"
fi

train_limited() { (ulimit -f 45 && train "$@"); }
train limited --steps 2 --layers 1
fails "a limit on the size of files" limited/checkpoints "1 2" limited/checkpoints/.tmp-step-00000003 \
  "File too large" "see ulimit -f" -- train_limited limited
goes_on "... and it goes on without one" limited 2

save_once() { "$once" save "$1" "${2:-1}" "${3:-1}" </dev/null >said 2>errors; }
fails "the folder above is missing" none/such "" none/such "No such file or directory" -- save_once none/such
touch file
fails "a file is in the place of the folder above" file/run "" file/run "Not a directory" -- train file/run

# broken_save RANKS CALL ERROR K: saves step 3, with an error at a thread's K-th call. Returns 2 if there was
# no such call. Appends every wrong result to `why`; adds 1 to `told` if the program printed an error.
broken_save() {
  local code=0 seen
  rm -rf broken && cp -r before broken
  strace -f -qqq -o trace -e trace="$2" -e inject="$2:error=$3:when=$4" \
    "$once" save "$work/broken" "$1" 3 </dev/null >said 2>errors || code=$?
  grep -q INJECTED trace || return 2
  seen="$("$once" check broken 2>&1 | head -n 1)"
  if [[ -s errors ]]; then
    told=$((told + 1))
    grep -qE "$work.*(No space left on device|Input/output error)" errors || why+="$4: $(cat errors); "
  fi
  case "$code: $seen" in
    "0: valid 2 3") ;;  # the program's own output, or a leftover
    "0: valid 1 2 3" | "1: valid 1 2" | "1: valid 1 2 3")
      # If writes fail, the program's message may fail, too.
      [[ -s errors || "$2" == write ]] || why+="$4: not told; "
      ;;
    *) why+="$4: exit code $code, left '$seen', $(cat errors); " ;;
  esac
  save_once broken "$1" 4 || why+="$4: the next save: $(cat errors); "
  "$once" check broken | grep -q "leftovers 0" || why+="$4: leftovers; "
}

if command -v strace >/dev/null; then
  for ranks in 1 2; do
    rm -rf before
    for step in 1 2; do save_once before "$ranks" "$step"; done
    for fault in write:ENOSPC fsync:EIO mkdir:ENOSPC renameat2:EIO unlinkat:EIO; do
      why="" told=0 k=1
      while broken_save "$ranks" "${fault%:*}" "${fault#*:}" "$k"; do k=$((k + 1)); done
      ((told > 0)) || why+="no error was told; "
      report "${fault#*:} at any ${fault%:*}, $ranks ranks: $((k - 1)) calls, $told errors told" "$why"
    done
  done
else
  skipped=$((skipped + 10))
  echo "skipped: errors of single system calls: strace was not found"
fi

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
