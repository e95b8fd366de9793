#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>

#include "apogee/tools/command.h"
#include "apogee/tools/tensor_store.h"

namespace apogee::tools {
namespace {

struct Flags {
  std::string a, b;
  int limit = 10;
};

struct Difference {
  double largest = 0;  // |a - b|
  double scale = 0;    // largest |a|
  double relative() const { return largest == 0 ? 0 : largest / scale; }
};

// Of NaN, as soon as one side alone has it: NaN.
Difference Compare(const Tensor& a, const Tensor& b) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  Difference difference;
  for (int64_t at = 0; at < a.numel(); at += kPiece) {
    const int64_t count = std::min(kPiece, a.numel() - at);
    const auto x = a.Slice(0, at, count).ToVector<double>();
    const auto y = b.Slice(0, at, count).ToVector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      if (!std::isnan(x[i])) difference.scale = std::max(difference.scale, std::abs(x[i]));
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double distance = std::abs(x[i] - y[i]);
      if (std::isnan(distance) || distance > difference.largest) difference.largest = distance;
      if (std::isnan(distance)) return difference;
    }
  }
  return difference;
}

// "" when equal, bit for bit.
absl::StatusOr<std::string> Describe(const TensorStore& a, const TensorStore& b,
                                     const std::string& name) {
  const StoredTensor &in_a = a.tensors().at(name), &in_b = b.tensors().at(name);
  if (in_a.shape != in_b.shape) {
    return "shape " + FormatShape(in_a.shape) + " and " + FormatShape(in_b.shape);
  }
  APOGEE_ASSIGN_OR_RETURN(const Tensor x, a.Load(name));
  APOGEE_ASSIGN_OR_RETURN(const Tensor y, b.Load(name));
  const bool same_dtype = in_a.dtype == in_b.dtype;
  if (same_dtype && std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())) == 0) return "";
  std::string text = same_dtype ? "" : in_a.dtype + " and " + in_b.dtype + ": ";
  if (x.numel() != y.numel()) return text + "cannot be compared";
  const Difference difference = Compare(x, y);
  char numbers[80];
  std::snprintf(numbers, sizeof(numbers), "max abs %.6g, relative %.6g", difference.largest,
                difference.relative());
  return text + numbers;
}

int Report(const absl::Status& status) {
  std::cerr << "apogee diff: " << Printable(Message(status)) << "\n";
  return 2;
}

int Run(const Flags& flags) {
  const absl::StatusOr<TensorStore> a = TensorStore::Open(flags.a);
  if (!a.ok()) return Report(a.status());
  const absl::StatusOr<TensorStore> b = TensorStore::Open(flags.b);
  if (!b.ok()) return Report(b.status());
  int64_t equal = 0, different = 0, missing = 0;
  const auto print = [&flags, &different, &missing](const std::string& name,
                                                    const std::string& what) {
    if (different + missing <= flags.limit) std::cout << Printable(name) << "  " << what << "\n";
  };
  std::map<std::string, StoredTensor> all = a->tensors();
  all.insert(b->tensors().begin(), b->tensors().end());
  for (const auto& [name, tensor] : all) {
    if (!a->tensors().contains(name) || !b->tensors().contains(name)) {
      ++missing;
      print(name, "only in " + (a->tensors().contains(name) ? flags.a : flags.b));
      continue;
    }
    const absl::StatusOr<std::string> text = Describe(*a, *b, name);
    if (!text.ok()) return Report(text.status());
    ++(text->empty() ? equal : different);
    if (!text->empty()) print(name, *text);
  }
  if (different + missing > flags.limit) {
    std::cout << "... and " << different + missing - flags.limit << " more\n";
  }
  std::cout << equal << " equal, " << different << " different, " << missing << " missing\n";
  return different + missing == 0 ? 0 : 1;
}

}  // namespace

void AddDiffCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("diff", "Compare the tensors of two checkpoints or weights, bit for bit");
  command->add_option("a", flags->a, "As of `apogee inspect`")->required();
  command->add_option("b", flags->b, "The other one")->required();
  command->add_option("--limit", flags->limit, "Differing tensors to print")
      ->check(CLI::Range(0, 1000000));
  command->footer("relative: the largest |a - b| by the largest |a| of the tensor");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
