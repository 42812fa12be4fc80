// Messages <-> CBOR over their `fields` (wire/cbor.h): a map whose first field "m" is the message's
// name, then its fields in their order. No general CBOR library is used: Done, Commit and Heartbeat
// are on the path of every operation, and a reader that follows the types needs no bound on
// nesting.
#include "wire/codec.h"

#include <cstdio>
#include <span>

#include "base/text.h"
#include "wire/cbor.h"

namespace pccl {
namespace {

using cbor::Described;
using cbor::Major;
using cbor::NamedNumber;

inline constexpr std::string_view kNameField = "m";
inline constexpr std::size_t kPrintedEntriesMax = 8;
inline constexpr std::size_t kPrintedTextBytesMax = 200;

template <typename... Messages>
std::vector<std::byte> encode_message(const std::variant<Messages...>& message) {
  std::vector<std::byte> out;
  out.reserve(128);
  std::visit(
      [&](const auto& m) {
        cbor::Writer writer(out);
        writer.head(Major::map, 1 + cbor::count_fields(m));
        writer.text(kNameField);
        writer.text(std::decay_t<decltype(m)>::kName);
        writer.put_fields(m);
      },
      message);
  return out;
}

template <typename Variant, std::size_t Index = 0>
void read_named(cbor::Reader& reader, std::uint64_t fields, std::string_view name, Variant& into) {
  if constexpr (Index == std::variant_size_v<Variant>) {
    reader.fail("an unknown message \"" + std::string(cbor::cut_utf8(name, kRunNameBytesMax)) +
                "\"");
  } else {
    using Message = std::variant_alternative_t<Index, Variant>;
    if (Message::kName != name) return read_named<Variant, Index + 1>(reader, fields, name, into);
    auto& message = into.template emplace<Index>();
    reader.get_fields(message, fields - 1);  // "m" has been read, so there is one at least
  }
}

template <typename Variant>
Result<Variant> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kControlBytesMax) return {ErrorCode::malformed, "a message over its limit"};
  cbor::Reader reader(bytes);
  Variant message;
  const std::uint64_t fields = reader.head(Major::map, "a map");
  reader.name(kNameField);
  const std::string_view name = reader.text(kRunNameBytesMax);
  if (reader.ok()) read_named(reader, fields, name, message);
  if (reader.ok() && !reader.at_end()) reader.fail("bytes after its end");
  if (!reader.ok()) {
    return {ErrorCode::malformed,
            "message" + (name.empty() ? "" : " " + std::string(name)) + ": " + reader.error()};
  }
  return message;
}

/// Appends values as people read them. Never a key: log lines travel.
class Printer {
 public:
  explicit Printer(std::string& out) : out_(out) {}

  void put(bool value) { out_ += value ? "true" : "false"; }
  template <std::integral T>
  void put(T value) {
    out_ += std::to_string(value);
  }
  void put(PeerId id) { out_ += to_string(id); }
  void put(EpochId id) { out_ += to_string(id); }
  void put(GroupId id) { out_ += std::to_string(id.value); }
  void put(OpKey key) { out_ += to_string(key); }
  template <typename T>
    requires std::is_enum_v<T>
  void put(T value) {
    out_ += std::to_string(static_cast<unsigned>(value));
  }
  void put(const std::string& text) {
    out_ += '"';
    const std::string_view shown = cbor::cut_utf8(text, kPrintedTextBytesMax);
    const bool readable = cbor::valid_utf8(shown);
    for (const char c : shown) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !readable)) {
        char escaped[8];
        static_cast<void>(std::snprintf(escaped, sizeof escaped, "\\x%02x", byte));
        out_ += escaped;
      } else {
        out_ += c;
      }
    }
    out_ += text.size() > shown.size() ? "…\"" : "\"";
  }
  void put(const Digest& digest) {
    out_ += hex_text(std::as_bytes(std::span(digest).first<8>())) + "…";
  }
  void put(const Bytes& bytes) { out_ += "<" + std::to_string(bytes.size()) + " bytes>"; }
  void put(const Error& error) {
    out_ += error_name(error.code);
    if (!error.text.empty()) {
      out_ += ": ";
      put(error.text);
    }
  }
  template <typename T>
  void put(const std::optional<T>& value) {
    if (!value) {
      out_ += "none";
    } else {
      put(*value);
    }
  }
  template <typename T>
    requires(!std::same_as<T, std::uint8_t>)
  void put(const std::vector<T>& list) {
    out_ += '[';
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out_ += ", ";
      if (i == kPrintedEntriesMax) {
        out_ += "… " + std::to_string(list.size()) + " in all";
        break;
      }
      put(list[i]);
    }
    out_ += ']';
  }
  template <Described T>
  void put(const T& value) {
    out_ += '{';
    put_fields(value, "");
    out_ += '}';
  }
  template <Described T>
  void put_fields(const T& value, std::string_view before_first) {
    std::string_view before = before_first;
    T::fields(value, [&](std::string_view name, const auto& field, auto...) {
      out_ += before;
      before = " ";
      out_ += name;
      out_ += '=';
      if (name == "key") {
        out_ += "…";
      } else {
        put(field);
      }
    });
  }

 private:
  std::string& out_;
};

template <typename... Messages>
std::string print_message(const std::variant<Messages...>& message) {
  std::string out;
  std::visit(
      [&](const auto& m) {
        out = std::decay_t<decltype(m)>::kName;
        Printer(out).put_fields(m, " ");
      },
      message);
  return out;
}

}  // namespace

std::vector<std::byte> encode(const PeerToMaster& message) { return encode_message(message); }
std::vector<std::byte> encode(const MasterToPeer& message) { return encode_message(message); }
std::vector<std::byte> encode(const PeerToPeer& message) { return encode_message(message); }
std::vector<std::byte> encode(const Handle& handle) { return cbor::encode_struct(handle); }

Result<PeerToMaster> decode_peer_to_master(std::span<const std::byte> bytes) {
  return decode_message<PeerToMaster>(bytes);
}
Result<MasterToPeer> decode_master_to_peer(std::span<const std::byte> bytes) {
  return decode_message<MasterToPeer>(bytes);
}
Result<PeerToPeer> decode_peer_to_peer(std::span<const std::byte> bytes) {
  return decode_message<PeerToPeer>(bytes);
}
Result<Handle> decode_handle(std::span<const std::byte> bytes) {
  return cbor::decode_struct<Handle>(bytes, "handle");
}

std::string print(const PeerToMaster& message) { return print_message(message); }
std::string print(const MasterToPeer& message) { return print_message(message); }
std::string print(const PeerToPeer& message) { return print_message(message); }

}  // namespace pccl
