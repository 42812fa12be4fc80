// Run for other threads: every call posts a function to the elastic group, or reads the values that
// the group has published.
#include "engine/run.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "engine/calls.h"
#include "engine/engine_core.h"

namespace pccl {
namespace {

class ThreadedRun : public Run {
 public:
  ThreadedRun(Calls& calls, EngineCore& core) : calls_(calls), core_(core) {}

  std::shared_ptr<Ticket> join(const JoinOptions& options) override {
    return calls_.posted([this, options](const std::shared_ptr<Ticket>& ticket) {
      core_.join(options, ticket, [this](const GroupEvent& event) {
        if (event_sink_) event_sink_(event);
      });
      if (ElasticGroup* group = core_.elastic()) {
        const std::lock_guard lock(mutex_);
        renumber_pending_ = group->renumber_pending();
      }
    });
  }

  void on_event(std::function<void(const GroupEvent&)> function) override {
    calls_.post([this, f = std::move(function)]() mutable { event_sink_ = std::move(f); });
  }

  void leave(bool at_once) override {
    post([at_once](ElasticGroup& group) { group.leave(at_once); });
  }

  std::shared_ptr<Ticket> store(StoreRequest request) override {
    return posted(
        [r = std::move(request)](ElasticGroup& group,
                                 const std::shared_ptr<Ticket>& ticket) mutable {
          group.store(std::move(r), ticket);
        },
        {ErrorCode::closed, "there is no elastic group, so no store of a master"});
  }

  std::shared_ptr<Ticket> returned(const Ticket& operation) override {
    std::shared_ptr<const std::atomic<bool>> pending;
    {
      const std::lock_guard lock(mutex_);
      pending = renumber_pending_;
    }
    const auto& result = operation.seen<CollectiveResult>();
    if (result.op == kNoOp || !pending || !pending->load()) return nullptr;
    return posted([over = peer::Returned{result.op, result.epoch}](
                      ElasticGroup& group,
                      const std::shared_ptr<Ticket>& ticket) { group.returned(over, ticket); },
                  {ErrorCode::closed, "the group has been closed"});
  }

  Error boundary_begin(const BoundaryRequest& request) override {
    if (calls_.stopped()) return calls_.error();
    auto talk = std::make_shared<BoundaryTalk>();
    {
      const std::lock_guard lock(mutex_);
      talk_ = talk;
    }
    calls_.owe(
        [this, request, talk] {
          if (ElasticGroup* group = core_.elastic()) {
            group->boundary_begin(request, talk);
          } else {
            talk->fail(closed());
          }
        },
        [talk](const Error& error) { talk->fail(error); });
    return {};
  }

  std::optional<Result<BoundaryEvent>> boundary_next(std::uint64_t timeout_ms) override {
    std::shared_ptr<BoundaryTalk> talk;
    {
      const std::lock_guard lock(mutex_);
      talk = talk_;
    }
    if (!talk) return Result<BoundaryEvent>(ErrorCode::invalid, "no boundary has begun");
    if (auto event = talk->next(timeout_ms)) return event;
    if (calls_.stopped()) return Result<BoundaryEvent>(calls_.error());
    return {};
  }

  void boundary_root(const StateRoot& root, Snapshot snapshot) override {
    post([root, s = std::move(snapshot)](ElasticGroup& group) mutable {
      group.boundary_root(root, std::move(s));
    });
  }

  std::shared_ptr<Ticket> boundary_adopt(const StateRoot& root) override {
    return posted(
        [root](ElasticGroup& group, const std::shared_ptr<Ticket>& ticket) {
          ticket->result<AdoptionResult>().adopted = group.boundary_adopt(root);
          ticket->complete({});
        },
        /*none=*/{});
  }

  void boundary_fetched(const StateRoot& root, Snapshot snapshot) override {
    post([root, s = std::move(snapshot)](ElasticGroup& group) mutable {
      group.boundary_fetched(root, std::move(s));
    });
  }

  std::shared_ptr<Ticket> pull(PeerId source, const Digest& digest, std::uint32_t item,
                               Buffer to) override {
    return posted(
        [=](ElasticGroup& group, const std::shared_ptr<Ticket>& ticket) {
          group.pull(source, digest, item, to, ticket);
        },
        closed());
  }

  void cancel_pull(std::shared_ptr<Ticket> ticket) override {
    post([ticket = std::move(ticket)](ElasticGroup& group) { group.cancel_pull(*ticket); });
  }

 private:
  static Error closed() { return {ErrorCode::closed, "the elastic group has been closed"}; }

  template <typename F>
  void post(F function) {
    calls_.post([this, f = std::move(function)]() mutable {
      if (ElasticGroup* group = core_.elastic()) f(*group);
    });
  }

  /// `none`: the outcome if there is no elastic group.
  template <typename F>
  std::shared_ptr<Ticket> posted(F function, Error none) {
    return calls_.posted([this, f = std::move(function),
                          none = std::move(none)](const std::shared_ptr<Ticket>& ticket) mutable {
      if (ElasticGroup* group = core_.elastic()) {
        f(*group, ticket);
      } else {
        ticket->complete(std::move(none));
      }
    });
  }

  Calls& calls_;
  EngineCore& core_;
  std::function<void(const GroupEvent&)> event_sink_;  // of the thread that drives
  /// Of the next two, which other threads read too; held for a copy of a pointer.
  std::mutex mutex_;
  std::shared_ptr<const std::atomic<bool>> renumber_pending_;
  std::shared_ptr<BoundaryTalk> talk_;
};

}  // namespace

std::unique_ptr<Run> Run::of(Calls& calls, EngineCore& core) {
  return std::make_unique<ThreadedRun>(calls, core);
}

}  // namespace pccl
