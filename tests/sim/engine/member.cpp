#include "member.h"

#include <utility>

namespace pccl::sim {
namespace {

// A tick, the question which ranks have called it, and the answers on their way.
constexpr std::uint64_t kLateMs = 3000;

}  // namespace

Member::Member(Time& time, Cables& cables, Switchboard& board, Book& book, const Plan& plan,
               std::string name, PeerId id, std::uint64_t state, bool newcomer)
    : time_(time),
      book_(book),
      plan_(plan),
      id_(id),
      newcomer_(newcomer),
      process_(time, std::move(name)),
      network_(cables, board, process_, id) {
  set_state(state);
  process_.after_each = [this] { look(); };
  process_.broke = [this](const std::string& what, bool memory) { broke(what, memory); };
  if (time_.hit(20)) options_.preimage_bytes_max = 4096;
  options_.hold_timeout_ms = 120000;
}

Member::~Member() {
  process_.end();
  network_.break_channels(true);
  if (network_.direct() != nullptr && core_) network_.direct()->ended(true);
  waiting_.clear();
  tasks_.clear();
  core_.reset();
}

void Member::begin() {
  process_.after(0, [this] {
    core_ = std::make_unique<EngineCore>(network_, options_);
    const Error error = core_->listen();
    if (error.failed()) throw Violation("a core cannot listen: " + error.text);
    core_->set_publish([this](GroupId group, const GroupView& view) {
      if (group == kElasticGroup) view_ = view;
    });
    tasks_.push_back(std::make_unique<Task>(main()));
    tasks_.back()->begin();
  });
}

void Member::kill(bool silent) {
  time_.say(&process_, silent ? "its machine is gone" : "is killed");
  process_.end();
  network_.break_channels(silent);
  if (core_) network_.direct()->ended(silent);
  waiting_.clear();
  killed_ = true;
  if (fate_.empty()) fate_ = "killed";
}

/// As engine.cpp has it: every wait ends, and the process is of no use any more.
void Member::broke(const std::string& what, bool out_of_memory) {
  time_.say(&process_, "broke: " + what);
  if (!out_of_memory) throw Violation(process_.name() + " broke: " + what);
  fate_ = "out of memory";
  core_->broken({ErrorCode::no_memory, what});
  kill(false);
}

/// A program without boundaries ends, as one does after its notice.
void Member::wants_to_leave(bool now) {
  time_.say(&process_, now ? "leaves" : "leaves at its next boundary");
  leaves_ = true;
  if (!now) return;
  process_.after(0, [this] {
    if (auto* group = core_ ? core_->elastic() : nullptr) group->leave(!plan_.boundaries);
  });
}

void Member::look() {
  for (Waiting& waiting : waiting_) {
    if (waiting.planned || !waiting.ready()) continue;
    waiting.planned = true;
    const auto handle = waiting.handle;
    process_.after(time_.hit(50) ? 0 : time_.chance.below(300), [this, handle] {
      std::erase_if(waiting_, [&](const Waiting& w) { return w.handle == handle; });
      handle.resume();
    });
  }
}

Member::Until Member::pause(std::uint64_t us) {
  const auto over = std::make_shared<bool>(false);
  process_.after(us, [over] { *over = true; });
  return until([over] { return *over; });
}

void Member::finish(const std::string& fate) {
  if (over_) return;
  fate_ = fate;
  time_.say(&process_, "its program is over: " + fate);
  book_.over(id_, view_.evicted ? view_.failure.text : "");
  if (view_.left) {
    for (const PeerId peer : network_.direct()->peers_up()) {
      if (core_->links().is_up(peer)) {
        throw Violation(process_.name() + " has left the run and keeps its links");
      }
    }
  }
  doing_ = "shuts down";
  core_->shutdown("", [this] {
    over_ = true;
    time_.say(&process_, "has shut down");
    process_.after(0, [this] {
      process_.end();
      network_.break_channels(false);
      network_.direct()->ended(false);
    });
  });
}

void Member::judge_time(std::uint64_t posted_us, std::uint64_t timeout_ms,
                        const std::string& what) const {
  if (!plan_.ends_in_time || id_ == book_.liar) return;
  const std::uint64_t ms = (time_.now_us() - posted_us) / 1000;
  if (ms <= timeout_ms + kLateMs) return;
  throw Violation(process_.name() + ": " + what + " has lasted for " + std::to_string(ms) +
                  " ms, with a time-out of " + std::to_string(timeout_ms) + " ms");
}

std::string Member::where() const {
  return process_.name() + " (" + to_string(id_).substr(0, 4) +
         "): " + (over() ? "over, " + fate_ : doing_);
}

}  // namespace pccl::sim
