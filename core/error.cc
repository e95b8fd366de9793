// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/error.h"

#include <sstream>

namespace apogee::internal {

void MessagePart::Print(std::ostream& out) const {
  switch (kind_) {
    case Kind::kCharacter:
      out << static_cast<char>(bits_);
      break;
    case Kind::kSigned:
      out << static_cast<int64_t>(bits_);
      break;
    case Kind::kUnsigned:
      out << bits_;
      break;
    case Kind::kReal:
      out << real_;
      break;
    case Kind::kCString:
      out << static_cast<const char*>(pointer_);
      break;
    case Kind::kText:
      out << std::string_view(static_cast<const char*>(pointer_), bits_);
      break;
    case Kind::kOther:
      print_(out, pointer_);
      break;
  }
}

std::string Format(MessageParts parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) part.Print(out);
  return out.str();
}

void ThrowParts(MessageParts parts) { throw Error(Format(parts)); }

}  // namespace apogee::internal
