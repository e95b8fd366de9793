// SPDX-License-Identifier: Apache-2.0

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>

#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/tools/command.h"
#include "apogee/tools/report_error.h"
#include "apogee/tools/tensor_store.h"

namespace apogee::tools {
namespace {

struct InspectFlags {
  std::string path;
  bool verify = false;
};

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::ostringstream line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line << "  ";
      line << (i == row.size() - 2 ? std::right : std::left)
           << std::setw(i + 1 < row.size() ? static_cast<int>(widths[i]) : 0) << row[i];
    }
    std::cout << line.str() << "\n";
  }
}

int Run(const InspectFlags& flags) {
  const absl::StatusOr<TensorStore> store = TensorStore::Open(flags.path);
  if (!store.ok()) return ReportError("inspect", store.status());
  std::vector<std::vector<std::string>> rows = {{"tensor", "dtype", "shape", "bytes", "where"}};
  int64_t total = 0;
  for (const auto& [name, tensor] : store->tensors()) {
    std::string where = tensor.files.empty() ? "nowhere" : Printable(tensor.files[0]);
    if (tensor.slices > 1) {
      where = std::to_string(tensor.slices) + " slices in " + std::to_string(tensor.files.size()) +
              (tensor.files.size() == 1 ? " file" : " files");
    }
    rows.push_back({Printable(name), tensor.dtype, FormatShape(tensor.shape),
                    FormatThousands(tensor.bytes), where});
    total += tensor.bytes;
  }
  PrintTable(rows);
  for (const auto& [name, value] : store->attributes()) {
    std::cout << Printable(name) << " = " << Printable(value) << "\n";
  }
  std::cout << store->tensors().size() << " tensors, " << FormatThousands(total) << " bytes ("
            << FormatBytes(total) << ")\n";
  if (!flags.verify) return 0;
  if (const absl::Status status = store->Verify(); !status.ok())
    return ReportError("inspect", status);
  std::cout << (store->has_digests() ? "every byte has its digest\n"
                                     : "headers are consistent; there are no digests to check\n");
  return 0;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "List the tensors of a checkpoint or weights");
  command
      ->add_option("path", flags->path,
                   "A checkpoint folder, a folder of Hugging Face weights or of an adapter, or a "
                   ".safetensors file")
      ->required();
  command->add_flag("--verify", flags->verify, "Read everything and check all digests");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace apogee::tools
