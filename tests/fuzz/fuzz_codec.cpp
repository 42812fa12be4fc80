// Random and mutated bytes into every decoder of control messages: none crashes, and what one takes
// is exactly what its encoder writes.
#include "../cpp/wire/random_message.h"
#include "fuzz.h"
#include "wire/codec.h"

namespace pccl {
namespace {

template <typename Variant>
std::vector<std::byte> seed_bytes(Random& random) {
  return encode(test::random_message<Variant>(random, random.below(std::variant_size_v<Variant>)));
}

void one(std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes;
  switch (random.below(5)) {
    case 0:
      bytes = seed_bytes<PeerToMaster>(random);
      break;
    case 1:
      bytes = seed_bytes<MasterToPeer>(random);
      break;
    case 2:
      bytes = seed_bytes<PeerToPeer>(random);
      break;
    case 3: {
      Handle handle;
      test::Filler(random, 4, 20).put(handle);
      bytes = encode(handle);
      break;
    }
    default:
      bytes.resize(random.below(200));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  }
  if (random.below(8) != 0) fuzz::mutate(bytes, random);
  if (const auto back = decode_peer_to_master(bytes)) {
    fuzz::require(encode(back.value()) == bytes, "peer to master", seed);
    fuzz::require(!print(back.value()).empty(), "print", seed);
  }
  if (const auto back = decode_master_to_peer(bytes)) {
    fuzz::require(encode(back.value()) == bytes, "master to peer", seed);
    fuzz::require(!print(back.value()).empty(), "print", seed);
  }
  if (const auto back = decode_peer_to_peer(bytes)) {
    fuzz::require(encode(back.value()) == bytes, "peer to peer", seed);
    fuzz::require(!print(back.value()).empty(), "print", seed);
  }
  if (const auto back = decode_handle(bytes)) {
    fuzz::require(encode(back.value()) == bytes, "handle", seed);
  }
}

}  // namespace
}  // namespace pccl

int main(int argc, char** argv) { return pccl::fuzz::run(argc, argv, 40000, pccl::one); }
