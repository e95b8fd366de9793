#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether 01_train_gpt computes the same under mpirun, or apogee run, as with as many ranks as threads: losses, and
# every byte of the checkpoint.
#
#   mpi_same_bits.sh MPIRUN_SH MPIRUN 01_train_gpt             (or: apogee_run.sh APOGEE 01_train_gpt)
set -euo pipefail
runner="$1"
mpirun="$2"
train="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for i in {1..200}; do echo "line $((i % 40)) of the text"; done >"$work/text.txt"

for plugin in ddp zero2 gemini; do
  flags=(--data "$work/text.txt" --layers 2 --heads 2 --dim 32 --block 32 --batch 8 --steps 8 --lr 0.01
    --threads 4 --sample 0 --save-every 8 --plugin "$plugin")
  "$train" --ranks 4 --out "$work/threads" "${flags[@]}" >"$work/threads.log"
  "$runner" "$mpirun" 4 "$train" --out "$work/processes" "${flags[@]}" >"$work/processes.log"
  # Leaves out what depends on the clock, peaks of what is on its way among it, and the memory of a process, which holds four
  # ranks or one.
  for run in threads processes; do
    sed -E 's/"(seconds|tokens_per_s|share_of_peak|gradient|communication|total|reserved)": ?[^,}]*//g' "$work/$run/metrics.jsonl" >"$work/$run.jsonl"
    [[ -s "$work/$run.jsonl" ]]
    rm -f "$work/$run"/{metrics.jsonl,plan.json,train.log,events.*}
  done
  diff "$work/threads.jsonl" "$work/processes.jsonl"
  diff -r "$work/threads" "$work/processes"
  find "$work/processes" -name '*.safetensors' | grep -q .
  # Rank 0 speaks for all.
  [[ "$(grep -c '^saved step 8' "$work/processes.log")" == 1 ]]
  rm -rf "$work/threads" "$work/processes"
  echo "$plugin: the same losses and the same files"
done
