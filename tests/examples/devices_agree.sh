#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether 01_train_gpt computes the same on the GPU as on the CPU: losses in f64, where a wrong kernel cannot hide
# behind rounding, plugin by plugin, ranks being threads and, where MPIRUN is given, processes, whose tensors are staged
# through the host and, where NCCL_FOLDER holds a libnccl.so.2, go through that, with the same bits; whether CUDA
# graphs change no bit; and whether a run that was saved on one device goes on, on the other.
#
#   devices_agree.sh 01_train_gpt [MPIRUN_SH MPIRUN [NCCL_FOLDER]]
set -euo pipefail
train="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for i in {1..200}; do echo "line $((i % 40)) of the text"; done >"$work/text.txt"
flags=(--data "$work/text.txt" --layers 1 --heads 2 --dim 16 --block 16 --batch 4 --lr 0.01 --threads 2 --sample 0
  --precision f64 --log-every 1)

losses() { grep -oE '"loss": ?[0-9.e+-]+' "$1/metrics.jsonl" | grep -oE '[0-9.e+-]+$'; }

# compare NAME: the losses of the two runs, of which there must be some.
compare() {
  losses "$work/cpu" >"$work/cpu.txt"
  losses "$work/cuda" >"$work/cuda.txt"
  [[ -s "$work/cpu.txt" ]]
  paste "$work/cpu.txt" "$work/cuda.txt" | awk -v name="$1" '
    function abs(x) { return x < 0 ? -x : x }
    NF != 2 || abs($1 - $2) > 1e-6 * abs($1) { print name ": loss " $1 " on the CPU, " $2 " on the GPU"; bad = 1 }
    END { exit bad }'
  echo "$1: $(wc -l <"$work/cpu.txt") losses agree"
}

for layout in "--ranks 1" "--ranks 2 --plugin ddp" "--ranks 2 --plugin zero2" "--ranks 2 --plugin gemini" \
  "--ranks 2 --plugin hybrid --tp-size 2"; do
  for device in cpu cuda; do
    rm -rf "${work:?}/$device"
    # shellcheck disable=SC2086 # a layout is several words
    "$train" --device "$device" --out "$work/$device" $layout "${flags[@]}" --steps 4 >"$work/$device.log"
  done
  compare "$layout"
done

if (($# >= 3)); then
  for plugin in ddp zero2 gemini; do
    rm -rf "$work/cpu" "$work/cuda"
    "$train" --ranks 2 --plugin "$plugin" --out "$work/cpu" "${flags[@]}" --steps 4 >"$work/cpu.log"
    "$2" "$3" 2 "$train" --device cuda --comm mpi --plugin "$plugin" --out "$work/cuda" "${flags[@]}" --steps 4 \
      >"$work/cuda.log"
    compare "2 processes, $plugin"
  done
fi

if (($# == 4)); then
  # In bf16, too, where an order of its own would show soonest.
  for layout in "ddp --precision f64" "zero2 --precision bf16" "gemini --precision bf16" \
    "hybrid --tp-size 2 --precision f64"; do
    rm -rf "$work/staged" "$work/nccl"
    for comm in mpi nccl; do
      # shellcheck disable=SC2086 # a layout is several words
      LD_LIBRARY_PATH="$4" "$2" "$3" 2 "$train" --device cuda --comm "$comm" --out "$work/$comm" "${flags[@]}" \
        --steps 4 --plugin $layout >"$work/$comm.log"
    done
    losses "$work/mpi" >"$work/mpi.txt"
    losses "$work/nccl" >"$work/nccl.txt"
    [[ -s "$work/nccl.txt" ]]
    diff "$work/mpi.txt" "$work/nccl.txt"
    echo "NCCL, $layout: the same bits"
  done
fi

# With CUDA graphs: the same bits.
for graphs in "" --cuda-graphs; do
  # shellcheck disable=SC2086 # a flag or none
  "$train" --device cuda --out "$work/graphs$graphs" "${flags[@]}" --steps 4 --accumulate 2 --precision bf16 $graphs \
    >"$work/graphs.log"
done
losses "$work/graphs" >"$work/eager.txt"
losses "$work/graphs--cuda-graphs" >"$work/graphs.txt"
[[ -s "$work/graphs.txt" ]]
diff "$work/eager.txt" "$work/graphs.txt"
if "$train" --device cpu --out "$work/refused" "${flags[@]}" --steps 1 --cuda-graphs >/dev/null 2>"$work/refused.log"; then
  echo "graphs on the CPU were not refused"
  exit 1
fi
grep -q "which has no graphs" "$work/refused.log"
echo "CUDA graphs: the same bits"

# Half on one device, half on the other.
rm -rf "$work/cuda" "$work/cpu"
"$train" --out "$work/cpu" "${flags[@]}" --steps 4 --save-every 2 >/dev/null
cp -r "$work/cpu" "$work/cuda"
rm -rf "$work/cuda/checkpoints/"*4 "$work/cpu/metrics.jsonl" "$work/cuda/metrics.jsonl"
rm -rf "$work/cpu/checkpoints/"*4
"$train" --out "$work/cpu" "${flags[@]}" --steps 4 --resume auto >"$work/cpu.log"
"$train" --device cuda --out "$work/cuda" "${flags[@]}" --steps 4 --resume auto >"$work/cuda.log"
compare "resumed"
