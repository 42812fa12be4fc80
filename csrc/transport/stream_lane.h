// A lane over a byte stream: frames in both directions. Reads payloads straight into their memory
// and writes them straight from it. A lane knows exactly which frames are half read or half
// written, so their memory can be taken away at any moment.
//
// Under a rate (rate_queue.h) data waits to be served. Messages do not: they overtake segments that
// wait, but for those behind which they keep their order (small sends, and what is passed on for
// others), and these they take along after some seconds.
//
// Bytes are moved in steps of three parts: what to move, the moving itself, and what others are
// told of it. A bulk lane over a socket takes its steps in turns (turns.h), so that the second part
// may run on any thread; all other lanes take theirs at once.
//
// A bulk lane over TCP keeps a copy of each slice that it has written until the other side's
// machine has acknowledged it. So when the connection is lost, other lanes send what was lost with
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/framing.h"
#include "transport/helpers.h"
#include "transport/lane.h"
#include "transport/loop.h"
#include "transport/rate_queue.h"
#include "transport/stream.h"
#include "transport/transport.h"
#include "transport/turns.h"

namespace pccl {

/// `payload_crc`: payloads go out with a checksum. `rate`: that under which it sends; null:
/// none.
class StreamLane final : public Lane, private RateQueue::Sender, private Mover {
 public:
  StreamLane(Loop& loop, LaneOwner& owner, Kind kind, std::unique_ptr<Stream> stream,
             bool payload_crc, RateQueue* rate = nullptr);
  ~StreamLane() override;
  StreamLane(const StreamLane&) = delete;
  StreamLane& operator=(const StreamLane&) = delete;

  void start() override;
  void send(Outgoing frame) override;
  void flush() override;
  [[nodiscard]] bool idle() const override {
    return queue_.empty() && loose_.empty() && open() && !write_failed_;
  }
  [[nodiscard]] Sent sent() const override;
  void trim() override;
  [[nodiscard]] std::vector<Outgoing> share() override;
  void drop_slice(std::uint64_t number, std::uint32_t offset) override;
  void go_by_model(bool by_model) override { stream_->go_by_model(by_model); }
  void pace(std::uint64_t bytes_per_second) override { stream_->pace(bytes_per_second); }
  void lend(std::shared_ptr<OwnArea> own) override { stream_->lend(std::move(own)); }
  [[nodiscard]] bool lends() const override { return stream_->lends(); }
  [[nodiscard]] bool local() const override { return stream_->carrier() != Stream::Carrier::tcp; }
  [[nodiscard]] std::string_view carrier() const override { return carrier_name(*stream_); }
  [[nodiscard]] std::size_t cancel(MemoryToken token) override;
  void close(std::uint64_t quiet_ms) override;
  [[nodiscard]] bool gave_up() const override { return gave_up_; }
  void end() override;
  [[nodiscard]] bool open() const override { return stream_->open(); }

 private:
  void ready(bool readable, bool writable);
  void move_all(bool readable, bool writable);
  [[nodiscard]] bool is_helped() const { return takes_turns() && loop_.helpers().threads() > 1; }
  /// What is used in place moves no bytes, and has to be used where it lies.
  [[nodiscard]] bool takes_turns() const { return kind_ == Kind::bulk && !stream_->in_place(); }
  void watch();
  [[nodiscard]] bool prepare() override;
  [[nodiscard]] std::size_t move() override;
  void settle() override;
  void rest() override;
  void read();
  void move_read();
  bool settle_read();
  void parse();
  bool begin_frame(std::span<const std::byte> bytes, std::size_t header_size);
  void begin_payload();
  void take_reference();
  std::span<std::byte> payload_room();
  void look_at(std::span<const std::byte> payload);
  bool read_part();
  [[nodiscard]] std::size_t wanted_bytes() const;
  void payload_moved(std::size_t bytes);
  void finish_payload();
  void broken(const std::string& reason);
  void ended(const std::string& reason);
  void send_on() override { flush(); }
  [[nodiscard]] bool prepare_write();
  void move_write();
  bool settle_write();
  void give_up_later();
  void rest_write(bool more);
  void refill();
  [[nodiscard]] bool refill_loose();
  [[nodiscard]] std::size_t budget();
  void hold();
  void let_go();
  void encode(Outgoing& frame);
  void taken(std::size_t bytes);
  void keep(const Outgoing& slice, std::uint64_t end);
  [[nodiscard]] Leftover leftover();
  void watch_progress();

  Loop& loop_;
  LaneOwner& owner_;
  Kind kind_;
  std::unique_ptr<Stream> stream_;
  bool payload_crc_;
  bool started_ = false;

  static constexpr std::size_t kTurnBytes = 4U << 20;  // then others have their turn
  static constexpr int kTurnCalls = 16;
  // Of a step, each way, where several threads share the work: none waits long for another one.
  static constexpr std::size_t kSharedStepBytes = 256U << 10;
  // A turn, and the step that is under way.
  struct Way {
    bool goes_on = false;  // there may be more to move, in this turn or the next one
    bool moves = false;    // in this step, of which others have not been told
    Stream::Moved moved;
    // Of the turn.
    std::size_t bytes = 0;
    int calls = 0;

    void begin() {
      bytes = 0;
      calls = 0;
    }
    void moved_on(std::size_t now) {
      bytes += now;
      ++calls;
    }
    [[nodiscard]] bool over() const { return bytes >= kTurnBytes || calls >= kTurnCalls; }
  };
  bool has_turn_ = false;
  bool writes_in_turn_ = false;
  Way in_;
  Way out_;
  std::size_t room_ = 0;        // of the step: bytes that could have been read
  std::size_t of_payload_ = 0;  // of them
  // Other lanes may write to the same place: reads on the loop's thread.
  bool reads_on_loop_ = false;

  // Reading. `buffer_` holds what follows the payload that is being read.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool in_payload_ = false;
  FrameHeader frame_;
  Placement placement_;
  std::size_t payload_done_ = 0;
  std::uint32_t payload_crc_seen_ = 0;
  bool goodbye_seen_ = false;

  // Writing.
  std::deque<Outgoing> queue_;
  std::deque<Outgoing> sent_;  // whole, and the owner has not been told
  std::size_t budget_ = 0;     // of the step
  bool write_failed_ = false;
  std::string write_error_;
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool shut_ = false;

  // What is lost if the connection is. Offsets are those of `written_`.
  struct Kept {
    std::uint64_t end = 0;
    Outgoing slice;
  };
  std::deque<Kept> kept_;         // slices that may not have arrived yet
  std::size_t kept_bytes_ = 0;    // of their payloads
  std::uint64_t bare_until_ = 0;  // some frame up to here has no copy
  std::uint64_t arrived_ = 0;     // all up to here has arrived

  // Under a rate.
  RateQueue* rate_queue_;
  std::deque<Outgoing> loose_;       // small segments that messages may overtake; none has begun
  bool held_ = false;                // waits in rate_queue_
  std::uint64_t holds_ = 0;          // how often
  std::unique_ptr<Timer> patience_;  // while a message waits behind a segment
  bool presses_ = false;             // it has waited long enough

  std::unique_ptr<Timer> progress_;
  std::unique_ptr<Timer> last_;  // of a connection that takes nothing any more
  std::uint64_t moved_ = 0;      // bytes, either way
  std::uint64_t written_ = 0;
  // While it closes.
  bool gave_up_ = false;
  std::uint64_t quiet_ms_ = 0;     // it ends when so long nothing has moved
  std::uint64_t moved_at_ms_ = 0;  // something has
  std::uint64_t written_before_ = 0;
  std::size_t unacknowledged_before_ = 0;
};

}  // namespace pccl
