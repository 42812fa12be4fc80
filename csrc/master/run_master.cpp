// The process around a MasterServer: signals, the port file, and how to join.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "master/server.h"
#include "transport/background.h"
#include "transport/channel.h"
#include "transport/loop.h"
#include "transport/network.h"
#include "trust/owned_file.h"
#include "trust/token_file.h"

namespace pccl {
namespace {

constexpr int kCouldNotStart = 1;
constexpr int kBroken = 3;

int could_not_start(const std::string& text) {
  static_cast<void>(std::fprintf(stderr, "pccl-master: %s\n", text.c_str()));
  return kCouldNotStart;
}

std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

/// The addresses of this machine's interfaces; those that other machines may reach come first.
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

std::string where_kept(const RunOptions& run) {
  return run.state_file.empty() ? "none (a restarted master will not know this run)"
                                : run.state_file;
}

void print_how_to_join(const MasterOptions& options, const std::vector<RunOptions>& runs,
                       std::uint16_t port) {
  std::vector<std::string> hosts = {options.host};
  if (options.host == "0.0.0.0" || options.host == "::") {
    hosts = own_addresses(options.host == "::");
    if (hosts.empty()) hosts.push_back(options.host == "::" ? "::1" : "127.0.0.1");
  }
  std::vector<std::string> bases;
  for (const std::string& host : hosts) {
    bases.push_back("pccl://" + bracketed(host) + ":" + std::to_string(port) + "/");
  }
  const std::string url = bases.front() + runs.front().run;
  if (runs.size() == 1) {
    std::printf("pccl-master serves the run \"%s\"; it is founded when %s.",
                runs.front().run.c_str(),
                runs.front().min_peers == 1
                    ? "1 replica waits"
                    : (std::to_string(runs.front().min_peers) + " replicas wait").c_str());
  } else {
    std::printf("pccl-master serves %zu runs.", runs.size());
  }
  std::printf(
      " Join %s with\n"
      "  torch.distributed.init_process_group(\"pccl\", init_method=\"%s\")\n"
      "or, with no changed line, with this in the environment of every peer:\n"
      "  PCCL_MASTER=%s\n",
      runs.size() == 1 ? "it" : "the first one", url.c_str(), url.c_str());
  if (bases.size() > 1) {
    std::printf("This machine has several addresses; where the first one is not reached:\n");
    for (std::size_t i = 1; i < bases.size(); ++i) {
      std::printf("  %s%s\n", bases[i].c_str(), runs.front().run.c_str());
    }
  }
  if (runs.size() > 1) {
    std::printf("The runs, how many replicas found each, and its state file:\n");
    for (const RunOptions& run : runs) {
      std::printf("  %s%s  %u  %s\n", bases.front().c_str(), run.run.c_str(), run.min_peers,
                  where_kept(run).c_str());
    }
  }
  std::printf("Who is in the run: pccl-master --status %s\n", url.c_str());
  if (runs.size() == 1) std::printf("State file: %s\n", where_kept(runs.front()).c_str());
  if (!options.token_file.empty()) {
    std::printf(
        "Who may enter: holders of a token of %s. Copy that file, or one of its lines, to the\n"
        "machines of the peers, for their user alone (chmod 600), never %s; there\n"
        "  PCCL_TOKEN_FILE=the copy\n",
        options.token_file.c_str(), key_path(options.token_file).c_str());
  }
  static_cast<void>(std::fflush(stdout));
}

}  // namespace

Error check_listen(const std::string& host, std::uint16_t port) {
  Loop loop;
  const auto listener = listen_channels(loop, host, port, [](std::unique_ptr<Channel>) {});
  return listener ? Error{} : listener.error();
}

int run_master(const MasterOptions& options, std::vector<ServedRun> runs) {
  set_log_level(parse_log_level(options.log_level, LogLevel::info));
  try {
    Loop loop;
    TcpNetwork network(loop);
    std::vector<RunOptions> served;
    for (const ServedRun& run : runs) served.push_back(run.options);
    master::MasterServer server(network, options, std::move(runs));
    int signals = 0;
    const auto stop = [&](bool ends_wait) {
      if (++signals > 1) return loop.stop();  // the second signal ends the master at once
      log_info("stopping");
      server.stop(ends_wait, [&loop] { loop.stop(); });
    };
    const SignalWatch terminate(loop, SIGTERM, [&stop] { stop(false); });
    const SignalWatch interrupt(loop, SIGINT, [&stop] { stop(true); });
    std::optional<SignalWatch> hangup;
    if (!options.token_file.empty()) {
      hangup.emplace(loop, SIGHUP, [&server] { server.reload_tokens(); });
    }
    const auto port = server.start();
    if (!port) return could_not_start(port.error().text);
    if (!options.port_file.empty()) {
      const std::string text = std::to_string(port.value()) + "\n";
      const std::string& path = options.port_file;
      if (Error error = replace_file(path, path + ".new", text, 0644); error.failed()) {
        return could_not_start("the port file cannot be written: " + error.text);
      }
    }
    print_how_to_join(options, served, port.value());
    loop.run();
    return 0;
  } catch (const BrokenInvariant& broken) {
    log_error(std::string("a bug, the master stops: ") + broken.what());
    return kBroken;
  } catch (const std::exception& error) {
    log_error(std::string("the master stops: ") + error.what());
    return kBroken;
  }
}

}  // namespace pccl
