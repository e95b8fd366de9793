// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/nn/configured.h"

namespace apogee::nn {
namespace {

using Row = std::vector<std::string>;

std::string PartText(const Layout& layout) {
  const int64_t whole = layout.logical_shape().numel(), own = layout.local_numel();
  std::string text =
      own == whole ? "whole" : FormatThousands(own) + " of " + FormatThousands(whole);
  if (layout.segments().size() > 1)
    text += " in " + FormatThousands(static_cast<int64_t>(layout.segments().size())) + " runs";
  if (layout.num_replicas() > 1) text += ", " + std::to_string(layout.num_replicas()) + " ranks";
  return text;
}

// Pads the cells to columns; counts are aligned at their end.
std::string Table(const std::vector<Row>& rows, size_t count_column) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - row[c].size(), ' ');
      line += c == count_column ? space + row[c] : row[c] + space;
      line += "  ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string Summary(const Module& model, const LayoutFunction& layout_of) {
  std::vector<Row> rows{{"parameter", "shape", "dtype", "count"}};
  if (layout_of != nullptr) rows[0].push_back("this rank");
  int64_t count = 0, bytes = 0, own = 0, frozen = 0;
  for (const ParameterPtr& parameter : model.Parameters()) {
    const int64_t n = parameter->shape().numel();
    count += n;
    if (parameter->has_value()) bytes += n * DTypeSize(parameter->dtype());
    if (!parameter->requires_grad()) ++frozen;
    rows.push_back({parameter->name() + (parameter->requires_grad() ? "" : " (frozen)"),
                    parameter->shape().ToString(),
                    parameter->has_value() ? DTypeName(parameter->dtype()) : "-",
                    FormatThousands(n)});
    if (layout_of == nullptr) continue;
    const Layout layout = layout_of(*parameter);
    own += layout.local_numel();
    rows.back().push_back(PartText(layout));
  }
  const auto num_parameters = static_cast<int64_t>(rows.size()) - 1;
  for (const ParameterPtr& buffer : model.Buffers()) {
    rows.push_back({buffer->name() + " (buffer)", buffer->shape().ToString(),
                    buffer->has_value() ? DTypeName(buffer->dtype()) : "-",
                    FormatThousands(buffer->shape().numel())});
    if (layout_of != nullptr) rows.back().push_back(buffer->is_here() ? "whole" : "0");
  }
  std::string text = Table(rows, 3);
  text += FormatThousands(num_parameters) + " parameters, " + FormatThousands(count) + " elements";
  if (bytes > 0) text += ", " + FormatBytes(bytes);
  if (frozen > 0) text += "; frozen: " + FormatThousands(frozen);
  if (layout_of != nullptr) text += "; this rank: " + FormatThousands(own) + " elements";
  return text + "\n";
}

}  // namespace apogee::nn
