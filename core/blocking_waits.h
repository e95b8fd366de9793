// SPDX-License-Identifier: Apache-2.0

// Makes the threads of CPU loops sleep while they wait for each other, instead of spinning.
//
//   int main(int argc, char** argv) {
//     apogee::UseBlockingWaits(argv);                     // first
//
// By default GCC's OpenMP runtime spins at the end of a parallel loop. With one core per thread,
// spinning saves a few microseconds. As soon as another process needs the core, spinning burns the
// time slice that the slowest thread is waiting for: a program on two threads then runs several
// times slower than on one.
#ifndef APOGEE_CORE_BLOCKING_WAITS_H_
#define APOGEE_CORE_BLOCKING_WAITS_H_

namespace apogee {

// Sets OMP_WAIT_POLICY=passive and restarts this program with the same arguments, because the
// runtime reads the variable before main. Does nothing if the variable already has a value, and on
// systems without /proc/self/exe. Call it before anything else happens in main.
void UseBlockingWaits(char** argv);

}  // namespace apogee

#endif  // APOGEE_CORE_BLOCKING_WAITS_H_
