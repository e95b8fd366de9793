// SPDX-License-Identifier: Apache-2.0

// GatherTexts: gathers a text from every rank, for messages that show a value of each rank.
//
//   std::vector<std::string> all = comm::GatherTexts(mine, group, context);     // in rank order
#ifndef APOGEE_COMM_GATHER_TEXTS_H_
#define APOGEE_COMM_GATHER_TEXTS_H_

#include <string>
#include <vector>

#include "apogee/comm/group.h"

namespace apogee::comm {

// Texts of any bytes and any length. Collective and blocking. Uses the CPU memory of `context`'s
// rank. Throws CommError as any collective.
std::vector<std::string> GatherTexts(const std::string& text, Group& group,
                                     const ContextPtr& context);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_GATHER_TEXTS_H_
