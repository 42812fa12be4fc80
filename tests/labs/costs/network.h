// Schedules of all ranks on a network that is computed, event by event: lines with a rate and a
// delay, and a core at each rank that takes time for each message and byte. Nothing is real here
// but the schedules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "collectives/schedule.h"

namespace pccl::costs {

using Seconds = double;

/// Ranks 0 to n / 2 - 1 stand at one site, the others at another one.
struct Network {
  Seconds near_s = 0;        // one way within a site
  Seconds far_s = 0;         // one way between the sites
  double own_rate = 0;       // bytes a second of the line of each rank, each way
  double common_rate = 0;    // of the line between the sites, each way; 0: as fast as all send
  Seconds message_s = 5e-6;  // of a core for each segment that it sends or receives
  Seconds byte_s = 0.25e-9;  // and for each byte: half of 0.49 s for 1 GB of an all-reduce

  [[nodiscard]] Seconds delay(std::uint32_t a, std::uint32_t b, std::uint32_t n) const {
    return crosses(a, b, n) ? far_s : near_s;
  }
  [[nodiscard]] static bool crosses(std::uint32_t a, std::uint32_t b, std::uint32_t n) {
    return (a < n / 2) != (b < n / 2);
  }
};

class Simulation {
 public:
  Simulation(const Network& network, std::uint32_t size) : network_(network), ranks_(size) {}

  /// To be called for each rank, in order.
  void add(const Schedule& schedule) {
    const auto rank = static_cast<std::uint32_t>(added_++);
    Rank& own = ranks_[rank];
    own.steps.reserve(schedule.steps.size());
    for (const Step& step : schedule.steps) {
      const std::uint64_t bytes = step.kind == StepKind::send ? step.from.bytes : step.to.bytes;
      const auto index = static_cast<std::uint32_t>(own.steps.size());
      own.steps.push_back({step.kind,
                           step.peer,
                           step.channel,
                           bytes,
                           static_cast<std::uint32_t>(step.after.size()),
                           step.follows,
                           segments_of(bytes),
                           0,
                           {},
                           {}});
      for (const std::uint32_t before : step.after) own.steps[before].then.push_back(index);
      if (step.follows >= 0) {
        own.steps[static_cast<std::uint32_t>(step.follows)].followers.push_back(index);
      }
      if (receives(step.kind)) own.receives[key(step.peer, step.channel)] = index;
    }
  }

  /// When the last step has ended; below 0: some step never had its turn.
  Seconds run() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      for (std::uint32_t s = 0; s < ranks_[r].steps.size(); ++s) start(0, r, s);
    }
    Seconds last = 0;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      last = event.at;
      switch (event.what) {
        case What::reaches:
          reach(event);
          break;
        case What::arrived:
          ++ranks_[event.rank].steps[event.step].arrived;
          start(event.at, event.rank, event.step);
          break;
        case What::ended:
          end(event);
      }
    }
    for (const Rank& rank : ranks_) {
      for (const Played& step : rank.steps) {
        if (step.ended < step.segments) return -1;
      }
    }
    return last;
  }

 private:
  struct Played {
    StepKind kind;
    std::uint32_t peer, channel;
    std::uint64_t bytes;
    std::uint32_t waits;  // for so many steps
    std::int32_t follows;
    std::uint32_t segments;
    std::uint32_t ended;  // the first ones: segments come in order
    std::vector<std::uint32_t> then, followers;
    std::uint32_t begun = 0, arrived = 0;
  };
  struct Rank {
    std::vector<Played> steps;
    std::unordered_map<std::uint64_t, std::uint32_t> receives;  // by peer and channel
    Seconds up_free = 0, down_free = 0, core_free = 0;
  };
  enum class What : std::uint8_t {
    reaches,  // a segment the line of its receiver, which others may have taken
    arrived,  // a segment at its receiver
    ended     // a segment of a step
  };
  struct Event {
    Seconds at;
    std::uint64_t number;  // events of one moment in the order in which they were made
    std::uint32_t rank, step;
    What what;
    double bytes;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  static std::uint64_t key(std::uint32_t peer, std::uint32_t channel) {
    return std::uint64_t{peer} << 32 | channel;
  }
  static std::uint32_t segments_of(std::uint64_t bytes) {
    return static_cast<std::uint32_t>(
        std::max<std::uint64_t>(1, (bytes + kSegmentBytesMax - 1) / kSegmentBytesMax));
  }
  static double bytes_of(const Played& step, std::uint32_t segment) {
    return static_cast<double>(
        std::min<std::uint64_t>(kSegmentBytesMax, step.bytes - segment * kSegmentBytesMax));
  }
  void later(Seconds at, std::uint32_t rank, std::uint32_t step, What what, double bytes = 0) {
    events_.push({at, ++events_made_, rank, step, what, bytes});
  }

  /// Begins the segments of a step whose turn it is.
  void start(Seconds now, std::uint32_t r, std::uint32_t s) {
    Rank& rank = ranks_[r];
    Played& step = rank.steps[s];
    while (step.waits == 0 && step.begun < step.segments) {
      if (receives(step.kind) && step.begun >= step.arrived) return;
      if (step.follows >= 0 &&
          step.begun >= rank.steps[static_cast<std::uint32_t>(step.follows)].ended) {
        return;
      }
      const double bytes = bytes_of(step, step.begun++);
      const bool local = step.kind == StepKind::copy || step.kind == StepKind::reduce;
      const Seconds work = (local ? 0 : network_.message_s) + bytes * network_.byte_s;
      rank.core_free = std::max(now, rank.core_free) + work;
      if (step.kind == StepKind::send) transmit(rank.core_free, r, step, bytes);
      later(rank.core_free, r, s, What::ended);
    }
  }

  void transmit(Seconds now, std::uint32_t r, const Played& step, double bytes) {
    const auto size = static_cast<std::uint32_t>(ranks_.size());
    Rank& from = ranks_[r];
    from.up_free = std::max(now, from.up_free) + bytes / network_.own_rate;
    Seconds at = from.up_free;
    if (network_.common_rate > 0 && Network::crosses(r, step.peer, size)) {
      Seconds& common = common_free_[r < size / 2 ? 0 : 1];
      common = std::max(now, common) + bytes / network_.common_rate;
      at = std::max(at, common);
    }
    later(at + network_.delay(r, step.peer, size), step.peer,
          ranks_[step.peer].receives.at(key(r, step.channel)), What::reaches, bytes);
  }

  void reach(const Event& event) {
    Seconds& line = ranks_[event.rank].down_free;
    line = std::max(line + event.bytes / network_.own_rate, event.at);
    later(line, event.rank, event.step, What::arrived);
  }

  void end(const Event& event) {
    Played& step = ranks_[event.rank].steps[event.step];
    ++step.ended;
    for (const std::uint32_t follower : step.followers) start(event.at, event.rank, follower);
    if (step.ended < step.segments) return;
    for (const std::uint32_t next : step.then) {
      --ranks_[event.rank].steps[next].waits;
      start(event.at, event.rank, next);
    }
  }

  const Network network_;
  std::vector<Rank> ranks_;
  std::size_t added_ = 0;
  std::priority_queue<Event> events_;
  std::uint64_t events_made_ = 0;
  Seconds common_free_[2] = {0, 0};
};

}  // namespace pccl::costs
