// One collective in flight: runs a Schedule over the caller's memory, whatever the schedule is.
// Knows no algorithm, no group, no epoch rule: its Port sends, its owner feeds it what arrives and
// decides what its completion means.
//
// Works segment by segment: a step that `follows` another step handles a segment as soon as the
// other step has handled it, so receiving, reducing and forwarding overlap. A segment for a step
// that may not start yet is kept. Owned and used by the engine's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "collectives/schedule.h"
#include "engine/buffer_pool.h"
#include "engine/placement.h"
#include "engine/preimage.h"
#include "engine/request.h"
#include "engine/ticket.h"
#include "transport/area.h"
#include "transport/transport.h"

namespace pccl {

class Operation;

/// Operations whose inputs, or outputs, are one buffer for each rank.
[[nodiscard]] constexpr bool input_per_rank(OpKind kind) {
  return kind == OpKind::scatter || kind == OpKind::reduce_scatter || kind == OpKind::all_to_all;
}
[[nodiscard]] constexpr bool output_per_rank(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::all_to_all;
}

/// The way by which an operation sends: its group, which adds header fields and holds back segments
/// that may not leave yet.
class OperationPort {
 public:
  virtual ~OperationPort() = default;
  virtual void send_segment(Operation& op, std::uint32_t contributor, std::uint32_t channel,
                            std::uint64_t offset, const std::byte* data, std::uint32_t bytes,
                            std::uint32_t index) = 0;
  /// Of the area from which other processes of this machine read; none: there is none, or not so
  /// much is free.
  [[nodiscard]] virtual std::optional<OwnArea::Part> take_area(std::uint32_t /*slots*/) {
    return {};
  }
  /// Of the threads on which Network::each works.
  [[nodiscard]] virtual std::size_t threads() const { return 1; }
  virtual void each(std::size_t count, const std::function<void(std::size_t)>& work) {
    for (std::size_t i = 0; i < count; ++i) work(i);
  }
};

class Operation {
 public:
  Operation(BufferPool& pool, OpKey key, OpRequest request, std::shared_ptr<Ticket> ticket);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Begins to run among `contributors` (indexes into the caller's numbering, ascending; `me` is
  /// our place among them). `keep_preimage`: restore() will be able to undo it. `lines`: the same
  /// ones at all contributors, with their sites.
  void start(OperationPort& port, std::vector<std::uint32_t> contributors, std::uint32_t me,
             MemoryToken token, bool keep_preimage, const Lines& lines = {});
  /// Forgets the run; the caller has cancelled `token()` in the links before.
  void stop();
  void restore();

  /// Returns the place of a segment from contributor `from`. Errors: the segment does not fit the
  /// operation (mismatch), or has come before (malformed). Throws std::bad_alloc, as `start`,
  /// `arrived`, `deliver`, `inputs_came` and `sent` do; then the operation is stopped and restored.
  [[nodiscard]] Result<Placement> place(std::uint32_t from, const SegmentHeader& header);
  /// A part of a segment that place() wants in parts (transport.h).
  void use_part(std::uint32_t from, const SegmentHeader& header, std::uint32_t offset,
                std::span<const std::byte> bytes);
  /// A segment has arrived in the place that place() returned.
  void arrived(std::uint32_t from, const SegmentHeader& header, const Placement& at);
  /// A segment that arrived before the operation was started.
  [[nodiscard]] Error deliver(std::uint32_t from, const SegmentHeader& header, PoolBuffer payload);
  /// The gate of the request has opened further.
  void inputs_came();
  /// The kernel has taken the segment that was sent with this index.
  void sent(std::uint32_t index);

  [[nodiscard]] bool running() const { return port_ != nullptr; }
  [[nodiscard]] bool complete() const { return running() && steps_left_ == 0; }
  /// That of its newest run.
  [[nodiscard]] Algorithm algorithm() const { return algorithm_; }
  /// Does its run go through areas?
  [[nodiscard]] bool through_areas() const { return schedule_.area_rows > 0; }
  [[nodiscard]] OpKey key() const { return key_; }
  [[nodiscard]] MemoryToken token() const { return token_; }
  [[nodiscard]] const OpRequest& request() const { return request_; }
  [[nodiscard]] const std::shared_ptr<Ticket>& ticket() const { return ticket_; }
  [[nodiscard]] std::uint64_t output_bytes() const;
  /// Does it read or write some of this memory?
  [[nodiscard]] bool uses(const std::vector<Buffer>& memory) const;
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }
  [[nodiscard]] std::uint64_t bytes_received() const { return bytes_received_; }
  /// Does the gate still hold back a part of the inputs?
  [[nodiscard]] bool waits_for_inputs() const;
  struct Progress {
    std::uint64_t done = 0;
    std::uint64_t of = 0;
    bool sent = false;  // the operation receives nothing: the numbers are those of sent bytes
  };
  /// Bytes of its run.
  [[nodiscard]] Progress moved() const;
  /// Indexes of the contributors from which a segment is still missing.
  [[nodiscard]] std::vector<std::uint32_t> waiting_for() const;
  /// The smallest turn of the receives that are not complete; TellIssued::kNoStep: none. A receive
  /// is not complete either while its segments are held: it waits for a step before it.
  [[nodiscard]] std::uint32_t waits_at() const;
  /// The smallest turn of the receives from this contributor of which a segment is missing;
  /// TellIssued::kNoStep: none. A segment that is held has arrived, and is not missing.
  [[nodiscard]] std::uint32_t waits_at(std::uint32_t contributor) const;
  /// Grows with every segment that was sent, received or reduced.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  [[nodiscard]] const std::vector<std::uint32_t>& contributors() const { return contributors_; }

 private:
  /// Data of another rank: in its area, or as it came.
  struct Borrowed {
    std::shared_ptr<const PeerArea> lender;
    AreaPlace place;
    PoolBuffer buffer;
  };
  struct StepState {
    std::uint32_t segments = 1;
    std::uint32_t segments_done = 0;
    std::uint32_t after_left = 0;
    std::vector<bool> done;                 // by segment
    std::vector<bool> taken;                // receives: given a place, or delivered
    std::vector<std::uint32_t> dependents;  // steps with this one in `after`
    std::vector<std::uint32_t> followers;
    std::vector<Behind> waiters;                           // steps that are behind this one
    std::unordered_map<std::uint32_t, Borrowed> borrowed;  // arrived, not added yet
    std::unordered_map<std::uint32_t, PoolBuffer> held;    // receives: arrived, may not be used yet
    std::vector<bool> triggered;                           // sends: handed to the port
    std::uint32_t inputs_there = 0;                        // segments that the gate has let through
  };
  struct Work {
    std::uint32_t step;
    std::uint32_t segment;
  };

  [[nodiscard]] CollectiveArgs arguments() const;
  [[nodiscard]] std::byte* memory(const Range& range) const;
  [[nodiscard]] std::byte* at(const Range& range, std::uint64_t offset) const;
  [[nodiscard]] std::uint32_t input_index(const Range& range) const;
  [[nodiscard]] std::uint32_t output_index(const Range& range) const;
  [[nodiscard]] std::uint64_t length(const Step& step) const;
  [[nodiscard]] std::uint32_t segment_bytes(const Step& step, std::uint32_t segment) const;
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t segment) const {
    return segment * schedule_.segment_bytes;
  }
  [[nodiscard]] std::uint32_t segment_of(const SegmentHeader& header) const {
    return static_cast<std::uint32_t>(header.offset / schedule_.segment_bytes);
  }
  [[nodiscard]] bool misses_segments(std::uint32_t receive) const;
  [[nodiscard]] std::uint32_t turn_of(std::uint32_t receive, bool held_counts) const;
  [[nodiscard]] bool eligible(std::uint32_t step, std::uint32_t segment) const;
  [[nodiscard]] bool input_is_there(const Step& step, std::uint32_t segment) const;
  [[nodiscard]] Result<std::uint32_t> take_receive(std::uint32_t from, const SegmentHeader& header);
  void use_or_hold(std::uint32_t step, std::uint32_t segment, PoolBuffer payload);
  void trigger(std::uint32_t step, std::uint32_t segment);
  void handle(std::uint32_t step, std::uint32_t segment);
  void use_received(std::uint32_t step, std::uint32_t segment, const std::byte* payload);
  void borrowed(std::uint32_t step, std::uint32_t segment, Borrowed what);
  [[nodiscard]] bool add_borrowed(const Step& step, std::uint32_t segment);
  void reduce_segment(const Step& step, std::uint32_t segment, const std::byte* other);
  void reduce_range(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                    const std::byte* other);
  void reduce_all(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                  std::span<const std::byte* const> operands);
  template <typename Part>
  void spread(std::size_t count, std::size_t element_bytes, const Part& part);
  void write_range(const Step& step, std::uint64_t offset, std::uint32_t bytes,
                   const std::byte* from);
  [[nodiscard]] bool streams(const Range& to) const;
  void code(const Step& step);
  void about_to_write(const Range& range, std::uint64_t offset, std::uint64_t bytes);
  void about_to_publish(const Range& range, std::uint64_t offset, std::uint64_t bytes);
  void mark_done(std::uint32_t step, std::uint32_t segment);
  void drain();

  BufferPool& pool_;
  OpKey key_;
  OpRequest request_;
  std::vector<std::uint64_t> input_begins_;  // of each input among all, as the gate counts
  std::shared_ptr<Ticket> ticket_;

  OperationPort* port_ = nullptr;
  MemoryToken token_ = 0;
  std::vector<std::uint32_t> contributors_;
  std::uint32_t me_ = 0;
  Lines lines_;
  Schedule schedule_;
  Algorithm algorithm_ = Algorithm::none;
  std::vector<StepState> states_;
  std::unordered_map<std::uint64_t, std::uint32_t> receives_;  // (contributor, channel) -> step
  std::unordered_map<std::uint64_t, PoolBuffer>
      incoming_;             // by cookie: on its way into pool memory
  std::vector<Work> sends_;  // by index
  std::vector<Work> work_;
  std::vector<Work> leaving_;  // sends among the work: they come first
  bool draining_ = false;
  std::uint32_t steps_left_ = 0;
  std::uint64_t next_cookie_ = 1;
  PoolBuffer scratch_;
  std::optional<OwnArea::Part> area_;
  PoolBuffer no_area_;  // in place of it
  std::optional<Preimage> preimage_;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t progress_ = 0;
};

}  // namespace pccl
