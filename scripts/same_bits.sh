#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that a change keeps the bits: trains small models with an old and a new commit, and compares every
# step and the final weights.
#
#   scripts/same_bits.sh [--only PATTERN] OLD_COMMIT [NEW_COMMIT]
#   scripts/same_bits.sh --list [--only PATTERN]       # only prints the names of the configurations
#
# Without NEW_COMMIT, the new side is the working tree as it stands: changed files, and new files that git
# does not ignore. PATTERN is a regular expression on the configurations' names.
#
# Builds both sides with the same options, in build/same_bits/old and build/same_bits/new. A second run builds
# only the files that have changed. Compares
#
#   loss, learning rate and gradient norm of every step    all digits in metrics.jsonl (9)
#   the validation loss after the last step
#   weights and optimizer states after the last step       every bit
#
# 04_gemini_big_model and 05_train_3d save no weights. Only their losses are compared, which depend on the
# updates of all steps except the last one. 04_gemini_big_model prints only four digits; its many large steps
# make a difference in a last bit grow until it shows in them. No example has sequence parallelism:
# `apogee matrix` runs it, and all digits of its update errors are compared.
#
# Prints `same NAME` or `DIFFERS NAME: why` per configuration, and as its last line `N same, M differ`. The
# exit code is 1 if a configuration differs. A configuration that one side cannot run, for instance because
# the old commit does not know a flag, counts as differing. The runs' files stay in build/same_bits/runs.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export LC_ALL=C
cd "$ROOT"

# One line per configuration: name, program, flags. The name says plugin, optimizer, precision and ranks.
configurations=(
  "single-adamw-f32-1        01_train_gpt  --plugin single --optimizer adamw --precision f32 --ranks 1 --dropout 0.1"
  "single-lomo-f64-1         01_train_gpt  --plugin single --optimizer lomo --precision f64 --ranks 1"
  "single-galore_adamw-bf16-1  01_train_gpt  --plugin single --optimizer galore_adamw --optim.rank=8 --optim.update_proj_gap=3 --precision bf16 --ranks 1"
  "ddp-adamw-f32-2-accumulate  01_train_gpt  --plugin ddp --optimizer adamw --precision f32 --ranks 2 --accumulate 2"
  "ddp-adamw-f32-4-reproducible  01_train_gpt  --reproducible --optimizer adamw --precision f32 --ranks 4"
  "ddp-lamb-fp16-3           01_train_gpt  --plugin ddp --optimizer lamb --precision fp16 --ranks 3"
  "ddp-scaled_adam-f32-4     01_train_gpt  --plugin ddp --optimizer scaled_adam --precision f32 --ranks 4"
  "zero1-came-f32-2          01_train_gpt  --plugin zero1 --optimizer came --precision f32 --ranks 2"
  "zero1-adamw8bit-bf16-4    01_train_gpt  --plugin zero1 --optimizer adamw8bit --precision bf16 --ranks 4"
  "zero1-lion-f64-3          01_train_gpt  --plugin zero1 --optimizer lion --precision f64 --ranks 3"
  "zero2-adafactor-bf16-2    01_train_gpt  --plugin zero2 --optimizer adafactor_torch --precision bf16 --ranks 2"
  "zero2-galore_adamw-f32-3  01_train_gpt  --plugin zero2 --optimizer galore_adamw --optim.rank=8 --optim.update_proj_gap=3 --precision f32 --ranks 3"
  "zero2-adamw-fp16-4        01_train_gpt  --plugin zero2 --optimizer adamw --precision fp16 --ranks 4"
  "gemini-adamw-bf16-2       01_train_gpt  --plugin gemini --optimizer adamw --precision bf16 --ranks 2"
  "gemini-lomo-f32-3         01_train_gpt  --plugin gemini --optimizer lomo --precision f32 --ranks 3 --max-norm 0"
  "gemini_offload-adamw-fp16-2  04_gemini_big_model  --placement static --offload-optim-frac 1 --chunk-bytes 8192 --steps 100 --lr 0.02 --precision fp16 --ranks 2"
  "hybrid_tp2_zero2-lamb-f64-4  01_train_gpt  --plugin hybrid --tp-size 2 --zero-stage 2 --optimizer lamb --precision f64 --ranks 4"
  "hybrid_tp2_zero1-came-bf16-4  03_train_llama_hybrid  --tp-size 2 --zero-stage 1 --optimizer came --precision bf16 --ranks 4"
  "hybrid_tp2_zero3-sgd-f32-4  03_train_llama_hybrid  --tp-size 2 --zero-stage 3 --optimizer sgd --optim.momentum=0.9 --precision f32 --ranks 4"
  "hybrid_pp2_1f1b-adamw-f32-4  05_train_3d  --pp 2 --tp 1 --zero 1 --schedule 1f1b --precision f32 --ranks 4"
  "hybrid_pp2_tp2_interleaved-lamb-f64-4  05_train_3d  --pp 2 --tp 2 --zero 0 --schedule interleaved --optimizer lamb --precision f64 --ranks 4"
  "hybrid_pp2_zbv-lion-bf16-2  05_train_3d  --pp 2 --tp 1 --zero 0 --schedule zbv --optimizer lion --precision bf16 --ranks 2"
  "hybrid_sp2_all_to_all-adamw-f64-2  apogee  adamw/hybrid_sp2_all_to_all_zero0/world2/f64/*"
  "hybrid_sp2_ring_attn-lamb-f64-2  apogee  lamb/hybrid_sp2_ring_attn_zero0/world2/f64/*"
)
programs=(01_train_gpt 03_train_llama_hybrid 04_gemini_big_model 05_train_3d apogee)

usage() {
  echo "usage: scripts/same_bits.sh [--only PATTERN] (--list | OLD_COMMIT [NEW_COMMIT])" >&2
  exit 2
}
only=""
list=0
commits=()
while (($# > 0)); do
  case "$1" in
    --only)
      (($# >= 2)) || usage
      only="$2"
      shift
      ;;
    --list) list=1 ;;
    -*) usage ;;
    *) commits+=("$1") ;;
  esac
  shift
done
((list ? ${#commits[@]} == 0 : ${#commits[@]} == 1 || ${#commits[@]} == 2)) || usage

chosen=()
for line in "${configurations[@]}"; do
  [[ -z "$only" || "${line%% *}" =~ $only ]] && chosen+=("$line")
done
if ((${#chosen[@]} == 0)); then
  echo "same_bits: no configuration's name matches '$only'; --list prints all names" >&2
  exit 2
fi
if ((list)); then
  printf '%s\n' "${chosen[@]%% *}"
  exit 0
fi

work="$ROOT/build/same_bits"
mkdir -p "$work/objects"
# The working tree becomes a git tree with objects of its own, so that the repository stays as it is.
common_objects="$(cd "$(git rev-parse --git-path objects)" && pwd)"
our_git() {
  GIT_OBJECT_DIRECTORY="$work/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$common_objects" git "$@"
}

# tree_of [COMMIT]: the git tree of a commit, or of the working tree.
tree_of() {
  if (($# > 0)); then
    git rev-parse --verify --quiet "$1^{tree}" || {
      echo "same_bits: '$1' is no commit of this repository; in a shallow clone run git fetch --unshallow" >&2
      exit 2
    }
    return
  fi
  # Beginning with the repository's index saves reading files that have not changed.
  cp "$(git rev-parse --git-path index)" "$work/working_tree.index"
  GIT_INDEX_FILE="$work/working_tree.index" our_git add -A
  GIT_INDEX_FILE="$work/working_tree.index" our_git write-tree
}

# prepare SIDE TREE: the sources of a side, and its programs. Files that are equal keep their times, so that
# a second run compiles only the difference.
prepare() {
  local side="$1" tree="$2" folder="$work/$1" target known
  mkdir -p "$folder"
  GIT_INDEX_FILE="$work/$side.index" our_git --work-tree="$folder" read-tree --reset -u "$tree"
  cmake -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_NATIVE=ON \
    -DAPOGEE_PCH=ON -DAPOGEE_UNITY=OFF -DAPOGEE_WITH_OPENMP=ON -DAPOGEE_WITH_ONEDNN=AUTO -DAPOGEE_WITH_CUDA=OFF \
    -DAPOGEE_WITH_MPI=OFF -DAPOGEE_WITH_NCCL=OFF -DAPOGEE_BUILD_TESTS=OFF -DAPOGEE_BUILD_BENCH=OFF \
    -DAPOGEE_BUILD_EXAMPLES=ON -DAPOGEE_BUILD_TOOLS=ON >"$work/$side.log" 2>&1 || {
    cat "$work/$side.log"
    echo "same_bits: the $side side cannot be configured" >&2
    exit 1
  }
  # Programs that this side does not have are reported with their configurations.
  known="$(ninja -C "$folder/build" -t targets all)"
  local targets=()
  for target in "${needed[@]}"; do
    [[ "$target" == apogee ]] && target=apogee_command
    grep -q "^$target:" <<<"$known" && targets+=("$target")
  done
  ((${#targets[@]} == 0)) ||
    cmake --build "$folder/build" -j "$JOBS" --target "${targets[@]}" >"$work/$side.log" 2>&1 || {
    grep -B 1 -A 10 'error' "$work/$side.log" | head -n 40
    echo "same_bits: the $side side does not compile; all of its output is in $work/$side.log" >&2
    exit 1
  }
}

program_path() {
  case "$2" in
    apogee) echo "$work/$1/build/bin/apogee" ;;
    *) echo "$work/$1/build/examples/$2/$2" ;;
  esac
}

# The flags of every run. A step of this small model takes milliseconds. A batch of 12 can be divided among 1 to
# 4 ranks. fp16 skips the first steps until its loss scale is small enough; of eight steps, some are not skipped.
shared_flags() {
  local out="$1" program="$2"
  local flags=(--data "$work/text.txt" --steps 8 --batch 12 --dim 32 --heads 4 --block 16 --lr 0.003
    --log-every 1 --threads 2)
  case "$program" in
    01_train_gpt) flags+=(--layers 2 --out "$out" --save-every 8 --sample 0) ;;
    03_train_llama_hybrid)
      flags+=(--layers 2 --kv-heads 2 --hidden 64 --out "$out" --save-every 8 --sample 0)
      ;;
    04_gemini_big_model) flags+=(--layers 2) ;;
    05_train_3d) flags+=(--layers 4 --kv-heads 2 --hidden 64 --microbatches 2 --out "$out") ;;
  esac
  printf '%s\n' "${flags[@]}"
}

# run SIDE NAME PROGRAM FLAG...: leaves everything to compare in build/same_bits/runs/NAME/SIDE.
run() {
  local side="$1" name="$2" program="$3" out="$work/runs/$2/$1" path
  shift 3
  mkdir -p "$out"
  path="$(program_path "$side" "$program")"
  if [[ ! -x "$path" ]]; then
    echo "there is no program $program" >"$out/stderr"
    echo 127 >"$out/exit_code"
    return
  fi
  local status=0 flags
  if [[ "$program" == apogee ]]; then
    "$path" matrix --only "$1" --json "$out/cells.json" >"$out/stdout" 2>"$out/stderr" || status=$?
  else
    mapfile -t flags < <(shared_flags "$out" "$program")
    # The last of two equal flags counts.
    "$path" "${flags[@]}" "$@" >"$out/stdout" 2>"$out/stderr" || status=$?
  fi
  echo "$status" >"$out/exit_code"
}

# numbers SIDE_FOLDER PROGRAM: one line per step and other result, without times and memory.
numbers() {
  local file
  case "$2" in
    # Before 0.3.0 the number of steps was not printed.
    04_gemini_big_model) sed -nE 's,^step +([0-9]+)(/[0-9]+)?  loss ([^ ]+).*,step \1 loss \3,p' "$1/stdout" ;;
    # Each value has a line of its own. The other ones are counts of bytes and messages.
    apogee) grep -E '"(name|verdict|error|parameter)":' "$1/cells.json" || true ;;
    *)
      for file in metrics validation; do
        [[ ! -f "$1/$file.jsonl" ]] || sed -E "s/^\{/$file: /; s/,\"tokens(_per_s)?\":.*//" "$1/$file.jsonl"
      done
      ;;
  esac
}

# difference NAME PROGRAM: prints why the two runs differ, or nothing.
difference() {
  local folder="$work/runs/$1" program="$2" side code
  for side in old new; do
    code="$(<"$folder/$side/exit_code")"
    if ((code != 0)); then
      echo "the $side side failed (exit code $code): $(tail -n 1 "$folder/$side/stderr")"
      return
    fi
    numbers "$folder/$side" "$program" >"$folder/$side.numbers"
    if [[ ! -s "$folder/$side.numbers" ]]; then
      echo "the $side side printed no numbers"
      return
    fi
  done
  if ! cmp -s "$folder/old.numbers" "$folder/new.numbers"; then
    local said line old new
    said="$(cmp "$folder/old.numbers" "$folder/new.numbers" 2>&1)" || true
    line="$(sed -nE 's/.*line ([0-9]+).*/\1/p' <<<"$said")"
    [[ "$said" != *EOF* ]] || line=$((line + 1))  # one side goes on after this line
    old="$(sed -n "${line}p" "$folder/old.numbers")"
    new="$(sed -n "${line}p" "$folder/new.numbers")"
    echo "first in ${old:-(nothing)}, now ${new:-(nothing)}"
    return
  fi
  local store old_store new_store stores=0
  for old_store in "$folder"/old/checkpoints/step-*/; do
    [[ -d "$old_store" ]] || continue
    store="$(basename "$old_store")"
    new_store="$folder/new/checkpoints/$store"
    stores=$((stores + 1))
    if [[ ! -d "$new_store" ]]; then
      echo "$store was saved by the old side only"
      return
    fi
    same_tensors "$old_store" "$new_store" && continue
    echo "all losses are the same, but the tensors of $store differ: $(head -n 1 "$folder/tensors.txt" 2>/dev/null)"
    return
  done
  case "$program" in
    01_* | 03_*) ((stores > 0)) || echo "the old side saved no weights" ;;
  esac
}

# same_tensors A B: whether two checkpoints hold the same bits. Where their files differ, the tensors may
# still be the same: `apogee diff` decides.
same_tensors() {
  local file same=1 out
  out="$(dirname "$(dirname "$(dirname "$2")")")/tensors.txt"
  for file in "$1"/*.safetensors; do
    cmp -s "$file" "$2/$(basename "$file")" || same=0
  done
  ((same)) && return
  "$(program_path new apogee)" diff "$1" "$2" >"$out" 2>&1
}

old_tree="$(tree_of "${commits[0]}")"
new_tree="$(tree_of "${commits[@]:1}")"

needed=()
for program in "${programs[@]}"; do
  # `apogee` also compares checkpoints.
  [[ "$program" == apogee || " ${chosen[*]} " == *" $program "* ]] && needed+=("$program")
done
phase "build old (${commits[0]})"
prepare old "$old_tree"
phase "build new (${commits[1]:-working tree})"
prepare new "$new_tree"

phase "runs"
# A text that never changes: pseudo-random words.
awk 'BEGIN { x = 1; for (i = 0; i < 4000; ++i) { word = ""; x = (x * 16807) % 2147483647
  for (n = 2 + x % 6; n > 0; --n) { x = (x * 16807) % 2147483647; word = word sprintf("%c", 97 + x % 26) }
  printf "%s%s", word, i % 12 == 11 ? ".\n" : " " } }' >"$work/text.txt"
rm -rf "$work/runs"
export OMP_WAIT_POLICY=passive
same=0
differ=0
for line in "${chosen[@]}"; do
  # No flag contains a blank or is meant as a file pattern.
  read -ra words <<<"$line"
  run old "${words[@]}" &
  run new "${words[@]}"
  wait
  why="$(difference "${words[0]}" "${words[1]}")"
  if [[ -z "$why" ]]; then
    same=$((same + 1))
    echo "same ${words[0]}"
  else
    differ=$((differ + 1))
    echo "DIFFERS ${words[0]}: $why"
  fi
done
print_phases
echo "$same same, $differ differ"
((differ == 0))
