#include "transport/send_turns.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace pccl {
namespace {

constexpr std::uint64_t kSharedRate = 4'000'000;

/// A clock with one repeating timer, moved by hand.
class TickedClock : public Clock {
 public:
  struct Ticks : Timer {
    explicit Ticks(TickedClock& of) : clock(of) {}
    ~Ticks() override { clock.ticks = nullptr; }
    TickedClock& clock;
  };
  [[nodiscard]] std::uint64_t now_ms() const override { return now; }
  [[nodiscard]] std::uint64_t boot_ms() const override { return now; }
  [[nodiscard]] std::unique_ptr<Timer> timer(std::uint64_t, std::uint64_t repeat_ms,
                                             std::function<void()> function) override {
    EXPECT_EQ(ticks, nullptr) << "one timer for all";
    every_ms = repeat_ms;
    ticks = std::move(function);
    return std::make_unique<Ticks>(*this);
  }
  void defer(std::function<void()>) override {}
  void post(std::function<void()>) override {}
  /// False: no timer runs.
  bool tick() {
    now += every_ms;
    if (!ticks) return false;
    const auto function = ticks;
    function();
    return true;
  }
  std::uint64_t now = 1000;
  std::uint64_t every_ms = 10;
  std::function<void()> ticks;
};

/// A lane that has so much to send, of which its stream takes `room` at a time.
struct PlayedSender : SendTurns::Sender {
  PlayedSender(SendTurns& of, std::uint64_t bytes) : turns(of), left(bytes) {}
  ~PlayedSender() override { turns.leave(*this); }
  void send_on() override {
    ++calls;
    while (left > 0) {
      const std::size_t allowed = turns.allowed(*this);
      if (allowed == 0) return turns.wait(*this);
      const std::uint64_t now = std::min<std::uint64_t>({allowed, left, room});
      turns.took(now);
      left -= now;
      sent += now;
    }
    turns.leave(*this);
  }
  SendTurns& turns;
  std::uint64_t left;
  std::uint64_t room = 50'000;
  std::uint64_t sent = 0;
  int calls = 0;
};

constexpr std::uint64_t kMuch = 1ULL << 40;

TEST(SendTurns, lanes_get_equal_parts_of_the_rate) {
  TickedClock clock;
  SendTurns turns(clock, kSharedRate);
  std::vector<std::unique_ptr<PlayedSender>> lanes;
  for (int i = 0; i < 7; ++i) lanes.push_back(std::make_unique<PlayedSender>(turns, kMuch));
  for (const auto& lane : lanes) lane->send_on();
  const std::uint64_t burst = lanes[0]->sent;
  EXPECT_EQ(burst, 400'000U) << "nobody waited yet";
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(clock.tick());
  std::uint64_t all = 0;
  for (const auto& lane : lanes) {
    const std::uint64_t later = lane->sent - (lane == lanes[0] ? burst : 0);
    EXPECT_NEAR(static_cast<double>(later), 20e6 / 7, 60'000);
    all += later;
  }
  EXPECT_NEAR(static_cast<double>(all), 20e6, 60'000);
  EXPECT_EQ(turns.held_ms(), 5000U);
}

TEST(SendTurns, a_lane_that_comes_later_waits_behind_the_others) {
  TickedClock clock;
  SendTurns turns(clock, kSharedRate);
  PlayedSender first(turns, kMuch);
  first.send_on();
  clock.now += 1000;  // the bucket is full again, and the timer has not fired yet
  PlayedSender second(turns, kMuch);
  EXPECT_EQ(turns.allowed(second), 0U);
  second.send_on();
  EXPECT_EQ(second.sent, 0U);
  const std::uint64_t before = first.sent;
  clock.tick();
  EXPECT_EQ(first.sent - before, 200'000U) << "half of what there was";
  EXPECT_GE(second.sent, 200'000U);
}

TEST(SendTurns, messages_take_from_those_that_wait) {
  TickedClock clock;
  SendTurns turns(clock, kSharedRate);
  PlayedSender lane(turns, kMuch);
  lane.send_on();
  turns.took(kSharedRate / 2);  // half a second of debt
  const std::uint64_t before = lane.sent;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(clock.tick());
  EXPECT_EQ(lane.sent, before);
  EXPECT_EQ(lane.calls, 1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(clock.tick());
  EXPECT_NEAR(static_cast<double>(lane.sent - before), kSharedRate / 2.0, 40'000);
}

TEST(SendTurns, no_timer_runs_while_nobody_waits) {
  TickedClock clock;
  SendTurns turns(clock, kSharedRate);
  PlayedSender small(turns, 1000);
  small.send_on();
  EXPECT_FALSE(clock.tick());
  PlayedSender done(turns, 450'000);
  done.send_on();
  ASSERT_TRUE(clock.ticks);
  while (clock.tick()) {
  }
  EXPECT_EQ(done.left, 0U);
  EXPECT_EQ(turns.waiting(), 0U);
  const std::uint64_t held_ms = turns.held_ms();
  EXPECT_GT(held_ms, 0U);
  {
    PlayedSender gone(turns, kMuch);
    gone.send_on();
    EXPECT_EQ(turns.waiting(), 1U);
    EXPECT_TRUE(clock.ticks);
  }
  EXPECT_EQ(turns.waiting(), 0U);
  EXPECT_FALSE(clock.ticks);
  clock.now += 1000;
  EXPECT_EQ(turns.held_ms(), held_ms);
}

TEST(SendTurns, a_lane_may_end_another_one_and_itself_in_its_turn) {
  TickedClock clock;
  SendTurns turns(clock, kSharedRate);
  struct Ender : SendTurns::Sender {
    explicit Ender(SendTurns& of) : turns(of) {}
    ~Ender() override { turns.leave(*this); }
    void send_on() override {
      turns.leave(*other);
      turns.leave(*this);
      EXPECT_EQ(turns.waiting(), 0U);
    }
    SendTurns& turns;
    SendTurns::Sender* other = nullptr;
  };
  Ender ender(turns);
  PlayedSender other(turns, kMuch);
  ender.other = &other;
  turns.took(kSharedRate);
  turns.wait(ender);
  turns.wait(other);
  for (int i = 0; i < 110; ++i) clock.tick();
  EXPECT_EQ(other.calls, 0);
  EXPECT_FALSE(clock.ticks);
}

}  // namespace
}  // namespace pccl
