// SPDX-License-Identifier: Apache-2.0

// What data-parallel plugins do first: make sure that all ranks have the same model and optimizer.
//
//   PrepareReplicas("ddp", model, optimizer, group);
#ifndef APOGEE_PLUGINS_REPLICAS_H_
#define APOGEE_PLUGINS_REPLICAS_H_

#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

// The model's parameters but those that other ranks hold (Parameter::is_elsewhere).
std::vector<autograd::ParameterPtr> HeldParameters(const nn::Module& model);

// Throws Error for a model of which a plugin has cut parameters.
void CheckWhole(const std::string& plugin, const nn::Module& model);

// Collective; null: one rank, nothing to do. Rank 0's values and random state are broadcast. Throws
// one Error on every rank, before anything has changed, when the models differ in names, shapes,
// dtypes or what is frozen, or the optimizers in their groups, the order of parameters in them, or
// options.
void SyncReplicas(const std::string& plugin, nn::Module& model, const optim::Optimizer& optimizer,
                  const comm::GroupPtr& group);

// SyncReplicas but for the values, which SyncValue sends one by one.
void SyncReplicasButValues(const std::string& plugin, nn::Module& model,
                           const optim::Optimizer& optimizer, const comm::GroupPtr& group);

// Random masks of the model's forwards are numbered as if this were part `rank` of each batch,
// where batches do not know the places of their samples themselves (SamplePlaceOf). The last call
// holds.
void MaskByPlace(nn::Module& model, int rank);

// SyncReplicas, and from now on random masks follow a sample's place in the whole batch, of which
// each rank has its part.
void PrepareReplicas(const std::string& plugin, nn::Module& model,
                     const optim::Optimizer& optimizer, const comm::GroupPtr& group);

// PrepareReplicas in steps, for who cuts parameters as their values come: everything but the
// values, and then SyncValue of every parameter, in one order on all ranks. The value of a rank
// that has a lazy one is not made but received, and rank 0's is made by it.
void PrepareReplicasButValues(const std::string& plugin, nn::Module& model,
                              const optim::Optimizer& optimizer, const comm::GroupPtr& group);
void SyncValue(autograd::Parameter& parameter, const comm::GroupPtr& group);

// Throws Error, on every rank, when ranks of `group` have different gradients of one of `views`, of
// parameters that each of them holds whole: their copies would drift apart. Returns false when that
// cannot be said, because not all gradients are finite. `shards`: the ranks that hold a gradient
// between them, or all of it each; null: this one. Collective over both, on `context`.
bool CheckSameGradients(const std::string& plugin,
                        const std::vector<const optim::ParamView*>& views,
                        const comm::GroupPtr& shards, comm::Group& group,
                        const ContextPtr& context);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_REPLICAS_H_
