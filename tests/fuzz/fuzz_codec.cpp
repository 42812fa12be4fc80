// Random and mutated bytes into every decoder of control messages: none crashes, and what one takes
// is exactly what its encoder writes, but for fields of another version at the end of a map.
#include "../cpp/wire/next_version.h"
#include "../cpp/wire/random_message.h"
#include "fuzz.h"
#include "wire/codec.h"

namespace pccl {
namespace {

template <typename Variant>
std::vector<std::byte> seed_bytes(Random& random) {
  return encode(test::random_message<Variant>(random, random.below(std::variant_size_v<Variant>)));
}

/// What was taken from `bytes` is written back as they are; with fields more or fewer, its encoding
/// means the same.
template <typename Decode>
void same_again(const std::vector<std::byte>& bytes, const Decode& decode, const char* what,
                std::uint64_t seed) {
  const auto back = decode(bytes);
  if (!back) return;
  const auto again = encode(back.value());
  if (again.size() == bytes.size()) return fuzz::require(again == bytes, what, seed);
  const auto same = decode(again);
  fuzz::require(same.ok() && same.value() == back.value(), what, seed);
}

template <typename Decode>
void same_and_printed(const std::vector<std::byte>& bytes, const Decode& decode, const char* what,
                      std::uint64_t seed) {
  same_again(bytes, decode, what, seed);
  if (const auto back = decode(bytes)) fuzz::require(!print(back.value()).empty(), "print", seed);
}

void one(std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes;
  const std::uint64_t kind = random.below(5);
  switch (kind) {
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
  if (kind < 4 && random.below(8) == 0) bytes = test::of_next_version(bytes);
  if (random.below(8) != 0) fuzz::mutate(bytes, random);
  same_and_printed(bytes, decode_peer_to_master, "peer to master", seed);
  same_and_printed(bytes, decode_master_to_peer, "master to peer", seed);
  same_and_printed(bytes, decode_peer_to_peer, "peer to peer", seed);
  same_again(bytes, decode_handle, "handle", seed);
}

}  // namespace
}  // namespace pccl

int main(int argc, char** argv) { return pccl::fuzz::run(argc, argv, 40000, pccl::one); }
