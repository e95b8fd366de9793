// SPDX-License-Identifier: Apache-2.0

// The replays, one per family of recorded cases. Each throws Error for a case it cannot read.
#ifndef APOGEE_VERIFY_CASES_H_
#define APOGEE_VERIFY_CASES_H_

#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// With `dtype` f64 the replay runs in double precision and also compares with recorded float64
// runs.
Comparison ReplayOptimizer(const GoldenCase& golden, DType dtype);
Comparison ReplayGradClip(const GoldenCase& golden, DType dtype);
Comparison ReplayLrSchedule(const GoldenCase& golden, DType dtype);
Comparison ReplayQuant(const GoldenCase& golden, DType dtype);
Comparison ReplayOneBit(const GoldenCase& golden, DType dtype);
Comparison ReplayCompressedAllReduce(const GoldenCase& golden, DType dtype);
Comparison ReplayMuon(const GoldenCase& golden, DType dtype);
Comparison ReplayModel(const GoldenCase& golden, DType dtype);
// A folder with a Hugging Face model, by its expected.safetensors.
Comparison ReplayHfModel(const std::string& path, const ContextPtr& context, DType dtype);
// A folder with an adapter of PEFT, by its expected.safetensors.
Comparison ReplayPeft(const std::string& path, const ContextPtr& context, DType dtype);
// Weights in 4 bits of bitsandbytes, and a folder of them, by its expected.safetensors.
Comparison ReplayNf4(const GoldenCase& golden, DType dtype);
Comparison ReplayNf4Folder(const std::string& path, const ContextPtr& context, DType dtype);
// The same weights under other names, by their expected.json.
Comparison ReplayHfAlias(const std::string& path);
// Token files, by their expected.json.
Comparison ReplayDataset(const std::string& path);
// Tokenizers, by their cases.json.
Comparison ReplayTokenizer(const std::string& path);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_CASES_H_
