// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/tensor_store.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "apogee/booster/lora/adapter_files.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/text/text.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::tools {
namespace {

using checkpoint::RealFileSystem;

// The folder's index lists the file, so if it is missing, that is damage.
absl::Status MissingIsDamage(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DataLossError(Message(status)) : status;
}

std::string FileNameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

absl::StatusOr<TensorStore> TensorStore::Open(const std::string& path) {
  TensorStore store;
  const auto names = RealFileSystem()->List(path);
  if (names.ok()) {
    APOGEE_RETURN_IF_ERROR(store.OpenFolder(path, *names));
    return store;
  }
  // Follows symbolic links, since the user named the file.
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (error) return NotFound(path, ": ", error.message());
  APOGEE_ASSIGN_OR_RETURN(auto file,
                          checkpoint::OpenTensorFile::Open(*RealFileSystem(), real.string()));
  store.file_ = std::make_shared<checkpoint::OpenTensorFile>(std::move(file));
  store.attributes_ = store.file_->header.metadata;
  std::map<std::string, checkpoint::HfWeights::Place> places;
  for (const auto& [name, entry] : store.file_->header.entries) {
    places[name] = {store.file_.get(), &entry};
  }
  store.AddEntries(places);
  return store;
}

absl::Status TensorStore::OpenFolder(const std::string& path,
                                     const std::vector<std::string>& names) {
  const auto has = [&](const char* name) {
    return std::ranges::find(names, std::string(name)) != names.end();
  };
  if (has(checkpoint::kManifestName)) {
    auto reader = checkpoint::CheckpointReader::Open(RealFileSystem(), path);
    if (!reader.ok()) return MissingIsDamage(reader.status());
    checkpoint_ = *std::move(reader);
    attributes_ = checkpoint_->attributes();
    for (const auto& [name, tensor] : checkpoint_->manifest().tensors) {
      StoredTensor& stored = tensors_[name];
      stored.dtype = tensor.dtype;
      stored.shape = tensor.shape;
      stored.bytes = checkpoint::SafetensorsDTypeSize(tensor.dtype);
      for (const int64_t size : tensor.shape) stored.bytes *= size;
      stored.slices = tensor.slices.size();
      std::set<std::string> files;
      for (const checkpoint::Slice& slice : tensor.slices) files.insert(slice.file);
      stored.files.assign(files.begin(), files.end());
    }
    return absl::OkStatus();
  }
  const bool is_model = has(checkpoint::kHfSingleName) || has(checkpoint::kHfIndexName);
  const bool is_adapter = !is_model && has(kAdapterWeightsName);
  if (!is_model && !is_adapter) {
    return NotFound(path, ": has none of ", checkpoint::kManifestName, ", ",
                    checkpoint::kHfSingleName, ", ", checkpoint::kHfIndexName, " and ",
                    kAdapterWeightsName);
  }
  if (is_adapter) {
    APOGEE_ASSIGN_OR_RETURN(const AdapterConfig config, ReadAdapterConfig(*RealFileSystem(), path));
    attributes_ = {{"base model", config.base_model},
                   {"rank", std::to_string(config.lora.rank)},
                   {"alpha", nn::ConfigText(config.lora.alpha)},
                   {"targets", JoinTexts(config.lora.targets, " ")}};
  }
  auto weights = checkpoint::HfWeights::Open(
      RealFileSystem(), path, is_adapter ? kAdapterWeightsName : checkpoint::kHfSingleName);
  if (!weights.ok()) return MissingIsDamage(weights.status());
  weights_ = *std::move(weights);
  AddEntries(weights_->tensors());
  return absl::OkStatus();
}

void TensorStore::AddEntries(const std::map<std::string, checkpoint::HfWeights::Place>& entries) {
  places_ = entries;
  for (const auto& [name, place] : entries) {
    tensors_[name] = {.dtype = place.entry->dtype,
                      .shape = place.entry->shape,
                      .bytes = place.entry->end - place.entry->begin,
                      .slices = 1,
                      .files = {FileNameOf(place.file->file->path())}};
  }
}

absl::Status TensorStore::Verify() const {
  return checkpoint_ ? checkpoint_->Verify() : absl::OkStatus();
}

absl::StatusOr<Tensor> TensorStore::Load(const std::string& name) const {
  const StoredTensor& stored = tensors_.at(name);
  const std::optional<DType> known = checkpoint::TensorDType(stored.dtype);
  const DType dtype = known.value_or(DType::kU8);
  const Tensor tensor = Tensor::Empty({stored.bytes / DTypeSize(dtype)}, dtype, CpuContext());
  if (checkpoint_) {
    if (!known || stored.shape.size() > static_cast<size_t>(Shape::kMaxRank)) {
      return InvalidArgument(checkpoint_->path(), ": tensor \"", name, "\" is ", stored.dtype, " ",
                             FormatShape(stored.shape), ", which this library cannot read");
    }
    APOGEE_RETURN_IF_ERROR(checkpoint_->Read(name, Layout(Shape(stored.shape)), tensor));
    return tensor;
  }
  const auto& place = places_.at(name);
  APOGEE_RETURN_IF_ERROR(place.file->file->Read(
      place.file->data_start + place.entry->begin,
      {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(stored.bytes)}));
  return tensor;
}

std::string FormatShape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace apogee::tools
