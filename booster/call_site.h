// Rethrow: an error of a collective, told with the call that it happened in. Ranks that call
// different things only know that their collectives differ; the call is what the loop can look up.
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
  throw comm::CommError(
      internal::Concat(call, ": ", error.what(), " (this rank was in ", call,
                       ", which every rank must call, not one alone, and in the same order among "
                       "the forwards, backwards, steps and saves of its loop)"));
}

}  // namespace apogee

#endif  // APOGEE_BOOSTER_CALL_SITE_H_
