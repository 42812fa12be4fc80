#include "transport/lane_gate.h"

#include <utility>

#include "transport/sys.h"

namespace pccl {

LaneGate::LaneGate(Loop& loop, LaneGateOwner& owner, PeerId self, const LinkKey& key,
                   std::vector<Socket> listening, std::uint64_t user_timeout_ms)
    : owner_(owner),
      self_(self),
      key_(key),
      gate_(loop, std::move(listening), Purpose::lane, user_timeout_ms,
            [this](const std::shared_ptr<Talk>& talk) {
              talk->expect(kLaneHelloBytes,
                           [this, weak = std::weak_ptr(talk)](std::span<const std::byte> bytes) {
                             if (const auto open = weak.lock()) greeted(open, bytes);
                           });
            }) {}

void LaneGate::greeted(const std::shared_ptr<Talk>& talk, std::span<const std::byte> bytes) {
  const auto hello = decode_lane_hello(bytes);
  if (!hello) return talk->fail(hello.error().text);
  const LaneHello& said = hello.value();
  if (said.acceptor != self_) {
    gate_.refusals().refused(talk->remote_host(), "it looks for another process");
    talk->on_failed(nullptr);
    talk->send(encode_lane_offer(not_the_one()));
    return talk->finish();
  }
  if (said.dialer == self_) return talk->fail("it says that it is this process");
  if (!said.joins && said.dialer > self_ && !owner_.may_dial(said.dialer)) {
    // Of two peers that dial each other the one with the smaller id decides which link it is, so
    // that they never make two. The peer that is turned away tries again.
    talk->on_failed(nullptr);
    return talk->drop();
  }
  // A dialler drops a lane whose link it has closed meanwhile: no line in the log.
  if (said.joins) talk->on_failed(nullptr);
  LaneOffer offer;
  random_bytes(offer.nonce);
  offer.proof = lane_proof(key_, Side::acceptor, said, offer);
  talk->send(encode_lane_offer(offer));
  talk->expect(kLaneProofBytes,
               [this, said, offer, weak = std::weak_ptr(talk)](std::span<const std::byte> proof) {
                 if (const auto open = weak.lock()) proven(open, said, offer, proof);
               });
}

void LaneGate::proven(const std::shared_ptr<Talk>& talk, const LaneHello& hello,
                      const LaneOffer& offer, std::span<const std::byte> bytes) {
  Proof proof{};
  for (std::size_t i = 0; i < proof.size(); ++i) proof[i] = static_cast<std::uint8_t>(bytes[i]);
  if (!same_proof(proof, lane_proof(key_, Side::dialer, hello, offer))) {
    gate_.refusals().refused(talk->remote_host(), "it cannot prove to hold this process's key");
    talk->on_failed(nullptr);
    talk->send(encode_lane_answer(LaneVerdict::wrong_proof));
    return talk->finish();
  }
  if (hello.joins && !owner_.takes_lane(hello.dialer, hello.link)) {
    talk->send(encode_lane_answer(LaneVerdict::no_such_link));
    return talk->finish();
  }
  talk->send(encode_lane_answer(LaneVerdict::accepted));
  if (talk->over()) return;
  owner_.lane_arrived(hello, talk->take());
}

}  // namespace pccl
