// The process around a MasterServer: signals, the port file, and how to join.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

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

std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

/// Of this machine, as its interfaces have them: those that other machines may reach first.
std::vector<std::string> own_addresses(bool with_v6) {
  std::vector<std::string> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    if (family == AF_INET6 && !with_v6) continue;
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
      std::array<char, NI_MAXHOST> text{};
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(one->ifa_addr, size, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) != 0) {
        continue;
      }
      const std::string address = text.data();
      if (address.find('%') == std::string::npos) out.push_back(address);  // of one link only
    }
  }
  return out;
}

void print_how_to_join(const MasterOptions& options, std::uint16_t port) {
  std::vector<std::string> hosts = {options.host};
  if (options.host == "0.0.0.0" || options.host == "::") {
    hosts = own_addresses(options.host == "::");
    if (hosts.empty()) hosts.push_back(options.host == "::" ? "::1" : "127.0.0.1");
  }
  std::vector<std::string> urls;
  for (const std::string& host : hosts) {
    urls.push_back("pccl://" + bracketed(host) + ":" + std::to_string(port) + "/" + options.run);
  }
  const std::string& url = urls.front();
  std::printf(
      "pccl-master serves the run \"%s\"; it is founded when %u replicas wait. Join it with\n"
      "  torch.distributed.init_process_group(\"pccl\", init_method=\"%s\")\n"
      "or, with no changed line, with this in the environment of every peer:\n"
      "  PCCL_MASTER=%s\n",
      options.run.c_str(), options.min_peers, url.c_str(), url.c_str());
  if (urls.size() > 1) {
    std::printf("This machine has several addresses; where the first one is not reached:\n");
    for (std::size_t i = 1; i < urls.size(); ++i) std::printf("  %s\n", urls[i].c_str());
  }
  std::printf("Who is in the run: pccl-master --status %s\n", url.c_str());
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
