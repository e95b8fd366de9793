// SPDX-License-Identifier: Apache-2.0

// Pictures of where the elements of a model are: ShardMapSvg over ranks, ChunkMapSvg over time.
// Each is one XML document.
//
//   Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//   std::string svg = ShardMapSvg(boosted.optimizer, world.group(),
//                             {.model = "gpt2", .tp_size = 2, .zero_stage = 2});
//   ... at least one step under GeminiPlugin ...
//   std::string over_time = ChunkMapSvg(plugin, "rank 0");
#ifndef APOGEE_PICTURES_MAPS_H_
#define APOGEE_PICTURES_MAPS_H_

#include <string>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"
#include "apogee/plugins/gemini.h"

namespace apogee {

// The contents of the picture's title.
struct ShardMapOptions {
  std::string model;
  // The size of a tensor-parallel group; divides the number of ranks.
  int tp_size = 1;
  int zero_stage = 0;
};

// Draws which rank holds which elements of an optimizer that boost returned. The picture has a row
// per parameter and a column per rank. Each cell shows the parameter as a rectangle, its rows from
// left to right and its columns from top to bottom. The elements that the rank's optimizer holds
// (masters, states, parameters to update) are filled.
//
// A block has the colour of the first rank that holds it, so equal colours mean equal elements.
// Grey blocks are held by every rank. The hatched area at a rectangle's end is padding, which holds
// no elements of the parameter. Blocks less than a pixel thick and less than a pixel apart are
// joined; the less of the joined area they fill, the paler it is. Each block's tooltip has its
// numbers. For programs, the attributes data-parameter, data-rank and data-elements (data-padding
// for padding) have them, too.
//
// Collective over `group`, which has all ranks (null: one rank): two small all-gathers. Every rank
// gets the same text. Throws Error when ranks hold different parameters or tp_size does not divide
// the number of ranks.
std::string ShardMapSvg(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                        const ShardMapOptions& options);

// Draws when each chunk was whole on the device in the last step of this rank. Call it after boost.
//
// The picture has a row per chunk, filled where the chunk's values are whole. To the left of the
// row stands the memory that holds its shard and its optimizer data. Below the rows are the bytes
// of model data and of everything else on the device at each event, and the budget. For programs,
// each bar has the attributes data-chunk, data-from and data-to, in events. An event is a gather or
// a release of a chunk.
std::string ChunkMapSvg(const GeminiPlugin& plugin, const std::string& title);

}  // namespace apogee

#endif  // APOGEE_PICTURES_MAPS_H_
