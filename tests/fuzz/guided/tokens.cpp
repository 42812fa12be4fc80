// Token files, lines and identities: what is taken is what its writer writes. Seals: only the
// holder of a token makes one.
#include "input.h"
#include "targets.h"
#include "trust/seal.h"
#include "trust/secrets.h"
#include "trust/token.h"

namespace pccl::fuzz {
namespace {

bool same(const Token& a, const Token& b) {
  return a.name == b.name && a.secret.same_as(b.secret) && a.master == b.master && a.runs == b.runs;
}

void read_tokens(const std::string& text) {
  const auto tokens = parse_tokens(text, "F");
  if (!tokens) {
    require(!tokens.error().text.empty(), "an error says something");
    return;
  }
  std::string again;
  for (const Token& token : tokens.value().all()) again += format_token(token) + "\n";
  const auto back = parse_tokens(again, "F");
  require(back.ok(), "what was written is read");
  require(back.value().all().size() == tokens.value().all().size(), "as many tokens");
  for (std::size_t i = 0; i < back.value().all().size(); ++i) {
    const Token& token = tokens.value().all()[i];
    require(same(back.value().all()[i], token), "the same token");
    require(tokens.value().find(token.name) != nullptr, "it is found by its name");
    (void)tokens.value().choose(token.master, token.runs.empty() ? "" : token.runs.front());
    (void)token.opens_text();
  }
}

void read_identity(const std::string& text) {
  const auto identity = parse_identity(text);
  if (!identity) return;
  require(parse_identity(format_identity(*identity)) == identity, "the same identity");
}

void unseal_it(Input in) {
  std::array<std::uint8_t, Secret::kBytes> number{};
  number[0] = 7;
  const Tokens tokens({{"t", Secret(number), std::string(64, 'a'), {}}}, "F");
  const SealedPlace place{in.number<std::uint64_t>() % 4, in.number<std::uint32_t>() % 4, 4};
  const auto handle = in.take(in.below(40));
  for (const Tokens* held : {&tokens, static_cast<const Tokens*>(nullptr)}) {
    const auto sealed = seal(held, place, handle);
    const auto back = unseal(held, place, std::as_bytes(std::span(sealed)));
    require(back.ok(), "what was sealed is unsealed");
    require(std::equal(back.value().begin(), back.value().end(), handle.begin(), handle.end()),
            "the same handle");
  }
  const auto value = in.rest();
  (void)unseal(nullptr, place, value);
  require(!unseal(&tokens, place, value).ok(), "nobody else makes a seal");
}

}  // namespace

void tokens(Bytes input) {
  Input in(input);
  switch (in.below(5)) {
    case 0:
      return read_tokens(text_of(in.rest()));
    case 1: {
      const auto one = parse_token_line(text_of(in.rest()), "V");
      if (one) require(one.value().all().size() == 1, "a line is a token");
      return;
    }
    case 2:
      return read_identity(text_of(in.rest()));
    case 3: {
      const std::string text = text_of(in.rest());
      if (const auto secret = from_base64(text)) {
        require(to_base64(secret->bytes()) == text, "the same base64");
      }
      (void)is_plain_name(text, kTokenNameBytesMax);
      return;
    }
    default:
      return unseal_it(in);
  }
}

}  // namespace pccl::fuzz
