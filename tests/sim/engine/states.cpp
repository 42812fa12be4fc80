// The shared state of a member's program: what _state.py does at a boundary. A state is a number
// from which every byte follows, so that a torn one is seen.
#include <algorithm>
#include <cstring>
#include <utility>

#include "member.h"
#include "state/sha256.h"

namespace pccl::sim {
namespace {

constexpr std::size_t kItemBytes[] = {72, 700, 9000};
constexpr std::size_t kItems = std::size(kItemBytes);

constexpr std::uint64_t kBoundaryUs = 300000000;  // its time-out, that of calls before it, holds

struct Manifest {
  std::uint64_t state;
  std::uint64_t revision;
  Digest digests[kItems];
};

Memory item_of(std::uint64_t state, std::size_t item) {
  return filled(kItemBytes[item], state * 16 + item, DType::bytes);
}

Memory manifest_of(std::uint64_t state, std::uint64_t revision, const std::vector<Memory>& items) {
  Manifest manifest{state, revision, {}};
  for (std::size_t i = 0; i < kItems; ++i) manifest.digests[i] = sha256(items[i + 1]);
  Memory bytes(sizeof(Manifest));
  std::memcpy(bytes.data(), &manifest, sizeof(Manifest));
  return bytes;
}

}  // namespace

void Member::set_state(std::uint64_t state) {
  state_ = state;
  items_.resize(1 + kItems);
  for (std::size_t i = 0; i < kItems; ++i) items_[i + 1] = item_of(state, i);
  items_[0] = manifest_of(state_, revision_, items_);
}

StateRoot Member::root() const { return {true, revision_, sha256(items_[0])}; }

Snapshot Member::snapshot() {
  items_[0] = manifest_of(state_, revision_, items_);
  Snapshot snapshot;
  snapshot.digest = sha256(items_[0]);
  for (Memory& item : items_) snapshot.items.push_back({item.data(), item.size()});
  return snapshot;
}

/// A state is one that some program has had, as a whole.
void Member::check_state() {
  for (std::size_t i = 0; i < kItems; ++i) {
    if (items_[i + 1] != item_of(state_, i)) {
      throw Violation(process_.name() + ": item " + std::to_string(i) + " of its state is torn");
    }
  }
}

/// Into memory of its own; the state changes when all of it is here, and verified.
Task Member::fetch(const BoundaryEvent& event, const std::function<bool()>& superseded) {
  const SyncPlan plan = event.plan;
  Manifest manifest{};
  std::vector<StateFetch::Target> targets;
  std::vector<WantedItem> wanted{{0, plan.root.digest, std::nullopt}};
  for (const bool is_manifest : {true, false}) {
    fetch_.begin(wanted, plan.sources);
    while (const auto due = fetch_.next()) {
      auto* group = core_->elastic();
      if (group == nullptr) co_return;
      auto memory = std::make_shared<StateFetch::Memory>();
      if (due->item.bytes) *memory = StateFetch::Memory(*due->item.bytes);
      auto ticket = std::make_shared<Ticket>();
      kept_.push_back(memory);
      kept_.push_back(ticket);
      group->pull(due->source, plan.root.digest, due->item.index,
                  {memory->span().data(), memory->span().size()}, ticket);
      co_await done(ticket);
      if (superseded()) co_return;
      const Error ended = ticket->error();
      if (ended.failed()) time_.say(&process_, "pull failed: " + ended.text);
      if (is_manifest)
        *memory = StateFetch::Memory(std::span<const std::byte>(ticket->seen<PullResult>().bytes));
      const Error error = fetch_.came(*due, ended, std::move(*memory), &sha256);
      if (error.failed()) co_return;  // the boundary has failed
    }
    if (!fetch_.complete()) {
      co_await pause(200000);
      co_return;
    }
    if (!is_manifest) break;
    const auto text = fetch_.at(plan.root.digest);
    if (text.size() != sizeof(Manifest)) co_return;
    std::memcpy(&manifest, text.data(), sizeof(Manifest));
    wanted.clear();
    for (std::uint32_t i = 0; i < kItems; ++i) {
      if (sha256(items_[i + 1]) == manifest.digests[i]) continue;
      wanted.push_back({i + 1, manifest.digests[i], kItemBytes[i]});
      targets.push_back({manifest.digests[i], items_[i + 1]});
    }
  }
  auto* group = core_->elastic();
  if (group == nullptr) co_return;
  if (!group->boundary_adopt(plan.root)) {
    answered_ = true;
    co_return;
  }
  // The program may be slow here, and the run moves on meanwhile.
  if (time_.hit(30)) co_await pause(time_.chance.below(300000));
  group = core_->elastic();
  if (group == nullptr) co_return;
  const Error error = fetch_.replace(targets);
  if (error.failed()) throw Violation(process_.name() + ": " + error.text);
  if (time_.hit(30)) {
    fetch_.take_back();  // Ctrl-C came
    time_.say(&process_, "has taken a fetch back");
  } else {
    fetch_.clear();
    state_ = manifest.state;
    revision_ = manifest.revision;
    time_.say(&process_, "has fetched state " + std::to_string(state_));
  }
  check_state();
  Snapshot offered = snapshot();
  group->boundary_fetched(root(), std::move(offered));
  answered_ = true;
}

Task Member::refresh() {
  boundary_error_ = {};
  fetch_.clear();
  auto talk = std::make_shared<BoundaryTalk>();
  auto* group = core_->elastic();
  if (group == nullptr) {
    boundary_error_ = {ErrorCode::closed, "no group"};
    co_return;
  }
  check_state();
  const std::uint64_t began_us = time_.now_us();
  doing_ = "refresh after step " + std::to_string(view_.step);
  BoundaryRequest request;
  request.timeout_ms = 2 * plan_.op_timeout_ms;
  group->boundary_begin(request, talk);
  std::optional<Result<BoundaryEvent>> next;
  auto newest = std::make_shared<std::optional<Result<BoundaryEvent>>>();
  // A name of its own: g++ 12 destroys temporaries of a co_await twice.
  const std::function<bool()> said = [talk, newest] {
    if (!newest->has_value()) {
      if (auto event = talk->next(0)) newest->emplace(std::move(*event));
    }
    return newest->has_value();
  };
  BoundaryEvent asked;
  bool to_fetch = false;
  while (true) {
    if (!to_fetch) {
      co_await until(said);
    } else {
      (void)said();
    }
    if (newest->has_value()) {
      Result<BoundaryEvent> event = std::move(**newest);
      newest->reset();
      to_fetch = false;
      if (!event.ok()) {
        boundary_error_ = event.error();
        co_return;
      }
      if (event.value().what == BoundaryEvent::What::finished) {
        boundary_ = event.value();
        // A liar that alone holds the chosen state may let those wait who fetch it.
        if (time_.now_us() - began_us > kBoundaryUs && book_.liar == PeerId{}) {
          throw Violation(process_.name() + " stood at a boundary for longer than its time-out");
        }
        check_state();
        co_return;
      }
      group = core_->elastic();
      if (group == nullptr) continue;
      if (event.value().what == BoundaryEvent::What::hash) {
        Snapshot offered = snapshot();
        group->boundary_root(root(), std::move(offered));
        continue;
      }
      asked = event.value();
      to_fetch = true;
    }
    if (to_fetch) {
      doing_ = "fetches the state of " + std::to_string(asked.plan.sources.size()) + " sources";
      answered_ = false;
      co_await fetch(asked, said);
      if (answered_ || core_->elastic() == nullptr) to_fetch = false;
    }
  }
}

}  // namespace pccl::sim
