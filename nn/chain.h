// SPDX-License-Identifier: Apache-2.0

// Chain: a model whose forward runs a list of pieces in order; each piece takes the output of the
// piece before it. Pipeline parallelism gives every stage some consecutive pieces; without it they
// all run on each rank.
//
//   class MyModel : public nn::Chain {
//    protected:
//     std::vector<nn::Piece> MakePieces() override {
//       return {{.name = "embed", .modules = {embed_.get()},
//                .forward = [this](const Tensor& x) { return (*embed_)(x); }},
//               {.name = "head", .modules = {norm_.get(), head_.get()}, .tied = {embed_->weight()},
//                .forward = [this](const Tensor& x) { return (*head_)((*norm_)(x)); }}};
//     }
//   };
//
// One floating-point tensor passes between two pieces, and its first dim is the sample: running a
// piece on some of the samples must give those samples' rows of the whole result (micro-batches).
#ifndef APOGEE_NN_CHAIN_H_
#define APOGEE_NN_CHAIN_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/nn/module.h"

namespace apogee::nn {

struct Piece {
  std::string name;  // for messages: "transformer.h.3"
  // The modules that the piece runs; their parameters belong to the piece. Don't list a module that
  // contains modules of other pieces.
  std::vector<Module*> modules = {};
  // Parameters that the piece uses but that no module in `modules` registers: a tied weight, or a
  // parameter of the model itself.
  std::vector<ParameterPtr> tied = {};
  // Relative compute time, in multiply-adds per token with weight elements. 0: one per element of
  // the piece's parameters. Pipelines balance their stages by it.
  double cost = 0;
  std::function<Tensor(const Tensor& x)> forward;
};

// The parameters of piece.modules and piece.tied, each once.
std::vector<ParameterPtr> ParametersOf(const Piece& piece);

class Chain : public Module {
 public:
  // The pieces, in order; made at the first call, the same ever after.
  const std::vector<Piece>& Pieces();
  // Runs all pieces, in order.
  Tensor Forward(const Tensor& x) override;

 protected:
  // Returns at least one piece. Called once, when the model is complete.
  virtual std::vector<Piece> MakePieces() = 0;

 private:
  std::vector<Piece> pieces_;
};

// A chain of modules:
//
//   nn::Sequential model({std::make_shared<nn::Linear>(64, 256), nn::Function(autograd::Relu),
//                         std::make_shared<nn::Linear>(256, 10)});
//   Tensor y = model(x);                  // parameters "0.weight", "0.bias", "2.weight", "2.bias"
//
// Each module gets the result of the one before it.
class Sequential : public Chain {
 public:
  // Named "0", "1", ... Throws Error for no module or a null one.
  explicit Sequential(std::vector<std::shared_ptr<Module>> modules);
  // With names of your own, which are unique and not empty.
  explicit Sequential(std::vector<std::pair<std::string, std::shared_ptr<Module>>> modules);

  size_t size() const { return modules_.size(); }
  Module& operator[](size_t i) const { return *modules_.at(i).second; }

 protected:
  std::vector<Piece> MakePieces() override;

 private:
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> modules_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_CHAIN_H_
