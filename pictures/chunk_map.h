// SPDX-License-Identifier: Apache-2.0

// ChunkMapSvg: a picture of a step under GeminiPlugin, which shows when each chunk was whole on the
// device.
//
//   GeminiPlugin plugin(world.group(), options);
//   ... boost, and at least one step ...
//   std::string svg = ChunkMapSvg(plugin, "rank 0");
//
// The picture has a row per chunk, filled where the chunk's values are whole. To the left of the
// row stands the memory that holds its shard and its optimizer data. Below the rows are the bytes
// of model data and of everything else on the device at each event, and the budget. For programs,
// each bar has the attributes data-chunk, data-from and data-to, in events. An event is a gather or
// a release of a chunk.
#ifndef APOGEE_PICTURES_CHUNK_MAP_H_
#define APOGEE_PICTURES_CHUNK_MAP_H_

#include <string>

#include "apogee/plugins/gemini.h"

namespace apogee {

// Draws the last step of this rank as one XML document. Call it after boost.
std::string ChunkMapSvg(const GeminiPlugin& plugin, const std::string& title);

}  // namespace apogee

#endif  // APOGEE_PICTURES_CHUNK_MAP_H_
