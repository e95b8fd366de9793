// SPDX-License-Identifier: Apache-2.0

#include <limits>

#include "apogee/core/text/json_reader.h"
#include "apogee/data/tokenizer/formats/tokenizer_json.h"

namespace apogee::data {
namespace {

// More than any known file has: {"decoder": {"decoders": [{"pattern": {"String": ...}}]}}.
constexpr size_t kMaxDepth = 12;

// Builds the tree. `open_` are the objects and lists that have begun; a pointer stays valid because
// only the last one of them grows.
class Builder : public JsonHandler {
 public:
  // A token of added_tokens, with its names of fields, takes eight times its text.
  explicit Builder(size_t text_bytes) : budget_(4 * text_bytes) {}

  TokenizerJson json;
  std::string problem;

  bool Null() override { return Put({}); }
  bool Boolean(bool value) override {
    JsonNode node;
    node.kind = JsonNode::Kind::kBoolean;
    node.boolean = value;
    return Put(std::move(node));
  }
  bool Negative(int64_t value) override { return Integer(value); }
  bool Unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail("a number is too large");
    }
    return Integer(static_cast<int64_t>(value));
  }
  bool Real(double value) override {
    JsonNode node;
    node.kind = JsonNode::Kind::kReal;
    node.real = value;
    return Put(std::move(node));
  }
  bool String(std::string& value) override {
    if (place_ == Place::kMerges) return SplitMerge(value);
    if (place_ == Place::kPair) return AddPart(value);
    JsonNode node;
    node.kind = JsonNode::Kind::kText;
    if (!budget_.TakeText(value)) return OutOfBudget();
    node.text = std::move(value);
    return Put(std::move(node));
  }

  bool StartObject() override {
    if (place_ == Place::kTree && IsModelField("vocab")) {
      place_ = Place::kVocab;
      return true;
    }
    return Open(JsonNode::Kind::kObject);
  }
  bool StartList() override {
    if (place_ == Place::kMerges) {
      place_ = Place::kPair;
      num_parts_ = 0;
      return true;
    }
    if (place_ == Place::kTree && IsModelField("merges")) {
      place_ = Place::kMerges;
      return true;
    }
    return Open(JsonNode::Kind::kList);
  }
  bool Key(std::string& key) override {
    if (place_ == Place::kVocab) {
      if (key.empty()) return Fail("model.vocab has a token without a name");
      if (!budget_.TakeElement(json.vocab)) return OutOfBudget();
      json.vocab.push_back({AddName(key), static_cast<uint32_t>(key.size()), 0});
      return true;
    }
    JsonNode& object = *open_.back();
    for (const std::string& other : object.keys) {
      if (other == key) return Fail("the field " + Shortened(key) + " is given twice");
    }
    if (object.keys.size() == kMaxFields) return Fail("an object has too many fields");
    if (!budget_.TakeText(key) || !budget_.TakeElement(object.keys)) return OutOfBudget();
    object.keys.push_back(std::move(key));
    return true;
  }
  bool EndObject() override {
    if (place_ == Place::kVocab) return Placeholder(JsonNode::Kind::kObject);
    open_.pop_back();
    return true;
  }
  bool EndList() override {
    if (place_ == Place::kPair) {
      if (num_parts_ != 2) return Fail("a merge of model.merges does not have two parts");
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) return Placeholder(JsonNode::Kind::kList);
    open_.pop_back();
    return true;
  }

 private:
  enum class Place { kTree, kVocab, kMerges, kPair };
  static constexpr size_t kMaxFields = 64;

  bool Fail(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool OutOfBudget() { return Fail("too many tiny entries for the size of the text"); }

  // Whether the value that begins is `name` of the object "model" of the root.
  bool IsModelField(const char* name) const {
    return open_.size() == 2 && open_[0]->keys.size() == open_[0]->items.size() &&
           open_[0]->keys.back() == "model" && open_[1]->kind == JsonNode::Kind::kObject &&
           open_[1]->keys.back() == name;
  }
  // What stands in the tree for the vocabulary and the merges.
  bool Placeholder(JsonNode::Kind kind) {
    place_ = Place::kTree;
    JsonNode node;
    node.kind = kind;
    return Put(std::move(node));
  }
  bool Integer(int64_t value) {
    if (place_ == Place::kVocab) {
      json.vocab.back().id = value;
      return value >= 0 || Fail("model.vocab has a negative id");
    }
    JsonNode node;
    node.kind = JsonNode::Kind::kInteger;
    node.integer = value;
    return Put(std::move(node));
  }
  bool Put(JsonNode node) {
    if (place_ == Place::kVocab) return Fail("model.vocab has an id that is no whole number");
    if (place_ != Place::kTree) return Fail("model.merges has something other than two strings");
    if (open_.empty()) {
      json.root = std::move(node);
      return true;
    }
    std::vector<JsonNode>& items = open_.back()->items;
    if (!budget_.TakeElement(items)) return OutOfBudget();
    items.push_back(std::move(node));
    return true;
  }
  bool Open(JsonNode::Kind kind) {
    if (open_.size() == kMaxDepth) return Fail("the text is nested too deeply");
    JsonNode node;
    node.kind = kind;
    JsonNode* const parent = open_.empty() ? nullptr : open_.back();
    if (!Put(std::move(node))) return false;
    open_.push_back(parent == nullptr ? &json.root : &parent->items.back());
    return true;
  }
  // "Ġ the": older files have both parts in one string.
  bool SplitMerge(std::string& value) {
    const size_t space = value.find(' ');
    if (space == value.npos || value.find(' ', space + 1) != value.npos) {
      return Fail("the merge \"" + Shortened(value) + "\" is not two parts and a space between");
    }
    num_parts_ = 0;
    return AddPart(value.substr(0, space)) && AddPart(value.substr(space + 1));
  }
  bool AddPart(const std::string& part) {
    if (num_parts_ == 2) return Fail("a merge of model.merges does not have two parts");
    const auto size = static_cast<uint32_t>(part.size());
    const uint32_t begin = AddName(part);
    if (num_parts_++ == 1) {
      json.merges.back().right_size = size;
      return true;
    }
    if (!budget_.TakeElement(json.merges)) return OutOfBudget();
    json.merges.push_back({begin, size, 0});
    return true;
  }
  // Names are never longer than the text, so they need no budget.
  uint32_t AddName(const std::string& name) {
    const auto begin = static_cast<uint32_t>(json.names.size());
    json.names += name;
    return begin;
  }

  Place place_ = Place::kTree;
  std::vector<JsonNode*> open_;
  int num_parts_ = 0;
  ParseBudget budget_;
};

}  // namespace

absl::StatusOr<TokenizerJson> ReadTokenizerJson(const std::string& text) {
  Builder builder(text.size());
  JsonReader reader(text);
  if (!reader.Read(builder)) {
    return InvalidArgument("byte ", static_cast<int64_t>(reader.byte()), ": ",
                           reader.problem().empty() ? builder.problem : reader.problem());
  }
  return std::move(builder.json);
}

}  // namespace apogee::data
