// SPDX-License-Identifier: Apache-2.0

// Returns the message of the Error that a function throws.
//
//   EXPECT_THAT(MessageOf([&] { optimizer.step(); }), HasSubstr("is not finite"));
#ifndef APOGEE_TESTS_SUPPORT_MESSAGE_OF_H_
#define APOGEE_TESTS_SUPPORT_MESSAGE_OF_H_

#include <functional>
#include <string>

#include "apogee/core/error.h"

namespace apogee::testing {

inline std::string MessageOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_MESSAGE_OF_H_
