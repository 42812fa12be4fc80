// The server and its register: restarts, a disk that fails, is slow or never answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>

#include "master/register_file.h"
#include "server_fixture.h"

namespace pccl::master {
namespace {

// ------------------------------------------------------------------------------ restarts, the disk

TEST_F(Server, a_master_that_was_killed_goes_on_with_the_same_members_from_its_state_file) {
  use_state_file();
  found(3);
  expect_commit();
  const EpochId before = peers_[0]->state.started->id;
  server_.reset();  // as a crash: nothing is said to anybody
  master_.port = port_;
  EXPECT_TRUE(until([&] { return peers_[0]->times_closed + peers_[1]->times_closed > 0; }));
  start();
  EXPECT_TRUE(until([&] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const auto& p) {
      return p->runs(3) && p->state.started->id.incarnation() > before.incarnation();
    });
  })) << log_text();
  expect_commit();
  for (const auto& p : peers_) EXPECT_TRUE(p->failed.empty());
}

TEST_F(Server, after_a_restart_without_one_member_the_rest_goes_on_when_patience_ends) {
  use_state_file();
  options_.patience_ms = 500;
  found(3);
  peers_.pop_back();
  server_.reset();
  master_.port = port_;
  start();
  EXPECT_TRUE(until([&] { return peers_[0]->runs(2) && peers_[1]->runs(2); })) << log_text();
  expect_commit();
}

TEST_F(Server, half_of_the_members_goes_on_when_the_other_half_is_gone_with_the_master) {
  use_state_file();
  options_.patience_ms = 500;
  found(4);
  const OpKey op = peers_[0]->issue();
  peers_[1]->issue();
  peers_.resize(2);
  server_.reset();
  master_.port = port_;
  start();
  EXPECT_TRUE(until([&] { return peers_[0]->has_committed(op) && peers_[1]->has_committed(op); }))
      << log_text();
  EXPECT_TRUE(all_run(2));
  expect_commit();
}

TEST_F(Server, a_master_that_cannot_write_is_deposed_says_why_and_goes_on_when_it_can) {
  use_state_file();
  options_.patience_ms = 500;
  found(3);
  const auto obstacle = options_.state_file + ".new";
  std::filesystem::create_directory(obstacle);
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return said("is deposed") > 0; })) << log_text();
  EXPECT_GT(said(options_.state_file), 0U);
  EXPECT_TRUE(until([&] { return peers_[0]->times_closed > 0; }));
  std::filesystem::remove(obstacle);
  EXPECT_TRUE(until([&] { return peers_[0]->runs(2) && peers_[1]->runs(2); }, 20000)) << log_text();
  expect_commit();
}

TEST_F(Server, a_register_that_another_has_written_deposes_it) {
  use_state_file();
  options_.patience_ms = 500;
  found(3);
  // Whoever wrote that has a higher incarnation: this master must not start anything on its own.
  const std::string path = options_.state_file;
  std::string text;
  {
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto held = parse_register(text);
  ASSERT_TRUE(held.ok()) << held.error().text;
  held.value().value.incarnation += 0x1000;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << format_register(held.value());
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return said("is deposed: the state file was changed") > 0; }))
      << log_text();
  EXPECT_TRUE(until(
      [&] {
        return peers_[0]->runs(2) && peers_[1]->runs(2) &&
               peers_[0]->state.started->id.incarnation() > held.value().value.incarnation;
      },
      20000))
      << log_text();
  expect_commit();
}

TEST_F(Server, when_all_have_said_goodbye_the_run_is_over_and_the_next_peers_found_another) {
  use_state_file();
  found(2);
  peers_[0]->send(store_request(1, StoreOp::set, {"old"}, "v"));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 1) != nullptr; }));
  for (const auto& p : peers_) {
    p->reconnects = false;
    p->apply(peer::SaysBye{});
  }
  EXPECT_TRUE(until([&] { return said("no member is left: the run pauses") > 0; })) << log_text();
  peers_.clear();
  peer(11);
  peer(12);
  ASSERT_TRUE(until([&] { return all_run(2) && peers_[0]->connected(); })) << log_text();
  expect_commit();
  peers_[0]->send(store_request(2, StoreOp::num_keys, {}));
  ASSERT_TRUE(until([&] { return reply(*peers_[0], 2) != nullptr; }));
  EXPECT_EQ(reply(*peers_[0], 2)->amount, 0);
}

TEST_F(Server, stopped_while_its_members_are_away_after_a_start_it_ends_no_run) {
  use_state_file();
  found(2);
  for (const bool ends_wait : {false, false, true}) {  // members are connected the first time only
    bool stopped = false;
    server_->stop(ends_wait, [&] { stopped = true; });
    ASSERT_TRUE(until([&] { return stopped; })) << log_text();
    server_.reset();
    {
      auto file = open_register_file(options_.state_file, options_.run);
      ASSERT_TRUE(file.ok()) << file.error().text;
      EXPECT_FALSE(file.value()->read().value().over);
    }
    peers_.clear();
    start();
  }
}

TEST_F(Server, it_knows_for_whom_it_waits) {
  use_state_file();
  options_.min_peers = 2;
  start();
  peer(1);
  EXPECT_TRUE(until([&] {
    return run().whom_it_waits_for() == "waiting for 2 replicas to found the run; 1 peer connected";
  })) << run().whom_it_waits_for();
  peer(2);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  EXPECT_EQ(run().whom_it_waits_for(), "");
  peers_.clear();
  server_.reset();
  start();
  EXPECT_TRUE(until([&] { return run().state().holds; }));
  const std::string whom = run().whom_it_waits_for();
  EXPECT_EQ(whom.find("no member of epoch 1.1 is connected; rank 0 (0000000000000001), rank 1 "
                      "(0000000000000002) may come back for "),
            0U)
      << whom;
}

// ------------------------------------------------------------------------------------- a slow disk

/// A register whose writes take as long as the test wants.
class SlowRegister final : public RegisterStore {
 public:
  Result<Register> read() override { return inner_->read(); }
  Result<bool> compare_and_write(const Register& from, const Register& to) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    opened_.wait(lock, [&] { return open_; });
    --waiting_;
    return inner_->compare_and_write(from, to);
  }
  void set_open(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    opened_.notify_all();
  }
  [[nodiscard]] bool somebody_waits() {
    const std::lock_guard lock(mutex_);
    return waiting_ > 0;
  }

 private:
  std::unique_ptr<RegisterStore> inner_ = make_memory_register();
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = true;
  int waiting_ = 0;
};

TEST_F(Server, while_the_disk_is_slow_hearts_beat_and_events_keep_their_order) {
  const auto slow = std::make_shared<SlowRegister>();
  register_ = slow;
  options_.silence_ms = 400;
  options_.say_waiting_ms = 50;
  found(3);
  slow->set_open(false);
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return slow->somebody_waits(); })) << log_text();
  EXPECT_TRUE(until([&] { return peers_[0]->last<Hold>() != nullptr; })) << log_text();
  EXPECT_EQ(peers_[0]->last<Hold>()->text, "the master is waiting for the register to be written");
  // Now peer 2 falls silent, is given up, and comes back, before any of it can be acted upon.
  peers_[1]->beats = false;
  EXPECT_TRUE(until([&] { return peers_[1]->times_closed == 1; })) << log_text();
  peers_[1]->beats = true;
  const auto beats = [&] {
    return std::count_if(peers_[0]->inbox.begin(), peers_[0]->inbox.end(), [](const auto& message) {
      return std::holds_alternative<Heartbeat>(message);
    });
  };
  const auto before = beats();
  EXPECT_TRUE(until([&] { return peers_[1]->connected() && beats() >= before + 5; }));
  slow->set_open(true);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
  // Its new connection was not closed for the old.
  EXPECT_EQ(peers_[1]->times_closed, 1) << log_text();
  EXPECT_EQ(peers_[0]->times_closed, 0);
}

TEST_F(Server, a_peer_that_floods_it_while_the_disk_is_slow_is_given_up_and_the_others_go_on) {
  const auto slow = std::make_shared<SlowRegister>();
  register_ = slow;
  found(3);
  slow->set_open(false);
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return slow->somebody_waits(); })) << log_text();
  peers_[1]->reconnects = false;
  const std::size_t enough = kUnappliedBytesMax / kUnappliedMessageBytes;
  for (std::size_t i = 0; i < enough; ++i) peers_[1]->send(Heartbeat{});
  EXPECT_TRUE(until([&] { return peers_[1]->times_closed == 1; })) << log_text();
  slow->set_open(true);
  EXPECT_TRUE(until([&] { return said("it sends more while the register is written") > 0; }));
  EXPECT_TRUE(until([&] { return all_run(1); })) << log_text();
  EXPECT_EQ(peers_[0]->times_closed, 0);
}

TEST_F(Server, a_long_message_is_too_much_only_while_the_register_is_written) {
  found(2);
  // One with a field "zz" of a later version: so many bytes that this version skips.
  static_assert(kUnappliedBytesMax == 0x01000000);
  std::vector<std::byte> heartbeat = encode(PeerToMaster{Heartbeat{}});
  heartbeat[0] = static_cast<std::byte>(std::to_integer<unsigned>(heartbeat[0]) + 1);  // fields
  for (const char c : std::string_view("bzzZ\1\0\0\0", 8)) {
    heartbeat.push_back(static_cast<std::byte>(c));
  }
  heartbeat.resize(heartbeat.size() + kUnappliedBytesMax);
  peers_[0]->send_bytes(heartbeat);
  expect_commit();  // behind that message
  EXPECT_EQ(peers_[0]->times_closed, 0) << log_text();
}

TEST_F(Server, a_disk_that_never_answers_deposes_it_and_it_takes_over_when_it_does) {
  const auto slow = std::make_shared<SlowRegister>();
  register_ = slow;
  options_.register_deadline_ms = 100;
  options_.patience_ms = 500;
  found(3);
  slow->set_open(false);
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return said("is deposed") == 1; })) << log_text();
  EXPECT_EQ(said("the register did not answer within 100 ms"), 1U);
  EXPECT_TRUE(until([&] { return said("still does not answer") > 0; })) << log_text();
  EXPECT_EQ(run().whom_it_waits_for(),
            "waiting for the register: the register did not answer within 100 ms");
  slow->set_open(true);
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

/// A register on a disk that may be full.
class FullRegister final : public RegisterStore {
 public:
  Result<Register> read() override { return inner_->read(); }
  Result<bool> compare_and_write(const Register& from, const Register& to) override {
    if (!full) return inner_->compare_and_write(from, to);
    ++refused;
    return Error{ErrorCode::closed, "No space left on device"};
  }
  std::atomic<bool> full = false;
  std::atomic<int> refused = 0;

 private:
  std::unique_ptr<RegisterStore> inner_ = make_memory_register();
};

TEST_F(Server, a_full_disk_has_a_line_that_says_so_and_is_tried_less_and_less_often) {
  const auto disk = std::make_shared<FullRegister>();
  register_ = disk;
  options_.patience_ms = 500;
  found(3);
  disk->full = true;
  peers_[2]->reconnects = false;
  peers_[2]->drop();
  EXPECT_TRUE(until([&] { return disk->refused >= 3; })) << log_text();
  const std::string why = "the register could not be written: No space left on device";
  EXPECT_EQ(said("this master is deposed: " + why), 1U) << log_text();
  EXPECT_TRUE(until([&] { return run().whom_it_waits_for().ends_with(why); })) << log_text();
  Status status;
  EXPECT_TRUE(until([&] {
    status = run().status();
    return status.state == "standby";
  }));
  EXPECT_EQ(status.members.size(), 3U) << "by the register";
  EXPECT_EQ(status.members.at(0).doing, "away");
  disk->full = false;
  EXPECT_TRUE(until([&] { return all_run(2); })) << log_text();
  expect_commit();
}

}  // namespace
}  // namespace pccl::master
