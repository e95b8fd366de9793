#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The check of comments must refuse what a re-flow damages, and nothing else: each case writes one file.
#
#   tests/comments/self_test.sh
set -euo pipefail
check="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/check_comments.sh"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0

# expect refused:LINE|accepted WHAT: checks the file on standard input; LINE: where the first complaint is.
expect() {
  local status=0 report
  cat >"$work/file.h"
  report="$("$check" "$work/file.h" 2>&1)" || status=$?
  case "$1" in
    accepted) ((status == 0)) && [[ -z "$report" ]] && return ;;
    refused:*) ((status == 1)) && [[ "$report" == "$work/file.h:${1#refused:}: "*"; "* ]] && return ;;
  esac
  echo "FAILED: $2: expected $1, got exit code $status: ${report:-(no output)}"
  failures=$((failures + 1))
}

expect refused:2 "a formula joined with the rest of the line before" <<'END'
//   ratio = clamp(|w| / |u|, min_ratio, max_ratio), norms of the whole tensor; 1 where one of them
//   is 0 w -= lr ratio u
END
expect accepted "the same formulas, whole" <<'END'
//   ratio = clamp(|w| / |u|, min_ratio, max_ratio), norms of the whole tensor;
//           1 where one of them is 0
//   w -= lr ratio u
END
expect refused:3 "joined rows of a table" <<'END'
//               eps   lr    decay
//   Apex()      1e-3  1e-6  0.01   gradients clipped to a global norm of 1, no ratio where there is
//   no decay Colossal()  1e-3  1e-6  0      no bias correction; with it, correct_lr DeepSpeed()
//   1e-3  1e-8  0      correct_lr, ratio within [0.01, 10]
END
expect accepted "the same table, whole" <<'END'
//               eps   lr    decay
//   Apex()      1e-3  1e-6  0.01   gradients clipped to a global norm of 1, no ratio where there is
//                                  no decay
//   Colossal()  1e-3  1e-6  0      no bias correction; with it, correct_lr
//   DeepSpeed() 1e-3  1e-8  0      correct_lr, ratio within [0.01, 10]
END
expect refused:2 "a row that continues at the place of the next one" <<'END'
//   decision    presence of gradients, whether all are finite, their norm -> one StepDecision,
//   before
//               anything moves
END
expect refused:2 "a formula with the condition of the one before" <<'END'
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  amsgrad: vmax = max(vmax, v),
//   used as v w -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps)
END
expect refused:2 "a formula broken within its brackets" <<'END'
//     s   = b s + (1 - b) mean(G^2);  a = -lr scalar_lr_scale sqrt(1 - b^k) sum(G) / (sqrt(s) +
//     eps) a   = 0 if r < param_min_rms;  a = min(clamp(a, +-0.1), (param_max_rms - r) / r);  step
//     last
END
expect refused:2 "joined statements of an example" <<'END'
//   struct SgdOptions { double lr = 1e-3; ...; static std::vector<OptionField<SgdOptions>>
//   Fields(); }; SgdOptions options; absl::Status s = SetOptions({{"lr", "0.1"}, {"momentum",
//   "0.9"}}, "optimizer sgd", options); OptionMap text = GetOptions(options); // every field, exact
END
expect refused:2 "the rest of a comment before a statement" <<'END'
//   if (!file.ok()) ...                                     // names the file, the byte, what is
//   wrong absl::StatusOr<Tensor> w = file->Load("wte.weight", context);
END
expect refused:2 "the rest of a comment alone" <<'END'
  //   Tensor x = x_.Take(context);        // in Backward: moves it out unless the graph is walked
  //   again
END
expect refused:2 "a command line joined with the comment of another" <<'END'
//   zero_bench --ranks 2 --rounds 5                    # a training step, stages 1 and 2 against
//   DDP zero_bench --ranks 2 --optimizer came --rounds 9   # an optimizer's step on shards
END
expect accepted "full lines of an example" <<'END'
//   Layout whole(Shape{128, 64});                                  // this rank holds all of it
//   Layout shard(Shape{128, 64}, {.segments = {{0, 100}}});      // elements [0, 100), ends mid-row
//   shard.local_numel() == 100;   shard.matrix().rows == 128;
//   auto found = FindCheckpoints(files, "run/checkpoints", {.newest_first = true, .limit = 100});
//   for (const auto& checkpoint : found.valid) Print(checkpoint.name, checkpoint.step, "is valid");
//   ParallelFor(context.num_threads(), rows, /*grain=*/64, [&](int64_t begin, int64_t end) {
//   });
//   LrSchedule s = CosineSchedule({.total_steps = 1000, .warmup_steps = 100, .eta_min = 1e-5});
//   double lr = s.lr({.step = 250}, /*base_lr=*/3e-4);
//   steps[0].bubble_share()                   // 3/11 for 1F1B over 4 stages and 8 micro-batches
//   steps[0].stages()[2].idle_ns
END
expect accepted "full rows of tables, and a list" <<'END'
//   bubble    the share of the stages' time in which they waited, over all steps, but not the first
//   formula   the same for a schedule whose messages take no time
//
//   came_residual_sums: writes the sums of (u - m)^2 per row and column; nothing if not factored
//   came: w -= decay * w
//
//   - where the graph does not say that the input is whole, as it is for all (frozen layers, the
//   first layer of a pipeline stage)
END
expect accepted "prose in the last column of a table" <<'END'
//   interleaved  each stage has num_chunks chunks of layers, chunk c of all of them first; chunk of
//                stage k mod p. The idle time is 1 / num_chunks of that of 1F1B, whose stage k has
//                at most min(2 (p - s - 1) + (v - 1) p + 1, m v) activations of chunks
END
expect refused:2 "a word alone within a sentence" <<'END'
// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"), in
// the form
// of the paper, with the variants of its public implementations as presets.
END
expect accepted "a word alone at the end of a paragraph" <<'END'
// States per element: exp_avg, exp_avg_sq (8 bytes; 16 for f64). With master weights, |w| is that
// of theirs.
//
// next paragraph
END
long="$(printf 'word %.0s' {1..20})"  # 100 columns with its last blank
expect refused:2 "a comment line of 101 columns" <<<$'int x;\n// '"${long::98}"
expect accepted "a comment line of 100 columns" <<<"// ${long::97}"
expect accepted "100 columns of characters with several bytes" <<<"// ${long::90}…………√√"
expect accepted "a long line of code" <<<"const char* text = \"${long}${long}\";"

"$check" "$work/missing.h" 2>/dev/null && status=0 || status=$?
((status == 2)) || { echo "FAILED: a missing file: exit code $status instead of 2"; failures=$((failures + 1)); }

echo "check_comments self test: $failures failures"
((failures == 0))
