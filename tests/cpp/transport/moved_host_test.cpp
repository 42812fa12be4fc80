// A host whose name leads to another address later: each dial asks for the address anew.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "support.h"
#include "transport/channel.h"
#include "transport/loop.h"

namespace {
constexpr std::string_view kName = "moves.test";
std::atomic<const char*> leads_to = "127.0.0.1";
}  // namespace

/// In place of the C library's: one name is where the test says.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Function = decltype(&::getaddrinfo);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = node != nullptr && std::string_view(node) == kName;
  return real(ours ? leads_to.load() : node, service, hints, found);
}

namespace pccl {
namespace {

TEST(MovedHost, a_name_is_looked_up_anew_by_every_dial) {
  Loop loop;
  std::vector<std::unique_ptr<Channel>> accepted;
  const auto keep = [&](std::unique_ptr<Channel> channel) {
    accepted.push_back(std::move(channel));
  };
  auto here = listen_channels(loop, "127.0.0.1", 0, keep);
  ASSERT_TRUE(here.ok()) << here.error().text;
  const std::uint16_t port = here.value()->port();
  auto there = listen_channels(loop, "127.0.0.2", port, keep);
  ASSERT_TRUE(there.ok()) << there.error().text;
  const std::string address = std::string(kName) + ":" + std::to_string(port);
  for (const char* host : {"127.0.0.1", "127.0.0.2", "127.0.0.1"}) {
    leads_to = host;
    std::unique_ptr<Channel> channel;
    const auto dial = dial_channel(loop, address, 5000, [&](auto dialled) {
      ASSERT_TRUE(dialled.ok()) << dialled.error().text;
      channel = std::move(dialled).value();
    });
    ASSERT_TRUE(test::run_until(loop, [&] { return channel != nullptr; }));
    EXPECT_EQ(channel->remote(), std::string(host) + ":" + std::to_string(port));
  }
}

}  // namespace
}  // namespace pccl
