// GradientBuckets: averages gradients over a group inside backward, in buckets that fly while
// backward goes on.
//
//   GradientBuckets buckets(model.Parameters(), group, {.bucket_bytes = 25 << 20});
//   buckets.Backward(loss, scale, /*reduce=*/true);     // gradients are now means over the ranks
//
// Buckets take the parameters in reverse order of registration and are launched in that one order
// on every rank, each as soon as all its gradients are complete; those still open when backward
// ends are flushed, with zeros for gradients that are absent here. Presence is one bit per
// parameter, OR-ed over ranks: a gradient absent everywhere stays absent, one that some rank has
// becomes the mean over all. Afterwards a gradient is a view of its bucket.
//
// Without `reduce` (no_sync) gradients stay local and add up; the next reducing backward averages
// the sums. In reproducible mode they add up as a balanced tree over micro-batches, which the sum
// over ranks continues: the result does not depend on how 2^k micro-batches are spread over ranks.
#ifndef APOGEE_PLUGINS_GRADIENT_BUCKETS_H_
#define APOGEE_PLUGINS_GRADIENT_BUCKETS_H_

#include <memory>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/comm/group.h"

namespace apogee {

struct GradientBucketOptions {
  int64_t bucket_bytes = 25 << 20;
  // false: launch all buckets when backward has ended.
  bool overlap = true;
  bool reproducible = false;
};

class GradientBuckets {
 public:
  // Attaches a hook to every parameter. `group` may be null (one rank).
  GradientBuckets(std::vector<autograd::ParameterPtr> parameters, comm::GroupPtr group,
                  const GradientBucketOptions& options);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // autograd::Backward of `loss` with its gradient set to `loss_scale`. Collective when `reduce`. A
  // parameter that gets a gradient outside of this call throws Error: it would never be reduced.
  void Backward(const Tensor& loss, double loss_scale, bool reduce);
  int64_t num_buckets() const { return static_cast<int64_t>(buckets_.size()); }

 private:
  // One parameter: where its gradient lies, and its tree of partial sums in reproducible mode.
  struct Slot {
    autograd::ParameterPtr parameter;
    int hook = 0;
    size_t bucket = 0;
    int64_t offset = 0;  // in its bucket, in elements
    bool ready = false;  // complete in the backward under way
    // Partial sums of 2^level micro-batches, largest first. Between backward calls the smallest one
    // is the parameter's gradient itself, of `level`.
    struct Partial {
      Tensor sum;
      int level;
    };
    std::vector<Partial> partials;
    int level = 0;
  };
  struct Bucket {
    DType dtype;
    int64_t numel = 0;
    std::vector<size_t> slots;
    size_t missing = 0;
    Tensor flat;
    std::shared_ptr<comm::Work> work;
  };

  void MakeBuckets();
  void Begin(bool reduce);
  void OnGradient(size_t index);
  void LaunchReady();
  void Launch(Bucket& bucket);
  void Finish();
  void StashPartial(Slot& slot);
  void MergePartials(Slot& slot);
  void RestorePartial(Slot& slot);
  void FoldPartials(Slot& slot);

  comm::GroupPtr group_;
  GradientBucketOptions options_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<bool> trainable_;  // what the buckets were made for
  size_t next_bucket_ = 0;
  bool active_ = false;
  bool reduce_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GRADIENT_BUCKETS_H_
