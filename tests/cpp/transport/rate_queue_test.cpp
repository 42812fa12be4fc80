#include "transport/rate_queue.h"

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
struct PlayedSender : RateQueue::Sender {
  PlayedSender(RateQueue& of, std::uint64_t bytes) : queue(of), left(bytes) {}
  ~PlayedSender() override { queue.leave(*this); }
  void send_on() override {
    ++calls;
    while (left > 0) {
      const std::size_t allowed = queue.allowed(*this);
      if (allowed == 0) return queue.wait(*this);
      const std::uint64_t now = std::min<std::uint64_t>({allowed, left, room});
      queue.took(now);
      left -= now;
      sent += now;
    }
    queue.leave(*this);
  }
  RateQueue& queue;
  std::uint64_t left;
  std::uint64_t room = 50'000;
  std::uint64_t sent = 0;
  int calls = 0;
};

constexpr std::uint64_t kMuch = 1ULL << 40;

TEST(RateQueue, lanes_get_equal_parts_of_the_rate) {
  TickedClock clock;
  RateQueue queue(clock, kSharedRate);
  std::vector<std::unique_ptr<PlayedSender>> lanes;
  for (int i = 0; i < 7; ++i) lanes.push_back(std::make_unique<PlayedSender>(queue, kMuch));
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
  EXPECT_EQ(queue.held_ms(), 5000U);
}

TEST(RateQueue, a_lane_that_comes_later_waits_behind_the_others) {
  TickedClock clock;
  RateQueue queue(clock, kSharedRate);
  PlayedSender first(queue, kMuch);
  first.send_on();
  clock.now += 1000;  // the bucket is full again, and the timer has not fired yet
  PlayedSender second(queue, kMuch);
  EXPECT_EQ(queue.allowed(second), 0U);
  second.send_on();
  EXPECT_EQ(second.sent, 0U);
  const std::uint64_t before = first.sent;
  clock.tick();
  EXPECT_EQ(first.sent - before, 200'000U) << "half of what there was";
  EXPECT_GE(second.sent, 200'000U);
}

TEST(RateQueue, messages_take_from_those_that_wait) {
  TickedClock clock;
  RateQueue queue(clock, kSharedRate);
  PlayedSender lane(queue, kMuch);
  lane.send_on();
  queue.took(kSharedRate / 2);  // half a second of debt
  const std::uint64_t before = lane.sent;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(clock.tick());
  EXPECT_EQ(lane.sent, before);
  EXPECT_EQ(lane.calls, 1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(clock.tick());
  EXPECT_NEAR(static_cast<double>(lane.sent - before), kSharedRate / 2.0, 40'000);
}

TEST(RateQueue, no_timer_runs_while_nobody_waits) {
  TickedClock clock;
  RateQueue queue(clock, kSharedRate);
  PlayedSender small(queue, 1000);
  small.send_on();
  EXPECT_FALSE(clock.tick());
  PlayedSender done(queue, 450'000);
  done.send_on();
  ASSERT_TRUE(clock.ticks);
  while (clock.tick()) {
  }
  EXPECT_EQ(done.left, 0U);
  EXPECT_EQ(queue.waiting(), 0U);
  const std::uint64_t held_ms = queue.held_ms();
  EXPECT_GT(held_ms, 0U);
  {
    PlayedSender gone(queue, kMuch);
    gone.send_on();
    EXPECT_EQ(queue.waiting(), 1U);
    EXPECT_TRUE(clock.ticks);
  }
  EXPECT_EQ(queue.waiting(), 0U);
  EXPECT_FALSE(clock.ticks);
  clock.now += 1000;
  EXPECT_EQ(queue.held_ms(), held_ms);
}

TEST(RateQueue, a_lane_may_end_another_one_and_itself_while_it_is_served) {
  TickedClock clock;
  RateQueue queue(clock, kSharedRate);
  struct Ender : RateQueue::Sender {
    explicit Ender(RateQueue& of) : queue(of) {}
    ~Ender() override { queue.leave(*this); }
    void send_on() override {
      queue.leave(*other);
      queue.leave(*this);
      EXPECT_EQ(queue.waiting(), 0U);
    }
    RateQueue& queue;
    RateQueue::Sender* other = nullptr;
  };
  Ender ender(queue);
  PlayedSender other(queue, kMuch);
  ender.other = &other;
  queue.took(kSharedRate);
  queue.wait(ender);
  queue.wait(other);
  for (int i = 0; i < 110; ++i) clock.tick();
  EXPECT_EQ(other.calls, 0);
  EXPECT_FALSE(clock.ticks);
}

}  // namespace
}  // namespace pccl
