#include "torch/group_context.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch/errors.h"
#include "torch/work.h"

namespace pccl {
namespace {

/// One object for each group of the process, as long as it is referenced; outlives every thread.
template <typename Kind>
class ByGroup {
 public:
  static std::shared_ptr<Kind> of(GroupId group) {
    ByGroup& all = instance();
    const std::lock_guard lock(all.mutex_);
    std::erase_if(all.known_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Kind>& known = all.known_[group];
    auto found = known.lock();
    if (!found) known = found = std::make_shared<Kind>();
    return found;
  }
  static std::vector<std::shared_ptr<Kind>> everything() {
    ByGroup& all = instance();
    std::vector<std::shared_ptr<Kind>> found;
    const std::lock_guard lock(all.mutex_);
    for (const auto& [group, weak] : all.known_) {
      if (auto one = weak.lock()) found.push_back(std::move(one));
    }
    return found;
  }

 private:
  static ByGroup& instance() {
    static auto* one = new ByGroup;
    return *one;
  }
  std::mutex mutex_;
  std::unordered_map<GroupId, std::weak_ptr<Kind>> known_;
};

}  // namespace

// ------------------------------------------------------------------------------- LateFailure

std::shared_ptr<LateFailure> LateFailure::of(GroupId group) {
  return ByGroup<LateFailure>::of(group);
}

void LateFailure::raise_any() {
  for (const auto& failure : ByGroup<LateFailure>::everything()) failure->raise_once();
}

void LateFailure::set(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!error_.failed()) error_ = error;
}

void LateFailure::raise_once() {
  Error error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, {});
  }
  if (!error.failed()) return;
  error.text = "an earlier operation has failed, its tensors are unchanged: " + error.text;
  raise(error);
}

// ------------------------------------------------------------------------------- Uncopied

std::shared_ptr<Uncopied> Uncopied::of(GroupId group) { return ByGroup<Uncopied>::of(group); }

void Uncopied::copy_all_that_is_done() {
  for (const auto& of_group : ByGroup<Uncopied>::everything()) {
    for (const auto& work : of_group->all()) static_cast<void>(work->isCompleted());
  }
}

void Uncopied::add(c10::intrusive_ptr<PcclWork> work) {
  const std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
  count_ = works_.size();
}

void Uncopied::remove(const PcclWork* work) {
  c10::intrusive_ptr<PcclWork> gone;  // released without the lock
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(works_.begin(), works_.end(),
                               [&](const auto& one) { return one.get() == work; });
  if (at == works_.end()) return;
  gone = std::move(*at);
  works_.erase(at);
  count_ = works_.size();
}

std::vector<c10::intrusive_ptr<PcclWork>> Uncopied::touching(const Extents& memory) const {
  std::vector<c10::intrusive_ptr<PcclWork>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& work : works_) {
    if (work->results().touches(memory)) found.push_back(work);
  }
  return found;
}

std::vector<c10::intrusive_ptr<PcclWork>> Uncopied::all() const {
  const std::lock_guard lock(mutex_);
  return works_;
}

}  // namespace pccl
