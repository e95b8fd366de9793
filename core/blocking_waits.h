// SPDX-License-Identifier: Apache-2.0

// Makes the threads of CPU loops sleep while they wait for each other, instead of spinning.
//
//   int main(int argc, char** argv) {
//     apogee::UseBlockingWaits(argv);                     // first
//
// By default GCC's OpenMP runtime spins at the end of a parallel loop. With a core per thread that
// saves a few microseconds; as soon as another process needs the core, it burns the time slice that
// the slowest thread is waiting for, and a program on two threads runs several times slower than on
// one.
#ifndef APOGEE_CORE_BLOCKING_WAITS_H_
#define APOGEE_CORE_BLOCKING_WAITS_H_

namespace apogee {

// Sets OMP_WAIT_POLICY=passive and starts this program anew with the same arguments, because the
// runtime reads the variable before main. Does nothing where the variable is already set, whatever
// its value, and on systems without /proc/self/exe. Call it before anything else happens in main.
void UseBlockingWaits(char** argv);

}  // namespace apogee

#endif  // APOGEE_CORE_BLOCKING_WAITS_H_
