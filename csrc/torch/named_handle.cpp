#include "torch/named_handle.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <utility>

#include "base/text.h"
#include "wire/codec.h"

namespace pccl {
namespace {

constexpr std::string_view kHandlePrefix = "pccl1:";

[[noreturn]] void refuse_handle(const std::string& text, const std::string& why) {
  TORCH_CHECK_VALUE(false, "pccl reconfigure: not a handle of pccl (", why, "): '",
                    text.substr(0, 40), text.size() > 40 ? "...'" : "'",
                    "; expected what get_reconfigure_handle returned");
}

}  // namespace

NamedHandle name_handle(const Handle& handle, std::uint64_t instance) {
  std::string text(kHandlePrefix);
  text += hex_text(encode(handle)) + ":" + std::to_string(instance);
  return {std::move(text), handle};
}

NamedHandle parse_named_handle(const std::string& text) {
  if (!text.starts_with(kHandlePrefix)) refuse_handle(text, "no " + std::string(kHandlePrefix));
  const std::size_t start = kHandlePrefix.size();
  const std::size_t end = text.find(':', start);
  if (end == std::string::npos || (end - start) % 2 != 0) refuse_handle(text, "cut off");
  const auto bytes = hex_bytes(std::string_view(text).substr(start, end - start));
  if (!bytes) refuse_handle(text, "not hexadecimal");
  auto handle = decode_handle(*bytes);
  if (!handle) refuse_handle(text, handle.error().text);
  return {text, std::move(handle).value()};
}

}  // namespace pccl
