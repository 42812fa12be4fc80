// Whose run the register holds: a master with another key or other tokens would lose all members.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cast.h"
#include "membership/master.h"

namespace pccl::master {
namespace {

using cast::kEpoch;
using cast::member;

const Digest kOwn{1};
const Digest kOther{2};

TokenMark token(const std::string& name, std::uint8_t secret = 1) { return {name, {secret}}; }

/// Two members that came by the tokens a and b, under a master with the key kOwn.
Register held() {
  std::vector<Member> members{member(1), member(2)};
  members[0].token = "a";
  members[1].token = "b";
  Register value{1, Epoch{kEpoch, members, {}, true}, 1, false};
  value.key = kOwn;
  return value;
}

Config own_key() {
  Config config;
  config.key = kOwn;
  return config;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Lockout, a_master_with_the_key_and_a_token_of_one_member_may_take_over) {
  EXPECT_EQ(lockout(held(), own_key(), {token("a"), token("b")}), "");
  EXPECT_EQ(lockout(held(), own_key(), {token("b")}), "");
}

TEST(Lockout, another_key_may_not_whatever_its_tokens_are_called) {
  Config config = own_key();
  config.key = kOther;
  const std::string why = lockout(held(), config, {token("a"), token("b")});
  EXPECT_TRUE(has(why, "another key than the masters of before")) << why;
  EXPECT_TRUE(has(why, "2 members")) << why;
  EXPECT_TRUE(has(why, "--refound")) << why;
  config.key.reset();
  EXPECT_TRUE(has(lockout(held(), config, {}), "this one takes none"));
}

TEST(Lockout, a_token_file_without_any_token_of_the_members_may_not) {
  const std::string why = lockout(held(), own_key(), {token("c")});
  EXPECT_TRUE(has(why, "they came by \"a\", \"b\", and its token file has no token of theirs"))
      << why;
}

TEST(Lockout, members_that_came_without_a_token_cannot_come_to_a_master_that_asks_for_one) {
  Register open = held();
  open.key.reset();
  for (Member& m : open.epoch->members) m.token.clear();
  EXPECT_TRUE(has(lockout(open, own_key(), {token("c")}), "they came without a token"));
  EXPECT_EQ(lockout(open, Config{}, {}), "");
}

TEST(Lockout, members_whose_tokens_were_all_revoked_are_shut_out_on_purpose) {
  Register value = held();
  value.revoked = {token("a"), token("b")};
  EXPECT_EQ(lockout(value, own_key(), {token("c")}), "");
  EXPECT_EQ(lockout(value, own_key(), {token("a"), token("b")}), "") << "lines that are back";
  value.revoked = {token("a")};
  EXPECT_NE(lockout(value, own_key(), {token("a"), token("c")}), "") << "b was never revoked";
}

TEST(Lockout, a_run_without_members_and_one_that_is_given_up_are_anybodys) {
  Config config = own_key();
  config.key = kOther;
  EXPECT_EQ(lockout(Register{}, config, {}), "");
  Register over = held();
  over.over = true;
  EXPECT_EQ(lockout(over, config, {}), "");
  config.refound = true;
  EXPECT_EQ(lockout(held(), config, {}), "");
}

TEST(Lockout, the_register_of_an_older_master_has_no_key_and_is_judged_by_its_tokens) {
  Register old = held();
  old.key.reset();
  EXPECT_EQ(lockout(old, own_key(), {token("a")}), "");
  EXPECT_NE(lockout(old, own_key(), {token("c")}), "");
}

TEST(Lockout, a_take_over_writes_the_key_of_the_master) {
  State s;
  s.config = own_key();
  s.config.key = kOther;
  const Actions out = step(s, TakenOver{held()});
  ASSERT_TRUE(s.writing.has_value());
  EXPECT_EQ(s.writing->key, kOther);
}

}  // namespace
}  // namespace pccl::master
