// SPDX-License-Identifier: Apache-2.0

// Verify: replays every recorded case below a folder and prints one line per case:
//
//   PASS sgd/momentum  worst 0.12 of tolerance (param odd, step 8)
//   FAIL adam/default  worst 31 of tolerance (update of vec, step 8)
//   skip adafactor/colossal_default  variant, not offered
//   39 passed, 1 failed
#ifndef APOGEE_VERIFY_VERIFY_H_
#define APOGEE_VERIFY_VERIFY_H_

#include <ostream>
#include <string>

#include "apogee/core/dtype.h"

namespace apogee::verify {

struct VerifyOptions {
  DType dtype = DType::kF32;
  int num_threads = 1;
  std::string device = "cpu";
};

// Returns the exit code: 0 all passed, 1 some failed, 2 no cases at `path`.
int Verify(const std::string& path, const VerifyOptions& options, std::ostream& out,
           std::ostream& errors);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_VERIFY_H_
