// The key-value store against what c10d's Store promises: requests in, replies out.
#include "master/store.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace pccl::master {
namespace {

constexpr PeerId kAnna{1};
constexpr PeerId kBert{2};

Bytes bytes(std::string_view text) { return Bytes(text.begin(), text.end()); }

std::vector<Bytes> values(const std::vector<std::string>& texts) {
  std::vector<Bytes> list;
  for (const std::string& text : texts) list.push_back(bytes(text));
  return list;
}

StoreRequest make(std::uint64_t id, StoreOp op, std::vector<std::string> keys = {},
                  const std::vector<std::string>& texts = {}, std::int64_t amount = 0) {
  StoreRequest request;
  request.id = id;
  request.op = op;
  request.keys = std::move(keys);
  request.values = values(texts);
  request.amount = amount;
  return request;
}

/// The only answer to a request that does not wait and wakes nobody.
StoreReply ask(KeyValueStore& store, const StoreRequest& request) {
  const auto answers = store.request(kAnna, request);
  EXPECT_EQ(answers.size(), 1U);
  if (answers.empty()) return {};
  EXPECT_EQ(answers[0].to, (Waiter{kAnna, request.id}));
  EXPECT_EQ(answers[0].reply.id, request.id);
  return answers[0].reply;
}

TEST(Store, set_then_get_returns_the_value_and_a_second_set_replaces_it) {
  KeyValueStore store;
  EXPECT_FALSE(ask(store, make(1, StoreOp::set, {"k"}, {"one"})).error.failed());
  EXPECT_EQ(ask(store, make(2, StoreOp::get, {"k"})).values, values({"one"}));
  ask(store, make(3, StoreOp::set, {"k", "l"}, {"two", ""}));
  EXPECT_EQ(ask(store, make(4, StoreOp::get, {"l", "k"})).values, values({"", "two"}));
  EXPECT_EQ(ask(store, make(5, StoreOp::num_keys)).amount, 2);
}

TEST(Store, get_of_a_missing_key_is_answered_when_it_is_set) {
  KeyValueStore store;
  EXPECT_TRUE(store.request(kBert, make(7, StoreOp::get, {"k"})).empty());
  EXPECT_TRUE(store.waits(Waiter{kBert, 7}));
  const auto answers = store.request(kAnna, make(1, StoreOp::set, {"k"}, {"v"}));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].to, (Waiter{kAnna, 1}));
  EXPECT_EQ(answers[1].to, (Waiter{kBert, 7}));
  EXPECT_EQ(answers[1].reply.values, values({"v"}));
  EXPECT_FALSE(store.waits(Waiter{kBert, 7}));
}

TEST(Store, wait_for_several_keys_ends_when_all_are_there_at_once) {
  KeyValueStore store;
  EXPECT_TRUE(store.request(kBert, make(7, StoreOp::wait, {"a", "b", "c"})).empty());
  ask(store, make(1, StoreOp::set, {"c"}, {"3"}));
  ask(store, make(2, StoreOp::set, {"a"}, {"1"}));
  ask(store, make(3, StoreOp::remove, {"c"}));
  ask(store, make(4, StoreOp::append, {"b"}, {"2"}));
  const auto answers = store.request(kAnna, make(5, StoreOp::add, {"c"}, {}, 3));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].to, (Waiter{kBert, 7}));
  EXPECT_FALSE(answers[1].reply.error.failed());
  EXPECT_TRUE(answers[1].reply.values.empty());
}

TEST(Store, every_kind_of_write_wakes_who_waits_for_its_key) {
  for (const StoreRequest& write :
       {make(1, StoreOp::set, {"k"}, {"v"}), make(1, StoreOp::append, {"k"}, {"v"}),
        make(1, StoreOp::add, {"k"}, {}, 1), make(1, StoreOp::compare_set, {"k"}, {"", "v"})}) {
    KeyValueStore store;
    EXPECT_TRUE(store.request(kBert, make(7, StoreOp::wait, {"k"})).empty());
    EXPECT_TRUE(store.request(kAnna, make(8, StoreOp::get, {"k"})).empty());
    EXPECT_EQ(store.request(kAnna, write).size(), 3U);
  }
}

TEST(Store, who_waits_too_long_is_told_which_key_is_missing) {
  KeyValueStore store;
  EXPECT_TRUE(store.request(kBert, make(7, StoreOp::get, {"the_key"})).empty());
  const auto answer = store.expire(Waiter{kBert, 7});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->reply.error.code, ErrorCode::timed_out);
  EXPECT_NE(answer->reply.error.text.find("the_key"), std::string::npos);
  EXPECT_FALSE(store.expire(Waiter{kBert, 7}).has_value());
  EXPECT_EQ(store.request(kAnna, make(1, StoreOp::set, {"the_key"}, {"v"})).size(), 1U);
}

TEST(Store, what_a_lost_peer_waited_for_is_forgotten_and_others_go_on_waiting) {
  KeyValueStore store;
  EXPECT_TRUE(store.request(kBert, make(1, StoreOp::get, {"k"})).empty());
  EXPECT_TRUE(store.request(kBert, make(2, StoreOp::get, {"l"})).empty());
  EXPECT_TRUE(store.request(kAnna, make(1, StoreOp::get, {"k"})).empty());
  store.drop(kBert);
  const auto answers = store.request(PeerId{3}, make(1, StoreOp::set, {"k"}, {"v"}));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].to, (Waiter{kAnna, 1}));
}

TEST(Store, add_counts_from_zero_in_decimal_text) {
  KeyValueStore store;
  EXPECT_EQ(ask(store, make(1, StoreOp::add, {"n"}, {}, 5)).amount, 5);
  EXPECT_EQ(ask(store, make(2, StoreOp::add, {"n"}, {}, -7)).amount, -2);
  EXPECT_EQ(ask(store, make(3, StoreOp::get, {"n"})).values, values({"-2"}));
  ask(store, make(4, StoreOp::set, {"n"}, {"40"}));
  EXPECT_EQ(ask(store, make(5, StoreOp::add, {"n"}, {}, 2)).amount, 42);
}

TEST(Store, add_to_what_is_no_number_or_beyond_64_bits_is_an_error_and_changes_nothing) {
  KeyValueStore store;
  for (const std::string& text :
       std::vector<std::string>{"x", "1x", " 1", "", "99999999999999999999"}) {
    ask(store, make(1, StoreOp::set, {"n"}, {text}));
    EXPECT_EQ(ask(store, make(2, StoreOp::add, {"n"}, {}, 1)).error.code, ErrorCode::invalid);
    EXPECT_EQ(ask(store, make(3, StoreOp::get, {"n"})).values, values({text}));
  }
  ask(store, make(4, StoreOp::set, {"n"}, {"9223372036854775807"}));
  EXPECT_EQ(ask(store, make(5, StoreOp::add, {"n"}, {}, 1)).error.code, ErrorCode::invalid);
}

TEST(Store, compare_set_follows_tcp_store_for_missing_and_other_values) {
  KeyValueStore store;
  const auto swap = [&](const std::string& expected, const std::string& desired) {
    return ask(store, make(1, StoreOp::compare_set, {"k"}, {expected, desired})).values;
  };
  EXPECT_EQ(swap("old", "new"), values({"old"}));  // missing: what was expected
  EXPECT_EQ(ask(store, make(2, StoreOp::check, {"k"})).amount, 0);
  EXPECT_EQ(swap("", "first"), values({"first"}));
  EXPECT_EQ(swap("", "second"), values({"first"}));
  EXPECT_EQ(swap("first", "second"), values({"second"}));
  EXPECT_EQ(ask(store, make(3, StoreOp::get, {"k"})).values, values({"second"}));
}

TEST(Store, check_remove_append_and_list_keys_say_what_is_there) {
  KeyValueStore store;
  EXPECT_EQ(ask(store, make(1, StoreOp::check, {"a"})).amount, 0);
  ask(store, make(2, StoreOp::append, {"a"}, {"1"}));
  ask(store, make(3, StoreOp::append, {"a"}, {"2"}));
  ask(store, make(4, StoreOp::set, {"b"}, {"x"}));
  EXPECT_EQ(ask(store, make(5, StoreOp::get, {"a"})).values, values({"12"}));
  EXPECT_EQ(ask(store, make(6, StoreOp::check, {"a", "b"})).amount, 1);
  EXPECT_EQ(ask(store, make(7, StoreOp::list_keys)).keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ask(store, make(8, StoreOp::remove, {"a"})).amount, 1);
  EXPECT_EQ(ask(store, make(9, StoreOp::remove, {"a"})).amount, 0);
  EXPECT_EQ(ask(store, make(10, StoreOp::check, {"a", "b"})).amount, 0);
  EXPECT_EQ(ask(store, make(11, StoreOp::num_keys)).amount, 1);
}

TEST(Store, a_request_of_the_wrong_shape_is_an_error) {
  KeyValueStore store;
  for (const StoreRequest& request :
       {make(1, StoreOp::set), make(1, StoreOp::set, {"a"}),
        make(1, StoreOp::set, {"a"}, {"1", "2"}), make(1, StoreOp::append, {"a", "b"}, {"1"}),
        make(1, StoreOp::get, {"a"}, {"1"}), make(1, StoreOp::add),
        make(1, StoreOp::add, {"a", "b"}), make(1, StoreOp::compare_set, {"a"}, {"1"}),
        make(1, StoreOp::remove), make(1, StoreOp::num_keys, {"a"}),
        make(1, StoreOp::list_keys, {"a"}), make(1, static_cast<StoreOp>(99))}) {
    EXPECT_EQ(ask(store, request).error.code, ErrorCode::invalid);
  }
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(Store, a_full_store_says_so_and_takes_again_after_a_remove) {
  KeyValueStore store(8192);
  const std::string large(3000, 'x');
  ask(store, make(1, StoreOp::set, {"a"}, {large}));
  const StoreReply refused = ask(store, make(2, StoreOp::set, {"b"}, {large}));
  EXPECT_EQ(refused.error.code, ErrorCode::invalid);
  EXPECT_NE(refused.error.text.find("full"), std::string::npos);
  EXPECT_EQ(ask(store, make(3, StoreOp::append, {"a"}, {large})).error.code, ErrorCode::invalid);
  EXPECT_EQ(ask(store, make(4, StoreOp::get, {"a"})).values, values({large}));
  ask(store, make(5, StoreOp::set, {"a"}, {large}));  // replacing needs no more room
  ask(store, make(6, StoreOp::remove, {"a"}));
  EXPECT_EQ(store.bytes(), 0U);
  EXPECT_FALSE(ask(store, make(7, StoreOp::set, {"b"}, {large})).error.failed());
}

TEST(Store, a_set_of_several_keys_that_fills_the_store_still_wakes_for_those_it_set) {
  KeyValueStore store(8192);
  EXPECT_TRUE(store.request(kBert, make(7, StoreOp::wait, {"a"})).empty());
  const auto answers =
      store.request(kAnna, make(1, StoreOp::set, {"a", "b"}, {"1", std::string(5000, 'x')}));
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_TRUE(answers[0].reply.error.failed());
  EXPECT_EQ(answers[1].to, (Waiter{kBert, 7}));
}

TEST(Store, waiting_requests_of_one_peer_are_bounded_and_count_as_bytes) {
  KeyValueStore store;
  for (std::uint64_t id = 0; id < kStoreWaitsMax; ++id) {
    EXPECT_TRUE(store.request(kAnna, make(id, StoreOp::wait, {"k"})).empty());
  }
  EXPECT_EQ(ask(store, make(kStoreWaitsMax, StoreOp::wait, {"k"})).error.code, ErrorCode::invalid);
  EXPECT_TRUE(store.request(kBert, make(0, StoreOp::wait, {"k"})).empty());
  EXPECT_GT(store.bytes(), 0U);
  store.drop(kAnna);
  store.drop(kBert);
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(Store, those_who_wait_for_one_large_value_do_not_get_more_than_there_is_memory_for) {
  constexpr std::size_t kValue = 1000;
  KeyValueStore store(kStoreBytesMax, 5 * kValue);
  for (std::uint64_t id = 0; id < 20; ++id) {
    EXPECT_TRUE(store.request(kAnna, make(id, StoreOp::get, {"k"})).empty());
  }
  StoreRequest set = make(0, StoreOp::set, {"k"});
  set.values = {Bytes(kValue, 'v')};
  std::size_t values = 0;
  std::size_t refusals = 0;
  for (const StoreAnswer& answer : store.request(kBert, set)) {
    values += answer.reply.values.size();
    refusals += answer.reply.error.code == ErrorCode::no_memory ? 1U : 0U;
  }
  EXPECT_EQ(values, 5U);
  EXPECT_EQ(refusals, 15U);
  EXPECT_EQ(ask(store, make(30, StoreOp::get, {"k"})).values.size(), 1U);
}

TEST(Store, a_number_that_waits_already_is_refused) {
  KeyValueStore store;
  EXPECT_TRUE(store.request(kAnna, make(1, StoreOp::wait, {"k"})).empty());
  EXPECT_EQ(ask(store, make(1, StoreOp::wait, {"l"})).error.code, ErrorCode::invalid);
}

TEST(Store, more_than_one_reply_holds_is_an_error_and_not_a_frame_that_nobody_takes) {
  KeyValueStore store;
  const std::string half(kStoreReplyBytesMax / 2, 'x');
  ask(store, make(1, StoreOp::set, {"a", "b"}, {half, half}));
  EXPECT_EQ(ask(store, make(2, StoreOp::get, {"a", "b"})).error.code, ErrorCode::invalid);
  EXPECT_FALSE(ask(store, make(3, StoreOp::get, {"a"})).error.failed());
  for (std::size_t i = 0; i <= kStoreKeysMax; ++i) {
    ask(store, make(4, StoreOp::set, {std::to_string(i)}, {""}));
  }
  EXPECT_EQ(ask(store, make(5, StoreOp::list_keys)).error.code, ErrorCode::invalid);
}

TEST(Store, no_value_grows_beyond_one_reply) {
  KeyValueStore store;
  StoreRequest half = make(1, StoreOp::append, {"k"});
  half.values.emplace_back(kStoreValueBytesMax / 2 + 1);
  EXPECT_FALSE(ask(store, half).error.failed());
  EXPECT_EQ(ask(store, half).error.code, ErrorCode::invalid) << "compare_set would not return it";
  StoreRequest swap = make(2, StoreOp::compare_set, {"n"}, {""});
  swap.values.emplace_back(kStoreValueBytesMax + 1);
  EXPECT_EQ(ask(store, swap).error.code, ErrorCode::invalid);
  swap = make(3, StoreOp::compare_set, {"k"}, {"", ""});
  EXPECT_EQ(ask(store, swap).values.at(0).size(), kStoreValueBytesMax / 2 + 1);
}

TEST(Store, clear_forgets_the_keys_and_keeps_who_waits) {
  KeyValueStore store;
  ask(store, make(1, StoreOp::set, {"a"}, {"1"}));
  EXPECT_TRUE(store.request(kBert, make(7, StoreOp::get, {"b"})).empty());
  store.clear();
  EXPECT_EQ(ask(store, make(2, StoreOp::num_keys)).amount, 0);
  EXPECT_EQ(store.request(kAnna, make(3, StoreOp::set, {"b"}, {"2"})).size(), 2U);
}

/// The answer to a request of this peer that does not wait.
StoreReply ask_as(KeyValueStore& store, PeerId peer, const StoreRequest& request) {
  const auto answers = store.request(peer, request);
  return answers.empty() ? StoreReply{} : answers[0].reply;
}

TEST(Store, one_peer_does_not_fill_it_for_the_others) {
  KeyValueStore store(1 << 20);
  const std::string large(100000, 'x');
  std::uint64_t id = 0;
  const auto sets = [&](PeerId peer, const std::string& key) {
    return !ask_as(store, peer, make(++id, StoreOp::set, {key}, {large})).error.failed();
  };
  std::size_t kept = 0;
  while (sets(kAnna, "a" + std::to_string(kept))) ++kept;
  EXPECT_EQ(kept, 5U) << "half of it";
  const StoreReply refused = ask_as(store, kAnna, make(++id, StoreOp::set, {"b"}, {large}));
  EXPECT_NE(refused.error.text.find("full for this peer"), std::string::npos) << refused.error.text;
  EXPECT_TRUE(sets(kBert, "b"));
  EXPECT_TRUE(sets(kAnna, "a0")) << "what it holds it may change";
  EXPECT_TRUE(sets(kBert, "a1")) << "now Bert holds it";
  EXPECT_TRUE(sets(kAnna, "a5"));
  ask_as(store, kBert, make(++id, StoreOp::remove, {"a2"}));
  EXPECT_TRUE(sets(kAnna, "a2"));
  store.clear();
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(Store, many_ids_of_one_owner_do_not_fill_it_for_the_others) {
  KeyValueStore store(1 << 20);
  const std::string large(100000, 'x');
  std::uint64_t id = 0;
  const auto sets = [&](PeerId peer, const std::string& key, const std::string& value,
                        const std::string& owner) {
    const auto answers = store.request(peer, make(++id, StoreOp::set, {key}, {value}), owner);
    return !answers.at(0).reply.error.failed();
  };
  std::size_t kept = 0;
  while (sets(PeerId{100 + kept}, "a" + std::to_string(kept), large, "red")) ++kept;
  EXPECT_EQ(kept, 5U) << "half of it, by whatever number of ids";
  EXPECT_TRUE(sets(PeerId{50}, "small", "x", "red")) << "a peer of that owner that holds little";
  for (std::uint64_t peer = 1000;
       sets(PeerId{peer}, "l" + std::to_string(peer), std::string(20000, 'x'), "red"); ++peer) {
    ASSERT_LT(peer, 2000U);
  }
  EXPECT_LE(store.bytes(), 3U << 18) << "and of such ids, too, there are not too many";
  EXPECT_TRUE(sets(PeerId{7}, "b", large, "blue"));
  EXPECT_TRUE(sets(PeerId{100}, "a0", large, "red")) << "what it holds it may change";
  store.clear();
  EXPECT_EQ(store.bytes(), 0U);
  EXPECT_TRUE(sets(PeerId{100}, "a0", large, "red"));
}

TEST(Store, two_hundred_and_fifty_six_ranks_of_one_token_have_room) {
  KeyValueStore store;
  std::uint64_t id = 0;
  for (int key = 0; key < 512; ++key) {
    for (std::uint64_t rank = 0; rank < 256; ++rank) {
      const std::string name = "group/" + std::to_string(key) + "/" + std::to_string(rank);
      const auto answers = store.request(
          PeerId{rank + 1}, make(++id, StoreOp::set, {name}, {std::string(400, 'x')}), "token");
      ASSERT_FALSE(answers.at(0).reply.error.failed()) << answers.at(0).reply.error.text;
    }
  }
}

TEST(Store, a_request_that_waits_for_several_keys_goes_on_waiting_in_a_full_store) {
  KeyValueStore store(1 << 20);
  const auto sets = [&](PeerId peer, const std::string& key, std::size_t bytes) {
    static std::uint64_t id = 1000;
    return store.request(peer, make(++id, StoreOp::set, {key}, {std::string(bytes, 'x')}), "red");
  };
  const std::string name(4000, 'k');
  std::uint64_t id = 0;
  while (id < 20) {  // more than little
    EXPECT_TRUE(
        store.request(kAnna, make(++id, StoreOp::wait, {"first", name + std::to_string(id)}), "red")
            .empty());
  }
  for (std::uint64_t peer = 50;
       !sets(PeerId{peer}, "l" + std::to_string(peer), 30000).at(0).reply.error.failed(); ++peer) {
    ASSERT_LT(peer, 200U);
  }
  EXPECT_EQ(sets(PeerId{49}, "first", 10).size(), 1U) << "none of those that wait is answered";
  store.drop(kAnna);
}

TEST(Store, keys_and_requests_that_wait_count_for_their_peer) {
  KeyValueStore store(1 << 20, kStoreAnswersBytesMax, 3);
  std::uint64_t id = 0;
  for (const char* key : {"a", "b", "c"}) {
    EXPECT_FALSE(ask_as(store, kAnna, make(++id, StoreOp::add, {key}, {}, 1)).error.failed());
  }
  EXPECT_TRUE(ask_as(store, kAnna, make(++id, StoreOp::add, {"d"}, {}, 1)).error.failed());
  EXPECT_FALSE(ask_as(store, kAnna, make(++id, StoreOp::append, {"a"}, {"x"})).error.failed());
  EXPECT_FALSE(ask_as(store, kBert, make(++id, StoreOp::add, {"d"}, {}, 1)).error.failed());

  const std::string name(4000, 'k');
  std::size_t waits = 0;
  while (store.request(kAnna, make(++id, StoreOp::wait, {name + std::to_string(waits)})).empty()) {
    ASSERT_LT(++waits, 1000U);
  }
  EXPECT_LE(waits, (1U << 19) / name.size());
  EXPECT_TRUE(store.request(kBert, make(++id, StoreOp::wait, {name})).empty());
  store.drop(kAnna);
  store.drop(kBert);
  store.clear();
  EXPECT_EQ(store.bytes(), 0U);
}

}  // namespace
}  // namespace pccl::master
