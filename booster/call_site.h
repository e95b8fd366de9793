// SPDX-License-Identifier: Apache-2.0

// Rethrow: adds the name of the call to an error of a collective. If ranks make different calls,
// the error only says that their collectives differ; the user can look up the call in the loop.
//
//   absl::Status Booster::save_model(...) try { ... } catch (const comm::CommError& error) {
//     Rethrow("save_model", error);
//   }
//
// Private to booster.
#ifndef APOGEE_BOOSTER_CALL_SITE_H_
#define APOGEE_BOOSTER_CALL_SITE_H_

#include "apogee/comm/work.h"

namespace apogee {

[[noreturn]] inline void Rethrow(const char* call, const comm::CommError& error) {
  throw comm::CommError(internal::Concat(
      call, ": ", error.what(), ". This rank was in ", call,
      ". Every rank must make the same forwards, backwards, steps and saves in the "
      "same order; a save or an evaluation on rank 0 alone is the usual mistake"));
}

}  // namespace apogee

#endif  // APOGEE_BOOSTER_CALL_SITE_H_
