#include "master/ask.h"

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "transport/loop.h"
#include "transport/network.h"
#include "wire/codec.h"

namespace pccl {
namespace {

Result<Status> answer_of(std::span<const std::byte> payload) {
  auto message = decode_master_to_peer(payload);
  if (!message) return message.error();
  if (auto* status = std::get_if<Status>(&message.value())) return std::move(*status);
  const auto* refusal = std::get_if<Refuse>(&message.value());
  if (refusal == nullptr) return Error{ErrorCode::malformed, "an answer to something else"};
  if (refusal->error.code != ErrorCode::malformed) return refusal->error;
  return Error{ErrorCode::refused,
               "this master is of a version that does not tell (" + refusal->error.text + ")"};
}

}  // namespace

Result<Status> ask_status(const std::string& address, const std::string& run,
                          std::uint64_t timeout_ms, std::shared_ptr<const Tokens> tokens) {
  Loop loop;
  TcpNetwork network(loop, KeyPair::make(), std::move(tokens));
  std::optional<Result<Status>> answer;
  std::unique_ptr<Channel> channel;
  const auto done = [&](Result<Status> result) {
    if (!answer) answer.emplace(std::move(result));
    loop.stop();
  };
  const auto timer = network.clock().timer(timeout_ms, 0, [&] {
    done(Error{ErrorCode::unreachable,
               address + ": no answer within " + std::to_string(timeout_ms) + " ms"});
  });
  const auto dial =
      network.dial(address, run, timeout_ms, [&](Result<std::unique_ptr<Channel>> made) {
        if (!made) return done(Error{made.error().code, address + ": " + made.error().text});
        channel = std::move(made).value();
        channel->trust();
        channel->set_events({[&](std::span<const std::byte> payload) { done(answer_of(payload)); },
                             [&](const std::string& reason) {
                               done(Error{ErrorCode::unreachable, address + ": " + reason});
                             }});
        channel->send(encode(PeerToMaster{StatusRequest{run, run.empty()}}));
      });
  loop.run();
  return std::move(*answer);
}

}  // namespace pccl
