// A master inside a test's process.
#pragma once

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "master/server.h"
#include "transport/loop.h"
#include "transport/network.h"

namespace pccl::testing {

/// A master on a free port, on a thread of its own, which founds without a delay. Throws
/// std::runtime_error if it cannot start.
class MasterThread {
 public:
  explicit MasterThread(RunOptions options) {
    MasterOptions master;
    master.port = 0;
    options.founding_delay_ms = 0;
    std::promise<Result<std::uint16_t>> port;
    auto future = port.get_future();
    thread_ = std::thread([this, master, options, &port] {
      server_ = std::make_unique<master::MasterServer>(network_, master,
                                                       std::vector<ServedRun>{{options}});
      port.set_value(server_->start());
      loop_.run();
      server_.reset();
    });
    const auto opened = future.get();
    if (!opened.ok()) {
      stop();
      throw std::runtime_error("the master did not start: " + opened.error().text);
    }
    address = "127.0.0.1:" + std::to_string(opened.value());
  }
  ~MasterThread() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.post([this] { server_->stop(/*ends_wait=*/false, [this] { loop_.stop(); }); });
    thread_.join();
  }
  std::string address;

 private:
  Loop loop_;
  TcpNetwork network_{loop_};
  std::unique_ptr<master::MasterServer> server_;
  std::thread thread_;
};

}  // namespace pccl::testing
