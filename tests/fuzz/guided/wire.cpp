// Control messages: what a decoder takes is exactly what its encoder writes, but for fields of
// another version at the end of a map.
#include "../../cpp/wire/random_message.h"
#include "input.h"
#include "master/register_file.h"
#include "targets.h"
#include "wire/codec.h"

namespace pccl::fuzz {
namespace {

template <typename Decode>
auto same_again(Bytes bytes, const Decode& decode) {
  const auto back = decode(bytes);
  if (!back) return back;
  const auto again = encode(back.value());
  if (again.size() == bytes.size()) {
    require(std::equal(again.begin(), again.end(), bytes.begin()), "the same bytes");
  } else {
    const auto same = decode(again);
    require(same.ok() && same.value() == back.value(), "the same message");
  }
  return back;
}

template <typename Decode>
void same_and_printed(Bytes bytes, const Decode& decode) {
  if (const auto back = same_again(bytes, decode)) {
    require(!print(back.value()).empty(), "it is printed");
  }
}

}  // namespace

/// The first byte chooses the decoder, the rest is the message.
void wire(Bytes input) {
  Input in(input);
  const std::size_t kind = in.below(5);
  const Bytes bytes = in.rest();
  switch (kind) {
    case 0:
      return same_and_printed(bytes, decode_peer_to_master);
    case 1:
      return same_and_printed(bytes, decode_master_to_peer);
    case 2:
      return same_and_printed(bytes, decode_peer_to_peer);
    case 3:
      return static_cast<void>(same_again(bytes, decode_handle));
    default: {
      const auto held = cbor::decode_struct<master::NamedRegister>(bytes, "register");
      if (!held) return;
      const auto again = cbor::encode_struct(held.value());
      const auto same = cbor::decode_struct<master::NamedRegister>(again, "register");
      require(same.ok() && same.value() == held.value(), "the same register");
    }
  }
}

}  // namespace pccl::fuzz
