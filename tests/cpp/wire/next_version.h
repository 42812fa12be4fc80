// Control messages as a later package of the same protocol version may write them.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace pccl::test {

/// Adds fields that nobody knows yet at the end of each map: of the message and of its parts.
inline void grow(nlohmann::ordered_json& value) {
  using Json = nlohmann::ordered_json;
  for (Json& inner : value) {
    if (inner.is_structured()) grow(inner);
  }
  if (!value.is_object()) return;
  if (value.size() == 2 && value.contains("code")) return;  // an error has no further fields
  value["later_number"] = -70000;
  value["later_text"] = "änderbar";
  value["later_parts"] = {{{"m", nullptr}, {"yes", true}}, Json::binary({0, 255}), Json::array()};
}

/// The same message with such fields.
inline std::vector<std::byte> of_next_version(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  auto value = nlohmann::ordered_json::from_cbor(data, data + bytes.size());
  grow(value);
  const std::vector<std::uint8_t> grown = nlohmann::ordered_json::to_cbor(value);
  const auto* out = reinterpret_cast<const std::byte*>(grown.data());
  return {out, out + grown.size()};
}

}  // namespace pccl::test
