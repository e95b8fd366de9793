// SPDX-License-Identifier: Apache-2.0

// PlanSvg: a picture of who holds what. One row per parameter, one column per rank; in each cell
// the parameter as a rectangle, its rows from left to right and its columns from top to bottom, of
// which what the rank's optimizer holds (masters, states, what it updates) is filled.
//
//   Boosted boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
//   std::string svg = PlanSvg(boosted.optimizer, world.group(),
//                             {.model = "gpt2", .tp_size = 2, .zero_stage = 2});
//
// Equal colours are equal elements: a block has the colour of the first rank that holds it, and
// grey is held by every rank. Hatched, behind a rectangle's end: padding, which is no element of
// the parameter. Blocks less than a pixel apart and thick are drawn as one, as pale as their share
// of it. Each block's tooltip has its numbers; so have the attributes data-parameter, data-rank and
// data-elements (data-padding of padding), for programs.
//
// Ranks exchange what they hold (two small all-gathers). The text is one XML document, the same on
// every rank.
#ifndef APOGEE_PLUGINS_PLAN_SVG_H_
#define APOGEE_PLUGINS_PLAN_SVG_H_

#include <string>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// What the picture's title says.
struct PlanSvgOptions {
  std::string model;
  // Neighbouring ranks that share the layers; divides the number of ranks.
  int tp_size = 1;
  int zero_stage = 0;
};

// Of an optimizer that boost returned. Collective over `group`, which has all ranks (null: one).
// Throws Error when ranks hold different parameters or tp_size does not divide their number.
std::string PlanSvg(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                    const PlanSvgOptions& options);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_PLAN_SVG_H_
