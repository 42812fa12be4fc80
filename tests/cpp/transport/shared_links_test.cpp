// Links between processes of one machine: who gets shared memory, and who does not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "recorder.h"
#include "support.h"
#include "transport/handshake.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"

namespace pccl {
namespace {

using test::Pair;
using test::place_in;
using test::Tensor;

LinkOptions shared_memory() {
  LinkOptions options;
  options.shared_memory = true;
  return options;
}

/// The bytes of a tensor from one end to the other that went through memory.
std::uint64_t shared_bytes(Pair& pair, std::size_t bytes, test::End& from, test::End& to) {
  Tensor tensor(bytes, 1);
  std::vector<std::byte> memory(bytes);
  to.events.place = place_in(memory);
  tensor.send(*from.links, to.id(), 1U << 20, 1);
  EXPECT_TRUE(pair.until([&] { return to.events.arrived_bytes == bytes; }));
  EXPECT_TRUE(tensor.is(memory));
  return from.links->bytes_shared();
}
std::uint64_t shared_bytes(Pair& pair, std::size_t bytes) {
  return shared_bytes(pair, bytes, pair.low, pair.high);
}

TEST(SharedLinks, both_processes_have_to_want_the_memory) {
  constexpr std::size_t kBytes = 3U << 20;
  for (const bool low : {false, true}) {
    for (const bool high : {false, true}) {
      Pair pair(high ? shared_memory() : LinkOptions{});
      const KeyPair key = test::key_below(pair.high_id());
      LinkOptions options = low ? shared_memory() : LinkOptions{};
      options.listen_hosts = {"127.0.0.1"};
      pair.low.links = std::move(make_tcp_links(pair.loop, pair.low.events, key, options)).value();
      pair.open();
      EXPECT_EQ(shared_bytes(pair, kBytes), low && high ? kBytes : 0U) << low << high;
    }
  }
}

TEST(SharedLinks, the_side_that_waits_to_be_dialled_sends_through_memory_too) {
  Pair pair(shared_memory());
  pair.open();
  EXPECT_EQ(shared_bytes(pair, 3U << 20, pair.high, pair.low), 3U << 20);
}

/// How many links share a memory of two rings of this size: mappings of one memory may lie beside
/// each other and be told as one, so its size is the end of the last one.
std::size_t links_with(std::size_t ring_bytes) {
  std::map<std::string, std::uint64_t> bytes;  // by inode
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:pccl") == std::string::npos) continue;
    std::uint64_t begin = 0, end = 0, offset = 0;
    std::string flags, device, inode;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end >> flags >> offset >> device >>
        inode;
    std::uint64_t& most = bytes[inode];
    most = std::max(most, offset + end - begin);
  }
  return static_cast<std::size_t>(std::ranges::count_if(
      bytes, [&](const auto& one) { return one.second / (2 * ring_bytes) == 1; }));
}

TEST(SharedLinks, two_processes_without_other_peers_have_larger_rings) {
  Pair pair(shared_memory());
  pair.open();
  EXPECT_TRUE(pair.until([] { return links_with(kOnlyBulkRingBytes) == 1; }));
  EXPECT_EQ(links_with(kBulkRingBytes), 0U);
}

TEST(SharedLinks, rings_of_a_process_with_two_peers_are_smaller) {
  Pair pair(shared_memory());
  LinkOptions options = shared_memory();
  options.listen_hosts = {"127.0.0.1"};
  test::End third;
  const KeyPair key = test::key_above(pair.low_id());
  third.links = std::move(make_tcp_links(pair.loop, third.events, key, options)).value();
  third.links->open(pair.low.handle(), 30000, false);
  pair.low.links->open(third.handle(), 30000, false);
  pair.open();
  EXPECT_TRUE(pair.until([] { return links_with(kBulkRingBytes) == 2; }));
  EXPECT_EQ(links_with(kOnlyBulkRingBytes), 0U);
}

TEST(SharedLinks, nobody_at_the_unix_socket_keeps_two_processes_apart) {
  Pair pair;  // neither listens there
  const auto impostor = listen_locally(pair.loop, pair.high_id());
  ASSERT_TRUE(impostor.ok());
  LinkOptions options = shared_memory();
  options.listen_hosts = {"127.0.0.1"};
  pair.low.links = std::move(make_tcp_links(pair.loop, pair.low.events,
                                            test::key_below(pair.high_id()), options))
                       .value();
  pair.low.links->open(pair.high.handle(), 30000, false);
  pair.high.links->open(pair.low.handle(), 30000, false);
  int visitor = -1;
  ASSERT_TRUE(test::poll_until(pair.loop, [&] {
    visitor = ::accept4(impostor.value().fd(), nullptr, nullptr, SOCK_CLOEXEC);
    return visitor >= 0;
  }));
  ::close(visitor);
  ASSERT_TRUE(pair.until([&] { return pair.low.events.ups > 0 && pair.high.events.ups > 0; }));
  EXPECT_EQ(shared_bytes(pair, 1000), 0U);
}

TEST(SharedLinks, a_lane_that_is_led_to_another_machine_has_another_key) {
  const Secret shared = random_secret();
  const auto key = [&](std::string_view place) {
    return lane_secret(shared, LaneHello{}, PublicKey{}, LaneOffer{}, place);
  };
  EXPECT_FALSE(local_place().empty());
  EXPECT_TRUE(key(local_place()).same_as(key(local_place())));
  EXPECT_FALSE(key(local_place()).same_as(key("another boot id, 4026531840")));
  EXPECT_FALSE(key(local_place()).same_as(key("")));
}

TEST(SharedLinks, whose_name_is_taken_has_its_links_all_the_same) {
  constexpr std::size_t kBytes = 3U << 20;
  Pair pair(shared_memory());
  const KeyPair key = test::key_below(pair.high_id());
  const auto taken = listen_locally(pair.loop, peer_of(key.public_key()));
  ASSERT_TRUE(taken.ok());
  LinkOptions options = shared_memory();
  options.listen_hosts = {"127.0.0.1"};
  auto links = make_tcp_links(pair.loop, pair.low.events, key, options);
  ASSERT_TRUE(links.ok());
  pair.low.links = std::move(links).value();
  pair.open();
  shared_bytes(pair, kBytes);  // which looks at what has arrived
}

/// The name at which a process listens, as others write it.
struct Name {
  explicit Name(PeerId peer) {
    const std::string name = std::string(1, '\0') + "pccl/" + to_string(peer);
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  }
  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length = 0;
};

TEST(Links, a_process_of_another_user_is_refused_at_the_unix_socket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  test::LogLines log;
  Pair pair(shared_memory());
  const Name name(pair.high_id());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, name.raw(), name.length) != 0) ::_exit(2);
    char byte = 0;
    ::_exit(is_same_user(fd) ? 3 : ::recv(fd, &byte, 1, 0) == 0 ? 0 : 4);
  }
  int status = -1;
  ASSERT_TRUE(
      test::poll_until(pair.loop, [&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(log.count("shared memory is for processes of one user"), 1U) << log.all();
}

TEST(Links, a_process_of_another_user_that_took_the_name_of_a_peer_is_told_nothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Pair pair;  // neither listens there
  const Name name(pair.high_id());
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::bind(fd, name.raw(), name.length) != 0 || ::listen(fd, 1) != 0) ::_exit(2);
    char byte = 0;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(3);
    const int visitor = ::accept(fd, nullptr, nullptr);
    ::_exit(visitor < 0 ? 4 : ::recv(visitor, &byte, 1, 0) == 0 ? 0 : 5);
  }
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "nobody listens";
  ::close(ready[0]);
  LinkOptions options = shared_memory();
  options.listen_hosts = {"127.0.0.1"};
  pair.low.links = std::move(make_tcp_links(pair.loop, pair.low.events,
                                            test::key_below(pair.high_id()), options))
                       .value();
  pair.open();
  EXPECT_EQ(shared_bytes(pair, 1000), 0U);
  int status = -1;
  ASSERT_TRUE(
      test::poll_until(pair.loop, [&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace pccl
