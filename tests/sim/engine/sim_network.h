// Channels in memory, and the network of one process over them and sim_links.h. Messages of one
// channel arrive in order, each as a whole, after delays that the seed chooses.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim_links.h"
#include "transport/network.h"

namespace pccl::sim {

class SimListener;
class SimChannel;

/// What a process can dial by name, and all channels that are open.
struct Switchboard {
  std::map<std::string, SimListener*> listeners;  // "host:port"
  std::set<std::string> cut;                      // names of processes that reach no master
  std::uint64_t delay_us = 300;
};

class SimNetwork final : public Network {
 public:
  SimNetwork(Cables& cables, Switchboard& board, Process& process, PeerId self)
      : cables_(cables), board_(board), process_(process), self_(self) {}

  [[nodiscard]] Clock& clock() override { return process_; }
  [[nodiscard]] Result<std::unique_ptr<Links>> make_links(LinkEvents& events,
                                                          const LinkOptions& options) override;
  [[nodiscard]] Result<std::unique_ptr<ChannelListener>> listen(
      const std::string& host, std::uint16_t port,
      std::function<void(std::unique_ptr<Channel>)> accepted,
      std::shared_ptr<const Entrance> entrance) override;
  [[nodiscard]] std::unique_ptr<Dial> dial(
      const std::string& address, const std::string& run, std::uint64_t timeout_ms,
      std::function<void(Result<std::unique_ptr<Channel>>)> done) override;
  void in_background(std::function<void()> work, std::function<void()> done) override;

  /// The process has ended, or is cut off for now: its channels break. `silent`: nobody is told.
  void break_channels(bool silent);
  [[nodiscard]] SimLinks* direct() { return direct_; }

 private:
  friend class SimChannel;
  Cables& cables_;
  Switchboard& board_;
  Process& process_;
  PeerId self_;
  SimLinks* direct_ = nullptr;
  std::vector<SimChannel*> channels_;  // in the order in which they were opened
};

}  // namespace pccl::sim
