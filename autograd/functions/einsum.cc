// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <map>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"

namespace apogee::autograd {
namespace {

// A tensor whose dims have letters.
struct Named {
  Tensor x;
  std::string letters;
};

bool Has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

int64_t SizeOf(const Named& named, const std::string& letters) {
  int64_t n = 1;
  for (const char letter : letters) {
    n *= named.x.size(static_cast<int>(named.letters.find(letter)));
  }
  return n;
}

// Sums over the letters that `keep` lacks.
Named SumAway(const Named& named, const std::string& keep) {
  std::vector<int> dims;
  Named rest{named.x, ""};
  for (size_t i = 0; i < named.letters.size(); ++i) {
    if (Has(keep, named.letters[i])) {
      rest.letters += named.letters[i];
    } else {
      dims.push_back(static_cast<int>(i));
    }
  }
  if (!dims.empty()) rest.x = Sum(named.x, dims);
  return rest;
}

Tensor InOrder(const Named& named, const std::string& letters) {
  if (named.letters == letters) return named.x;
  std::vector<int> dims;
  for (const char letter : letters) dims.push_back(static_cast<int>(named.letters.find(letter)));
  return Permute(named.x, dims);
}

// The product of both, summed over the letters that `keep` lacks.
Named Multiply(const Named& a_in, const Named& b_in, const std::string& keep) {
  const Named a = SumAway(a_in, keep + b_in.letters), b = SumAway(b_in, keep + a_in.letters);
  std::string batch, rows, cols, summed;
  for (const char letter : a.letters) {
    (!Has(b.letters, letter) ? rows : Has(keep, letter) ? batch : summed) += letter;
  }
  for (const char letter : b.letters) {
    if (!Has(a.letters, letter)) cols += letter;
  }
  const int64_t n = SizeOf(a, batch);
  const Tensor left =
      View(Contiguous(InOrder(a, batch + rows + summed)), {n, SizeOf(a, rows), SizeOf(a, summed)});
  const Tensor right =
      View(Contiguous(InOrder(b, batch + summed + cols)), {n, SizeOf(b, summed), SizeOf(b, cols)});
  std::vector<int64_t> sizes;
  for (const char letter : batch + rows) {
    sizes.push_back(SizeOf(a, std::string(1, letter)));
  }
  for (const char letter : cols) sizes.push_back(SizeOf(b, std::string(1, letter)));
  return {View(MatMul(left, right), Shape(sizes)), batch + rows + cols};
}

// The letters of the operands and, at last, of the result.
std::vector<std::string> Parse(const std::string& equation, const std::vector<Tensor>& operands) {
  std::vector<std::string> names(1);
  const size_t arrow = equation.find("->");
  APOGEE_CHECK(arrow != std::string::npos, "einsum: \"", equation,
               "\" has no \"->\" before the letters of the result");
  for (size_t i = 0; i < arrow; ++i) {
    if (equation[i] == ',') {
      names.emplace_back();
    } else if (equation[i] != ' ') {
      names.back() += equation[i];
    }
  }
  names.emplace_back();
  for (const char letter : equation.substr(arrow + 2)) {
    if (letter != ' ') names.back() += letter;
  }
  APOGEE_CHECK(names.size() == operands.size() + 1, "einsum: \"", equation, "\" names ",
               names.size() - 1, " operands, got ", operands.size());
  std::map<char, int64_t> sizes;
  for (size_t k = 0; k < names.size(); ++k) {
    for (size_t i = 0; i < names[k].size(); ++i) {
      const char letter = names[k][i];
      APOGEE_CHECK((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'),
                   "einsum: \"", equation, "\": '", letter, "' is not a letter");
      APOGEE_CHECK(names[k].find(letter, i + 1) == std::string::npos, "einsum: \"", equation,
                   "\" has '", letter, "' twice in one ",
                   k < operands.size() ? "operand" : "result");
      if (k == operands.size()) {
        APOGEE_CHECK(sizes.contains(letter), "einsum: \"", equation, "\": '", letter,
                     "' of the result is in no operand");
        continue;
      }
      APOGEE_CHECK(operands[k].defined() && operands[k].rank() == static_cast<int>(names[k].size()),
                   "einsum: \"", equation, "\": operand ", k, " is ",
                   operands[k].defined() ? operands[k].shape().ToString() : "undefined", ", not \"",
                   names[k], "\"");
      const int64_t size = operands[k].size(static_cast<int>(i));
      const auto [known, is_new] = sizes.emplace(letter, size);
      APOGEE_CHECK(is_new || known->second == size, "einsum: \"", equation, "\": '", letter,
                   "' is ", known->second, " and, in operand ", k, ", ", size);
    }
  }
  return names;
}

}  // namespace

Tensor Einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  APOGEE_CHECK(!operands.empty(), "einsum: needs at least one operand");
  const std::vector<std::string> names = Parse(equation, operands);
  const std::string& result = names.back();
  Named product{operands[0], names[0]};
  for (size_t k = 1; k < operands.size(); ++k) {
    std::string keep = result;
    for (size_t later = k + 1; later < operands.size(); ++later) keep += names[later];
    product = Multiply(product, {operands[k], names[k]}, keep);
  }
  return InOrder(SumAway(product, result), result);
}

}  // namespace apogee::autograd
