// SPDX-License-Identifier: Apache-2.0

// Compiled primitives of oneDNN, kept for the next call. Only sources that run primitives include
// it. Private to tensor/cpu.
//
//   PrimitiveCache<Key, Product>& cache = ThreadCache<Key, Product>();
//   Product& product = cache.Get(key, "a matrix product", [&](Product& made, const auto& making) {
//     ... if (IsFast(desc, making)) made.primitive = dnnl::matmul(desc); ...
//   });
#ifndef APOGEE_TENSOR_CPU_ONEDNN_PRIMITIVES_H_
#define APOGEE_TENSOR_CPU_ONEDNN_PRIMITIVES_H_

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <string>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cpu/onednn/onednn.h"

namespace apogee::cpu {

inline dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Primitives get their scratch memory with each call.
inline dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// A description without an implementation, or with one that is only a plain loop, is of no use.
template <typename Desc>
bool IsFast(const Desc& desc, const MakingPrimitives& making) {
  if (!desc) making.CheckMemory();
  return desc && std::string(desc.impl_info_str()).find("ref") == std::string::npos;
}

// Runs `fn`; an error of oneDNN becomes an Error that begins with `what`.
template <typename Fn>
void RunOneDnn(const char* what, const Fn& fn) {
  try {
    fn();
  } catch (const dnnl::error& error) {
    ThrowOneDnnFailed(what, error.what(), error.status == dnnl_out_of_memory);
  }
}

// Primitives with their memory objects, by everything that they depend on: creating one costs more
// than a small product. Made::primitive is empty if oneDNN has nothing fast for the key.
template <typename Key, typename Made>
class PrimitiveCache {
 public:
  // Calls make(made, making) if the key is new.
  template <typename Make>
  Made& Get(const Key& key, const char* what, const Make& make) {
    if (auto found = made_.find(key); found != made_.end()) return *found->second;
    auto made = std::make_unique<Made>();
    RunOneDnn(what, [&] {
      const MakingPrimitives making(what);
      try {
        make(*made, making);
      } catch (const dnnl::error& error) {
        // Sizes or layouts that oneDNN does not take.
        const bool refused =
            error.status == dnnl_invalid_arguments || error.status == dnnl_unimplemented;
        if (!refused) throw;
        made->primitive = {};
      }
    });
    if (made_.size() == kMaxPrimitives) made_.clear();
    return *made_.emplace(key, std::move(made)).first->second;
  }
  const dnnl::engine& engine() const { return engine_; }
  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr size_t kMaxPrimitives = 512;

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, std::unique_ptr<Made>> made_;
};

// The calling thread's. Each thread has its own, so that ranks neither wait for each other nor
// share memory objects.
template <typename Key, typename Made>
PrimitiveCache<Key, Made>& ThreadCache() {
  thread_local PrimitiveCache<Key, Made> cache;
  return cache;
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ONEDNN_PRIMITIVES_H_
