// SPDX-License-Identifier: Apache-2.0

// GatherTexts: what ranks tell each other in words, for messages that name who has what.
//
//   std::vector<std::string> all = comm::GatherTexts(mine, group, context);     // in rank order
#ifndef APOGEE_COMM_GATHER_TEXTS_H_
#define APOGEE_COMM_GATHER_TEXTS_H_

#include <string>
#include <vector>

#include "apogee/comm/group.h"

namespace apogee::comm {

// Bytes of any kind and number. Collective; works in the host's memory beside `context`.
std::vector<std::string> GatherTexts(const std::string& text, Group& group,
                                     const ContextPtr& context);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_GATHER_TEXTS_H_
