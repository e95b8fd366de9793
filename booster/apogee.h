// SPDX-License-Identifier: Apache-2.0

// The whole public library in one include.
//
//   #include "apogee/apogee.h"
//
//   nn::Mlp model({.sizes = {784, 256, 10}});
//   model.Initialize(CpuContext({.num_threads = 2}), {.seed = 1});
//   optim::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
//   SingleRankPlugin plugin;
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
#ifndef APOGEE_BOOSTER_APOGEE_H_
#define APOGEE_BOOSTER_APOGEE_H_

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/recompute.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/graphed_step.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/booster/run_lock.h"
#include "apogee/comm/launch.h"
#include "apogee/core/status.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/distributed.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/pictures/chunk_map.h"
#include "apogee/pictures/shard_map.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/tensor.h"

#endif  // APOGEE_BOOSTER_APOGEE_H_
