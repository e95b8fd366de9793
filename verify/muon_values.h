// SPDX-License-Identifier: Apache-2.0

// The recorded hyper-parameters of Muon's references, in the words of our options.
#ifndef APOGEE_VERIFY_MUON_VALUES_H_
#define APOGEE_VERIFY_MUON_VALUES_H_

#include <string>

#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// The name in our registry of the reference that has these hyper-parameters.
std::string MuonPreset(const std::string& recorded, const Json& hyper);
// Of a case or of a group.
Json MuonValues(const Json& recorded);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_MUON_VALUES_H_
