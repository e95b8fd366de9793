// SPDX-License-Identifier: Apache-2.0

// The node of a cross entropy: NumTargetsOf (loss.h) finds it.
//
//   class CrossEntropyNode : public LossNode { ... };
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LOSS_NODE_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LOSS_NODE_H_

#include <cstdint>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

class LossNode : public Node {
 public:
  // `num_targets`: those that count.
  explicit LossNode(int64_t num_targets) : num_targets_(num_targets) {}
  int64_t num_targets() const { return num_targets_; }

 private:
  const int64_t num_targets_;
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LOSS_NODE_H_
