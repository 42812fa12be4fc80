// The lanes of a process that send under one rate (rate_cap.h). A lane that finds nothing left of
// the rate waits here, and one timer serves the waiting lanes one after the other: each gets its
// part of what the rate allows, so no lane waits long for a busy one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "transport/clock.h"
#include "transport/rate_cap.h"

namespace pccl {

/// Used on the clock's thread. Outlives the senders.
class RateQueue {
 public:
  RateQueue(Clock& clock, std::uint64_t bytes_per_second)
      : clock_(clock), cap_(bytes_per_second, clock.now_ms()) {}
  RateQueue(const RateQueue&) = delete;
  RateQueue& operator=(const RateQueue&) = delete;

  /// A lane. It leaves before it goes.
  class Sender {
   public:
    virtual ~Sender() = default;
    /// It is served: sends as much as is allowed, and waits again if it has more.
    virtual void send_on() = 0;

   private:
    friend class RateQueue;
    bool waits_ = false;
  };

  /// Bytes of data that this lane may send now. 0: it has to wait, by `wait`.
  [[nodiscard]] std::size_t allowed(const Sender& sender);
  /// The lane has sent so many bytes, allowed or not.
  void took(std::uint64_t bytes);
  void wait(Sender& sender);
  /// The lane does not wait any more; nothing happens if it did not.
  void leave(Sender& sender);

  /// The time in which at least one lane waited, so far.
  [[nodiscard]] std::uint64_t held_ms() const;
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  void serve();
  void rest_if_empty();

  Clock& clock_;
  RateCap cap_;
  std::deque<Sender*> waiting_;
  const Sender* serving_ = nullptr;
  std::size_t part_left_ = 0;  // bytes, of the one that is being served
  std::uint64_t held_ms_ = 0;
  std::uint64_t held_since_ms_ = 0;  // while one waits
  std::unique_ptr<Timer> timer_;     // while one waits
};

}  // namespace pccl
