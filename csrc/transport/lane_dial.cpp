#include "transport/lane_dial.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/protocol.h"
#include "base/text.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"
#include "transport/shared_stream.h"
#include "trust/random_bytes.h"

namespace pccl {
namespace {
constexpr const char* kHere = "the unix socket of this machine";
}

LaneDial::LaneDial(Loop& loop, const Dialler& dialler, const Handle& to, const LaneHello& hello,
                   Events events)
    : loop_(loop), dialler_(dialler), to_(to), hello_(hello), events_(std::move(events)) {
  auto here = dialler.local ? connect_locally(loop, to.peer) : std::nullopt;
  if (here) {
    connected(std::move(*here), "");
  } else {
    connect();
  }
}

void LaneDial::connect() {
  connector_ = std::make_unique<Connector>(
      loop_, to_.addresses, Connector::From::peer, dialler_.small_packets, dialler_.user_timeout_ms,
      Connector::Events{
          [this](Socket socket, const std::string& at) { connected(std::move(socket), at); },
          [this](const std::string& what, bool refused) {
            std::string seen = seen_locally_;
            add_to_list(seen, what, "; ");
            const auto failed = events_.failed;
            failed({seen, refused, final_});
          }});
}

LaneDial::~LaneDial() { drop_talk(); }

std::string LaneDial::report() const {
  std::string text = seen_locally_;
  if (connector_ && !connector_->report().empty()) add_to_list(text, connector_->report(), "; ");
  if (talk_) add_to_list(text, (connector_ ? address_ : kHere) + ": " + kNoAnswer, "; ");
  return text;
}

void LaneDial::connected(Socket socket, const std::string& address) {
  address_ = address;
  proven_ = false;
  offered_ = false;
  talk_ = std::make_shared<Talk>(loop_, std::make_unique<SocketStream>(loop_, std::move(socket)),
                                 kHandshakeMs);
  talk_->on_failed([this](const TalkEnd& end) {
    next(end.at_dialled(),
         end.how == TalkEnd::How::not_pccl || end.how == TalkEnd::How::not_proven);
  });
  talk_->expect(
      kOpeningBytes, [this](std::span<const std::byte> bytes) { opened(bytes); }, may_be_opening);
  hello_.capabilities = lane_capabilities(dialler_.plaintext, talk_->loopback(), talk_->local());
  hello_.fills = !hello_.joins && !talk_->local();
  std::vector<std::byte> first;
  const OpeningBytes opening = encode_opening({kProtocolVersion, Purpose::lane});
  const auto hello = encode_lane_hello(hello_);
  first.insert(first.end(), opening.begin(), opening.end());
  first.insert(first.end(), hello.begin(), hello.end());
  talk_->send(first);
  if (!hello_.fills || talk_->over()) return;
  talk_->send(std::vector<std::byte>(kFillerBytes));  // behind a packet that is small
  if (!talk_->over()) look_for_packets_later(kFullPacketMs + 4 * talk_->trip_us() / 1000);
}

void LaneDial::look_for_packets_later(std::uint64_t after_ms) {
  look_ = loop_.timer(std::min(after_ms, kHandshakeMs - kFullPacketMs), 0,
                      [this] { look_for_packets(); });
}

/// What was sent before the filler has arrived, and not a byte of the filler; or the peer's offer
/// has come, and not a byte of its filler. A line that is slow, and a process that is stopped, show
/// something else; so does a line that carries nothing.
void LaneDial::look_for_packets() {
  if (talk_->over()) return;
  const bool there = talk_->unacknowledged_bytes() != kFillerBytes;
  const bool back = !offered_ || !talk_->waits_for_all();
  if (there && back) return look_for_packets_later(kFullPacketMs / 4);
  if (connector_->small_packets()) {
    return next("packets of full size have no answer there, and small ones neither", false);
  }
  drop_talk();
  connector_->again_with_small_packets();
}

void LaneDial::opened(std::span<const std::byte> bytes) {
  const auto opening = decode_opening(bytes);
  if (!opening) return next(opening.error().text, true);
  if (opening.value().version != kProtocolVersion) {
    return next(other_version(opening.value()), true);
  }
  if (opening.value().purpose != Purpose::lane) return next("a master answers there", true);
  talk_->expect(kLaneOfferBytes, [this](std::span<const std::byte> offer) { offered(offer); });
}

void LaneDial::offered(std::span<const std::byte> bytes) {
  const auto decoded = decode_lane_offer(bytes);
  if (!decoded) return next(decoded.error().text, true);
  offer_ = decoded.value();
  if (offer_.another) return next("another process answers there", true);
  if (!hello_.fills) return protect();
  offered_ = true;
  look_for_packets_later(kFullPacketMs + 2 * talk_->trip_us() / 1000);
  talk_->expect(kFillerBytes, [this](std::span<const std::byte>) { protect(); });
}

void LaneDial::protect() {
  look_.reset();
  const std::optional<Secret> shared = dialler_.identity.shared_with(to_.key);
  if (!shared) return next("the public key of the peer is none", true);
  const Secret key =
      lane_secret(*shared, hello_, to_.key, offer_, talk_->local() ? local_place() : "");
  talk_->protect(
      [this, &key](std::unique_ptr<Stream> stream) {
        return TlsStream::dial(loop_, std::move(stream), kLaneIdentity, key);
      },
      "it cannot prove to hold the peer's key", [this] { proven(); });
}

void LaneDial::proven() {
  // The peer may have made the lane a part of its link: closing the lane now could end a link that
  // is up there. So only the deadline of a joining lane, or that of the link, ends this wait; the
  // link waits a little longer for the answer.
  talk_->wait();
  proven_ = true;
  talk_->expect(kLaneAnswerBytes, [this](std::span<const std::byte> answer) { answered(answer); });
}

void LaneDial::answered(std::span<const std::byte> bytes) {
  const auto verdict = decode_lane_answer(bytes);
  if (!verdict) return next(verdict.error().text, true);
  if (verdict.value() == LaneVerdict::no_such_link) return next("it has no such link", true);
  const std::uint32_t agreed = hello_.capabilities & offer_.capabilities;
  std::unique_ptr<Stream> stream = talk_->take(goes_plain(agreed));
  if (!stream) return next("it sends bytes before the end of the handshake", true);
  drop_talk();
  if (goes_shared(agreed)) {
    const std::size_t bulk = dialler_.only_peer ? kOnlyBulkRingBytes : kBulkRingBytes;
    stream = offer_shared_memory(loop_, std::move(stream), hello_.joins ? bulk : kSmallRingBytes);
  }
  const auto done = events_.proven;  // the callback may destroy this
  const std::string address = address_;
  done(std::move(stream), address);
}

void LaneDial::next(const std::string& why, bool final) {
  drop_talk();
  if (!connector_) {
    // A peer that has proven itself there says the same at its other addresses: the owner tries
    // again. Another process may have its name; that is no reason to give the peer up.
    if (proven_) {
      const auto failed = events_.failed;
      return failed({why, /*refused=*/false, /*final=*/false});
    }
    seen_locally_ = std::string(kHere) + ": " + why;
    return connect();
  }
  final_ = final_ || final;
  connector_->next(address_, why);
}

void LaneDial::drop_talk() {
  look_.reset();
  if (!talk_) return;
  talk_->on_failed(nullptr);
  if (!talk_->over()) talk_->drop();
  talk_.reset();
}

LaneJoin::LaneJoin(Loop& loop, const Dialler& dialler, const Handle& to, const LaneHello& hello,
                   std::uint64_t deadline_ms, Events events)
    : loop_(loop), dialler_(dialler), to_(to), hello_(hello), events_(std::move(events)) {
  deadline_ = loop_.timer(deadline_ms, 0, [this] {
    std::string seen = dial_ ? dial_->report() : "";
    if (!last_failure_.empty()) add_to_list(seen, last_failure_, "; before that: ");
    const auto given_up = events_.given_up;
    given_up(seen);
  });
  dial();
}

void LaneJoin::dial() {
  dial_ = std::make_unique<LaneDial>(
      loop_, dialler_, to_, hello_,
      LaneDial::Events{[this](std::unique_ptr<Stream> stream, const std::string&) {
                         const auto joined = events_.joined;
                         joined(std::move(stream));
                       },
                       [this](const LaneDial::Failure& failure) { failed(failure.what); }});
}

/// The link may be there in a moment (its peer has not heard yet that it is), and a full gate may
/// have room.
void LaneJoin::failed(const std::string& why) {
  last_failure_ = why;
  backoff_ms_ = std::clamp(backoff_ms_ * 2, kBackoffMsMin, kBackoffMsMax);
  dial_.reset();
  retry_ = loop_.timer(backoff_ms_ / 2 + random_u64() % (backoff_ms_ / 2), 0, [this] { dial(); });
}

}  // namespace pccl
