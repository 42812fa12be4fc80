// Engine for other threads: every call becomes a function that the driver runs, or reads what has
// been published there.
#include "engine/engine.h"

#include <atomic>
#include <future>
#include <mutex>
#include <system_error>
#include <unordered_map>

#include "base/assert.h"
#include "base/log.h"
#include "engine/driver.h"
#include "engine/engine_core.h"
#include "transport/channel.h"
#include "transport/fd_registry.h"
#include "transport/loop.h"
#include "transport/network.h"
#include "transport/sys.h"

namespace pccl {
namespace {

constexpr int kDescriptorsToStart = 16;    // libuv aborts the process where it finds too few
constexpr std::uint64_t kAnswerMs = 2000;  // of the thread that drives, for questions
// To here the caller's own thread begins an operation; above, sending the first segments takes so
// long that a program which overlaps communication with its own work would notice.
constexpr std::uint64_t kBeginInCallerBytes = 256U << 10;

Driver::Cost cost_of(const OpRequest& request) {
  const std::uint64_t bytes = total_bytes(request.inputs) + total_bytes(request.outputs);
  return bytes <= kBeginInCallerBytes ? Driver::Cost::small : Driver::Cost::large;
}

/// Why an engine does nothing any more: the error of each call that it has not carried out. Shared
/// with the functions that are posted, which may outlive what they were posted to.
class Ending {
 public:
  explicit Ending(Error error) : error_(std::move(error)) {}
  void set(Error error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  [[nodiscard]] Error error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  Error error_;
};

/// A posted function that somebody waits for: where it is destroyed before it has run to its end,
/// `otherwise` tells them why.
template <typename F, typename Otherwise>
class Owed {
 public:
  Owed(F function, Otherwise otherwise, std::shared_ptr<const Ending> ending)
      : function_(std::move(function)),
        otherwise_(std::move(otherwise)),
        ending_(std::move(ending)) {}
  ~Owed() {
    if (!ran_) otherwise_(ending_->error());
  }
  Owed(const Owed&) = delete;
  Owed& operator=(const Owed&) = delete;
  void run() {
    function_();
    ran_ = true;
  }

 private:
  F function_;
  Otherwise otherwise_;
  std::shared_ptr<const Ending> ending_;
  bool ran_ = false;
};

class ThreadedEngine : public Engine {
 public:
  explicit ThreadedEngine(const EngineOptions& options)
      : options_(options), core_(std::in_place, network_, options_) {}
  ~ThreadedEngine() override { shutdown({}); }

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
    driver_.emplace(loop_, [this](const std::string& what) {
      ending_->set({ErrorCode::broken, "the engine has stopped: " + what});
      stopped_ = true;
      loop_.registry().shut_all();  // the others see every connection end
      core_->broken(ending_->error());
      goodbye_->complete(ending_->error());
    });
    return {};
  }

  Handle handle(const std::string& seen_host) const override {
    Handle handle;
    handle.peer = self_;
    handle.key = key_;
    std::vector<std::string> hosts = options_.advertise;
    if (hosts.empty()) hosts.push_back(seen_host.empty() ? "127.0.0.1" : seen_host);
    for (const std::string& host : hosts) {
      const bool v6 = host.find(':') != std::string::npos && host.front() != '[';
      handle.addresses.push_back((v6 ? "[" + host + "]" : host) + ":" + std::to_string(port_));
    }
    return handle;
  }

  std::string local_host_towards(const std::string& address) const override {
    const auto parsed = parse_address(address);
    return parsed ? local_address_towards(parsed.value().host, parsed.value().port) : "";
  }

  std::shared_ptr<Ticket> configure_fixed(GroupId group, std::string name,
                                          std::vector<Handle> members, std::int32_t rank,
                                          std::uint64_t timeout_ms) override {
    return posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      core_->add_fixed(group, name, members, rank, timeout_ms, ticket);
    });
  }

  std::shared_ptr<Ticket> configure_of_run(GroupId group, std::string name,
                                           std::vector<PeerId> members, std::int32_t rank,
                                           std::uint64_t timeout_ms) override {
    return posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      core_->add_of_run(group, name, members, rank, timeout_ms, ticket);
    });
  }

  std::vector<Handle> members_of(GroupId id) const override {
    auto list = std::make_shared<std::vector<Handle>>();
    ask([this, id, list] { *list = core_->members_of(id); });
    return *list;
  }

  std::shared_ptr<Ticket> join(const JoinOptions& options) override {
    return posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      core_->join(options, ticket, [this](const GroupEvent& event) {
        if (event_sink_) event_sink_(event);
      });
      if (ElasticGroup* group = core_->elastic()) {
        const std::lock_guard lock(views_mutex_);
        renumber_pending_ = group->renumber_pending;
      }
    });
  }

  GroupId elastic_group() const override { return kElasticGroup; }

  void on_group_event(std::function<void(const GroupEvent&)> function) override {
    post_function([this, f = std::move(function)]() mutable { event_sink_ = std::move(f); });
  }

  void leave(GroupId, bool at_once) override {
    post_function([this, at_once] {
      if (ElasticGroup* group = core_->elastic()) group->leave(at_once);
    });
  }

  std::shared_ptr<Ticket> store(StoreRequest request) override {
    return posted([this, r = std::move(request)](const std::shared_ptr<Ticket>& ticket) mutable {
      if (ElasticGroup* group = core_->elastic()) {
        group->store(std::move(r), ticket);
      } else {
        ticket->complete({ErrorCode::closed, "there is no elastic group, so no store of a master"});
      }
    });
  }

  std::shared_ptr<Ticket> post(GroupId id, OpRequest request) override {
    const Driver::Cost cost = cost_of(request);
    return posted(
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
    const bool small = gate->bytes.load(std::memory_order_relaxed) <= kBeginInCallerBytes;
    post_function(
        [this, id, g = std::move(gate)] {
          if (Group* group = core_->find(id)) group->inputs_came(*g);
        },
        small ? Driver::Cost::small : Driver::Cost::large);
  }

  bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) override {
    if (!forked_) {
      if (driver_->wait(ticket, timeout_ms)) return true;
      if (!driver_->ended()) return false;
    }
    ticket.complete(ending_->error());  // nobody else will
    return true;
  }

  void returned(GroupId id, OpKey op) override {
    if (id != kElasticGroup) return;
    std::shared_ptr<std::atomic<bool>> pending;
    {
      const std::lock_guard lock(views_mutex_);
      pending = renumber_pending_;
    }
    if (!pending || !pending->load()) return;
    ask([this, op] {
      if (ElasticGroup* group = core_->elastic()) group->returned(op);
    });
  }

  GroupView view(GroupId group) const override {
    const std::lock_guard lock(views_mutex_);
    const auto it = views_.find(group);
    return it == views_.end() ? GroupView{} : *it->second;
  }

  std::vector<OpInFlight> in_flight(GroupId id) const override {
    auto list = std::make_shared<std::vector<OpInFlight>>();
    ask([this, id, list] {
      if (Group* group = core_->find(id)) *list = group->in_flight();
    });
    return *list;
  }

  EngineCounters counters() const override {
    auto counters = std::make_shared<EngineCounters>();
    ask([this, counters] { *counters = core_->counters(); });
    return *counters;
  }

  void set_timeout(GroupId id, std::uint64_t timeout_ms) override {
    post_function([this, id, timeout_ms] {
      if (Group* group = core_->find(id)) group->set_timeout(timeout_ms);
    });
  }

  Error boundary_begin(GroupId, const BoundaryRequest& request) override {
    if (stopped_) return ending_->error();
    auto talk = std::make_shared<BoundaryTalk>();
    {
      const std::lock_guard lock(views_mutex_);
      talk_ = talk;
    }
    owe(
        [this, request, talk] {
          if (ElasticGroup* group = core_->elastic()) {
            group->boundary_begin(request, talk);
          } else {
            talk->fail({ErrorCode::closed, "the elastic group has been closed"});
          }
        },
        [talk](const Error& error) { talk->fail(error); });
    return {};
  }

  std::optional<Result<BoundaryEvent>> boundary_next(GroupId, std::uint64_t timeout_ms) override {
    std::shared_ptr<BoundaryTalk> talk;
    {
      const std::lock_guard lock(views_mutex_);
      talk = talk_;
    }
    if (!talk) return Result<BoundaryEvent>(ErrorCode::invalid, "no boundary has begun");
    if (auto event = talk->next(timeout_ms)) return event;
    if (stopped_) return Result<BoundaryEvent>(ending_->error());
    return {};
  }

  void boundary_root(GroupId, const StateRoot& root, Snapshot snapshot) override {
    post_function([this, root, s = std::move(snapshot)]() mutable {
      if (ElasticGroup* group = core_->elastic()) group->boundary_root(root, std::move(s));
    });
  }

  std::shared_ptr<Ticket> boundary_adopt(GroupId, const StateRoot& root) override {
    return posted([this, root](const std::shared_ptr<Ticket>& ticket) {
      ElasticGroup* group = core_->elastic();
      ticket->amount = group != nullptr && group->boundary_adopt(root) ? 1 : 0;
      ticket->complete({});
    });
  }

  void boundary_fetched(GroupId, const StateRoot& root, Snapshot snapshot) override {
    post_function([this, root, s = std::move(snapshot)]() mutable {
      if (ElasticGroup* group = core_->elastic()) group->boundary_fetched(root, std::move(s));
    });
  }

  std::shared_ptr<Ticket> pull(GroupId, PeerId source, const Digest& digest, std::uint32_t item,
                               Buffer to) override {
    return posted([=, this](const std::shared_ptr<Ticket>& ticket) {
      if (ElasticGroup* group = core_->elastic()) {
        group->pull(source, digest, item, to, ticket);
      } else {
        ticket->complete({ErrorCode::closed, "the elastic group has been closed"});
      }
    });
  }

  void cancel_pull(GroupId, std::shared_ptr<Ticket> ticket) override {
    post_function([this, ticket = std::move(ticket)] {
      if (ElasticGroup* group = core_->elastic()) group->cancel_pull(*ticket);
    });
  }

  void close(GroupId group) override {
    ask([this, group] { core_->close(group); });
    if (group == kElasticGroup) return;
    const std::lock_guard lock(views_mutex_);
    views_.erase(group);
  }

  void abort(GroupId id, const std::string& why) override {
    post_function([this, id, why] {
      if (Group* group = core_->find(id)) group->abort(why);
    });
  }

  void shutdown(const std::string& failure) override {
    if (!driver_ || forked_ || driver_->is_current()) return;
    if (!stopped_.exchange(true)) {
      driver_->post(
          [this, failure] {
            core_->shutdown(failure, [this] {
              goodbye_->complete({});
              loop_.stop();
            });
          },
          Driver::Cost::large);
      if (!goodbye_->wait(options_.goodbye_timeout_ms + kAnswerMs)) {
        log_warning("the engine did not finish its goodbyes in time");
        loop_.stop();
      }
    }
    driver_->join();
  }

  void vanish() override {
    if (!driver_ || stopped_.exchange(true)) return;
    loop_.stop();
    driver_->join();
    core_.reset();  // closes every socket
  }

  void break_invariant(const std::string& what) override {
    post_function([what] { PCCL_ASSERT(what.empty(), what); });
  }

  void forked() override {
    // Another thread of the parent may hold a lock for ever: none is taken.
    ending_.swap(forked_ending_);
    forked_ = true;
    stopped_ = true;
    loop_.registry().close_in_child();
    if (driver_) driver_->forget();
  }

 private:
  /// False: nobody will run it.
  bool post_function(std::function<void()> function,
                     Driver::Cost cost = Driver::Cost::small) const {
    if (stopped_ || !driver_) return false;
    driver_->post(std::move(function), cost);
    return true;
  }

  template <typename F>
  std::shared_ptr<Ticket> posted(F function, Driver::Cost cost = Driver::Cost::small) {
    auto ticket = std::make_shared<Ticket>();
    owe([ticket, f = std::move(function)]() mutable { f(ticket); },
        [ticket](const Error& error) { ticket->complete(error); }, cost);
    return ticket;
  }

  template <typename F, typename Otherwise>
  void owe(F function, Otherwise otherwise, Driver::Cost cost = Driver::Cost::small) {
    auto owed =
        std::make_shared<Owed<F, Otherwise>>(std::move(function), std::move(otherwise), ending_);
    post_function([owed = std::move(owed)] { owed->run(); }, cost);
  }

  /// Runs `function` on the thread that drives and waits until it has run.
  void ask(std::function<void()> function) const {
    if (driver_ && driver_->is_current()) {
      function();
      return;
    }
    auto promise = std::make_shared<std::promise<void>>();
    auto future = promise->get_future();
    if (!post_function([promise, f = std::move(function)] {
          f();
          promise->set_value();
        })) {
      return;
    }
    future.wait_for(std::chrono::milliseconds(kAnswerMs));
  }

  EngineOptions options_;
  mutable Loop loop_;
  TcpNetwork network_{loop_};
  mutable std::optional<EngineCore> core_;
  mutable std::optional<Driver> driver_;
  PeerId self_;
  LinkKey key_{};
  std::uint16_t port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> forked_ = false;
  std::shared_ptr<Ending> ending_ =
      std::make_shared<Ending>(Error{ErrorCode::closed, "the engine has been closed"});
  std::shared_ptr<Ending> forked_ending_ = std::make_shared<Ending>(Error{
      ErrorCode::closed, "the group belongs to the parent process: a forked child cannot use it"});
  std::shared_ptr<Ticket> goodbye_ = std::make_shared<Ticket>();
  std::function<void(const GroupEvent&)> event_sink_;
  mutable std::mutex views_mutex_;  // of what the engine publishes; never held while it runs
  std::unordered_map<GroupId, std::shared_ptr<const GroupView>> views_;
  std::shared_ptr<std::atomic<bool>> renumber_pending_;
  std::shared_ptr<BoundaryTalk> talk_;
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
