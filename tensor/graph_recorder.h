// SPDX-License-Identifier: Apache-2.0

// What ops tell a graph of a device's work while it is captured: the host decides things by the
// values of some tensors, and a replay, in which the host does nothing, must come to the same.
//
//   GraphRecorder recorder;                              // a backend: one per capture
//   recorder.AddInput(tokens, host_tokens);              // gets new values before each replay
//   context->set_recorder(&recorder);  ...  context->set_recorder(nullptr);
//   recorder.CheckIndices({new_host_tokens});            // before a replay; as the ops would
//
// A number that differs from one replay to the next on the host (a count of targets) is a part of
// the graph: Takes() says whether it is what it was. Indices are checked anew. Those are known that
// are elements of an input, or were copied from the host within the capture; where others would
// have to be read, CheckIndices throws Error, which ends the capture.
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

  // `device` belongs to the graph; `host` has its values now.
  void AddInput(const Tensor& device, const Tensor& host);

  // Before the memory of the capture is given back.
  void ForgetTensors() { known_.clear(); }

  // For Tensor. `host` was copied to `device`, which keeps its place for as long as the graph.
  void NoteUpload(const Tensor& device, const Tensor& host);
  // Something is written to `tensor`, whose values are not known from now on.
  void NoteWrite(const Tensor& tensor);

  // For ops. The values of contiguous i64 `indices`, [n] on the host, which are to be in
  // [0, limit) or *ignored now and in every replay. Throws Error where they are not known.
  Tensor RequireIndices(const char* op, const Tensor& indices, int64_t limit,
                        const int64_t* ignored);
  // So many of `indices` are not `ignored`, now and in every replay.
  void RequireCount(const char* op, const Tensor& indices, int64_t ignored, int64_t count);

  // With the inputs' values on the host, in the order of AddInput. The first throws Error where an
  // op would.
  void CheckIndices(std::span<const Tensor> values) const;
  bool Takes(std::span<const Tensor> values) const;
  // Whether the values of input `i` are read on the host at all.
  bool Reads(size_t i) const;

 private:
  struct Known {
    Tensor device, host;
    bool is_input;
    bool is_written = false;
  };
  // Elements of known_[index], which is an input.
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
