#include "apogee/tools/matrix/workload.h"

#include "apogee/core/text.h"
#include "apogee/tools/matrix/fed_gradients.h"
#include "apogee/tools/matrix/tiny_model.h"

namespace apogee::tools {

const Workload& FindWorkload(const std::string& name) {
  static const FedGradients fed;
  static const TinyWorkload gpt2(TinyKind::kGpt2), llama(TinyKind::kLlama);
  if (name == "fed") return fed;
  if (name == "gpt2") return gpt2;
  if (name == "llama") return llama;
  Throw(UnknownName("workload", name, WorkloadNames()));
}

std::vector<std::string> WorkloadNames() { return {"fed", "gpt2", "llama"}; }

}  // namespace apogee::tools
