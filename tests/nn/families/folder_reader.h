// SPDX-License-Identifier: Apache-2.0

// Gives the weights of a folder the names of the reference.
//
//   Reader r{folder, {.hidden = kHidden, .layers = 2}};
//   r.Linear("0.q", "model.layers.0.self_attn.q_proj");
//   return r.t;
#ifndef APOGEE_TESTS_NN_FAMILIES_FOLDER_READER_H_
#define APOGEE_TESTS_NN_FAMILIES_FOLDER_READER_H_

#include <string>

#include "apogee/tests/nn/families/family_cases.h"

namespace apogee::nn::families_test {

// Moves weights from a folder's names to the reference's.
struct Reader {
  Folder& folder;
  Transformer t;

  void Linear(const std::string& to, const std::string& from, bool bias = false) {
    t.weights[to] = folder.Take(from + ".weight");
    if (bias) t.weights[to + ".bias"] = folder.Take(from + ".bias");
  }
  void Norm(const std::string& to, const std::string& from) { Linear(to, from, t.layer_norm); }
  // The rows [begin, end) of a matrix with `columns` columns.
  void Rows(const std::string& to, const Row& from, size_t begin, size_t end, size_t columns) {
    const auto first = from.begin() + static_cast<int64_t>(begin * columns);
    Row& rows = t.weights[to];
    rows.insert(rows.end(), first, first + static_cast<int64_t>((end - begin) * columns));
  }
  // Of a matrix that is stored as [in, out], as GPT-2's Conv1D.
  Row Transposed(const std::string& from, size_t in) {
    const Row& stored = folder.Take(from);
    const size_t out = stored.size() / in;
    Row matrix;
    for (size_t i = 0; i < out; ++i) {
      for (size_t j = 0; j < in; ++j) matrix.push_back(stored[j * out + i]);
    }
    return matrix;
  }
};

inline Row Frequencies(double theta, size_t dims) {
  Row frequencies;
  for (size_t i = 0; i < dims; i += 2) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(dims)));
  }
  return frequencies;
}

// A config.json with the sizes that most families call alike.
inline std::string TinyConfig(const std::string& type, int layers, int heads,
                              const std::string& more) {
  return R"({"vocab_size": 23, "hidden_size": 12, "intermediate_size": 20, "rms_norm_eps": 1e-3,
    "max_position_embeddings": 16, "pad_token_id": null, "model_type": ")" +
         type + R"(", "num_hidden_layers": )" + std::to_string(layers) +
         R"(, "num_attention_heads": )" + std::to_string(heads) + ", " + more + "}";
}

}  // namespace apogee::nn::families_test

#endif  // APOGEE_TESTS_NN_FAMILIES_FOLDER_READER_H_
