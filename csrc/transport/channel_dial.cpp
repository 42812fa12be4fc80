// The dialling side of channels: each address in turn, the opening, the entrance.
#include <utility>

#include "base/protocol.h"
#include "base/text.h"
#include "transport/channel_connection.h"
#include "transport/connector.h"
#include "transport/handshake.h"
#include "transport/talk.h"

namespace pccl {
namespace {

// The dialling side may wait for room at the other side, and Linux counts that time too. The owner
// notices by silence that the other side is gone.
constexpr std::uint64_t kDialledUserTimeoutMs = kLargeWaitMs + 30000;

class TcpDial : public Dial {
 public:
  TcpDial(Loop& loop, const std::string& address, std::uint64_t timeout_ms,
          std::function<void(Result<std::unique_ptr<Channel>>)> done, const Entry& entry)
      : loop_(loop), address_(address), entry_(entry), done_(std::move(done)) {
    connector_ = std::make_unique<Connector>(
        loop, std::vector{address}, Connector::From::user, /*small_packets=*/true,
        kDialledUserTimeoutMs,
        Connector::Events{
            [this](Socket socket, const std::string& at) { connected(std::move(socket), at); },
            [this](const std::string& what, bool) {
              finish({refusal_.failed() ? refusal_.code : ErrorCode::unreachable, unnamed(what)});
            }});
    deadline_ = loop_.timer(timeout_ms, 0, [this, timeout_ms] {
      finish({ErrorCode::unreachable,
              report() + " (tried for " + std::to_string(timeout_ms) + " ms)"});
    });
  }
  ~TcpDial() override { drop_talk(); }

  [[nodiscard]] std::string report() const override {
    std::string text = connector_->report();
    if (talk_) add_to_list(text, at_ + ": " + kNoAnswer, "; ");
    return unnamed(text);
  }
  [[nodiscard]] bool kept_out() const override { return kept_out_; }

 private:
  /// The text without the dialled address at its beginning: the caller names this address.
  [[nodiscard]] std::string unnamed(const std::string& text) const {
    return text.starts_with(address_ + ": ") ? text.substr(address_.size() + 2) : text;
  }

  void connected(Socket socket, const std::string& at) {
    at_ = at;
    talk_ = std::make_shared<Talk>(loop_, std::make_unique<SocketStream>(loop_, std::move(socket)),
                                   kHandshakeMs);
    talk_->on_failed([this](const TalkEnd& end) {
      kept_out_ = kept_out_ || end.how == TalkEnd::How::not_proven;
      if (end.how == TalkEnd::How::not_proven || end.how == TalkEnd::How::not_pccl) {
        refusal_.code = ErrorCode::refused;
      }
      try_next(end.at_dialled());
    });
    talk_->expect(
        kOpeningBytes, [this](std::span<const std::byte> bytes) { answered(bytes); },
        may_be_opening);
    talk_->send(encode_opening({kProtocolVersion, Purpose::channel}));
  }

  void answered(std::span<const std::byte> bytes) {
    const auto opening = decode_opening(bytes);
    std::string wrong;
    if (!opening) {
      wrong = opening.error().text;
    } else if (opening.value().version != kProtocolVersion) {
      wrong = other_version(opening.value());
    } else if (opening.value().purpose != Purpose::channel) {
      wrong = "a pccl peer answers there, not a master";
    }
    if (!wrong.empty()) {
      refusal_.code = ErrorCode::refused;
      return try_next(wrong);
    }
    enter(loop_, talk_, entry_, [this](const Error& error) { entered(error); });
  }

  void entered(const Error& error) {
    if (error.failed()) {
      kept_out_ = error.code == ErrorCode::refused;
      refusal_.code = ErrorCode::refused;
      return try_next(error.text);
    }
    finish(channel_over(std::make_shared<ChannelConnection>(loop_, talk_->take(), Caller{}, true,
                                                            ChannelLimits{}, nullptr)));
  }

  void try_next(const std::string& why) {
    drop_talk();
    connector_->next(at_, why);
  }

  void drop_talk() {
    if (!talk_) return;
    talk_->on_failed(nullptr);
    if (!talk_->over()) talk_->drop();
    talk_.reset();
  }

  void finish(Result<std::unique_ptr<Channel>> result) {
    deadline_.reset();
    drop_talk();
    connector_.reset();
    const auto done = std::move(done_);  // the callback may destroy this
    done(std::move(result));
  }

  Loop& loop_;
  std::string address_;
  Entry entry_;
  bool kept_out_ = false;
  std::function<void(Result<std::unique_ptr<Channel>>)> done_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Timer> deadline_;
  std::shared_ptr<Talk> talk_;
  std::string at_;
  Error refusal_;
};

}  // namespace

std::unique_ptr<Dial> dial_channel(Loop& loop, const std::string& address, std::uint64_t timeout_ms,
                                   std::function<void(Result<std::unique_ptr<Channel>>)> done,
                                   const Entry& entry) {
  return std::make_unique<TcpDial>(loop, address, timeout_ms, std::move(done), entry);
}

}  // namespace pccl
