// SPDX-License-Identifier: Apache-2.0

// The operation that a reduce, all-reduce or reduce-scatter applies to the ranks' elements.
#ifndef APOGEE_COMM_REDUCE_OP_H_
#define APOGEE_COMM_REDUCE_OP_H_

#include <cstdint>

namespace apogee::comm {

enum class ReduceOp : uint8_t { kSum, kMax };

}  // namespace apogee::comm

#endif  // APOGEE_COMM_REDUCE_OP_H_
