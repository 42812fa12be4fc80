// Several engines in one process, over real loopback sockets: what the engine's tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace pccl::testing {

/// For anything that takes a second or two: a busy machine under a sanitizer may be 50 times
/// slower.
inline constexpr std::uint64_t kTestMs = 120000;

inline std::vector<std::shared_ptr<Engine>> make_engines(std::size_t count,
                                                         EngineOptions options = {}) {
  options.links.listen_hosts = {"127.0.0.1"};
  options.goodbye_timeout_ms = 2000;
  std::vector<std::shared_ptr<Engine>> engines;
  for (std::size_t i = 0; i < count; ++i) {
    auto engine = Engine::create(options);
    EXPECT_TRUE(engine.ok()) << engine.error().text;
    engines.push_back(std::move(engine).value());
  }
  return engines;
}

inline std::vector<Handle> handles_of(const std::vector<std::shared_ptr<Engine>>& engines) {
  std::vector<Handle> handles;
  for (const auto& engine : engines) handles.push_back(engine->handle("127.0.0.1"));
  return handles;
}

/// A fixed group of `size` engines, all connected.
class FixedWorld {
 public:
  explicit FixedWorld(std::size_t size, GroupId id = GroupId{77}, EngineOptions options = {})
      : engines(make_engines(size, std::move(options))), group(id) {
    connect(group);
  }
  void connect(GroupId id) {
    const std::vector<Handle> handles = handles_of(engines);
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (std::size_t i = 0; i < engines.size(); ++i) {
      tickets.push_back(
          engines[i]->configure_fixed(id, "world", handles, static_cast<std::int32_t>(i), kTestMs));
    }
    for (const auto& ticket : tickets) {
      EXPECT_TRUE(ticket->wait(kTestMs));
      EXPECT_FALSE(ticket->error().failed()) << ticket->error().text;
    }
  }

  std::vector<std::shared_ptr<Engine>> engines;
  GroupId group;
};

/// `count` values; value_of(i) for i below `period`, which come again and again. A sanitizer, which
/// looks at each access, sees few: millions of values take no time.
template <typename Function>
std::vector<float> repeating(std::size_t count, std::size_t period, Function value_of) {
  std::vector<float> values(count);
  std::size_t done = std::min(count, period);
  for (std::size_t i = 0; i < done; ++i) values[i] = value_of(i);
  while (done < count) {
    const std::size_t more = std::min(done, count - done);
    std::memcpy(values.data() + done, values.data(), more * sizeof(float));
    done += more;
  }
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

template <typename T>
Buffer buffer(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

inline OpRequest all_reduce(std::vector<float>& values, ReduceOp op = ReduceOp::sum) {
  OpRequest request;
  request.descriptor = {OpKind::all_reduce, op, DType::f32, -1, values.size()};
  request.inputs = {buffer(values)};
  request.outputs = {buffer(values)};
  return request;
}

inline OpRequest barrier() {
  OpRequest request;
  request.descriptor.kind = OpKind::barrier;
  return request;
}

/// `values` hold the parts of all `size` ranks.
inline OpRequest rooted(OpKind kind, std::int32_t root, std::size_t rank, std::size_t size,
                        std::vector<float>& values) {
  const bool in_parts = kind == OpKind::gather || kind == OpKind::scatter;
  const bool at_root = root == static_cast<std::int32_t>(rank);
  const std::uint64_t count = values.size() / (in_parts ? size : 1);
  std::vector<Buffer> parts;
  for (std::size_t r = 0; r < size; ++r) {
    parts.push_back({buffer(values).data + 4 * count * (in_parts ? r : 0), 4 * count});
  }
  OpRequest request;
  request.descriptor = {kind, kind == OpKind::reduce ? ReduceOp::sum : ReduceOp::none, DType::f32,
                        root, count};
  const std::vector<Buffer> one = {parts[rank]};
  const bool to_root = kind == OpKind::gather || kind == OpKind::reduce;
  request.inputs = kind == OpKind::scatter ? (at_root ? parts : std::vector<Buffer>{}) : one;
  request.outputs = kind == OpKind::gather && at_root ? parts : one;
  if (to_root && !at_root) request.outputs.clear();
  return request;
}

/// What a text says after "root ".
inline std::set<char> roots_in(const std::string& text) {
  std::set<char> roots;
  for (auto at = text.find("root "); at != std::string::npos; at = text.find("root ", at + 1)) {
    roots.insert(text[at + 5]);
  }
  return roots;
}

/// A send to, or a receive from, `peer` (-1: anybody).
inline OpRequest message(OpKind kind, std::int32_t peer, std::vector<float>& values,
                         std::uint64_t tag = 0) {
  OpRequest request;
  request.descriptor = {kind, ReduceOp::none, DType::f32, -1, 0};
  (kind == OpKind::send ? request.inputs : request.outputs) = {buffer(values)};
  request.peer = peer;
  request.tag = tag;
  return request;
}

inline void expect_success(const std::shared_ptr<Ticket>& ticket) {
  ASSERT_TRUE(ticket->wait(kTestMs)) << "no outcome";
  EXPECT_FALSE(ticket->error().failed()) << ticket->error().text;
}

inline Error outcome(const std::shared_ptr<Ticket>& ticket) {
  EXPECT_TRUE(ticket->wait(kTestMs)) << "no outcome";
  return ticket->error();
}

inline bool wait_until(const std::function<bool()>& condition, std::uint64_t timeout_ms = kTestMs) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return condition();
}

}  // namespace pccl::testing
