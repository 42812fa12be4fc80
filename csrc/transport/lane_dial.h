// The dialler's side of a link: connects and proves all lanes, the small one first (it finds the
// address that works), then the bulk lanes to the same place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/handle.h"
#include "transport/connector.h"
#include "transport/handshake.h"
#include "transport/loop.h"
#include "transport/stream.h"
#include "transport/talk.h"

namespace pccl {

/// One lane, to the first of several addresses whose process proves to be the peer. Callbacks come
/// from the loop and may destroy the dial.
class LaneDial {
 public:
  struct Failure {
    std::string what;
    bool refused = false;  // nobody listens at any address
    bool final = false;    // somebody answered, and it cannot become right by trying again
  };
  struct Events {
    std::function<void(std::unique_ptr<Stream> stream, const std::string& address)> proven;
    std::function<void(const Failure& failure)> failed;
  };
  LaneDial(Loop& loop, const Handle& to, const std::vector<std::string>& addresses,
           const LaneHello& hello, std::uint64_t user_timeout_ms, Events events);
  ~LaneDial();
  LaneDial(const LaneDial&) = delete;
  LaneDial& operator=(const LaneDial&) = delete;

  [[nodiscard]] std::string report() const;
  [[nodiscard]] bool talks() const { return talk_ != nullptr; }

 private:
  void connected(Socket socket, const std::string& address);
  void opened(std::span<const std::byte> bytes);
  void offered(std::span<const std::byte> bytes);
  void answered(std::span<const std::byte> bytes);
  void next(const std::string& why, bool final);
  void drop_talk();

  Loop& loop_;
  LinkKey key_;
  LaneHello hello_;
  Events events_;
  std::shared_ptr<Talk> talk_;
  std::string address_;
  bool final_ = false;
  std::unique_ptr<Connector> connector_;
};

/// All lanes of a link; one attempt.
class LinkDial {
 public:
  struct Events {
    std::function<void(std::vector<std::unique_ptr<Stream>> lanes)> proven;
    std::function<void(const LaneDial::Failure& failure)> failed;
  };
  LinkDial(Loop& loop, PeerId self, const Handle& to, std::uint8_t lanes,
           std::uint64_t user_timeout_ms, Events events);

  [[nodiscard]] std::string report() const;
  /// The other side may know of it: something is connected.
  [[nodiscard]] bool connected() const;

 private:
  void dial(std::uint8_t lane, const std::vector<std::string>& addresses);
  void proven(std::uint8_t lane, std::unique_ptr<Stream> stream, const std::string& address);

  Loop& loop_;
  Handle to_;
  LaneHello hello_;
  std::uint64_t user_timeout_ms_;
  Events events_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<LaneDial>> dials_;
  std::size_t proven_ = 0;
};

}  // namespace pccl
