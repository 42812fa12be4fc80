#include "transport/lane_dial.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/protocol.h"
#include "base/text.h"

namespace pccl {

LaneDial::LaneDial(Loop& loop, const Handle& to, const std::vector<std::string>& addresses,
                   const LaneHello& hello, std::uint64_t user_timeout_ms, Events events)
    : loop_(loop), key_(to.key), hello_(hello), events_(std::move(events)) {
  connector_ = std::make_unique<Connector>(
      loop, addresses, user_timeout_ms,
      Connector::Events{
          [this](Socket socket, const std::string& at) { connected(std::move(socket), at); },
          [this](const std::string& what, bool refused) {
            const auto failed = events_.failed;
            failed({what, refused, final_});
          }});
}

LaneDial::~LaneDial() { drop_talk(); }

std::string LaneDial::report() const {
  std::string text = connector_->report();
  if (talk_) add_to_list(text, address_ + ": connected, but no answer", "; ");
  return text;
}

void LaneDial::connected(Socket socket, const std::string& address) {
  address_ = address;
  random_bytes(hello_.nonce);
  talk_ = std::make_shared<Talk>(loop_, std::make_unique<TcpStream>(loop_, std::move(socket)),
                                 kHandshakeMs);
  talk_->on_failed([this](const std::string& reason) { next(reason, reason == kNotPccl); });
  talk_->expect(
      kOpeningBytes, [this](std::span<const std::byte> bytes) { opened(bytes); }, may_be_opening);
  std::vector<std::byte> first;
  const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::lane});
  const auto hello = encode_lane_hello(hello_);
  first.insert(first.end(), opening.begin(), opening.end());
  first.insert(first.end(), hello.begin(), hello.end());
  talk_->send(first);
}

void LaneDial::opened(std::span<const std::byte> bytes) {
  const auto opening = decode_opening(bytes);
  if (!opening) return next(opening.error().text, true);
  if (opening.value().version != kProtocolVersion) {
    return next("it speaks protocol version " + std::to_string(opening.value().version) +
                    ", this process " + std::to_string(kProtocolVersion),
                true);
  }
  if (opening.value().purpose != Purpose::lane) return next("a master answers there", true);
  talk_->expect(kLaneOfferBytes, [this](std::span<const std::byte> offer) { offered(offer); });
}

void LaneDial::offered(std::span<const std::byte> bytes) {
  const auto decoded = decode_lane_offer(bytes);
  if (!decoded) return next(decoded.error().text, true);
  const LaneOffer& offer = decoded.value();
  if (offer == not_the_one()) return next("another process answers there", true);
  if (!same_proof(offer.proof, lane_proof(key_, Side::acceptor, hello_, offer))) {
    return next("it cannot prove to hold the peer's key", true);
  }
  const Proof proof = lane_proof(key_, Side::dialer, hello_, offer);
  talk_->send(std::as_bytes(std::span(proof)));
  talk_->expect(kLaneAnswerBytes, [this](std::span<const std::byte> answer) { answered(answer); });
}

void LaneDial::answered(std::span<const std::byte> bytes) {
  const auto verdict = decode_lane_answer(bytes);
  if (!verdict) return next(verdict.error().text, true);
  if (verdict.value() != LaneVerdict::accepted) return next("it refuses our proof", true);
  std::unique_ptr<Stream> stream = talk_->take();
  drop_talk();
  const auto done = events_.proven;  // it may destroy this
  const std::string address = address_;
  done(std::move(stream), address);
}

void LaneDial::next(const std::string& why, bool final) {
  final_ = final_ || final;
  drop_talk();
  connector_->next(address_, why);
}

void LaneDial::drop_talk() {
  if (!talk_) return;
  talk_->on_failed(nullptr);
  if (!talk_->over()) talk_->drop();
  talk_.reset();
}

LinkDial::LinkDial(Loop& loop, PeerId self, const Handle& to, std::uint8_t lanes,
                   std::uint64_t user_timeout_ms, Events events)
    : loop_(loop),
      to_(to),
      user_timeout_ms_(user_timeout_ms),
      events_(std::move(events)),
      streams_(lanes),
      dials_(lanes) {
  hello_.dialer = self;
  hello_.acceptor = to.peer;
  hello_.link = random_u64();
  hello_.lanes = lanes;
  dial(0, to.addresses);
}

void LinkDial::dial(std::uint8_t lane, const std::vector<std::string>& addresses) {
  LaneHello hello = hello_;
  hello.lane = lane;
  dials_[lane] = std::make_unique<LaneDial>(
      loop_, to_, addresses, hello, user_timeout_ms_,
      LaneDial::Events{[this, lane](std::unique_ptr<Stream> stream, const std::string& address) {
                         proven(lane, std::move(stream), address);
                       },
                       [this](const LaneDial::Failure& failure) {
                         const auto failed = events_.failed;
                         failed(failure);
                       }});
}

void LinkDial::proven(std::uint8_t lane, std::unique_ptr<Stream> stream,
                      const std::string& address) {
  streams_[lane] = std::move(stream);
  dials_[lane].reset();
  ++proven_;
  if (lane == 0) {
    for (std::uint8_t bulk = 1; bulk < streams_.size(); ++bulk) dial(bulk, {address});
  }
  if (proven_ == streams_.size()) {
    const auto done = events_.proven;
    done(std::move(streams_));
  }
}

bool LinkDial::connected() const {
  return proven_ > 0 || std::any_of(dials_.begin(), dials_.end(),
                                    [](const auto& dial) { return dial && dial->talks(); });
}

std::string LinkDial::report() const {
  for (const auto& dial : dials_) {
    if (dial) return dial->report();
  }
  return "";
}

}  // namespace pccl
