// The two ends of a relayed link have the same keys, and whoever changes what they say has none.
#include "trust/route_keys.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace pccl {
namespace {

constexpr PeerId kVia{77};

struct Side {
  KeyPair identity = KeyPair::make();
  KeyPair fresh = KeyPair::make();
  [[nodiscard]] RouteEnd said(std::uint64_t session, bool aes = true) const {
    return {peer_of(identity.public_key()), identity.public_key(), fresh.public_key(), session,
            aes};
  }
};

struct Pair {
  Side a, b;
  RouteEnd of_a = a.said(1);
  RouteEnd of_b = b.said(2);
  [[nodiscard]] std::optional<RouteKeys> at_a(PeerId via = kVia) const {
    return route_keys(a.identity, a.fresh, of_a, of_b, via);
  }
  [[nodiscard]] std::optional<RouteKeys> at_b(PeerId via = kVia) const {
    return route_keys(b.identity, b.fresh, of_b, of_a, via);
  }
};

bool agree(const RouteKeys& a, const RouteKeys& b) {
  return a.cipher == b.cipher && a.own_proof.same_as(b.their_proof) &&
         a.their_proof.same_as(b.own_proof) && a.ordered_out.same_as(b.ordered_in) &&
         a.ordered_in.same_as(b.ordered_out) && a.loose_out.same_as(b.loose_in) &&
         a.loose_in.same_as(b.loose_out);
}

std::vector<Secret> all(const RouteKeys& keys) {
  return {keys.own_proof,  keys.their_proof, keys.ordered_out,
          keys.ordered_in, keys.loose_out,   keys.loose_in};
}

bool nothing_in_common(const RouteKeys& one, const RouteKeys& other) {
  for (const Secret& mine : all(one)) {
    for (const Secret& theirs : all(other)) {
      if (mine.same_as(theirs)) return false;
    }
  }
  return true;
}

TEST(RouteKeys, both_ends_have_the_same_and_each_direction_and_use_its_own) {
  const Pair pair;
  const RouteKeys keys = *pair.at_a();
  EXPECT_TRUE(agree(keys, *pair.at_b()));
  const std::vector<Secret> secrets = all(keys);
  for (std::size_t i = 0; i < secrets.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(secrets[i].same_as(secrets[j]));
  }
}

TEST(RouteKeys, whatever_is_changed_on_the_way_leaves_the_ends_nothing_in_common) {
  const Pair pair;
  const RouteKeys right = *pair.at_a();
  const KeyPair liar = KeyPair::make();
  const std::vector<std::function<void(RouteEnd&)>> lies = {
      [&](RouteEnd& end) { end.fresh = liar.public_key(); },
      [&](RouteEnd& end) { end.key = liar.public_key(); },
      [](RouteEnd& end) { ++end.session; },
      [](RouteEnd& end) { ++end.peer.value; },
      [](RouteEnd& end) { end.aes = false; },
  };
  for (const auto& lie : lies) {
    Pair lied = pair;
    lie(lied.of_a);
    EXPECT_TRUE(nothing_in_common(right, *lied.at_b()));
  }
  EXPECT_TRUE(nothing_in_common(right, *pair.at_b(PeerId{78})));
}

TEST(RouteKeys, neither_the_key_of_a_process_nor_a_fresh_key_alone_makes_them) {
  const Pair pair;
  const RouteKeys right = *pair.at_a();
  const Side thief;
  // Has stolen the key pair of `a`, but not what `a` has drawn for this link; and the other way
  // round.
  const auto later = route_keys(pair.a.identity, thief.fresh, pair.of_a, pair.of_b, kVia);
  EXPECT_TRUE(nothing_in_common(right, *later));
  const auto drawn = route_keys(thief.identity, pair.a.fresh, pair.of_a, pair.of_b, kVia);
  EXPECT_TRUE(nothing_in_common(right, *drawn));
}

TEST(RouteKeys, what_is_sent_back_to_its_sender_or_of_small_order_is_refused) {
  const Pair pair;
  EXPECT_FALSE(route_keys(pair.a.identity, pair.a.fresh, pair.of_a, pair.of_a, kVia));
  RouteEnd reflected = pair.of_b;
  reflected.fresh = pair.of_a.fresh;
  EXPECT_FALSE(route_keys(pair.a.identity, pair.a.fresh, pair.of_a, reflected, kVia));
  reflected = pair.of_b;
  reflected.key = pair.of_a.key;
  EXPECT_FALSE(route_keys(pair.a.identity, pair.a.fresh, pair.of_a, reflected, kVia));
  for (std::uint8_t point = 0; point < 2; ++point) {
    RouteEnd small = pair.of_b;
    small.fresh = {point};
    EXPECT_FALSE(route_keys(pair.a.identity, pair.a.fresh, pair.of_a, small, kVia));
    small = pair.of_b;
    small.key = {point};
    EXPECT_FALSE(route_keys(pair.a.identity, pair.a.fresh, pair.of_a, small, kVia));
  }
}

TEST(RouteKeys, aes_is_taken_where_both_processors_have_it) {
  Pair pair;
  EXPECT_EQ(pair.at_a()->cipher, Cipher::aes_128_gcm);
  pair.of_b = pair.b.said(2, false);
  EXPECT_EQ(pair.at_a()->cipher, Cipher::chacha20_poly1305);
  EXPECT_TRUE(agree(*pair.at_a(), *pair.at_b()));
}

}  // namespace
}  // namespace pccl
