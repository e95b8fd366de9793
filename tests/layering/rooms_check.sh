#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when a folder has more than 30 source files, when a source file has more than 400 lines, when a name is
# used that was replaced, or when code asks by a cast which plugin or which optimizer it has.
#
#   tests/layering/rooms_check.sh [ROOT]
#
# Golden data, mutants and build folders do not count.
set -euo pipefail
root="$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}" && pwd)"
cd "$root"

max_files=30
max_lines=400
wrong=0
problem() {
  echo "rooms_check: $1"
  wrong=$((wrong + 1))
}

mapfile -t files < <(find . \( -name '.?*' -o -path ./build -o -path ./out -o -path ./tests/golden -o \
  -path ./tools/mutants \) -prune -o -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o \
  -name '*.sh' -o -name '*.cmake' -o -name CMakeLists.txt \) -print | sed 's,^\./,,' | sort)
if ((${#files[@]} == 0)); then
  problem "no source file in $root"
fi

declare -A num_files=()
for file in "${files[@]}"; do
  [[ "$file" =~ \.(h|cc|cu|cuh)$ ]] || continue
  folder="$(dirname "$file")"
  num_files["$folder"]=$((${num_files["$folder"]-0} + 1))
done
for folder in "${!num_files[@]}"; do
  if ((num_files["$folder"] > max_files)); then
    problem "$folder has ${num_files["$folder"]} source files; make rooms of at most $max_files"
  fi
done

# Of C++ and CUDA sources; scripts may be longer.
while read -r lines file; do
  if [[ "$file" =~ \.(h|cc|cu|cuh)$ ]] && ((lines > max_lines)); then
    problem "$file has $lines lines; split it, at most $max_lines are allowed"
  fi
done < <(printf '%s\0' "${files[@]}" | xargs -0 wc -l)

# Names that are gone, as extended regular expressions; each with what replaced it.
replaced=(
  'comm::(Layout|LayoutOptions|Segment|StateKind|MatrixView)\b|Layout of layout/'
  'optim::StateKind\b|StateKind of layout/'
  '\bPlanSvg\b|ShardMapSvg'
  '\bDataPartOf\b|Plugin::data_rank and data_size'
  '\bapogee_timeline\b|apogee_pictures'
  'tools/(matrix|verify|timeline)/|matrix/, verify/, pictures/timeline/'
  '\b(CudaOptimKernels|TreeReduceCuda)\b|the functions of device_backend.h'
  '\bclass Engine\b|a name that says which, as CollectiveEngine and CommunicatorThreads do'
  'boosted\.(loader|scheduler)\b|the loop'"'"'s own'
  '\bSingleRankOptions\b|TrainingOptions'
  '\boverlap_communication\b|TrainingOptions::overlap'
  '(\{\.precision|\.communication_dtype) = "|Precision'
  '\.sp_mode = "|nn::parallel::SequenceMode'
  '\.placement_policy = "|PlacementPolicy'
  '\b(kOneFOneB|kZeroBubbleV)\b|k1F1B, kZbv'
  '\bSequenceModeName\b|Name'
  '\b(before_read|FinalGradHook|grad_keeper|GiveAway|(is_released|is_elsewhere)\()|ParameterStorage, GradSink or GradPlace'
  '\bRemoveGradHook\b|HookHandle::Remove'
  '\bAdd(PreStep|Step|Report|Load)Hook\b|StepListener'
  'optim/core/option_hash\.h|optim/options.h'
  '\b(TypedOptimizer|StatesUnder|PhaseStateSpecs|NonFiniteAfterStats)\b|RuleOf'
  '\b(SupportsShards|DecidesOnDevice|ClipsAddends|OwnedNumel|AbsentIsZero|LocalGradientOptimizer|FusedBackwardOptimizer)\b|OptimizerTraits'
  '\b(StateLayout|PlannedStateBytes|DropUndeclaredStates)\b|StateStore'
)
for entry in "${replaced[@]}"; do
  pattern="${entry%|*}"
  while IFS= read -r line; do
    problem "$line uses a name that is gone; write ${entry##*|}"
  done < <(printf '%s\0' "${files[@]}" | grep -zv '^tests/layering/' |
    xargs -0 grep -nE -- "$pattern" /dev/null | cut -d: -f1,2)
done

while IFS= read -r line; do
  problem "$line casts to a plugin; ask Plugin, or keep the type from where it was made"
done < <(printf '%s\0' "${files[@]}" | grep -zE '^(examples|booster|tools|matrix)/' |
  xargs -0 grep -nE 'dynamic_cast<[^>]*Plugin\b' /dev/null | cut -d: -f1,2)

while IFS= read -r line; do
  problem "$line casts to an optimizer; ask Optimizer::traits(), or keep the type from where it was made"
done < <(printf '%s\0' "${files[@]}" | grep -zvE '^tests/' |
  xargs -0 grep -nE 'dynamic_cast<[^>]*(Optimizer|Gradients|Rule|ScaledAdam|GaLore)' /dev/null | cut -d: -f1,2)

while IFS= read -r line; do
  problem "$line keeps a token of its own life; hold a Subscription (core/hooks.h)"
done < <(printf '%s\0' "${files[@]}" | grep -zE '^(plugins|chunk|booster|autograd)/' |
  xargs -0 grep -nE '\balive_\b' /dev/null | cut -d: -f1,2)

# Autograd knows neither plugins nor where they keep values.
while IFS= read -r line; do
  problem "$line has a word of plugins; autograd says storage, part, place or sink"
done < <(printf '%s\0' "${files[@]}" | grep -zE '^autograd/' |
  xargs -0 grep -niwE '(un)?shard(s|ed|ing)?|chunks?|zero|pipelines?|elsewhere|released?' /dev/null |
  cut -d: -f1,2)

if ((wrong > 0)); then
  echo "rooms_check: $wrong wrong"
  exit 1
fi
echo "rooms_check: ${#files[@]} files in rooms"
