// SPDX-License-Identifier: Apache-2.0

// Verify: replays every recorded case below a folder and prints one line per case:
//
//   PASS sgd/momentum  worst 0.12 of tolerance (param odd, step 8)
//   FAIL adam/default  worst 31 of tolerance (update of vec, step 8)
//   skip adafactor/colossal_default  variant, not offered
//   PASS hf_models/llama  worst 0.31 of tolerance (grad/model.norm.weight)
//   FAIL hf_models/mixtral  model type mixtral is not offered
//   40 passed, 2 failed
//
// A case is a .safetensors file, or a folder with the numbers of everything in it: expected.json,
// cases.json, or expected.safetensors beside a Hugging Face model.
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
