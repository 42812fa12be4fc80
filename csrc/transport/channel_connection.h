// The connection behind a Channel: control frames over a stream. All queued frames go out in one
// call; the reader's buffer grows with the bytes that have come, never with what a header promises.
// The memory of all large frames together has a limit (ChannelLimits).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/loop.h"
#include "transport/receive_budget.h"
#include "transport/stream.h"

namespace pccl {

/// Outlives its Channel while it sends its rest.
class ChannelConnection : public std::enable_shared_from_this<ChannelConnection> {
 public:
  /// Without `budget` (this side has dialled) large frames have no limit together.
  ChannelConnection(Loop& loop, std::unique_ptr<Stream> stream, Caller caller, bool trusted,
                    const ChannelLimits& limits, std::shared_ptr<ReceiveBudget> budget);

  void set_events(Channel::Events events);
  void send(std::span<const std::byte> payload);
  void watch_queue(std::size_t bytes, std::shared_ptr<std::size_t> total,
                   std::function<void()> room);
  void trust();
  [[nodiscard]] bool waits_for_trust() const { return !trusted_ && stream_->open(); }

  /// The owner is gone or wants no more: sends the rest on its own.
  void close();
  void abandon();
  /// Closes, and says so from the loop.
  void fail(const std::string& reason);

  [[nodiscard]] const std::string& remote() const { return remote_; }
  [[nodiscard]] const Caller& caller() const { return caller_; }
  [[nodiscard]] const std::string& local_host() const { return local_host_; }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }
  [[nodiscard]] bool held_back() const { return share_ && share_->waits(); }
  [[nodiscard]] std::uint64_t acknowledged_bytes() const {
    return stream_->open() ? written_bytes_ - stream_->unacknowledged_bytes() : written_bytes_;
  }

 private:
  void end();

  void watch();
  void count_queued(std::size_t now);
  void tell_room();
  void flush();
  void read();

  /// Grows the buffer to twice the bytes that have come at most, and not beyond the frame.
  void make_buffer();
  void parse();

  void take_share();
  void give_share();
  void look_later();
  /// Ends the connection if its message has waited too long for memory, or holds memory and comes
  /// too slowly while another one waits.
  void look();

  Loop& loop_;
  Caller caller_;
  ChannelLimits limits_;
  std::shared_ptr<ReceiveBudget> budget_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Timer> deadline_;  // of trust, or of closing
  std::string remote_;
  std::string local_host_;
  bool payload_crc_;
  bool trusted_;
  bool closing_ = false;
  bool shut_ = false;
  bool write_failed_ = false;
  std::string write_error_;
  std::shared_ptr<Channel::Events> events_;  // shared: a callback may destroy the channel
  std::vector<std::byte> in_;
  std::size_t in_end_ = 0;
  std::size_t incomplete_ = 0;  // length of the frame of which the buffer holds a part
  std::unique_ptr<ReceiveBudget::Share> share_;  // of that frame, if it is large
  std::unique_ptr<Timer> look_;
  std::uint64_t looked_ms_ = 0;
  std::uint64_t looked_bytes_ = 0;
  std::uint64_t waited_ms_ = 0;
  std::uint64_t received_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
  std::deque<std::vector<std::byte>> queue_;
  std::size_t sent_of_first_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t room_below_ = std::numeric_limits<std::size_t>::max();
  std::function<void()> room_;
  bool over_ = false;                   // more than that was queued
  std::shared_ptr<std::size_t> total_;  // of several channels
};

/// Destroying the channel abandons the connection.
[[nodiscard]] std::unique_ptr<Channel> channel_over(std::shared_ptr<ChannelConnection> connection);

}  // namespace pccl
