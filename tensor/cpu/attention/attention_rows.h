// SPDX-License-Identifier: Apache-2.0

// Attention of a few queries over many keys, as in generation with a cache: a tile of 64 queries
// would be mostly padding. Keys and values are read once, where they lie. Private to tensor/cpu.
//
//   if (HasFewQueries(args)) return AttendRows(context, args);
#ifndef APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_ROWS_H_
#define APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_ROWS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/attention_args.h"

namespace apogee::cpu {

// Queries of whole sequences take the tiles, however short: a document of a packed sequence then
// has the bits that it has alone.
inline bool HasFewQueries(const AttentionForwardArgs& args) {
  return args.q_tokens <= 4 && args.kv_tokens > args.q_tokens;
}

// What attention_forward computes, up to rounding.
void AttendRows(const DeviceContext& context, const AttentionForwardArgs& args);

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_ROWS_H_
