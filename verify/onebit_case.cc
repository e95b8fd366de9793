// SPDX-License-Identifier: Apache-2.0

// Replays recorded runs of several ranks: 1-bit Adam, and its compressed all-reduce alone.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "apogee/comm/compressed_all_reduce.h"
#include "apogee/comm/launch.h"
#include "apogee/optim/onebit/onebit_adam.h"
#include "apogee/optim/registry.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

using autograd::Parameter;
using autograd::ParameterPtr;
using internal::Concat;

// The ranks share one comparison.
class SharedComparison {
 public:
  template <typename Fn>
  void With(const Fn& fn) {
    const std::lock_guard lock(mutex_);
    fn(comparison_);
  }
  const Comparison& result() const { return comparison_; }

 private:
  std::mutex mutex_;
  Comparison comparison_;
};

void OnRanks(int num_ranks, const std::function<void(const comm::World&)>& fn) {
  OkOrThrow(comm::launch({.num_ranks = num_ranks, .threads_per_rank = 1},
                         [&](comm::World& world) { fn(world); }));
}

Tensor Get(const GoldenCase& golden, const std::string& entry, const comm::World& world,
           DType dtype) {
  const Tensor read = golden.Load(entry);
  return Tensor::FromVector<double>(read.ToVector<double>(), read.shape(), world.context(), dtype);
}

optim::OptionMap Options(const Json& values) {
  optim::OptionMap options;
  for (const auto& [key, value] : values.items()) {
    // These settings are recorded but have no effect in the reference; "params" lists the members.
    if (key == "bias_correction" || key == "eps_inside_sqrt" || key == "max_grad_norm" ||
        key == "params") {
      continue;
    }
    if (key == "betas") {
      options[key] = optim::FormatOption(
          std::array<double, 2>{value.at(0).get<double>(), value.at(1).get<double>()});
    } else if (value.is_boolean()) {
      options[key] = optim::FormatOption(value.get<bool>());
    } else if (value.is_number_integer()) {
      options[key] = optim::FormatOption(value.get<int64_t>());
    } else {
      options[key] = optim::FormatOption(value.get<double>());
    }
  }
  return options;
}

// One rank of a recorded run.
class OneBitReplay {
 public:
  OneBitReplay(const GoldenCase& golden, DType dtype, const comm::World& world,
               SharedComparison& comparison)
      : golden_(golden),
        dtype_(dtype),
        world_(world),
        comparison_(comparison),
        tolerance_(golden.required("tolerance")) {
    for (const auto& [name, shape] : golden.Params()) {
      params_.push_back(std::make_shared<Parameter>(
          name, Get(golden, Concat("param/", name, "/init"), world, dtype)));
    }
    std::vector<optim::TextParamGroup> groups;
    for (const Json& group : golden.required("groups")) {
      optim::OptionMap options = Options(golden.required("hyper"));
      for (const auto& [key, value] : Options(group)) options[key] = value;
      std::vector<ParameterPtr> members;
      for (const Json& name : group.at("params")) members.push_back(Find(name));
      groups.push_back({std::move(members), std::move(options)});
    }
    optimizer_ = ValueOrThrow(optim::MakeOptimizer("onebit_adam_deepspeed", std::move(groups)));
    local_ = optimizer_->traits().local_gradients;
    optimizer_->SetRanks({.group = world.group(), .rank = world.rank(), .num_ranks = world.size()});
  }

  void Run() {
    const Json phases = golden_.required("phases");
    for (int64_t step = 1; step <= golden_.steps(); ++step) {
      const bool compressed = phases.at(static_cast<size_t>(step - 1)) == "compressed";
      optimizer_->zero_grad();
      optimizer_->ForEachView([&](optim::ParamView& view, int group) {
        const bool local = local_->TakesLocalGrad(group);
        if (local != (compressed && local_->MayTakeLocalGrad(group))) {
          Fail(Concat("step ", step, ": the phase is another than recorded"));
        }
        Feed(*view.parameter(), step, local);
      });
      optimizer_->step();
      for (const optim::ParamView& view : std::as_const(*optimizer_).views()) {
        if (world_.rank() == 0) CompareWeights(view, step);
        CompareStates(view, step);
      }
    }
    const int64_t last = golden_.steps();
    for (const ParameterPtr& parameter : params_) {
      if (world_.rank() == 0) CompareUpdate(*parameter, last);
    }
  }

 private:
  ParameterPtr Find(const std::string& name) const {
    for (const ParameterPtr& parameter : params_) {
      if (parameter->name() == name) return parameter;
    }
    Throw("a group names parameter \"", name, "\", which is not in the list of parameters");
  }

  void Fail(const std::string& what) {
    comparison_.With([&](Comparison& comparison) { comparison.Fail(what); });
  }

  // Sets the gradient as the plugin would: this rank's own, or the mean over the ranks.
  void Feed(Parameter& parameter, int64_t step, bool local) {
    const std::string entry = Concat("grad/", parameter.name(), "/", step, "/rank");
    std::vector<double> sum;
    for (int r = 0; r < world_.size(); ++r) {
      if (local && r != world_.rank()) continue;
      const std::vector<double> grad = golden_.Values(Concat(entry, r));
      sum.resize(grad.size(), 0);
      for (size_t i = 0; i < grad.size(); ++i) {
        sum[i] += local ? grad[i] : grad[i] / world_.size();
      }
    }
    parameter.set_grad(
        Tensor::FromVector<double>(sum, parameter.shape(), world_.context(), dtype_));
  }

  double ParamTolerance(const std::string& name, const char* key) const {
    const Json own = tolerance_.value("per_param", Json::object()).value(name, Json::object());
    return own.contains(key) ? own[key].get<double>() : tolerance_.at(key).get<double>();
  }

  void CompareWeights(const optim::ParamView& view, int64_t step) {
    const std::string entry = Concat("param/", view.name(), "/", step);
    if (!golden_.contains(entry)) return;
    const Tolerances tolerances{ParamTolerance(view.name(), "atol"),
                                tolerance_.at("rtol").get<double>()};
    comparison_.With([&](Comparison& comparison) {
      comparison.Elements(view.value().ToVector<double>(), golden_.Values(entry), tolerances,
                          Concat("param ", view.name(), ", step ", step));
    });
  }

  void CompareUpdate(const Parameter& parameter, int64_t step) {
    const std::string& name = parameter.name();
    const std::vector<double> value = parameter.data().ToVector<double>();
    const std::vector<double> init = golden_.Values(Concat("param/", name, "/init"));
    const auto compare = [&](const std::string& entry, double limit) {
      if (!golden_.contains(entry)) return;
      comparison_.With([&](Comparison& comparison) {
        comparison.RelativeNorm(value, golden_.Values(entry), init, limit, "update: " + entry);
      });
    };
    compare(Concat("param/", name, "/", step), ParamTolerance(name, "update_rel_l2"));
    if (dtype_ == DType::kF64) compare(Concat("ref64/param/", name, "/", step), 1e-7);
  }

  // The tolerance is relative to the largest value the state has had, as for other optimizers.
  void CompareStates(const optim::ParamView& view, int64_t step) {
    const std::string prefix = Concat("state/", view.name(), "/");
    const auto compare = [&](const std::string& entry, const std::vector<double>& values,
                             double atol) {
      if (!golden_.contains(entry)) return;
      comparison_.With([&](Comparison& comparison) {
        comparison.Elements(values, golden_.Values(entry),
                            {atol, tolerance_.at("rtol").get<double>()}, entry);
      });
    };
    compare(Concat(prefix, "step/", step), {static_cast<double>(view.step())}, 0);
    for (const optim::NamedState& state : view.states()) {
      const std::vector<double> values = state.value.ToVector<double>();
      double& largest = largest_[view.name() + "/" + state.name];
      for (const double value : values) largest = std::max(largest, std::fabs(value));
      const std::string entry = Concat(prefix, state.name, "/", step);
      const bool per_rank = state.kind == StateKind::kPerRank;
      // A compression error may consist only of the momentum's rounding errors.
      const double size = std::max(largest, per_rank ? largest_[view.name() + "/exp_avg"] : 0.0);
      compare(per_rank ? Concat(entry, "/rank", world_.rank()) : entry, values, 3e-5 * size);
    }
  }

  const GoldenCase& golden_;
  DType dtype_;
  const comm::World& world_;
  SharedComparison& comparison_;
  Json tolerance_;
  std::vector<ParameterPtr> params_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LocalGradients* local_ = nullptr;
  std::map<std::string, double> largest_;
};

}  // namespace

Comparison ReplayOneBit(const GoldenCase& golden, DType dtype) {
  SharedComparison comparison;
  OnRanks(golden.required("world_size").get<int>(),
          [&](const comm::World& world) { OneBitReplay(golden, dtype, world, comparison).Run(); });
  return comparison.result();
}

Comparison ReplayCompressedAllReduce(const GoldenCase& golden, DType dtype) {
  SharedComparison comparison;
  const Json tolerance = golden.required("tolerance");
  const Tolerances tolerances{tolerance.at("atol").get<double>(),
                              tolerance.at("rtol").get<double>()};
  OnRanks(golden.required("hyper").at("world_size").get<int>(), [&](const comm::World& world) {
    comm::CompressedAllReduce reduce(world.group(), {.deepspeed = true});
    const std::string rank = Concat("/rank", world.rank());
    const auto calls = golden.required("calls").get<int>();
    comm::CompressedTensor tensor;
    for (int call = 0; call < calls; ++call) {
      const std::string at = Concat("call", call, "/");
      if (call == 0) {
        tensor.worker_error = Get(golden, at + "worker_error_before" + rank, world, dtype);
        tensor.server_error = Get(golden, at + "server_error_before" + rank, world, dtype);
      }
      tensor.value = Get(golden, at + "input" + rank, world, dtype);
      reduce.Run({&tensor, 1});
      comparison.With([&](Comparison& result) {
        const auto compare = [&](const std::string& entry, const Tensor& x) {
          result.Elements(x.ToVector<double>(), golden.Values(at + entry), tolerances, at + entry);
        };
        compare("output", tensor.value);
        compare("worker_error_after" + rank, tensor.worker_error);
        compare("server_error_after" + rank, tensor.server_error);
      });
    }
  });
  return comparison.result();
}

}  // namespace apogee::verify
