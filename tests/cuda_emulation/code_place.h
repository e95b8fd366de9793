// SPDX-License-Identifier: Apache-2.0

// Names of code for messages. Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_CODE_PLACE_H_
#define APOGEE_TESTS_CUDA_EMULATION_CODE_PLACE_H_

#include <string>

namespace cuda_emulation {

struct CodePlace {
  std::string function;  // with its namespaces
  std::string line;      // file:line; of a function that was inlined, also where it is called
};

// The place of an address in this program's code, as addr2line (of binutils) gives it, without the
// emulation's own functions. Without addr2line it is the address.
CodePlace PlaceOf(const void* code);

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_CODE_PLACE_H_
