// See libraries.h.
#include "engine/libraries.h"

#include <dlfcn.h>

#include <utility>

extern "C" {
void uv_loop_init();
void uv_run();
void uv_timer_start();
void uv_version_string();
void EVP_DigestUpdate();
void EVP_sha256();
}

namespace pccl {

std::optional<std::string> library_of(std::string_view symbol) {
  using Function = void (*)();
  const std::pair<std::string_view, Function> symbols[] = {
      {"uv_loop_init", &uv_loop_init},         {"uv_run", &uv_run},
      {"uv_timer_start", &uv_timer_start},     {"uv_version_string", &uv_version_string},
      {"EVP_DigestUpdate", &EVP_DigestUpdate}, {"EVP_sha256", &EVP_sha256}};
  for (const auto& [name, function] : symbols) {
    if (name != symbol) continue;
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(function), &info) == 0) return "";  // NOLINT
    return info.dli_fname;
  }
  return std::nullopt;
}

}  // namespace pccl
