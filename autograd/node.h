// SPDX-License-Identifier: Apache-2.0

// The graph that backward walks: a Node per differentiable function call, edges to its inputs'
// nodes.
//
// A function computes its result with ops, then records how to go back (autograd/functions/*.cc).
// If the input's gradient follows from the output's alone:
//
//   Tensor Scale(const Tensor& x, double c) {
//     Tensor y = ops::Scale(x, c);
//     AttachMap(y, "scale", x, [c](const Tensor& dy) { return ops::Scale(dy, c); });
//     return y;
//   }
//
// Other functions, with several inputs or saved tensors, write a class:
//
//   class ExpNode : public Node {
//    public:
//     explicit ExpNode(const Tensor& y) : y_(y) {}
//     const char* name() const override { return "exp"; }
//     std::vector<Tensor> Backward(std::vector<Tensor> grads,
//                                  const BackwardContext& context) override {
//       return {ops::Mul(grads[0], y_.Take(context))};
//     }
//     void ReleaseSaved() override { y_.Reset(); }
//
//    private:
//     SavedTensor y_;
//   };
//
//   if (NeedsGrad({x})) Attach(y, std::make_shared<ExpNode>(y), {x});
//
// Nodes are made and run by one rank's thread; a graph is never shared between threads.
#ifndef APOGEE_AUTOGRAD_NODE_H_
#define APOGEE_AUTOGRAD_NODE_H_

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

class Node;

// The tensor is output number `output` of `node`, and its gradient flows there. A null node: no
// gradient is wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

// Which gradients a Backward call produces. kInputs is the half of a layer's backward that the
// previous layer waits for; kWeights is the half that can run later.
enum class GradPart { kAll, kInputs, kWeights };

struct BackwardContext {
  GradPart part = GradPart::kAll;
  // Keep the saved tensors: Backward will run again (retain_graph, or the other half).
  bool keep_saved = false;
};

class Node {
 public:
  explicit Node(int num_outputs = 1) : num_outputs_(num_outputs) {}
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The function's name for messages and traces, e.g. "linear".
  virtual const char* name() const = 0;
  // Takes one gradient per output; it is undefined if the output took no part in the loss. Returns
  // one gradient per edge; it may be undefined if the edge is empty or belongs to the other half.
  // The gradients are moved in, so an op may write in place into one that nothing else owns.
  virtual std::vector<Tensor> Backward(std::vector<Tensor> grads,
                                       const BackwardContext& context) = 0;
  // For a node of one edge whose gradient is 0 outside of a part of its input: adds the gradient
  // to `sum`, the sum of the others, which is undefined at first. So the gradients of many parts of
  // a tensor cost together as much as the tensor. Returns false if Backward must be called instead.
  virtual bool AddBackward(const Tensor& /*grad*/, Tensor& /*sum*/) { return false; }
  // Drops saved tensors. Called once Backward will not run again.
  virtual void ReleaseSaved() {}
  // True for the edge of a weight whose gradient may be computed later, as GradPart::kWeights.
  virtual bool IsWeightEdge(size_t /*edge*/) const { return false; }

  const std::vector<Edge>& edges() const { return edges_; }
  void set_edges(std::vector<Edge> edges);
  int num_outputs() const { return num_outputs_; }
  // The length of the longest path to a leaf. Backward runs deeper nodes first.
  int64_t depth() const { return depth_; }
  // Whether the input behind this edge needs a gradient.
  bool wants(size_t edge) const { return edges_[edge].node != nullptr; }
  // Whether the outputs are only this rank's columns of a tensor that a tensor-parallel group
  // holds, so that an element's index here is not its index in the whole tensor. set_edges (Attach)
  // sets it if any input is cut. Functions that split a tensor or gather it set it after that.
  bool is_cut() const { return is_cut_; }
  void set_cut(bool cut) { is_cut_ = cut; }

  // Runs before / after this node's Backward (module hooks attach here).
  void AddPreHook(std::function<void()> hook) { pre_hooks_.push_back(std::move(hook)); }
  void AddPostHook(std::function<void()> hook) { post_hooks_.push_back(std::move(hook)); }
  const std::vector<std::function<void()>>& pre_hooks() const { return pre_hooks_; }
  const std::vector<std::function<void()>>& post_hooks() const { return post_hooks_; }

 private:
  std::vector<Edge> edges_;
  int num_outputs_;
  int64_t depth_ = 0;
  bool is_cut_ = false;
  std::vector<std::function<void()>> pre_hooks_;
  std::vector<std::function<void()>> post_hooks_;
};

// The autograd_meta of a tensor in a graph.
struct GraphMeta : public AutogradMeta {
  Edge edge;
  // The dtype of the gradient that a leaf wants, e.g. f32 gradients of bf16 weights, or that the
  // tensor's node can take besides the tensor's own dtype.
  DType grad_dtype = DType::kF32;
};

// The tensor's meta; nullptr if it is not in a graph.
const GraphMeta* MetaOf(const Tensor& tensor);
// The edge along which the gradient of `tensor` flows; empty if it needs none.
Edge EdgeOf(const Tensor& tensor);
// Node::is_cut of the node that made the tensor; false outside of a graph.
bool IsCut(const Tensor& tensor);
// The dtype in which to compute the tensor's gradient: GraphMeta::grad_dtype, or the tensor's own
// dtype outside of a graph.
DType GradDType(const Tensor& tensor);
// Says that the node of the tensor takes gradients of `dtype`, too. Functions that can compute them
// so do (Linear). Outside of a graph: no effect.
void SetGradDType(Tensor& tensor, DType dtype);
// Whether grad mode is on and some tensor of the list is in a graph.
bool NeedsGrad(std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
// Makes `output` the node's output number 0, and sets the node's edges to `inputs`, in this order.
void Attach(Tensor& output, const std::shared_ptr<Node>& node,
            std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
// The same for any number of inputs.
bool NeedsGrad(std::span<const Tensor> inputs);
void Attach(Tensor& output, const std::shared_ptr<Node>& node, std::span<const Tensor> inputs);
// Makes `output` the node's output number `index`, after Attach for output 0.
void AttachOutput(Tensor& output, const std::shared_ptr<Node>& node, int index);

// The node of a function of one input whose gradient is `gradient` of the output's.
template <typename Gradient>
class MapNode : public Node {
 public:
  MapNode(const char* name, Gradient gradient) : name_(name), gradient_(std::move(gradient)) {}
  const char* name() const override { return name_; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    return {gradient_(std::move(grads[0]))};
  }

 private:
  const char* name_;
  Gradient gradient_;
};

// Attaches such a node, if the input needs a gradient, and returns it; else null.
template <typename Gradient>
Node* AttachMap(Tensor& output, const char* name, const Tensor& input, Gradient gradient) {
  if (!NeedsGrad({input})) return nullptr;
  const auto node = std::make_shared<MapNode<Gradient>>(name, std::move(gradient));
  Attach(output, node, {input});
  return node.get();
}

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_NODE_H_
