// SPDX-License-Identifier: Apache-2.0

// A matcher for functions that throw an Error whose message matches.
//
//   EXPECT_THAT([&] { plugin.data_rank(); }, Says(HasSubstr("tp_size 2 does not divide")));
#ifndef APOGEE_TESTS_SUPPORT_SAYS_H_
#define APOGEE_TESTS_SUPPORT_SAYS_H_

#include <gmock/gmock-matchers.h>

#include "apogee/core/error.h"

namespace apogee::testing {

template <typename Matcher>
auto Says(const Matcher& matcher) {
  return ::testing::Throws<Error>(::testing::Property(&Error::what, matcher));
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_SAYS_H_
