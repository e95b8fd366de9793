// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/message.h"

#include <algorithm>
#include <cstring>

#include "apogee/comm/transport/transport.h"

namespace apogee::comm::process {
namespace {

// The fields before the text, as in memory. All processes run the same program on the same kind of
// machine: tensors are sent as they are in memory, and so is this.
struct Header {
  uint64_t group;
  int64_t sequence;
  int64_t numel;
  int32_t sender, receiver;
  int32_t root;
  int32_t tag;
  uint32_t session;
  uint8_t message_kind, ending, kind, op, has_tensor, dtype, on_gpu;
  uint8_t unused[5];
};
static_assert(sizeof(Header) == 56);

}  // namespace

size_t MaxTextBytes() { return Transport::kMaxMessageBytes - sizeof(Header); }

std::string Encode(const Message& message) {
  const Fingerprint& print = message.fingerprint;
  const Header header{.group = message.channel.group,
                      .sequence = message.sequence,
                      .numel = print.numel,
                      .sender = message.channel.sender,
                      .receiver = message.channel.receiver,
                      .root = print.root,
                      .tag = message.tag,
                      .session = message.session,
                      .message_kind = static_cast<uint8_t>(message.kind),
                      .ending = static_cast<uint8_t>(message.ending),
                      .kind = static_cast<uint8_t>(print.kind),
                      .op = static_cast<uint8_t>(print.op),
                      .has_tensor = print.has_tensor,
                      .dtype = static_cast<uint8_t>(print.dtype),
                      .on_gpu = print.on_gpu,
                      .unused = {}};
  std::string bytes;
  bytes.reserve(sizeof(Header) + message.text.size());
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(Header));
  return bytes.append(message.text, 0, std::min(message.text.size(), MaxTextBytes()));
}

std::optional<Message> Decode(std::string bytes) {
  Header header;
  if (bytes.size() < sizeof(Header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.message_kind > static_cast<uint8_t>(MessageKind::kGivenUp) ||
      header.ending > static_cast<uint8_t>(Ending::kEcho) || header.kind >= kNumCollectiveKinds ||
      header.op > static_cast<uint8_t>(ReduceOp::kMax) ||
      header.dtype > static_cast<uint8_t>(DType::kF8E5M2)) {
    return std::nullopt;
  }
  Message message{.kind = static_cast<MessageKind>(header.message_kind),
                  .ending = static_cast<Ending>(header.ending),
                  .session = header.session,
                  .channel = {header.group, header.sender, header.receiver},
                  .sequence = header.sequence,
                  .tag = header.tag,
                  .text = {}};
  bytes.erase(0, sizeof(Header));
  message.text = std::move(bytes);
  message.fingerprint.kind = static_cast<CollectiveKind>(header.kind);
  message.fingerprint.op = static_cast<ReduceOp>(header.op);
  message.fingerprint.root = header.root;
  message.fingerprint.has_tensor = header.has_tensor != 0;
  message.fingerprint.dtype = static_cast<DType>(header.dtype);
  message.fingerprint.numel = header.numel;
  message.fingerprint.on_gpu = header.on_gpu != 0;
  return message;
}

}  // namespace apogee::comm::process
