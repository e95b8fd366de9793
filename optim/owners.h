// SPDX-License-Identifier: Apache-2.0

// Owners: which rank of a group computes, and keeps, what exists once per parameter
// (ParamView::owned).
//
//   AssignOwners(optimizer, group.rank(), group.size());      // every rank, after views were bound
//   optimizer.views()[0].owned();                             // true on exactly one rank
//
// Ranks get about the same number of owned elements (Optimizer::OwnedNumel): the largest parameters
// are given away first, each to the rank that has least so far. No rank has more than the mean plus
// the largest parameter. The result depends on shapes and options alone, so that all ranks agree
// without a message.
#ifndef APOGEE_OPTIM_OWNERS_H_
#define APOGEE_OPTIM_OWNERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

// The rank that each load is given to.
std::vector<int> BalancedOwners(std::span<const int64_t> loads, int num_ranks);

// Tells every view whether `rank` of `num_ranks` owns it and drops the states of those it does not.
void AssignOwners(Optimizer& optimizer, int rank, int num_ranks);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OWNERS_H_
