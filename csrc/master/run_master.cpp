// The process around a MasterServer: signals, the port file, and how to join.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/assert.h"
#include "base/log.h"
#include "master/server.h"
#include "transport/background.h"
#include "transport/loop.h"
#include "transport/network.h"

namespace pccl {
namespace {

constexpr int kCouldNotStart = 1;
constexpr int kBroken = 3;

int could_not_start(const std::string& text) {
  std::fprintf(stderr, "pccl-master: %s\n", text.c_str());
  return kCouldNotStart;
}

/// The name under which others reach what listens on `host`.
std::string reachable(const std::string& host) {
  if (host != "0.0.0.0" && host != "::") {
    return host.find(':') == std::string::npos ? host : "[" + host + "]";
  }
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "127.0.0.1";
  return name.data();
}

void print_how_to_join(const MasterOptions& options, std::uint16_t port) {
  const std::string url =
      "pccl://" + reachable(options.host) + ":" + std::to_string(port) + "/" + options.run;
  std::printf(
      "pccl-master serves the run \"%s\"; it is founded when %u replicas wait. Join it with\n"
      "  torch.distributed.init_process_group(\"pccl\", init_method=\"%s\")\n"
      "or, with no changed line, with this in the environment of every peer:\n"
      "  PCCL_MASTER=%s\n",
      options.run.c_str(), options.min_peers, url.c_str(), url.c_str());
  if (options.state_file.empty()) {
    std::printf("No state file: a restarted master will not know this run.\n");
  } else {
    std::printf("State: %s\n", options.state_file.c_str());
  }
  std::fflush(stdout);
}

/// Written beside and renamed: who reads the file finds a whole number or no file.
bool write_port_file(const std::string& path, std::uint16_t port) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << port << "\n";
    file.flush();
    if (!file) return false;
  }
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  return !error;
}

}  // namespace

int run_master(const MasterOptions& options, std::shared_ptr<master::RegisterStore> held) {
  set_log_level(parse_log_level(options.log_level, LogLevel::info));
  try {
    Loop loop;
    TcpNetwork network(loop);
    master::MasterServer server(network, options, std::move(held));
    int signals = 0;
    const auto on_signal = [&] {
      if (++signals > 1) return loop.stop();  // it is impatient
      log_info("stopping");
      server.stop([&loop] { loop.stop(); });
    };
    const SignalWatch terminate(loop, SIGTERM, on_signal);
    const SignalWatch interrupt(loop, SIGINT, on_signal);
    const auto port = server.start();
    if (!port) return could_not_start(port.error().text);
    if (!options.port_file.empty() && !write_port_file(options.port_file, port.value())) {
      return could_not_start("the port file " + options.port_file + " cannot be written");
    }
    print_how_to_join(options, port.value());
    loop.run();
    return 0;
  } catch (const BrokenInvariant& broken) {
    log_error(std::string("a bug, the master stops: ") + broken.what());
    return kBroken;
  }
}

}  // namespace pccl
