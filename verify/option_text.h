// SPDX-License-Identifier: Apache-2.0

// A recorded setting as the text of an option (optim/options.h): true, 0.9 or "0.9,0.95" of a list.
//
//   options["betas"] = OptionText(hyper.at("betas"));
#ifndef APOGEE_VERIFY_OPTION_TEXT_H_
#define APOGEE_VERIFY_OPTION_TEXT_H_

#include <string>

#include "apogee/verify/golden_case.h"

namespace apogee::verify {

std::string OptionText(const Json& value);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_OPTION_TEXT_H_
