// SPDX-License-Identifier: Apache-2.0

// The graph that backward walks: a Node per differentiable function call, edges to its inputs'
// nodes.
//
// A function computes its result with ops, then records how to go back (autograd/functions/*.cc):
//
//   class ScaleNode : public Node { ... Backward(grads, context) { return {ops::Scale(grads[0],
//   c_)}; } }; Tensor Scale(const Tensor& x, double c) {
//     Tensor y = ops::Scale(x, c);
//     if (NeedsGrad({x})) Attach(y, std::make_shared<ScaleNode>(c), {x});
//     return y;
//   }
//
// Nodes are made and run by one rank's thread; a graph is never shared between threads.
#ifndef APOGEE_AUTOGRAD_NODE_H_
#define APOGEE_AUTOGRAD_NODE_H_

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

class Node;

// "The gradient of this tensor is output `output` of `node`." An empty node: no gradient wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

// Which gradients a Backward call is to produce. kInputs and kWeights split a layer's backward into
// the half that the previous layer waits for and the half that can run later (zero-bubble
// pipelines).
enum class GradPart { kAll, kInputs, kWeights };

struct BackwardContext {
  GradPart part = GradPart::kAll;
  // The graph will be walked again (retain_graph, or the other half): saved tensors must stay.
  bool keep_saved = false;
};

class Node {
 public:
  explicit Node(int num_outputs = 1) : num_outputs_(num_outputs) {}
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The function's name, for messages and traces: "linear".
  virtual const char* name() const = 0;
  // One gradient per edge from one gradient per output (undefined: that output took no part in the
  // loss). An entry may stay undefined where the edge is empty or another part was asked for. The
  // gradients are moved in: an op may write in place into one that nothing else owns.
  virtual std::vector<Tensor> Backward(std::vector<Tensor> grads,
                                       const BackwardContext& context) = 0;
  // Drops saved tensors. Called once Backward will not run again.
  virtual void ReleaseSaved() {}
  // True for the edge of a weight whose gradient may be computed later, as GradPart::kWeights.
  virtual bool IsWeightEdge(size_t /*edge*/) const { return false; }

  const std::vector<Edge>& edges() const { return edges_; }
  void set_edges(std::vector<Edge> edges);
  int num_outputs() const { return num_outputs_; }
  // Length of the longest path to a leaf; backward runs deeper nodes first, in a fixed order.
  int64_t depth() const { return depth_; }
  bool wants(size_t edge) const { return edges_[edge].node != nullptr; }
  // Whether the outputs are this rank's columns of what ranks compute together, so that an
  // element's place here is not its place in the whole. set_edges: when some input's are. What cuts
  // a whole tensor, or makes it whole again, says so after set_edges (Attach).
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

// What a tensor in a graph carries.
struct GraphMeta : public AutogradMeta {
  Edge edge;
  // The dtype in which the owner wants the gradient of a leaf (fp32 gradients of bf16 weights).
  DType grad_dtype = DType::kF32;
};

// The meta of a tensor that is in a graph, else nullptr.
const GraphMeta* MetaOf(const Tensor& tensor);
// The edge a gradient of `tensor` flows along; empty when it needs none.
Edge EdgeOf(const Tensor& tensor);
// Node::is_cut of what made it; false outside of a graph.
bool IsCut(const Tensor& tensor);
// The dtype a weight gradient is to be computed in: the leaf's wish, else the tensor's own dtype.
DType GradDType(const Tensor& tensor);
// True when grad mode is on and some defined tensor of the list is in a graph.
bool NeedsGrad(std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
// Makes `output` the node's output number `index`; the node's edges go to `inputs`.
void Attach(Tensor& output, const std::shared_ptr<Node>& node,
            std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
// Further outputs of a node whose edges are set.
void AttachOutput(Tensor& output, const std::shared_ptr<Node>& node, int index);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_NODE_H_
