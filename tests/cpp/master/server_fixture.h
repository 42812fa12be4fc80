// What the tests of the server share: a server on loopback, its peers and its log.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fake_peer.h"
#include "master/server.h"
#include "transport/network.h"
#include "wire/codec.h"

namespace pccl::master {

class Server : public testing::Test {
 protected:
  Server() {
    set_log_sink([this](LogLevel, std::string_view text) { lines_.emplace_back(text); });
    master_.port = 0;
    options_.heartbeat_ms = 20;
    options_.silence_ms = 3000;
    options_.absence_ms = 100;
    options_.patience_ms = 5000;
    options_.founding_delay_ms = 20;
    options_.refound_after_ms = 5000;
  }
  ~Server() override {
    peers_.clear();
    server_.reset();
    set_log_sink(nullptr);
  }

  void start() {
    server_ = std::make_unique<MasterServer>(network_, master_,
                                             std::vector<ServedRun>{{options_, register_}});
    const auto port = server_->start();
    ASSERT_TRUE(port.ok()) << port.error().text;
    port_ = port.value();
  }
  void use_state_file() {
    std::string name = (std::filesystem::temp_directory_path() / "pccl_server_XXXXXX").string();
    folder_.path = ::mkdtemp(name.data());
    options_.state_file = (folder_.path / "state").string();
  }
  FakePeer& peer(std::uint64_t id) {
    return *peers_.emplace_back(std::make_unique<FakePeer>(loop_, id, port_));
  }
  /// A run of `count` peers, numbered from 1.
  void found(std::uint32_t count) {
    options_.min_peers = count;
    start();
    for (std::uint64_t id = 1; id <= count; ++id) peer(id);
    ASSERT_TRUE(until([&] { return all_run(count); })) << log_text();
  }
  /// Peer 1 comes and sets "k" in the store to 20 MiB.
  void set_large_value();
  /// The answer to one who is no peer, after which the master ends the connection.
  MasterToPeer ask(const StatusRequest& request = {}) {
    std::unique_ptr<Channel> channel;
    MasterToPeer answer = Left{};
    bool over = false;
    const auto dial =
        network_.dial("127.0.0.1:" + std::to_string(port_), request.run, 5000,
                      [&](Result<std::unique_ptr<Channel>> made) {
                        channel = std::move(made).value();
                        channel->trust();
                        channel->set_events({[&](std::span<const std::byte> payload) {
                                               answer = decode_master_to_peer(payload).value();
                                             },
                                             [&](const std::string&) { over = true; }});
                        channel->send(encode(PeerToMaster{request}));
                      });
    EXPECT_TRUE(until([&] { return over; })) << "the master ends the connection";
    return answer;
  }
  bool until(const std::function<bool()>& condition, std::uint64_t timeout_ms = 60000) {
    return run_until(loop_, condition, timeout_ms);
  }
  /// So many peers are connected, and all of them run an epoch of so many members.
  bool all_run(std::size_t members) {
    std::size_t connected = 0;
    for (const auto& p : peers_) {
      if (!p->connected()) continue;
      if (!p->runs(members)) return false;
      ++connected;
    }
    return connected == members;
  }
  /// Each peer that is connected issues an operation, and all see it committed.
  void expect_commit() {
    std::vector<std::pair<FakePeer*, OpKey>> issued;
    for (const auto& p : peers_) {
      if (p->connected()) issued.emplace_back(p.get(), p->issue());
    }
    EXPECT_TRUE(until([&] {
      return std::all_of(issued.begin(), issued.end(),
                         [](const auto& one) { return one.first->has_committed(one.second); });
    })) << log_text();
  }
  [[nodiscard]] RunServer& run() { return *server_->run().value(); }
  [[nodiscard]] std::size_t said(std::string_view part) const {
    return static_cast<std::size_t>(std::count_if(
        lines_.begin(), lines_.end(),
        [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }
  [[nodiscard]] std::string log_text() const {
    std::string text = "log of the master:\n";
    for (const std::string& line : lines_) text += "  " + line + "\n";
    return text;
  }

  /// Removed after the loop, which waits for a register that is being written.
  struct Folder {
    Folder() = default;
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      std::error_code ignored;  // a folder left behind fails no test
      if (!path.empty()) std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::path path;
  };
  Folder folder_;
  Loop loop_;
  TcpNetwork network_{loop_};
  MasterOptions master_;
  RunOptions options_;
  std::uint16_t port_ = 0;
  std::vector<std::string> lines_;
  std::shared_ptr<RegisterStore> register_;  // none: as the options say
  std::unique_ptr<MasterServer> server_;
  std::vector<std::unique_ptr<FakePeer>> peers_;
};

inline StoreRequest store_request(std::uint64_t id, StoreOp op, std::vector<std::string> keys,
                                  std::string_view value = "", std::uint64_t timeout_ms = 5000) {
  StoreRequest request;
  request.id = id;
  request.op = op;
  request.keys = std::move(keys);
  if (op == StoreOp::set) request.values = {Bytes(value.begin(), value.end())};
  request.timeout_ms = timeout_ms;
  return request;
}

inline const StoreReply* reply(const FakePeer& peer, std::uint64_t id) {
  for (const MasterToPeer& message : peer.inbox) {
    const auto* found = std::get_if<StoreReply>(&message);
    if (found != nullptr && found->id == id) return found;
  }
  return nullptr;
}

inline void Server::set_large_value() {
  FakePeer& setter = peer(1);
  EXPECT_TRUE(until([&] { return setter.connected(); }));
  setter.send(store_request(7, StoreOp::set, {"k"}, std::string(20U << 20, 'x')));
  EXPECT_TRUE(until([&] { return reply(setter, 7) != nullptr; })) << log_text();
}

}  // namespace pccl::master
