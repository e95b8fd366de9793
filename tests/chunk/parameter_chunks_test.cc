// SPDX-License-Identifier: Apache-2.0

// ParameterChunks: values that are views of chunks. The plugins' tests run it over ranks.
#include "apogee/chunk/parameter_chunks.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::chunk {
namespace parameter_chunks_test {

using ::testing::HasSubstr;
using testing::MessageOf;

class ParameterChunksTest : public ::testing::Test {
 protected:
  // Two chunks of one parameter each.
  void Make(const ParameterChunks::OnMove& on_move) {
    const std::vector<ChunkRequest> requests(2, ChunkRequest{.numel = 4, .element_bytes = 4});
    chunks_.emplace(parameters_, PlanChunks(requests, {.chunk_bytes = 16, .num_shards = 1}),
                    nullptr, std::vector<DType>{}, on_move);
  }
  Tensor Filled(double value) const { return Tensor::Full({4}, DType::kF32, value, context_); }

  const ContextPtr context_ = CpuContext();
  const std::vector<autograd::ParameterPtr> parameters_ = {
      std::make_shared<autograd::Parameter>("a", Filled(1)),
      std::make_shared<autograd::Parameter>("b", Filled(2))};
  std::optional<ParameterChunks> chunks_;
};

TEST_F(ParameterChunksTest, ValuesCannotBeReplacedWhileTheChunksExist) {
  Make([](size_t, const Tensor&, const Tensor&, const Layout&) {});
  ASSERT_EQ(chunks_->plan().size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(parameters_[i]->data().raw(), chunks_->Shard(i).raw());
    EXPECT_THAT(MessageOf([&] { parameters_[i]->set_value(Filled(3)); }),
                HasSubstr("\"" + parameters_[i]->name() + "\" cannot take another tensor"));
    EXPECT_EQ(parameters_[i]->value().ToVector<float>(),
              std::vector<float>(4, static_cast<float>(i) + 1));
  }
  chunks_.reset();
  EXPECT_EQ(parameters_[0]->value().ToVector<float>(), std::vector<float>(4, 1.0F));
  parameters_[0]->set_value(Filled(3));
  EXPECT_EQ(parameters_[0]->value().ToVector<float>(), std::vector<float>(4, 3.0F));
}

TEST_F(ParameterChunksTest, AFailedMoveLeavesValuesThatCanBeReplaced) {
  int moved = 0;
  EXPECT_THROW(Make([&](size_t, const Tensor&, const Tensor&, const Layout&) {
                 if (++moved == 2) Throw("no memory");
               }),
               Error);
  for (const autograd::ParameterPtr& parameter : parameters_) {
    parameter->set_value(Filled(3));
    EXPECT_EQ(parameter->value().ToVector<float>(), std::vector<float>(4, 3.0F));
  }
}

}  // namespace parameter_chunks_test
}  // namespace apogee::chunk
