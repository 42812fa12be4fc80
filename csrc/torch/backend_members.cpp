// See backend.h. The calls that make a group out of this one, or give it other members. Without a
// store (shrink, reconfigure) the number of the new group is computed from data that all its
// members know.
#include <c10/util/irange.h>

#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <variant>

#include "python/engine_owner.h"
#include "python/gil.h"
#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/named_handle.h"
#include "torch/process_group.h"

namespace pccl {
namespace {

constexpr int kShrinkAbort = 1;  // torch.distributed.SHRINK_ABORT

}  // namespace

c10::intrusive_ptr<PcclBackend> PcclBackend::self() {
  return c10::intrusive_ptr<PcclBackend>::unsafe_reclaim_from_nonowning(this);
}

std::vector<Handle> PcclBackend::members() const {
  const std::lock_guard lock(members_mutex_);
  return members_;
}

// ------------------------------------------------------------------------------- other groups

Quantisation PcclBackend::quantisation_in(const c10::intrusive_ptr<Options>& opts) const {
  const auto* own = dynamic_cast<const GroupOptions*>(opts.get());
  return own == nullptr ? quantisation() : own->quantisation;
}

c10::intrusive_ptr<c10d::Backend> PcclBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& opts) {
  TORCH_CHECK(!elastic_, "pccl: an elastic group cannot be split; make groups with new_group");
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  const Millis timeout = opts ? opts->timeout : Millis(timeout_ms_.load());
  // The ranks meet under numbers that all of them have. `store` is prefixed with torch's name for
  // the new group, which differs between ranks once new_group has made a group of some of them.
  std::string place = "split/" + std::to_string(context()->group.value);
  for (const int rank : ranks) place += "/" + std::to_string(rank);
  c10::intrusive_ptr<c10d::Store> bare = store;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    bare = prefixed->getUnderlyingNonPrefixStore();
  }
  const auto meeting = c10::make_intrusive<c10d::PrefixStore>(place, bare);
  auto part =
      create_fixed(meeting, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                   timeout, opts ? opts->group_name : getGroupUid());
  static_cast<PcclBackend&>(*part).set_quantisation(quantisation_in(opts));
  return part;
}

c10::intrusive_ptr<c10d::Backend> PcclBackend::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<Options>& opts) {
  TORCH_CHECK(!elastic_,
              "pccl: an elastic group is not shrunk by its program: a lost rank leaves the group "
              "without a call");
  refuse_fork();
  const auto context = this->context();
  const std::vector<Handle> members = this->members();
  std::vector<Handle> survivors;
  std::vector<int> ranks;
  int rank = -1;
  for (const int r : c10::irange(size_)) {
    const bool excluded =
        std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), r) != ranks_to_exclude.end();
    if (excluded) continue;
    if (r == rank_) rank = static_cast<int>(survivors.size());
    ranks.push_back(r);
    survivors.push_back(members.at(static_cast<std::size_t>(r)));
  }
  TORCH_CHECK(rank >= 0, "pccl shrink: rank ", rank_,
              " excludes itself; only the ranks that stay call it");
  int attempt = 0;
  {
    const std::lock_guard lock(members_mutex_);
    attempt = ++shrunk_to_[ranks];
  }
  if ((flags & kShrinkAbort) != 0) {
    aborted_ = true;
    context->engine->abort(context->group, "shrink_group with SHRINK_ABORT");
  }
  std::string text =
      "shrink " + std::to_string(context->group.value) + " " + std::to_string(attempt) + " to";
  for (const int r : ranks) text += " " + std::to_string(r);
  const GroupId group = number_of(text);
  const Millis timeout = opts ? opts->timeout : Millis(timeout_ms_.load());
  open_group(context->engine, group, getGroupUid() + " shrunk to " + std::to_string(ranks.size()),
             survivors, rank, timeout);
  auto rest = c10::make_intrusive<PcclBackend>(context->engine, group, survivors, rank,
                                               static_cast<int>(survivors.size()), timeout);
  rest->set_quantisation(quantisation_in(opts));
  return rest;
}

// ------------------------------------------------------------------------------- other members

#ifdef C10D_BACKEND_HAS_RECONFIGURE
namespace {

/// The first operation of a group: when it has succeeded, no member has given the group up.
OpRequest barrier_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  OpRequest barrier;
  barrier.descriptor.kind = OpKind::barrier;
  barrier.timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 1));
  return barrier;
}

std::vector<NamedHandle> in_rank_order(const c10d::ReconfigureOptions& opts) {
  std::vector<std::string> texts;
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&opts.handles)) {
    texts = *ordered;
  } else {
    const auto& set = std::get<std::unordered_set<std::string>>(opts.handles);
    texts.assign(set.begin(), set.end());
    std::sort(texts.begin(), texts.end());  // the choice is ours, the same at all
  }
  std::vector<NamedHandle> members;
  std::set<PeerId> seen;
  for (const std::string& text : texts) {
    members.push_back(parse_named_handle(text));
    TORCH_CHECK_VALUE(seen.insert(members.back().handle.peer).second,
                      "pccl reconfigure: one process stands twice among the handles (place ",
                      members.size() - 1, ")");
  }
  return members;
}

}  // namespace

c10d::ReconfigureHandle PcclBackend::get_reconfigure_handle() const {
  TORCH_CHECK(!elastic_, "pccl: a group of a master is not configured by its program");
  return name_handle(own_, instance_).text;
}

PcclBackend::WorkPtr PcclBackend::reconfigure(const c10d::ReconfigureOptions& opts) {
  refuse_fork();
  if (closed_) raise({ErrorCode::closed, "the group has been destroyed"});
  const std::string own = get_reconfigure_handle();
  const std::vector<NamedHandle> named = in_rank_order(opts);
  std::vector<Handle> handles;
  std::string text = "configuration " + std::to_string(opts.uuid) + " of";
  int rank = -1;
  for (const NamedHandle& member : named) {
    if (member.text == own) rank = static_cast<int>(handles.size());
    handles.push_back(member.handle);
    text += " " + member.text;
  }
  TORCH_CHECK_VALUE(rank >= 0, "pccl reconfigure: this group's own handle is not among the ",
                    handles.size(), " that were given");
  const Millis timeout = opts.timeout.value_or(Millis(timeout_ms_.load()));
  TORCH_CHECK_VALUE(timeout.count() > 0, "pccl reconfigure: the time-out must be above 0");
  const GroupId group = number_of(text);

  const auto before = context();
  std::optional<GroupId> given_up;
  {
    const std::lock_guard lock(members_mutex_);
    TORCH_CHECK(used_uuids_.insert(opts.uuid).second, "pccl reconfigure: uuid ", opts.uuid,
                " was already used for this group; nothing was changed, pass a new one");
    given_up = std::exchange(forming_, group);
    context_ =
        std::make_shared<GroupContext>(GroupContext{before->engine, kNotConfigured, completions_});
  }
  const auto engine = before->engine;
  if (before->group != kNotConfigured) engine->close(before->group);
  if (given_up) engine->close(*given_up);

  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto done = std::make_shared<Ticket>();
  const auto end = [weak = c10::weak_intrusive_ptr<PcclBackend>(self()), engine, group, handles,
                    rank, done](Error error) {
    if (!error.failed()) {
      const auto backend = weak.lock();
      if (!backend || !backend->formed(group, handles, rank)) {
        error = {ErrorCode::closed, "another configuration has taken the place of this one"};
      }
    }
    if (error.failed()) engine->close(group);
    done->complete(std::move(error));
  };
  // Tickets complete on the engine's thread, which must not wait: the rest runs on another thread.
  const auto connected = engine->configure_fixed(group, getGroupUid(), handles, rank,
                                                 static_cast<std::uint64_t>(timeout.count()));
  connected->on_done(
      [completions = completions_, engine, group, deadline, end, ticket = connected.get()] {
        completions->run(
            [completions, engine, group, deadline, end, error = ticket->error()] {
              if (error.failed()) return end(error);
              const auto met = engine->post(group, barrier_until(deadline));
              met->on_done([completions, end, ticket = met.get()] {
                completions->run([end, error = ticket->error()] { end(error); }, /*apart=*/true);
              });
            },
            /*apart=*/true);
      });
  Parts parts;
  parts.context = std::make_shared<GroupContext>(GroupContext{engine, group, completions_});
  parts.tickets.push_back(done);
  parts.collective = false;
  return c10::make_intrusive<PcclWork>(rank, c10d::OpType::UNKNOWN, nullptr, Tensors{},
                                       std::move(parts));
}

bool PcclBackend::formed(GroupId group, std::vector<Handle> members, int rank) {
  const std::lock_guard lock(members_mutex_);
  if (forming_ != group || closed_) return false;
  forming_.reset();
  rank_ = rank;
  size_ = static_cast<int>(members.size());
  members_ = std::move(members);
  sequence_number_ = 0;
  aborted_ = false;
  context_->engine->set_timeout(group, static_cast<std::uint64_t>(timeout_ms_.load()));
  context_ = std::make_shared<GroupContext>(GroupContext{context_->engine, group, completions_});
  return true;
}
#endif

// ------------------------------------------------------------------------------- the end

void PcclBackend::abort() {
  if (EngineOwner::instance().forked()) return;
  aborted_ = true;
  abort_hooks_->call();
  const auto context = this->context();
  std::optional<GroupId> forming;
  {
    const std::lock_guard lock(members_mutex_);
    forming = forming_;
  }
  for (const GroupId group : {context->group, forming.value_or(kNotConfigured)}) {
    if (group == kNotConfigured) continue;
    context->engine->abort(group, "the program has called abort()");
  }
}

void PcclBackend::shutdown() {
  if (EngineOwner::instance().forked() || closed_.exchange(true)) return;
  const auto context = this->context();
  std::optional<GroupId> forming;
  {
    const std::lock_guard lock(members_mutex_);
    forming = std::exchange(forming_, std::nullopt);
  }
  // The engine releases what the group holds, and a callback may want the GIL for that.
  const GilReleaseIfHeld release;
  context->engine->close(context->group);
  if (forming) context->engine->close(*forming);
}

#ifdef C10D_BACKEND_HAS_HOOKS
void PcclBackend::registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) {
  TORCH_CHECK(abort_hooks_->add(hook_id, std::move(hook)), "pccl: abort hook ", hook_id,
              " is registered already");
}

void PcclBackend::unregisterAbortHook(std::int64_t hook_id) {
  TORCH_CHECK(abort_hooks_->remove(hook_id), "pccl: there is no abort hook ", hook_id);
}
#endif

}  // namespace pccl
