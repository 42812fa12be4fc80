// Engine for other threads: every call becomes a function that the driver runs, or reads what has
// been published there.
#include "engine/engine.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "engine/calls.h"
#include "engine/engine_core.h"
#include "transport/address.h"
#include "transport/channel.h"
#include "transport/fd_registry.h"
#include "transport/loop.h"
#include "transport/network.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr int kDescriptorsToStart = 16;  // libuv aborts the process where it finds too few
// To here the caller's own thread begins an operation; above, sending the first segments takes so
// long that a program which overlaps communication with its own work would notice.
constexpr std::uint64_t kBeginInCallerBytes = 256U << 10;

Calls::Cost cost_of(std::uint64_t bytes) {
  return bytes <= kBeginInCallerBytes ? Calls::Cost::small : Calls::Cost::large;
}

class ThreadedEngine : public Engine {
 public:
  explicit ThreadedEngine(const EngineOptions& options)
      : options_(options), loop_(options_.threads), core_(std::in_place, network_, options_) {}
  ~ThreadedEngine() override { shutdown({}, nullptr); }

  Error open() {
    Error error = core_->listen();
    if (error.failed()) return error;
    core_->set_publish([this](GroupId id, GroupView view) {
      auto shared = std::make_shared<const GroupView>(std::move(view));
      const std::lock_guard lock(views_mutex_);
      views_[id] = std::move(shared);
    });
    self_ = core_->links().self();
    key_ = core_->links().key();
    port_ = core_->links().port();
    calls_.start(loop_, [this](const Error& broken) {
      loop_.registry().shut_all();  // the others see every connection end
      core_->broken(broken);
      goodbye_->complete(broken);
    });
    return {};
  }

  Handle handle(const std::string& seen_host) const override {
    Handle handle;
    handle.peer = self_;
    handle.key = key_;
    handle.name = options_.name;
    std::vector<std::string> hosts = options_.advertise;
    if (hosts.empty()) hosts.push_back(seen_host.empty() ? "127.0.0.1" : seen_host);
    for (const std::string& host : hosts) {
      const bool v6 = host.find(':') != std::string::npos && host.front() != '[';
      handle.addresses.push_back((v6 ? "[" + host + "]" : host) + ":" + std::to_string(port_));
    }
    return handle;
  }

  const Tokens* tokens() const override { return options_.tokens.get(); }
  bool encrypts() const override { return options_.links.plaintext == Plaintext::none; }

  std::string local_host_towards(const std::string& address) const override {
    const auto parsed = parse_address(address);
    return parsed ? local_address_towards(parsed.value().host, parsed.value().port) : "";
  }

  std::shared_ptr<Ticket> configure_fixed(GroupId group, std::string name,
                                          std::vector<Handle> members, std::int32_t rank,
                                          std::uint64_t timeout_ms) override {
    return calls_.posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      core_->add_fixed(group, name, members, rank, timeout_ms, ticket);
    });
  }

  std::shared_ptr<Ticket> configure_of_run(GroupId group, std::string name,
                                           std::vector<PeerId> members, std::int32_t rank,
                                           std::uint64_t timeout_ms) override {
    return calls_.posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      core_->add_of_run(group, name, members, rank, timeout_ms, ticket);
    });
  }

  Result<std::vector<Handle>> members_of(GroupId id) const override {
    return calls_.ask([this, id] { return core_->members_of(id); });
  }

  Run& run() override { return *run_; }

  std::shared_ptr<Ticket> post(GroupId id, OpRequest request) override {
    const Calls::Cost cost = cost_of(total_bytes(request.inputs) + total_bytes(request.outputs));
    return calls_.posted(
        [this, id, r = std::move(request)](const std::shared_ptr<Ticket>& ticket) mutable {
          if (Group* group = core_->find(id)) {
            group->post(std::move(r), ticket);
          } else {
            ticket->complete({ErrorCode::closed, "the group has been closed"});
          }
        },
        cost);
  }

  void inputs_came(GroupId id, std::shared_ptr<const InputGate> gate) override {
    const Calls::Cost cost = cost_of(gate->bytes.load(std::memory_order_relaxed));
    calls_.post(
        [this, id, g = std::move(gate)] {
          if (Group* group = core_->find(id)) group->inputs_came(*g);
        },
        cost);
  }

  std::shared_ptr<Ticket> memory_free(GroupId id, std::vector<Buffer> memory) override {
    return calls_.posted([this, id, m = std::move(memory)](const std::shared_ptr<Ticket>& ticket) {
      const Group* group = core_->find(id);
      on_all_done(group == nullptr ? Tickets{} : group->users_of(m),
                  [ticket] { ticket->complete({}); });
    });
  }

  bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) override {
    return calls_.wait(ticket, timeout_ms);
  }

  GroupView view(GroupId group) const override {
    const std::lock_guard lock(views_mutex_);
    const auto it = views_.find(group);
    return it == views_.end() ? GroupView{} : *it->second;
  }

  Result<std::vector<OpInFlight>> in_flight(GroupId id) const override {
    return calls_.ask([this, id] {
      const Group* group = core_->find(id);
      return group == nullptr ? std::vector<OpInFlight>{} : group->in_flight();
    });
  }

  Result<EngineCounters> counters() const override {
    return calls_.ask([this] { return core_->counters(); }, Calls::Cost::look);
  }

  Result<std::vector<LinkView>> links() const override {
    return calls_.ask([this] { return core_->link_views(); }, Calls::Cost::look);
  }

  void set_timeout(GroupId id, std::uint64_t timeout_ms) override {
    calls_.post([this, id, timeout_ms] {
      if (Group* group = core_->find(id)) group->set_timeout(timeout_ms);
    });
  }

  void close(GroupId group, const std::string& failure) override {
    calls_.carry_out([this, group, failure] { core_->close(group, failure); });
    const std::lock_guard lock(views_mutex_);
    if (group != kElasticGroup) {
      views_.erase(group);
    } else if (const auto it = views_.find(group); it != views_.end()) {
      GroupView closed = *it->second;
      closed.evicted = false;  // says nothing of the groups that are made from now on
      it->second = std::make_shared<const GroupView>(std::move(closed));
    }
  }

  void abort(GroupId id, const std::string& why) override {
    calls_.post([this, id, why] {
      if (Group* group = core_->find(id)) group->abort(why);
    });
  }

  void shutdown(const std::string& failure, const std::function<bool()>& gives_up) override {
    if (!calls_.can_join()) return;
    const bool first = calls_.stop([this, failure] {
      pulse_ = loop_.timer(kPulseMs, kPulseMs, [this] { ++pulses_; });
      core_->shutdown(failure, [this] {
        pulse_.reset();
        goodbye_->complete({});
        loop_.stop();
      });
    });
    if (first) wait_for_goodbye(gives_up);
    calls_.join();
  }

  void vanish() override {
    if (!calls_.stop()) return;
    loop_.stop();
    calls_.join();
    core_.reset();  // closes every socket
  }

  void break_invariant(const std::string& what) override {
    calls_.post([what] { PCCL_ASSERT(what.empty(), what); });
  }

  void forked() override {
    calls_.forked();
    loop_.registry().close_in_child();
  }

 private:
  /// How long it takes to send what others need is decided there (GoodbyeTime), as long as the
  /// engine's thread moves.
  void wait_for_goodbye(const std::function<bool()>& gives_up) {
    std::uint64_t seen = pulses_;
    for (std::uint64_t still_ms = 0; !goodbye_->wait(kPulseMs); still_ms += kPulseMs) {
      const std::uint64_t pulses = pulses_;
      if (std::exchange(seen, pulses) != pulses) still_ms = 0;
      const bool given_up = gives_up && gives_up();
      if (!given_up && still_ms < Calls::kAnswerMs) continue;
      if (!given_up) log_warning("the engine's thread is busy, and does not say goodbye");
      return loop_.stop();
    }
  }

  static constexpr std::uint64_t kPulseMs = 100;

  EngineOptions options_;
  Loop loop_;
  TcpNetwork network_{loop_, KeyPair::make(), options_.tokens};
  mutable std::optional<EngineCore> core_;
  Calls calls_;
  std::unique_ptr<Run> run_ = Run::of(calls_, *core_);
  PeerId self_;
  PublicKey key_{};
  std::uint16_t port_ = 0;
  std::shared_ptr<Ticket> goodbye_ = std::make_shared<Ticket>();
  std::unique_ptr<Timer> pulse_;  // while the engine says goodbye
  std::atomic<std::uint64_t> pulses_ = 0;
  mutable std::mutex views_mutex_;  // of what the engine publishes; held for a copy of a pointer
  std::unordered_map<GroupId, std::shared_ptr<const GroupView>> views_;
};

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(const EngineOptions& options) {
  if (!descriptors_are_free(kDescriptorsToStart)) {
    return {ErrorCode::broken, "fewer than " + std::to_string(kDescriptorsToStart) +
                                   " file descriptors are free (ulimit -n), too few to start"};
  }
  try {
    auto engine = std::make_shared<ThreadedEngine>(options);
    const Error error = engine->open();
    if (error.failed()) return error;
    return std::shared_ptr<Engine>(std::move(engine));
  } catch (const std::system_error& error) {
    return {ErrorCode::broken,
            std::string("the engine's thread cannot be started: ") + error.what()};
  }
}

}  // namespace pccl
