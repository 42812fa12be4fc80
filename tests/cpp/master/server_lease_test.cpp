// A register that several masters share: who holds its lease is in charge, and for how long
// without.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server_fixture.h"

namespace pccl::master {
namespace {

/// In memory; the test says who holds the lease, and whether anybody answers.
class LeasedRegister final : public RegisterStore {
 public:
  Result<Register> read() override { return inner_->read(); }
  Result<bool> compare_and_write(const Register& from, const Register& to) override {
    return inner_->compare_and_write(from, to);
  }
  [[nodiscard]] bool shared() const override { return true; }
  Result<bool> hold() override {
    std::unique_lock lock(mutex_);
    ++asked_;
    hanging_.wait_for(lock, std::chrono::seconds(60), [this] { return !hangs_; });
    if (!answers_) return Error{ErrorCode::unreachable, "nobody is there"};
    return mine_;
  }
  std::string holder() override { return "the other master"; }
  void release() override {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  void set(bool mine, bool answers = true) {
    const std::lock_guard lock(mutex_);
    mine_ = mine;
    answers_ = answers;
    asked_ = 0;
  }
  /// The calls for the lease get no answer meanwhile.
  void hang(bool hangs) {
    const std::lock_guard lock(mutex_);
    hangs_ = hangs;
    hanging_.notify_all();
  }
  [[nodiscard]] int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  [[nodiscard]] bool released() {
    const std::lock_guard lock(mutex_);
    return released_;
  }

 private:
  std::unique_ptr<RegisterStore> inner_ = make_memory_register();
  std::mutex mutex_;
  std::condition_variable hanging_;
  bool hangs_ = false;
  bool mine_ = true;
  bool answers_ = true;
  bool released_ = false;
  int asked_ = 0;
};

class Lease : public Server {
 protected:
  void SetUp() override {
    Server::SetUp();
    register_ = lease_;
    options_.lease_renew_ms = 20;
    options_.patience_ms = 500;
  }
  std::shared_ptr<LeasedRegister> lease_ = std::make_shared<LeasedRegister>();
};

TEST_F(Lease, a_standby_says_who_is_in_charge_and_takes_over_when_the_lease_is_its_own) {
  lease_->set(false);
  start();
  ASSERT_TRUE(until([&] { return said("standing by") > 0; })) << log_text();
  FakePeer& waits = peer(1);
  EXPECT_TRUE(until([&] { return waits.times_closed > 0; })) << log_text();
  EXPECT_TRUE(std::any_of(waits.inbox.begin(), waits.inbox.end(), [](const auto& message) {
    const auto* hold = std::get_if<Hold>(&message);
    return hold != nullptr &&
           hold->text.find("the other master holds the lease") != std::string::npos;
  }));
  peer(2);
  lease_->set(true);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

TEST_F(Lease, who_loses_the_lease_steps_down_and_comes_back_with_a_new_incarnation) {
  found(2);
  const EpochId before = peers_[0]->state.started->id;
  lease_->set(false);
  EXPECT_TRUE(until([&] { return said("it closes its connections and stands by") > 0; }));
  lease_->set(true);
  EXPECT_TRUE(until([&] {
    return all_run(2) && peers_[0]->state.started->id.incarnation() > before.incarnation();
  })) << log_text();
  expect_commit();
}

TEST_F(Lease, commits_go_on_while_nobody_answers_until_a_standby_might_give_the_run_up) {
  options_.lease_lapse_ms = 1500;
  found(2);
  lease_->set(true, /*answers=*/false);
  EXPECT_TRUE(until([&] { return lease_->asked() > 10; }));
  expect_commit();
  EXPECT_EQ(said("stands by"), 0U) << log_text();
  EXPECT_TRUE(until([&] { return said("without its lease") > 0; })) << log_text();
  lease_->set(true);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

TEST_F(Lease, a_standby_to_which_no_member_could_come_says_so_and_leaves_the_lease_to_others) {
  Register others;
  others.incarnation = 1;
  Member member;
  member.token = "a";
  others.epoch = Epoch{EpochId::make(1, 1), {member}, {}, true};
  others.key = Digest{1};
  EXPECT_TRUE(lease_->compare_and_write(Register{}, others).value());
  start();
  ASSERT_TRUE(until([&] { return said("does not take the run over") > 0; })) << log_text();
  EXPECT_EQ(said("took tokens, and this one takes none"), 1U) << log_text();
  FakePeer& waits = peer(1);
  EXPECT_TRUE(until([&] { return waits.times_closed > 0; })) << log_text();
  EXPECT_EQ(lease_->asked(), 0);
  EXPECT_EQ(run().status().state, "standby");
  EXPECT_EQ(lease_->read().value(), others);
}

TEST_F(Lease, a_master_that_comes_to_be_locked_out_while_it_takes_over_gives_the_lease_back) {
  lease_->set(false);
  start();
  ASSERT_TRUE(until([&] { return said("standing by") > 0; })) << log_text();
  Register others;
  others.incarnation = 1;
  others.epoch = Epoch{EpochId::make(1, 1), {Member{}}, {}, true};
  others.key = Digest{1};
  EXPECT_TRUE(lease_->compare_and_write(Register{}, others).value());
  lease_->set(true);
  ASSERT_TRUE(until([&] { return lease_->released(); })) << log_text();
  EXPECT_EQ(said("does not take the run over"), 1U) << log_text();
  EXPECT_FALSE(run().state().holds);
  EXPECT_EQ(lease_->read().value(), others);
}

TEST_F(Lease, again_opens_the_ending_that_it_names_and_no_later_one_at_whatever_master) {
  for (const std::uint64_t ended_at : {1000, 2000}) {
    SCOPED_TRACE(ended_at);
    lease_ = std::make_shared<LeasedRegister>();
    register_ = lease_;
    options_.again = 1000;
    lease_->set(false);
    Register ended;
    ended.incarnation = 1;
    ended.over = true;
    ended.ended = Ending{600, ended_at};
    EXPECT_TRUE(lease_->compare_and_write(Register{}, ended).value());
    start();
    ASSERT_TRUE(until([&] { return lease_->asked() > 2; }));
    lease_->set(true);
    ASSERT_TRUE(until([&] { return run().state().holds; })) << log_text();
    EXPECT_EQ(run().state().held->ended.has_value(), ended_at != options_.again);
    EXPECT_EQ(said("--again names another ending"), ended_at == options_.again ? 0U : 1U);
    server_.reset();
  }
}

TEST_F(Lease, a_master_that_is_stopped_in_good_order_gives_the_lease_up) {
  found(2);
  bool stopped = false;
  server_->stop(/*ends_wait=*/false, [&] { stopped = true; });
  EXPECT_TRUE(until([&] { return stopped; }));
  EXPECT_TRUE(lease_->released());
}

TEST_F(Lease, a_run_that_has_stopped_does_not_take_its_lease_again_while_another_one_still_stops) {
  const auto slow = std::make_shared<LeasedRegister>();
  RunOptions a = options_;
  a.run = "a";
  RunOptions b = options_;
  b.run = "b";
  server_ = std::make_unique<MasterServer>(network_, master_,
                                           std::vector<ServedRun>{{a, lease_}, {b, slow}});
  ASSERT_TRUE(server_->start().ok());
  const RunServer& first = *server_->run("a").value();
  ASSERT_TRUE(until([&] { return first.state().holds && slow->asked() > 0; })) << log_text();
  slow->hang(true);
  slow->set(true);
  ASSERT_TRUE(until([&] { return slow->asked() > 0; }));
  bool stopped = false;
  server_->stop(/*ends_wait=*/false, [&] { stopped = true; });
  ASSERT_TRUE(until([&] { return lease_->released(); }));
  lease_->set(true);
  static_cast<void>(until([&] { return lease_->asked() > 0; }, 500));
  EXPECT_EQ(lease_->asked(), 0) << "after it was released" << log_text();
  EXPECT_FALSE(stopped);
  slow->hang(false);
  EXPECT_TRUE(until([&] { return stopped; }));
}

}  // namespace
}  // namespace pccl::master
