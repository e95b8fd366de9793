// SPDX-License-Identifier: Apache-2.0

// Keeps a program's files apart from what it prints.
//
//   int main(int argc, char** argv) {
//     apogee::KeepStandardDescriptors();                  // first
#ifndef APOGEE_CORE_STANDARD_DESCRIPTORS_H_
#define APOGEE_CORE_STANDARD_DESCRIPTORS_H_

namespace apogee {

// Where a program is started with a standard input, output or error that is closed, the next files
// that it opens take their numbers, and what it prints goes into its metrics, checkpoints or
// connections. Afterwards nothing can take them: reading finds the end, writing fails as before.
void KeepStandardDescriptors();

}  // namespace apogee

#endif  // APOGEE_CORE_STANDARD_DESCRIPTORS_H_
