// The choice between losses and a model, on lines over which each carries so much.
#include "transport/model_trial.h"

#include <gtest/gtest.h>

namespace pccl {
namespace {

/// Rates in bytes a microsecond.
struct PlayedTrial {
  void run(double losses, double model, double seconds) {
    for (double at = 0; at < seconds; at += 0.05) {
      const double rate = trial.by_model() ? model : losses;
      by_model_s += trial.by_model() ? 0.05 : 0;
      trial.look({50'000, static_cast<std::uint64_t>(rate * 50'000), limited});
    }
  }
  ModelTrial trial;
  bool limited = true;
  double by_model_s = 0;
};

TEST(ModelTrial, where_losses_are_no_limit_nothing_is_tried) {
  PlayedTrial link;
  link.limited = false;
  link.run(120, 1000, 600);
  EXPECT_EQ(link.by_model_s, 0);
}

TEST(ModelTrial, where_losses_are_the_limit_a_model_stays_that_carries_more) {
  PlayedTrial link;
  link.run(35, 115, 5);
  EXPECT_TRUE(link.trial.by_model());
  EXPECT_FALSE(link.trial.on_trial());
  link.run(35, 115, 3600);
  EXPECT_GT(link.by_model_s, 3550) << "losses are tried again, and seldom";
  EXPECT_LT(link.by_model_s, 3604) << "they are";
}

TEST(ModelTrial, a_model_that_is_slow_at_first_stays) {
  PlayedTrial link;
  link.run(100, 80, 5);
  EXPECT_TRUE(link.trial.by_model());
}

TEST(ModelTrial, a_model_that_carries_far_less_goes_and_is_tried_ever_more_seldom) {
  PlayedTrial link;
  link.run(100, 60, 5);
  EXPECT_FALSE(link.trial.by_model());
  EXPECT_LE(link.by_model_s, 2.01);
  link.run(100, 60, 3600);
  EXPECT_LT(link.by_model_s, 30);
  EXPECT_GT(link.by_model_s, 8) << "the line may be another one";
}

TEST(ModelTrial, losses_come_back_where_they_carry_far_more) {
  PlayedTrial link;
  link.run(35, 115, 5);
  link.run(200, 115, 180);
  EXPECT_FALSE(link.trial.by_model());
}

TEST(ModelTrial, a_peer_that_takes_nothing_in_the_middle_of_a_trial_does_not_fail_it) {
  PlayedTrial link;
  link.run(35, 115, 0.6);
  ASSERT_TRUE(link.trial.on_trial());
  link.run(0, 0, 3);
  link.run(35, 115, 5);
  EXPECT_TRUE(link.trial.by_model());
}

}  // namespace
}  // namespace pccl
