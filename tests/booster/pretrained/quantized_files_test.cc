// SPDX-License-Identifier: Apache-2.0

// Folders with a weight in 4 bits, as bitsandbytes lays its tensors out: the values that are read,
// and what is refused with the model unchanged. `apogee verify` reads folders of bitsandbytes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/ops/block_codes.h"
#include "apogee/tests/booster/pretrained/folders.h"

namespace apogee::pretrained {
namespace quantized_files_test {

using ::testing::HasSubstr;

const std::string kWeight = "model.layers.1.mlp.up_proj.weight";  // [24, 16]
const std::string kState = kWeight + ".quant_state.bitsandbytes__nf4";
constexpr int64_t kNumel = 24 * 16;

using Bytes = std::vector<uint8_t>;
struct RawTensor {
  const char* dtype;
  std::vector<int64_t> shape;
  Bytes bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

std::string StateText(bool nested) {
  return std::string(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", )") +
         R"("shape": [24, 16])" +
         (nested ? R"(, "nested_blocksize": 256, "nested_offset": 0.25})" : "}");
}

RawTensor Text(const std::string& text) {
  return {"U8", {std::ssize(text)}, Bytes(text.begin(), text.end())};
}

// The weight's tensors, with an offset of scales of 0.25.
RawTensors InCodes(const Tensor& value, bool nested) {
  const BlockCodes codes{.nested = nested, .numel = kNumel};
  const Bytes all = ops::EncodeBlocks(value, codes).ToVector<uint8_t>();
  const auto section = [&](int64_t begin, int64_t bytes) {
    return Bytes(all.begin() + begin, all.begin() + begin + bytes);
  };
  const int64_t blocks = kNumel / 64;
  RawTensors tensors;
  tensors[kWeight] = {"U8", {kNumel / 2, 1}, section(codes.code_begin(), kNumel / 2)};
  tensors[kWeight + ".quant_map"] = {"F32", {16}, section(codes.map_begin(), 64)};
  tensors[kWeight + ".absmax"] = {
      nested ? "U8" : "F32", {blocks}, section(codes.scale_begin(), blocks * codes.scale_size())};
  if (nested) {
    tensors[kWeight + ".nested_quant_map"] = {
        "F32", {256}, section(codes.nested_map_begin(), 1024)};
    tensors[kWeight + ".nested_absmax"] = {"F32", {1}, section(codes.nested_begin(), 4)};
  }
  tensors[kState] = Text(StateText(nested));
  return tensors;
}

class QuantizedFilesTest : public ::testing::Test {
 protected:
  // Writes the folder with these tensors in the weight's place.
  void Write(const RawTensors& in_codes) {
    SafetensorsFile file;
    for (const auto& [name, tensor] : whole_) {
      if (name != kWeight) file.Add<float>(name, "F32", tensor.shape, tensor.values);
    }
    for (const auto& [name, raw] : in_codes) file.Add(name, raw.dtype, raw.shape, raw.bytes);
    file.Write(folder_ + "/model.safetensors");
  }
  // Of tensors that `edit` has changed.
  std::string Refused(const std::function<void(RawTensors&)>& edit, bool nested = true) {
    RawTensors tensors = InCodes(value_, nested);
    edit(tensors);
    Write(tensors);
    const nn::HfModel hf = RandomModel(config_, 2);
    const Values before = ValuesOf(*hf.module);
    const absl::Status status = LoadPretrained(*hf.module, folder_).status();
    EXPECT_EQ(ValuesOf(*hf.module), before) << status;
    EXPECT_TRUE(hf.module->QuantizedWeights().empty());
    return Message(status);
  }
  std::string RefusedState(const std::string& text) {
    return Refused([&](RawTensors& tensors) { tensors[kState] = Text(text); });
  }

  const testing::TempDir dir_;
  const std::string config_ = TinyConfig("llama");
  const std::string folder_ = SaveFolder(dir_ / "out", config_);
  const Tensors whole_ = ReadTensors(folder_ + "/model.safetensors");
  const Tensor value_ = RandomModel(config_).module->FindParameter(kWeight)->data();
};

TEST_F(QuantizedFilesTest, TheFilesCodesAreTheModels) {
  for (const bool nested : {false, true}) {
    RawTensors tensors = InCodes(value_, nested);
    Write(tensors);
    const nn::HfModel hf = ValueOrThrow(LoadPretrained(folder_, CpuContext(), {.notice = Ignore}));
    ASSERT_EQ(hf.module->QuantizedWeights().size(), 1U);
    const Values values = ValuesOf(*hf.module);
    for (const auto& [name, tensor] : whole_) {
      if (name == kWeight) continue;
      EXPECT_EQ(values.at(name), std::vector<double>(tensor.values.begin(), tensor.values.end()));
    }
    // Decoded by hand.
    const auto floats = [&](const std::string& end) {
      const Bytes& bytes = tensors.at(kWeight + end).bytes;
      std::vector<float> result(bytes.size() / 4);
      std::memcpy(result.data(), bytes.data(), bytes.size());
      return result;
    };
    const auto scale = [&](int64_t block) {
      if (!nested) return floats(".absmax")[block];
      const uint8_t code = tensors.at(kWeight + ".absmax").bytes[block];
      return floats(".nested_quant_map")[code] * floats(".nested_absmax")[0] + 0.25F;
    };
    const std::vector<float> map = floats(".quant_map");
    std::vector<double> want;
    for (int64_t i = 0; i < kNumel; ++i) {
      const int byte = tensors.at(kWeight).bytes[i / 2];
      want.push_back(map[i % 2 == 0 ? byte >> 4 : byte & 15] * scale(i / 64));
    }
    EXPECT_EQ(hf.module->FindParameter(kWeight)->dtype(), DType::kU8);
    EXPECT_EQ(hf.module->QuantizedWeights()[0]->weight()->value().ToVector<double>(), want);
  }
}

TEST_F(QuantizedFilesTest, TensorsThatAreMissingOrOfAnotherSize) {
  for (const char* end : {".quant_map", ".absmax", ".nested_quant_map", ".nested_absmax"}) {
    EXPECT_THAT(Refused([&](RawTensors& tensors) { tensors.erase(kWeight + end); }),
                HasSubstr("\"" + kWeight + end + "\" is missing"));
  }
  const auto cut = [](RawTensors& tensors) {
    tensors[kWeight].shape = {kNumel / 2 - 1, 1};
    tensors[kWeight].bytes.pop_back();
  };
  EXPECT_THAT(Refused(cut),
              HasSubstr("\"" + kWeight + "\" is [191, 1], and must have 192 elements"));
  const auto float_codes = [](RawTensors& tensors) {
    tensors[kWeight] = {"F32", {kNumel / 2, 1}, Bytes(2 * kNumel)};
  };
  EXPECT_THAT(Refused(float_codes),
              HasSubstr("\"" + kWeight + "\" has elements of F32, and must have u8"));
  // Codes of scales where the state has none.
  EXPECT_THAT(RefusedState(StateText(false)),
              HasSubstr("\"" + kWeight + ".absmax\" has elements of U8, and must have f32"));
}

TEST_F(QuantizedFilesTest, AnotherModel) {
  const auto renamed = [](RawTensors& tensors) {
    RawTensors other;
    for (auto& [name, raw] : tensors) other[Replaced(name, ".1.", ".7.")] = std::move(raw);
    tensors = std::move(other);
  };
  EXPECT_THAT(Refused(renamed), HasSubstr("\"model.layers.7.mlp.up_proj.weight\" has codes, and no "
                                          "place in this model"));
  EXPECT_THAT(RefusedState(Replaced(StateText(true), "[24, 16]", "[16, 24]")),
              HasSubstr("is [16, 24], and this model needs [24, 16]"));
}

TEST_F(QuantizedFilesTest, OtherCodes) {
  const auto fp4 = [](RawTensors& tensors) {
    tensors[kWeight + ".quant_state.bitsandbytes__fp4"] = tensors[kState];
    tensors.erase(kState);
  };
  EXPECT_THAT(Refused(fp4), HasSubstr("has other codes than nf4, which is all that is read"));
  const std::string text = StateText(true);
  EXPECT_THAT(RefusedState(Replaced(text, "nf4", "fp4")), HasSubstr("this is \"fp4\" in blocks"));
  EXPECT_THAT(RefusedState(Replaced(text, "\"blocksize\": 64", "\"blocksize\": 128")),
              HasSubstr("only nf4 in blocks of 64 is read, and this is \"nf4\" in blocks of 128"));
  EXPECT_THAT(RefusedState(Replaced(text, "256", "512")),
              HasSubstr("only scales in blocks of 256 are read, and these are in 512"));
}

TEST_F(QuantizedFilesTest, DamagedStates) {
  const std::string text = StateText(true);
  EXPECT_THAT(RefusedState(std::string(4097, ' ')),
              HasSubstr("has 4097 bytes; at most 4096 are read"));
  EXPECT_THAT(RefusedState(text.substr(0, 40)), HasSubstr(kState + "\": byte 40: "));
  EXPECT_THAT(RefusedState("[1]"), HasSubstr("must not be a list"));
  EXPECT_THAT(RefusedState("7"), HasSubstr("must be in an object"));
  EXPECT_THAT(RefusedState(Replaced(text, "\"shape\": [24, 16]", "\"shape\": null")),
              HasSubstr("has no \"shape\""));
  for (const char* shape : {"[24, -16]", "[24, 16.5]", "[24, \"x\"]", "[[24], 16]", "[24, null]",
                            "[1099511627777, 16]", "[1, 1, 1, 1, 1, 24, 16]"}) {
    EXPECT_THAT(RefusedState(Replaced(text, "[24, 16]", shape)), HasSubstr("\"shape\" ")) << shape;
  }
  EXPECT_THAT(RefusedState(Replaced(text, "0.25", "1e300")),
              HasSubstr("\"nested_offset\" is 1e+300, which no scale is"));
  EXPECT_THAT(RefusedState(Replaced(text, "\"dtype\"", "\"blocksize\"")),
              HasSubstr("\"blocksize\" is given twice"));
}

}  // namespace quantized_files_test
}  // namespace apogee::pretrained
