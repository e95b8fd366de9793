// SPDX-License-Identifier: Apache-2.0

// Owners: chooses the rank that does the computations and keeps the states that exist once per
// parameter (ParamView::owned).
//
//   AssignOwners(optimizer, group.rank(), group.size());      // every rank, after views were bound
//   optimizer.views()[0].owned();                             // true on exactly one rank
//
// Ranks get about the same number of owned elements (ParamTraits::owned_numel). Parameters are
// assigned from the largest to the smallest, each to the rank with the fewest elements so far, so
// no rank has more than the mean plus the largest parameter. The result depends only on shapes and
// options, so ranks agree without communication.
#ifndef APOGEE_OPTIM_CORE_OWNERS_H_
#define APOGEE_OPTIM_CORE_OWNERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

// The rank that each load is assigned to.
std::vector<int> BalancedOwners(std::span<const int64_t> loads, int num_ranks);

// Tells every view whether `rank` of `num_ranks` owns it, and drops states that only the owner
// keeps from views owned by other ranks.
void AssignOwners(Optimizer& optimizer, int rank, int num_ranks);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_OWNERS_H_
