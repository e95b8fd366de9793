// SPDX-License-Identifier: Apache-2.0

// ShardMapSvg: a picture that shows which rank holds which elements. It has a row per parameter and
// a column per rank. Each cell shows the parameter as a rectangle, its rows from left to right and
// its columns from top to bottom. The elements that the rank's optimizer holds (masters, states,
// parameters to update) are filled.
//
//   Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//   std::string svg = ShardMapSvg(boosted.optimizer, world.group(),
//                             {.model = "gpt2", .tp_size = 2, .zero_stage = 2});
//
// A block has the colour of the first rank that holds it, so equal colours mean equal elements.
// Grey blocks are held by every rank. The hatched area at a rectangle's end is padding, which holds
// no elements of the parameter. Blocks less than a pixel thick and less than a pixel apart are
// joined; the less of the joined area they fill, the paler it is. Each block's tooltip has its
// numbers. For programs, the attributes data-parameter, data-rank and data-elements (data-padding
// for padding) have them, too.
//
// Ranks exchange their layouts in two small all-gathers. The text is one XML document, the same on
// every rank.
#ifndef APOGEE_PICTURES_SHARD_MAP_H_
#define APOGEE_PICTURES_SHARD_MAP_H_

#include <string>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// The contents of the picture's title.
struct ShardMapOptions {
  std::string model;
  // The size of a tensor-parallel group; divides the number of ranks.
  int tp_size = 1;
  int zero_stage = 0;
};

// Draws an optimizer that boost returned. Collective over `group`, which has all ranks (null: one
// rank). Throws Error when ranks hold different parameters or tp_size does not divide the number of
// ranks.
std::string ShardMapSvg(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                        const ShardMapOptions& options);

}  // namespace apogee

#endif  // APOGEE_PICTURES_SHARD_MAP_H_
