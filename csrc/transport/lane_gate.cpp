#include "transport/lane_gate.h"

#include <utility>

#include "transport/local_socket.h"
#include "transport/shared_stream.h"

namespace pccl {

LaneGate::LaneGate(Loop& loop, LaneGateOwner& owner, const KeyPair& identity, Plaintext plaintext,
                   std::vector<Socket> listening)
    : loop_(loop),
      owner_(owner),
      identity_(identity),
      self_(peer_of(identity.public_key())),
      plaintext_(plaintext),
      gate_(loop, std::move(listening), Purpose::lane, [this](const std::shared_ptr<Talk>& talk) {
        talk->expect(kLaneHelloBytes,
                     [this, weak = std::weak_ptr(talk)](std::span<const std::byte> bytes) {
                       if (const auto open = weak.lock()) greeted(open, bytes);
                     });
      }) {}

void LaneGate::greeted(const std::shared_ptr<Talk>& talk, std::span<const std::byte> bytes) {
  const auto decoded = decode_lane_hello(bytes);
  if (!decoded) return talk->fail(decoded.error().text);
  const LaneHello& hello = decoded.value();
  const std::string remote_host = talk->remote_host();
  if (hello.acceptor != self_) {
    gate_.refusals()->refused(remote_host, "it looks for another process");
    talk->on_failed(nullptr);
    talk->send(encode_lane_offer({.another = true, .capabilities = 0}));
    return talk->finish();
  }
  if (hello.dialer == identity_.public_key()) {
    return talk->fail("it says that it is this process");
  }
  if (hello.joins || hello.fills) {
    // A dialler drops a lane whose link it has closed meanwhile, and a first one whose packets have
    // no answer: no line in the log.
    talk->on_failed([log = gate_.refusals(), remote_host](const TalkEnd& end) {
      if (end.how == TalkEnd::How::not_proven) log->refused(remote_host, end.reason);
    });
  }
  if (!hello.fills) return offer(talk, hello);
  talk->expect(kFillerBytes, [this, hello, weak = std::weak_ptr(talk)](std::span<const std::byte>) {
    if (const auto open = weak.lock()) offer(open, hello);
  });
}

void LaneGate::offer(const std::shared_ptr<Talk>& talk, const LaneHello& hello) {
  const LaneOffer offer{
      .another = false,
      .capabilities = lane_capabilities(plaintext_, talk->loopback(), talk->local())};
  talk->send(encode_lane_offer(offer));
  if (hello.fills) talk->send(std::vector<std::byte>(kFillerBytes));
  // Strangers that stop here cost no exchange of keys: it is made when the dialler names the key.
  const auto find = [own = identity_, hello, offer,
                     local = talk->local()](std::string_view name) -> std::optional<Secret> {
    if (name != kLaneIdentity) return std::nullopt;
    const std::optional<Secret> shared = own.shared_with(hello.dialer);
    if (!shared) return std::nullopt;
    return lane_secret(*shared, hello, own.public_key(), offer, local ? local_place() : "");
  };
  talk->protect(
      [this, &find](std::unique_ptr<Stream> stream) {
        return TlsStream::accept(loop_, std::move(stream), find);
      },
      "it cannot prove to be peer " + to_string(peer_of(hello.dialer)),
      [this, hello, offer, weak = std::weak_ptr(talk)] {
        if (const auto open = weak.lock()) proven(open, hello, offer);
      });
}

void LaneGate::proven(const std::shared_ptr<Talk>& talk, const LaneHello& hello,
                      const LaneOffer& offer) {
  if (!hello.joins && !owner_.may_dial(hello)) {
    // Of two peers that dial each other the one with the smaller id decides which link it is, so
    // that they never make two. The peer that is turned away tries again.
    talk->on_failed(nullptr);
    return talk->drop();
  }
  if (hello.joins && !owner_.takes_lane(hello)) {
    talk->send(encode_lane_answer(LaneVerdict::no_such_link));
    return talk->finish();
  }
  talk->send(encode_lane_answer(LaneVerdict::accepted));
  if (talk->over()) return;
  const std::uint32_t agreed = hello.capabilities & offer.capabilities;
  auto stream = talk->take(goes_plain(agreed));
  if (!stream) return;
  if (goes_shared(agreed)) stream = await_shared_memory(loop_, std::move(stream));
  owner_.lane_arrived(hello, std::move(stream));
}

}  // namespace pccl
