// Control messages <-> bytes (CBOR: a map with "m", the message's name, first, then its fields in
// their order; wire/cbor.h says how each type is written). The only place where control bytes from
// the network are read; the reader follows the types, so no input decides about nesting.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "wire/messages.h"

namespace pccl {

[[nodiscard]] std::vector<std::byte> encode(const PeerToMaster& message);
[[nodiscard]] std::vector<std::byte> encode(const MasterToPeer& message);
[[nodiscard]] std::vector<std::byte> encode(const PeerToPeer& message);
[[nodiscard]] std::vector<std::byte> encode(const Handle& handle);

/// `malformed` for bytes that are not exactly one message of the variant within its limits: unknown
/// names, missing, repeated or reordered fields, wrong types, trailing bytes, deep nesting. Unknown
/// fields at the end of a message, or of a part of it, are skipped.
[[nodiscard]] Result<PeerToMaster> decode_peer_to_master(std::span<const std::byte> bytes);
[[nodiscard]] Result<MasterToPeer> decode_master_to_peer(std::span<const std::byte> bytes);
[[nodiscard]] Result<PeerToPeer> decode_peer_to_peer(std::span<const std::byte> bytes);
[[nodiscard]] Result<Handle> decode_handle(std::span<const std::byte> bytes);

/// One line for logs and transcripts: name and fields, long lists shortened.
[[nodiscard]] std::string print(const PeerToMaster& message);
[[nodiscard]] std::string print(const MasterToPeer& message);
[[nodiscard]] std::string print(const PeerToPeer& message);

}  // namespace pccl
