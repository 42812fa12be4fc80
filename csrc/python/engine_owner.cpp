// See engine_owner.h.
#include "python/engine_owner.h"

#include <pthread.h>

#include <utility>

namespace pccl {

Error forked_error() {
  return {
      ErrorCode::closed,
      "this process was forked from one that has made groups of pccl: it can use none of them and "
      "make none of its own; start it with the spawn method"};
}

EngineOwner& EngineOwner::instance() {
  static auto* owner = new EngineOwner;  // leaked on purpose: see the class comment
  return *owner;
}

EngineOwner::EngineOwner() {
  pthread_atfork(nullptr, nullptr, [] { instance().in_child(); });
}

void EngineOwner::in_child() {
  // Another thread of the parent may hold the lock for ever: nothing here takes it.
  Engine* engine = current_.exchange(nullptr);
  if (engine == nullptr) return;
  forked_.store(true, std::memory_order_relaxed);
  engine->forked();
}

Error EngineOwner::configure(const EngineOptions& options) {
  if (forked()) return forked_error();
  const std::lock_guard lock(mutex_);
  if (engine_) {
    return {ErrorCode::invalid, "the options of the engine are set before the first group is made"};
  }
  options_ = options;
  return {};
}

Result<std::shared_ptr<Engine>> EngineOwner::engine() {
  if (forked()) return forked_error();
  const std::lock_guard lock(mutex_);
  if (engine_) return engine_;
  auto made = Engine::create(options_);
  if (!made) return made.error();
  engine_ = std::move(made).value();
  if (sink_) engine_->run().on_event(sink_);
  current_.store(engine_.get());
  return engine_;
}

std::shared_ptr<Engine> EngineOwner::existing() {
  if (forked()) return nullptr;
  const std::lock_guard lock(mutex_);
  return engine_;
}

void EngineOwner::set_event_sink(std::function<void(const GroupEvent&)> sink) {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
  if (engine_) engine_->run().on_event(sink_);
}

void EngineOwner::at_shutdown(std::weak_ptr<void> owner, std::function<void()> function) {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(at_shutdown_, [](const AtShutdown& entry) { return entry.owner.expired(); });
  at_shutdown_.push_back({std::move(owner), std::move(function)});
}

void EngineOwner::shutdown(const std::string& failure, const std::function<bool()>& gives_up) {
  if (forked()) return;
  std::shared_ptr<Engine> engine;
  std::vector<AtShutdown> entries;
  {
    const std::lock_guard lock(mutex_);
    engine = std::exchange(engine_, nullptr);
    entries = std::exchange(at_shutdown_, {});
  }
  if (engine) {
    engine->shutdown(failure, gives_up);
    Engine* ended = engine.get();  // another thread may have made a new one meanwhile
    current_.compare_exchange_strong(ended, nullptr);
  }
  for (const AtShutdown& entry : entries) {
    if (const auto alive = entry.owner.lock()) entry.function();
  }
}

}  // namespace pccl
