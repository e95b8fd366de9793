// SPDX-License-Identifier: Apache-2.0

// The first steps of data-parallel plugins: check that all ranks have the same model and optimizer,
// and send rank 0's values to all.
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

// The model's parameters except those that only other ranks hold (Parameter::is_here).
std::vector<autograd::ParameterPtr> HeldParameters(const nn::Module& model);

// Throws Error if a plugin has cut parameters of the model.
void CheckWhole(const std::string& plugin, const nn::Module& model);

// Broadcasts rank 0's values and random state. Collective; a null group is one rank, with nothing
// to do. Throws one Error on every rank, before anything has changed, when the ranks' models differ
// in names, shapes, dtypes or frozen parameters, or their optimizers in groups, the order of
// parameters in them, or options.
void SyncReplicas(const std::string& plugin, nn::Module& model, const optim::Optimizer& optimizer,
                  const comm::GroupPtr& group);

// SyncReplicas without the values of parameters. SyncValue sends these one by one.
void SyncReplicasButValues(const std::string& plugin, nn::Module& model,
                           const optim::Optimizer& optimizer, const comm::GroupPtr& group);

// Numbers the random masks of the model's forwards as if each batch were part `rank` of the whole
// batch. Batches that know the places of their samples (SamplePlaceOf) use those instead. The last
// call holds.
void MaskByPlace(nn::Module& model, int rank);

// SyncReplicas and MaskByPlace: from now on random masks follow a sample's place in the whole
// batch, of which each rank has its part.
void PrepareReplicas(const std::string& plugin, nn::Module& model,
                     const optim::Optimizer& optimizer, const comm::GroupPtr& group);

// PrepareReplicas in steps, for plugins that cut each parameter as its value arrives: call this
// first, then SyncValue for every parameter, in one order on all ranks. Only rank 0 computes lazy
// values; the other ranks receive them.
void PrepareReplicasButValues(const std::string& plugin, nn::Module& model,
                              const optim::Optimizer& optimizer, const comm::GroupPtr& group);
void SyncValue(autograd::Parameter& parameter, const comm::GroupPtr& group);

// Throws Error, on every rank, if ranks of `group` have different gradients for one of `views`.
// Each rank holds these parameters whole, so their copies would drift apart. Returns false if this
// cannot be decided because not all gradients are finite. `shards`: the ranks over which gradients
// are sharded (or replicated, if each holds all of them); null: only this rank. Collective over
// both groups, on `context`.
bool CheckSameGradients(const std::string& plugin,
                        const std::vector<const optim::ParamView*>& views,
                        const comm::GroupPtr& shards, comm::Group& group,
                        const ContextPtr& context);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_REPLICAS_H_
