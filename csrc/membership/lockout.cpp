// A master that would lock out all members of the run that it takes over: another key or another
// token file has been given to it. The members cannot tell it, since they do not get in.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "membership/master.h"
#include "membership/members.h"

namespace pccl::master {
namespace {

/// By which tokens its members came: "by \"a\", \"b\"".
std::string entrance_of(const Epoch& epoch) {
  std::set<std::string> names;
  for (const Member& m : epoch.members) names.insert(m.token);
  std::string text;
  for (const std::string& name : names) {
    if (!name.empty()) add_to_list(text, "\"" + name + "\"");
  }
  return text.empty() ? "without a token" : "by " + text;
}

/// Are all members shut out by this token file, and not all of them by a register that names their
/// tokens as revoked?
bool shuts_out_all(const Register& held, const std::vector<TokenMark>& valid) {
  const std::set<std::string> open = names_that_open(held, valid);
  std::set<std::string> revoked;
  for (const TokenMark& token : held.revoked) revoked.insert(token.name);
  bool meant = true;
  for (const Member& m : held.epoch->members) {
    if (open.contains(m.token)) return false;
    meant = meant && revoked.contains(m.token);
  }
  return !meant;
}

}  // namespace

bool is_revoked(const Register& held, const TokenMark& token) {
  return std::find(held.revoked.begin(), held.revoked.end(), token) != held.revoked.end();
}

std::set<std::string> names_that_open(const Register& held, const std::vector<TokenMark>& valid) {
  std::set<std::string> names;
  for (const TokenMark& token : valid) {
    if (!is_revoked(held, token)) names.insert(token.name);
  }
  return names;
}

std::string lockout(const Register& held, const Config& config,
                    const std::vector<TokenMark>& valid) {
  if (!held.epoch || held.over || config.refound) return "";
  std::string why;
  if (held.key && !config.key) {
    why = "the masters of before took tokens, and this one takes none";
  } else if (held.key && held.key != config.key) {
    why = "this master has another key than the masters of before";
  } else if (config.key && shuts_out_all(held, valid)) {
    why = "they came " + entrance_of(*held.epoch) + ", and its token file has no token of theirs";
  } else {
    return "";
  }
  return cut_text("its register has " + count_of(held.epoch->members.size(), "member") +
                  " of the run, and none of them could come to this master: " + why +
                  ". Give this master the token file and the key file of the master of before, or "
                  "give the members up with --refound");
}

}  // namespace pccl::master
