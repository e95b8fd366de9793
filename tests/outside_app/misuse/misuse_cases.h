// SPDX-License-Identifier: Apache-2.0

// Mistakes in the use of the library. Each must end in an error on every rank, never in a hang, a
// crash or a wrong result; rank 0's message must say what to do.
//
//   for (const MisuseCase& misuse : LoopMistakes()) ...
#ifndef OUTSIDE_APP_MISUSE_CASES_H_
#define OUTSIDE_APP_MISUSE_CASES_H_

#include <functional>
#include <string>
#include <vector>

#include "misuse_setup.h"

namespace outside {

struct MisuseCase {
  std::string mistake;
  std::string plugin;  // of plugins.h
  // Part of rank 0's message: the remedy, or the name of what is wrong.
  std::string expected;
  // On every rank.
  std::function<void(RankSetup& rank)> make;

  std::string name() const { return mistake + "/" + plugin; }
};

std::vector<MisuseCase> DataMistakes();
std::vector<MisuseCase> LifetimeMistakes();
std::vector<MisuseCase> LoopMistakes();
std::vector<MisuseCase> ModelMistakes();
std::vector<MisuseCase> OptimizerMistakes();
// Mistakes of one rank while the others are right.
std::vector<MisuseCase> RankMistakes();

}  // namespace outside

#endif  // OUTSIDE_APP_MISUSE_CASES_H_
