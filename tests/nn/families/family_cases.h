// SPDX-License-Identifier: Apache-2.0

// The families of models as their publications define them: for each a tiny config.json, and how
// the reference computes with the weights of such a folder.
//
//   for (const FamilyCase& family : LlamaCases()) {
//     Folder folder(weights);                            // by the names in files
//     Transformer reference = family.make(folder);
//     folder.Left();                                     // names that the family does not have
//   }
#ifndef APOGEE_TESTS_NN_FAMILIES_FAMILY_CASES_H_
#define APOGEE_TESTS_NN_FAMILIES_FAMILY_CASES_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apogee/tests/nn/families/reference_transformer.h"

namespace apogee::nn::families_test {

inline constexpr size_t kVocab = 23, kHidden = 12, kInner = 20, kPositions = 16;
inline constexpr int64_t kPad = 5;  // in the cases that have a token for padding

// The weights of a folder; remembers which were read.
class Folder {
 public:
  explicit Folder(std::map<std::string, Row> weights) : weights_(std::move(weights)) {}
  // Throws std::out_of_range for a name that is missing.
  const Row& Take(const std::string& name) {
    taken_.insert(name);
    return weights_.at(name);
  }
  std::vector<std::string> Left() const {
    std::vector<std::string> left;
    for (const auto& [name, values] : weights_) {
      if (!taken_.contains(name)) left.push_back(name);
    }
    return left;
  }

 private:
  std::map<std::string, Row> weights_;
  std::set<std::string> taken_;
};

struct FamilyCase {
  std::string name;
  std::string config;
  Transformer (*make)(Folder& folder);
  // The table whose row kPad gets no gradient of lookups; "": none.
  std::string padded_table = {};
};

std::vector<FamilyCase> LlamaCases();  // and what has its names
std::vector<FamilyCase> GptCases();    // the other decoders
Transformer MakeBert(Folder& folder);
Transformer MakeVit(Folder& folder);

}  // namespace apogee::nn::families_test

#endif  // APOGEE_TESTS_NN_FAMILIES_FAMILY_CASES_H_
