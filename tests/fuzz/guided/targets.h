// The parsers that coverage-guided fuzzers try (scripts/fuzz), one function for each: it takes any
// bytes, and ends the process if a property does not hold. Built with libFuzzer each is a program
// (libfuzzer.cpp); without it replay.cpp runs all of them over their corpora.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace pccl::fuzz {

using Bytes = std::span<const std::byte>;

void wire(Bytes input);       // control messages, and what the register holds
void lane(Bytes input);       // frames on a lane; what is said before the first one; relay messages
void slices(Bytes input);     // slices of segments over the lanes of one link
void tokens(Bytes input);     // token files and lines, identities, seals
void registers(Bytes input);  // the state file of a master, and a master that takes over from it
void state(Bytes input);      // the plan and the fetch of a shared state
void doors(Bytes input);      // connections before they are proven, on both sides
void relays(Bytes input);     // links over a peer in between, of which the input is one or more

struct Target {
  std::string_view name;
  void (*run)(Bytes input);
};
inline constexpr std::array kTargets = {Target{"wire", wire},           Target{"lane", lane},
                                        Target{"slices", slices},       Target{"tokens", tokens},
                                        Target{"registers", registers}, Target{"state", state},
                                        Target{"doors", doors},         Target{"relays", relays}};

}  // namespace pccl::fuzz
