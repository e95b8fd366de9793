// SPDX-License-Identifier: Apache-2.0

// The values of a config.json as text, and the fields that a family does not read.
#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/nn/models/hf_fields.h"

namespace apogee::nn {
namespace {

// Fields that change no number that these models compute. The library writes them, or programs that
// generate text or train need them.
constexpr const char* kHarmless[] = {"_name_or_path",
                                     "_attn_implementation",
                                     "architectures",
                                     "attn_implementation",
                                     "auto_map",
                                     "cache_implementation",
                                     "bos_token_id",
                                     "chunk_size_feed_forward",
                                     "classifier_dropout",
                                     "decoder_start_token_id",
                                     "do_sample",
                                     "dtype",
                                     "encoder_stride",
                                     "eos_token_id",
                                     "finetuning_task",
                                     "forced_eos_token_id",
                                     "gradient_checkpointing",
                                     "id2label",
                                     "initializer_factor",
                                     "initializer_range",
                                     "init_std",
                                     "is_decoder",
                                     "is_encoder_decoder",
                                     "label2id",
                                     "length_penalty",
                                     "max_length",
                                     "max_window_layers",
                                     "min_length",
                                     "n_ctx",
                                     "num_beams",
                                     "num_labels",
                                     "num_return_sequences",
                                     "output_attentions",
                                     "output_hidden_states",
                                     "pad_token_id",
                                     "pooler_act",
                                     "pooler_output_size",
                                     "prefix",
                                     "pretraining_tp",
                                     "problem_type",
                                     "pruned_heads",
                                     "reorder_and_upcast_attn",
                                     "repetition_penalty",
                                     "return_dict",
                                     "return_dict_in_generate",
                                     "sep_token_id",
                                     "summary_activation",
                                     "summary_first_dropout",
                                     "summary_proj_to_labels",
                                     "summary_type",
                                     "summary_use_proj",
                                     "task_specific_params",
                                     "temperature",
                                     "tf_legacy_loss",
                                     "tokenizer_class",
                                     "top_k",
                                     "top_p",
                                     "torch_dtype",
                                     "torchscript",
                                     "transformers.js_config",
                                     "transformers_version",
                                     "unk_token_id",
                                     "use_bfloat16",
                                     "use_cache"};

std::string DescribeList(const HfValue& value) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, value.list.size()); ++i) {
    text += (i == 0 ? "" : ", ") + DescribeValue(value.list[i]);
  }
  if (value.list.size() > kShown)
    text += internal::Concat(" and ", value.list.size() - kShown, " more");
  return "[" + text + "]";
}

}  // namespace

std::string DescribeValue(const HfValue& value) {
  switch (value.kind) {
    case HfValue::Kind::kNull:
      return "null";
    case HfValue::Kind::kBool:
      return value.flag ? "true" : "false";
    case HfValue::Kind::kInteger:
      return internal::Concat(value.integer);
    case HfValue::Kind::kReal:
      return internal::Concat(value.real);
    case HfValue::Kind::kString:
      return JsonQuoted(value.text);
    case HfValue::Kind::kList:
      return DescribeList(value);
    case HfValue::Kind::kObject:
      return "an object";
  }
  return "";
}

std::vector<std::string> HfFields::Unread() const {
  std::vector<std::string> unread;
  for (const auto& [name, value] : values_) {
    const bool known =
        read_.contains(name) || std::ranges::find(kHarmless, name) != std::end(kHarmless);
    if (known || value.kind == HfValue::Kind::kNull) continue;
    unread.push_back(internal::Concat("\"", name, "\" is ", DescribeValue(value)));
  }
  return unread;
}

}  // namespace apogee::nn
