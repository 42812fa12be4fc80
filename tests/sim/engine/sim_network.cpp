#include "sim_network.h"

#include <deque>
#include <utility>
#include <vector>

#include "liar.h"

namespace pccl::sim {

/// One end of a connection to a master. What is under way is in `Line`, which outlives both ends.
struct Line {
  struct Half {
    SimChannel* end = nullptr;
    Process* process = nullptr;
    std::deque<std::vector<std::byte>> coming;
    bool closes = false;  // after what is coming
    bool silent = false;  // nothing comes any more, and nobody says so
    bool planned = false;
    bool reads = false;
  };
  Half halves[2];
};

class SimChannel final : public Channel {
 public:
  SimChannel(SimNetwork& network, std::shared_ptr<Line> line, int side, std::string remote)
      : network_(network), line_(std::move(line)), side_(side), remote_(std::move(remote)) {
    line_->halves[side_].end = this;
    line_->halves[side_].process = &network_.process_;
    network_.channels_.push_back(this);
  }
  ~SimChannel() override { leave(); }

  void set_events(Events events) override {
    events_ = std::move(events);
    line_->halves[side_].reads = true;
    plan(line_, side_);
  }
  void send(std::span<const std::byte> payload) override {
    if (left_) return;
    auto& coming = line_->halves[1 - side_].coming;
    Liar* const liar = network_.cables_.liar;
    if (liar != nullptr && side_ == 0 && liar->who == network_.self_) {
      for (auto& message : liar->to_master(payload)) coming.push_back(std::move(message));
    } else {
      coming.emplace_back(payload.begin(), payload.end());
    }
    plan(line_, 1 - side_);
  }
  void trust() override {}
  void close() override { leave(); }
  [[nodiscard]] const std::string& remote() const override { return remote_; }
  [[nodiscard]] const std::string& local_host() const override { return host_; }
  [[nodiscard]] std::size_t queued_bytes() const override {
    std::size_t bytes = 0;
    for (const auto& message : line_->halves[1 - side_].coming) bytes += message.size();
    return bytes;
  }
  /// The connection breaks: what is under way is lost, and this end closes too, unless it is over.
  void cut(bool silent) {
    for (int side = 0; side < 2; ++side) {
      Line::Half& half = line_->halves[side];
      half.coming.clear();
      half.closes = true;
      half.silent = half.silent || silent;
      plan(line_, side);
    }
  }

 private:
  void leave() {
    if (std::exchange(left_, true)) return;
    std::erase(network_.channels_, this);
    line_->halves[side_].end = nullptr;
    line_->halves[1 - side_].closes = true;
    plan(line_, 1 - side_);
  }
  static void plan(const std::shared_ptr<Line>& line, int side) {
    Line::Half& half = line->halves[side];
    if (half.end == nullptr || half.planned || !half.reads || half.silent) return;
    if (half.coming.empty() && !half.closes) return;
    half.planned = true;
    Time& time = half.process->time();
    half.process->after(time.between(10, half.end->network_.board_.delay_us), [line, side] {
      Line::Half& now = line->halves[side];
      now.planned = false;
      if (now.end == nullptr || now.silent) return;
      SimChannel& channel = *now.end;
      if (!now.coming.empty()) {
        const std::vector<std::byte> message = std::move(now.coming.front());
        now.coming.pop_front();
        const auto arrived = channel.events_.arrived;  // it may destroy the channel
        arrived(message);
        return plan(line, side);
      }
      const auto closed = channel.events_.closed;
      now.closes = false;
      closed("the other side has closed the connection");
    });
  }

  SimNetwork& network_;
  std::shared_ptr<Line> line_;
  int side_;
  std::string remote_;
  std::string host_ = "sim";
  Events events_;
  bool left_ = false;
};

class SimListener final : public ChannelListener {
 public:
  SimListener(Switchboard& board, std::string address, SimNetwork& at, Process& in,
              std::function<void(std::unique_ptr<Channel>)> function)
      : network(at),
        process(in),
        accepted(std::move(function)),
        board_(board),
        address_(std::move(address)) {
    board_.listeners[address_] = this;
  }
  ~SimListener() override { board_.listeners.erase(address_); }
  [[nodiscard]] std::uint16_t port() const override { return 1; }

  SimNetwork& network;
  Process& process;
  std::function<void(std::unique_ptr<Channel>)> accepted;
  std::shared_ptr<bool> lives = std::make_shared<bool>(true);

 private:
  Switchboard& board_;
  std::string address_;
};

namespace {

struct SimDial final : Dial {
  std::shared_ptr<bool> lives = std::make_shared<bool>(true);
};

}  // namespace

Result<std::unique_ptr<Links>> SimNetwork::make_links(LinkEvents& events, const LinkOptions&) {
  auto secret = [random = Random(process_.time().chance.next())]() mutable {
    std::array<std::uint8_t, Secret::kBytes> bytes{};
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    return Secret(bytes);
  };
  RelayTrust trust{KeyPair::from(secret()), secret, /*ids_follow_keys=*/false};
  return make_relay_links(process_, events, trust, [&](DirectEvents& direct) {
    auto links =
        std::make_unique<SimLinks>(cables_, process_, self_, trust.identity.public_key(), direct);
    direct_ = links.get();
    return Result<std::unique_ptr<DirectLinks>>(std::move(links));
  });
}

Result<std::unique_ptr<ChannelListener>> SimNetwork::listen(
    const std::string& host, std::uint16_t port,
    std::function<void(std::unique_ptr<Channel>)> accepted, std::shared_ptr<const Entrance>) {
  return std::unique_ptr<ChannelListener>(std::make_unique<SimListener>(
      board_, host + ":" + std::to_string(port), *this, process_, std::move(accepted)));
}

std::unique_ptr<Dial> SimNetwork::dial(const std::string& address, const std::string&,
                                       std::uint64_t timeout_ms,
                                       std::function<void(Result<std::unique_ptr<Channel>>)> done) {
  auto dial = std::make_unique<SimDial>();
  Time& time = process_.time();
  // Called once, and not any more once the dial is destroyed.
  const auto once = std::make_shared<std::function<void(Result<std::unique_ptr<Channel>>)>>(
      [done = std::move(done), alive = std::weak_ptr(dial->lives)](auto result) {
        if (!alive.expired()) done(std::move(result));
      });
  const auto answer = [this, once](std::uint64_t after_us, auto make) {
    process_.after(after_us, [once, make] {
      if (!*once) return;
      const auto function = std::exchange(*once, nullptr);
      function(make());
    });
  };
  const auto unreachable = [] {
    return Result<std::unique_ptr<Channel>>(ErrorCode::unreachable, "nobody answers");
  };
  const auto found = board_.listeners.find(address);
  if (board_.cut.contains(process_.name())) {
    answer(timeout_ms * 1000, unreachable);
    return dial;
  }
  if (found == board_.listeners.end()) {
    answer(time.between(50, 500), unreachable);
    return dial;
  }
  answer(timeout_ms * 1000, unreachable);
  SimListener* listener = found->second;
  listener->process.after(time.between(20, board_.delay_us), [this, once, answer, listener, address,
                                                              alive =
                                                                  std::weak_ptr(listener->lives)] {
    if (alive.expired() || !*once) return;
    const auto line = std::make_shared<Line>();
    listener->accepted(std::make_unique<SimChannel>(listener->network, line, 1, process_.name()));
    answer(process_.time().between(20, board_.delay_us), [this, line, address] {
      return Result<std::unique_ptr<Channel>>(
          std::unique_ptr<Channel>(std::make_unique<SimChannel>(*this, line, 0, address)));
    });
  });
  return dial;
}

/// The work is done now or when its end is told: a process that ends in between has done it, or
/// not.
void SimNetwork::in_background(std::function<void()> work, std::function<void()> done) {
  Time& time = process_.time();
  const bool now = time.hit(50);
  if (now) work();
  process_.after(time.between(20, 3000), [now, work = std::move(work), done = std::move(done)] {
    if (!now) work();
    done();
  });
}

void SimNetwork::break_channels(bool silent) {
  for (SimChannel* channel : channels_) channel->cut(silent);
}

}  // namespace pccl::sim
