#include "transport/lane_gate.h"

#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "transport/sys.h"

namespace pccl {

LaneGate::LaneGate(Loop& loop, PeerId self, const LinkKey& key, std::vector<Socket> listening,
                   std::uint64_t user_timeout_ms, Arrived arrived, MayDial may_dial)
    : loop_(loop),
      self_(self),
      key_(key),
      arrived_(std::move(arrived)),
      may_dial_(std::move(may_dial)),
      gate_(loop, std::move(listening), Purpose::lane, user_timeout_ms,
            [this](const std::shared_ptr<Talk>& talk) {
              talk->expect(kLaneHelloBytes,
                           [this, weak = std::weak_ptr(talk)](std::span<const std::byte> bytes) {
                             if (const auto open = weak.lock()) greeted(open, bytes);
                           });
            }) {}

void LaneGate::close() {
  gate_.close();
  incomplete_.clear();
  sweep_.reset();
}

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
  if (said.dialer > self_) {
    // Of two peers that dial each other the one with the smaller id decides which link it is, so
    // that they never make two. Who is turned away tries again.
    const auto begun = incomplete_.find(said.dialer);
    const bool goes_on = begun != incomplete_.end() && begun->second.link == said.link;
    if (!goes_on && !may_dial_(said.dialer)) {
      talk->on_failed(nullptr);
      return talk->drop();
    }
  }
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
  talk->send(encode_lane_answer(LaneVerdict::accepted));
  if (talk->over()) return;
  collect(hello, talk->take());
}

void LaneGate::collect(const LaneHello& hello, std::unique_ptr<Stream> stream) {
  Incomplete& link = incomplete_[hello.dialer];
  if (link.count == 0 || link.link != hello.link || link.lanes.size() != hello.lanes) {
    link = Incomplete{hello.link, loop_.now_ms(), std::vector<std::unique_ptr<Stream>>(hello.lanes),
                      0};
  }
  if (!link.lanes[hello.lane]) ++link.count;
  link.lanes[hello.lane] = std::move(stream);
  if (link.count < link.lanes.size()) {
    if (!sweep_) sweep_ = loop_.timer(kHandshakeMs, 0, [this] { sweep(); });
    return;
  }
  std::vector<std::unique_ptr<Stream>> lanes = std::move(link.lanes);
  incomplete_.erase(hello.dialer);
  arrived_(hello.dialer, std::move(lanes));
}

void LaneGate::sweep() {
  sweep_.reset();
  const std::uint64_t now = loop_.now_ms();
  std::erase_if(incomplete_,
                [&](const auto& entry) { return now - entry.second.since_ms >= kHandshakeMs; });
  if (!incomplete_.empty()) sweep_ = loop_.timer(kHandshakeMs, 0, [this] { sweep(); });
}

}  // namespace pccl
