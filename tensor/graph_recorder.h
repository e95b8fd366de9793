// SPDX-License-Identifier: Apache-2.0

// GraphRecorder: records the checks that ops make on the host while a device's work is captured
// into a graph.
//
//   GraphRecorder recorder;                              // a backend: one per capture
//   recorder.AddInput(tokens, host_tokens);              // gets new values before each replay
//   context->set_recorder(&recorder);
//   fn(tokens);                                          // the work to capture
//   context->set_recorder(nullptr);
//   recorder.CheckIndices(new_host_values);              // before a replay; as the ops would
//
// Some ops look at values on the host: they check indices and count targets. A replay runs no op,
// so the recorder notes these checks and repeats them before a replay:
//   indices   CheckIndices throws the op's Error if one is out of range.
//   counts    The number of targets is a constant of the graph. Takes() is false for inputs with
//             another number.
//
// The recorder knows the values of inputs, and of tensors that were copied from the host within the
// capture. An op that needs the values of other indices throws Error, which ends the capture.
#ifndef APOGEE_TENSOR_GRAPH_RECORDER_H_
#define APOGEE_TENSOR_GRAPH_RECORDER_H_

#include <optional>
#include <span>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee {

class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;

  // `device` is the graph's own tensor; `host` holds its present values.
  void AddInput(const Tensor& device, const Tensor& host);

  // Call it before the capture's memory is given back.
  void ForgetTensors() { known_.clear(); }
  // Begins another capture: forgets the checks, too.
  void Restart() {
    ForgetTensors();
    index_checks_.clear();
    count_checks_.clear();
  }

  // Tensor calls these two. `host` was copied to `device`, whose memory is kept as long as the
  // graph.
  void NoteUpload(const Tensor& device, const Tensor& host);
  // Something is written to `tensor`: its values are unknown from now on.
  void NoteWrite(const Tensor& tensor);

  // Ops call these two. Returns the values of the contiguous i64 tensor `indices`, [n] on the host.
  // In every replay each must be in [0, limit) or equal *ignored. Throws Error if the values are
  // not known.
  Tensor RequireIndices(const char* op, const Tensor& indices, int64_t limit,
                        const int64_t* ignored);
  // In every replay, `count` of `indices` must differ from `ignored`.
  void RequireCount(const char* op, const Tensor& indices, int64_t ignored, int64_t count);

  // `values`: the inputs' new values, contiguous on the host, in the order of AddInput.
  // CheckIndices throws Error for an index that the op would refuse.
  void CheckIndices(std::span<const Tensor> values) const;
  // Whether all counts are those of the capture.
  bool Takes(std::span<const Tensor> values) const;
  // Whether the checks need the values of input `i`.
  bool Reads(size_t i) const;

 private:
  struct Known {
    Tensor device, host;
    bool is_input;
    bool is_written = false;
  };
  // `count` elements of known_[index], from `offset` on.
  struct Place {
    size_t index;
    int64_t offset, count;
  };
  struct IndexCheck {
    const char* op;
    Place place;
    int64_t limit;
    std::optional<int64_t> ignored;
  };
  struct CountCheck {
    Place place;
    int64_t ignored, count;
  };
  Place Find(const char* op, const Tensor& tensor) const;

  std::vector<Known> known_;  // inputs first
  std::vector<IndexCheck> index_checks_;
  std::vector<CountCheck> count_checks_;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_GRAPH_RECORDER_H_
