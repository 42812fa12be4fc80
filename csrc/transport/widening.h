// Looks at a link while it is busy. Over a long line it lets the link use as many bulk lanes as
// LaneCount wants, dials those that it has not, and holds all of them to what LinePace allows. Over
// a short one it dials one for each thread; where losses are the limit there (LossLimit) it lets
// all of them go by a model (ModelTrial), or, if there is none, goes on as over a long line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/limits.h"
#include "transport/lane_count.h"
#include "transport/line.h"
#include "transport/line_pace.h"
#include "transport/loop.h"
#include "transport/loss_limit.h"
#include "transport/model_trial.h"

namespace pccl {

/// Bulk lanes of one link that this side asks for: where the system has BBR, and where each lost
/// packet halves the rate of its connection.
inline constexpr std::size_t kWidestLanes = 32;
inline constexpr std::size_t kWidestLossyLanes = 128;
inline constexpr std::size_t kWidestShortLanes = 16;  // over a short line, whose windows are small
static_assert(kWidestLanes < kLanesMax && kWidestLossyLanes < kLanesMax);

/// What the bulk lanes of a link carry.
struct LinkLoad {
  bool sends = false;           // something waits to be sent, or to be acknowledged
  bool full = false;            // so it does on half of the lanes: this is no end of an operation
  bool waits = false;           // on half of the lanes something waits to be sent
  std::uint64_t delivered = 0;  // bytes that the other side's machine has acknowledged, so far
  Line line;                    // bytes of all lanes; the mean round trip of the used ones
  std::size_t lanes = 0;        // bulk lanes that are there
  std::size_t joining = 0;      // bulk lanes on their way
  bool held = false;            // a lane waits under the rate of the process
  std::uint64_t holds = 0;      // how often lanes have begun to wait so
  std::uint64_t large_delivered = 0;  // as delivered, by the lanes that carry large data
};

/// Used on the loop's thread.
class Widening {
 public:
  struct Calls {
    std::function<LinkLoad()> load;
    std::function<void(std::uint64_t now_ms)> mend;
    std::function<void(std::size_t bulk_lanes)> use;
    std::function<void(bool by_model)> go_by_model;
    std::function<void(std::size_t more)> dial;
    std::function<void(std::uint64_t bytes_per_second)> pace;
    /// What a look has seen. `waits_since_ms`: something has waited without a pause; now_ms: it
    /// does not.
    std::function<void(const LinkLoad& load, std::uint64_t now_ms, std::uint64_t waits_since_ms)>
        seen = nullptr;
  };
  struct Rules {
    std::size_t least_lanes = 1;  // bulk lanes that the link has without this class
    /// This side has dialled the link, so it dials more lanes at once. The other one waits a while:
    /// both ends may want more, and a lane serves both.
    bool dials = false;
    /// Bulk lanes that a link with much to send gets over a short line, on which one connection
    /// carries what one thread can move.
    std::size_t short_line_lanes = 1;
    bool model = true;  // BBR is to be taken, where it helps and can be had
  };
  Widening(Loop& loop, const Rules& rules, Calls calls)
      : loop_(loop),
        rules_(rules),
        calls_(std::move(calls)),
        count_(rules.least_lanes, kWidestLossyLanes) {}

  /// The link has something to send.
  void wake();
  /// A lane that was dialled has joined, or has not.
  void joined() { reached_ = true; }
  void refused();
  /// A lane was lost: others may be, too.
  void lost();

 private:
  void look();
  [[nodiscard]] bool is_short(const Line& line) const;
  [[nodiscard]] bool has_model() const { return rules_.model && !model_refused_; }
  [[nodiscard]] bool tries_model(const Line& line, const ModelTrial::Look& carried);
  void dial_lacking(const LinkLoad& load, std::size_t wanted);
  void dial(const LinkLoad& load, std::size_t wanted);

  Loop& loop_;
  const Rules rules_;
  Calls calls_;
  LaneCount count_;
  LinePace pace_;
  std::uint64_t waits_since_ms_ = 0;  // since then the link has had something to send
  LossLimit losses_;
  ModelTrial trial_;
  bool model_refused_ = false;  // by the system
  bool lossy_ = false;          // losses have been the limit, and no model is to be had
  LinkLoad last_;
  std::uint64_t last_ms_ = 0;
  std::uint64_t carried_ = 0;         // bytes, while somebody looked
  std::uint64_t lacks_since_ms_ = 0;  // 0: has all lanes that it wants
  std::uint64_t not_before_ms_ = 0;
  std::uint64_t rests_until_ms_ = 0;  // after a loss
  bool reached_ = false;              // this side can dial the peer
  std::unique_ptr<Timer> timer_;
};

}  // namespace pccl
