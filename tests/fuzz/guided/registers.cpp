// The state file of a master: any bytes, and any register with a right checksum, from which a
// master takes over, meets a newcomer and a member, and lets time go on.
#include <string>
#include <variant>

#include "base/protocol.h"
#include "input.h"
#include "master/register_file.h"
#include "membership/master.h"
#include "targets.h"
#include "wire/cbor.h"

namespace pccl::fuzz {
namespace {

void answer_writes(master::State& state, const master::Actions& actions, int depth = 0) {
  for (const auto& action : actions) {
    const auto* write = std::get_if<master::WriteRegister>(&action);
    if (write == nullptr || depth > 100) continue;
    answer_writes(state, master::step(state, master::RegisterWritten{write->to, true}), depth + 1);
  }
}

void take_over(const master::Register& held, Input in) {
  master::State state;
  state.config.run = "r";
  const std::uint8_t how = in.byte();
  state.config.adopt = (how & 1) != 0;
  state.config.refound = (how & 2) != 0;
  state.config.again = (how & 4) != 0;
  state.config.shared = (how & 8) != 0;
  const auto step = [&](const master::Event& event) {
    answer_writes(state, master::step(state, event));
  };
  step(master::TakenOver{held});
  Hello hello;
  hello.member.handle.peer = PeerId{77};
  hello.run = "r";
  step(master::PeerConnected{hello});
  if (held.epoch && !held.epoch->members.empty()) {
    hello.member = held.epoch->members.front();
    hello.report.started = hello.report.accepted = held.epoch->id;
    step(master::PeerConnected{hello});
    step(master::PeerMessage{hello.member.handle.peer, Heartbeat{}});
    step(master::PeerGone{hello.member.handle.peer, "it is gone"});
  }
  step(master::Clock{10, 1000});
  step(master::PatienceOver{});
  step(master::FoundingOver{});
  step(master::RefoundOver{});
  step(master::Clock{100, 2000});
  (void)master::standstill(state);
  (void)master::founders_apart(state);
  step(master::OperatorStops{});
}

}  // namespace

void registers(Bytes input) {
  Input in(input);
  if (in.flag()) {
    const std::string text = text_of(in.rest());
    (void)master::register_of(text, "r", "F");
    if (const auto held = master::parse_register(text)) {
      const auto same = master::parse_register(master::format_register(held.value()));
      require(same.ok() && same.value() == held.value(), "the same register");
    }
    return;
  }
  Input how(in.take(1));
  const auto held = cbor::decode_struct<master::NamedRegister>(in.rest(), "register");
  if (held) take_over(held.value().value, how);
}

}  // namespace pccl::fuzz
