// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/node.h"

#include <algorithm>
#include <utility>

#include "apogee/autograd/grad_mode.h"

namespace apogee::autograd {

// Dropping the last handle of a deep graph must not recurse once per node: the edges are taken
// apart with an explicit stack.
Node::~Node() {
  std::vector<std::shared_ptr<Node>> doomed;
  for (Edge& edge : edges_) doomed.push_back(std::move(edge.node));
  while (!doomed.empty()) {
    std::shared_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    if (node == nullptr || node.use_count() > 1) continue;
    for (Edge& edge : node->edges_) doomed.push_back(std::move(edge.node));
  }
}

void Node::set_edges(std::vector<Edge> edges) {
  edges_ = std::move(edges);
  depth_ = 0;
  is_cut_ = false;
  for (const Edge& edge : edges_) {
    if (edge.node == nullptr) continue;
    depth_ = std::max(depth_, edge.node->depth_ + 1);
    is_cut_ = is_cut_ || edge.node->is_cut_;
  }
}

const GraphMeta* MetaOf(const Tensor& tensor) {
  return static_cast<const GraphMeta*>(tensor.autograd_meta().get());
}

Edge EdgeOf(const Tensor& tensor) {
  const GraphMeta* meta = MetaOf(tensor);
  return meta != nullptr ? meta->edge : Edge{};
}

bool IsCut(const Tensor& tensor) {
  const GraphMeta* meta = MetaOf(tensor);
  return meta != nullptr && meta->edge.node->is_cut();
}

DType GradDType(const Tensor& tensor) {
  const GraphMeta* meta = MetaOf(tensor);
  return meta != nullptr ? meta->grad_dtype : tensor.dtype();
}

void SetGradDType(Tensor& tensor, DType dtype) {
  auto* meta = static_cast<GraphMeta*>(tensor.autograd_meta().get());
  if (meta != nullptr) meta->grad_dtype = dtype;
}

namespace {

bool AnyNeedsGrad(const auto& inputs) {
  return GradModeEnabled() &&
         std::ranges::any_of(inputs, [](const Tensor& input) { return MetaOf(input) != nullptr; });
}

void AttachTo(const auto& inputs, Tensor& output, const std::shared_ptr<Node>& node) {
  std::vector<Edge> edges;
  for (const Tensor& input : inputs) edges.push_back(EdgeOf(input));
  node->set_edges(std::move(edges));
  AttachOutput(output, node, 0);
}

}  // namespace

bool NeedsGrad(std::initializer_list<std::reference_wrapper<const Tensor>> inputs) {
  return AnyNeedsGrad(inputs);
}
bool NeedsGrad(std::span<const Tensor> inputs) { return AnyNeedsGrad(inputs); }

void Attach(Tensor& output, const std::shared_ptr<Node>& node,
            std::initializer_list<std::reference_wrapper<const Tensor>> inputs) {
  AttachTo(inputs, output, node);
}
void Attach(Tensor& output, const std::shared_ptr<Node>& node, std::span<const Tensor> inputs) {
  AttachTo(inputs, output, node);
}

void AttachOutput(Tensor& output, const std::shared_ptr<Node>& node, int index) {
  auto meta = std::make_shared<GraphMeta>();
  meta->edge = {node, index};
  meta->grad_dtype = output.dtype();
  output.set_autograd_meta(std::move(meta));
}

}  // namespace apogee::autograd
