// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/recompute.h"

#include <utility>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/saved_tensor.h"

namespace apogee::autograd {
namespace {

thread_local bool is_recomputing = false;

// One checkpointed call. The placeholders of the tensors that it did not save share it.
class Segment {
 public:
  Segment(std::function<Tensor(const Tensor&)> fn, const Tensor& input, Generator* generator)
      : fn_(std::move(fn)), input_(input), generator_(generator), documents_(CurrentDocuments()) {
    if (generator_ != nullptr) before_ = *generator_;
  }

  int64_t AddPlaceholder(const Tensor& tensor) {
    shapes_.push_back(tensor.shape());
    return static_cast<int64_t>(shapes_.size()) - 1;
  }

  Tensor Get(int64_t index) {
    if (tensors_.empty()) Rerun();
    return tensors_[static_cast<size_t>(index)]->Unpack();
  }

  void Drop(int64_t index) {
    if (!tensors_.empty()) tensors_[static_cast<size_t>(index)] = nullptr;
  }

 private:
  void Rerun() {
    struct Keep : PackedTensor {
      explicit Keep(const Tensor& t) : tensor(t) {}
      Tensor Unpack() override { return tensor; }
      Tensor tensor;
    };
    GradModeGuard grad_mode(true);
    std::vector<std::shared_ptr<PackedTensor>> tensors;
    bool same = true;
    // The code that runs backward may have a pack hook of its own (offload).
    const PackHook* outer = CurrentPackHook();
    SavedTensorHookGuard hooks([&](const Tensor& tensor) {
      same = same && tensors.size() < shapes_.size() && tensor.shape() == shapes_[tensors.size()];
      tensors.push_back(outer != nullptr ? (*outer)(tensor) : std::make_shared<Keep>(tensor));
      return tensors.back();
    });
    Replay replay(generator_, before_);
    const DocumentsGuard documents(documents_);
    fn_(input_);
    same = same && tensors.size() == shapes_.size();
    APOGEE_CHECK(same, "recompute: the function saved ", shapes_.size(), " tensors in forward and ",
                 tensors.size(),
                 " (or other shapes) when run again; it must not depend on changing state");
    tensors_ = std::move(tensors);
  }

  // Puts the generator back to the state of the first run for a scope.
  struct Replay {
    Replay(Generator* g, const Generator& before)
        : generator(g), outer(std::exchange(is_recomputing, true)) {
      if (generator == nullptr) return;
      saved = *generator;
      *generator = before;
    }
    ~Replay() {
      is_recomputing = outer;
      if (generator != nullptr) *generator = saved;
    }
    Generator* generator;
    bool outer;
    Generator saved;
  };

  std::function<Tensor(const Tensor&)> fn_;
  Tensor input_;  // with its graph, so that the second run records what the first did
  Generator* generator_;
  Generator before_;                      // its state before the first run
  std::shared_ptr<Documents> documents_;  // of the first run
  std::vector<Shape> shapes_;
  std::vector<std::shared_ptr<PackedTensor>> tensors_;
};

class Placeholder : public PackedTensor {
 public:
  Placeholder(std::shared_ptr<Segment> segment, int64_t index)
      : segment_(std::move(segment)), index_(index) {}
  ~Placeholder() override { segment_->Drop(index_); }
  Tensor Unpack() override { return segment_->Get(index_); }

 private:
  std::shared_ptr<Segment> segment_;
  int64_t index_;
};

}  // namespace

bool IsRecomputing() { return is_recomputing; }

Tensor Recompute(std::function<Tensor(const Tensor&)> fn, const Tensor& input,
                 Generator* generator) {
  if (!GradModeEnabled()) return fn(input);
  const auto segment = std::make_shared<Segment>(fn, input, generator);
  SavedTensorHookGuard hooks([segment](const Tensor& tensor) {
    return std::make_shared<Placeholder>(segment, segment->AddPlaceholder(tensor));
  });
  return fn(input);
}

}  // namespace apogee::autograd
