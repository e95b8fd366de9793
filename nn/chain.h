// SPDX-License-Identifier: Apache-2.0

// Chain: a model whose forward is a chain of pieces, each a function of the one before's output. A
// pipeline gives every rank some pieces that follow each other; on one rank they run one after the
// other.
//
//   class MyModel : public nn::Chain {
//    protected:
//     std::vector<Piece> MakePieces() override {
//       return {{.name = "embed", .modules = {embed_.get()}, .forward = [this](const Tensor& x) {
//                  return (*embed_)(x); }},
//               {.name = "head", .modules = {norm_.get(), head_.get()},
//                .tied = {embed_->weight()}, .forward = [this](const Tensor& x) { ... }}};
//     }
//   };
//
// Between two pieces goes one floating tensor whose first dim is the sample, so that a piece of
// some samples' values is those samples' part of the whole result.
#ifndef APOGEE_NN_CHAIN_H_
#define APOGEE_NN_CHAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/nn/module.h"

namespace apogee::nn {

struct Piece {
  std::string name;  // for messages: "transformer.h.3"
  // What it runs, but not what contains other pieces' modules. Their parameters are the piece's.
  std::vector<Module*> modules = {};
  // Parameters that it uses and that none of its modules registers: a tied weight, one of the
  // model's own.
  std::vector<ParameterPtr> tied = {};
  // How long it takes, in products with one element of a weight; 0: with each of its parameters'
  // elements.
  double cost = 0;
  std::function<Tensor(const Tensor& x)> forward;
};

// The parameters that a piece uses, each once.
std::vector<ParameterPtr> ParametersOf(const Piece& piece);

class Chain : public Module {
 public:
  // The pieces in order; the same every time.
  const std::vector<Piece>& Pieces();
  // Runs them.
  Tensor Forward(const Tensor& x) override;

 protected:
  // At least one. Called once, when the model is complete.
  virtual std::vector<Piece> MakePieces() = 0;

 private:
  std::vector<Piece> pieces_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_CHAIN_H_
