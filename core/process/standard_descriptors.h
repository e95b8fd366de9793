// SPDX-License-Identifier: Apache-2.0

// Keeps a program's printed output out of its files.
//
//   int main(int argc, char** argv) {
//     apogee::KeepStandardDescriptors();                  // first
#ifndef APOGEE_CORE_PROCESS_STANDARD_DESCRIPTORS_H_
#define APOGEE_CORE_PROCESS_STANDARD_DESCRIPTORS_H_

namespace apogee {

// Call it first. If a program starts with a closed standard input, output or error, the next files
// that it opens would get these numbers, and its printed text would end up in metrics, checkpoints
// or connections. This call occupies the closed numbers: reading from them finds the end of file,
// and writing to them fails as before.
void KeepStandardDescriptors();

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_STANDARD_DESCRIPTORS_H_
