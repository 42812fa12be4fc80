// Every field goes into the root with its length, so that no two different lists give the same
// bytes.
#include "state/manifest.h"

#include <algorithm>
#include <span>
#include <string_view>

namespace pccl {
namespace {

std::vector<const ManifestEntry*> by_name(const Manifest& entries) {
  std::vector<const ManifestEntry*> sorted;
  sorted.reserve(entries.size());
  for (const ManifestEntry& e : entries) sorted.push_back(&e);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->name < b->name; });
  return sorted;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

Error differs(const ManifestEntry& mine, const ManifestEntry& theirs) {
  const auto error = [&](const std::string& what, const std::string& a, const std::string& b) {
    return Error{ErrorCode::mismatch, "the shared state differs in \"" + mine.name + "\": " + what +
                                          " " + a + " here, " + b + " at the others"};
  };
  if (mine.dtype != theirs.dtype) return error("dtype", mine.dtype, theirs.dtype);
  if (mine.shape != theirs.shape) {
    return error("shape", shape_text(mine.shape), shape_text(theirs.shape));
  }
  if (mine.bytes != theirs.bytes) {
    return error("bytes", std::to_string(mine.bytes), std::to_string(theirs.bytes));
  }
  return {};
}

void put(std::vector<std::uint8_t>& to, std::uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8)
    to.push_back(static_cast<std::uint8_t>(number >> shift));
}

void put(std::vector<std::uint8_t>& to, std::string_view text) {
  put(to, text.size());
  to.insert(to.end(), text.begin(), text.end());
}

}  // namespace

Result<std::vector<std::string>> plan(const Manifest& mine, const Manifest& theirs) {
  const auto a = by_name(mine);
  const auto b = by_name(theirs);
  const auto lacking = [](const std::string& name, const std::string& where) {
    return Error{ErrorCode::mismatch,
                 "the shared state differs in \"" + name + "\": it is not there " + where};
  };
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || (i < b.size() && b[i]->name < a[i]->name)) {
      return lacking(b[i]->name, "here");
    }
    if (i >= b.size() || a[i]->name < b[i]->name) return lacking(a[i]->name, "at the others");
    if (i > 0 && a[i]->name == a[i - 1]->name) {
      return Error{ErrorCode::mismatch,
                   "the shared state has \"" + a[i]->name + "\" more than once"};
    }
    if (Error error = differs(*a[i], *b[i]); error.failed()) return error;
  }
  std::vector<std::string> names;
  for (const ManifestEntry& entry : mine) {
    const auto at =
        std::lower_bound(b.begin(), b.end(), entry.name,
                         [](const auto* e, const std::string& n) { return e->name < n; });
    if ((*at)->digest != entry.digest) names.push_back(entry.name);
  }
  return names;
}

Digest root(const Manifest& entries, const Digest& plain) {
  std::vector<std::uint8_t> bytes(plain.begin(), plain.end());
  put(bytes, entries.size());
  for (const ManifestEntry* entry : by_name(entries)) {
    put(bytes, entry->name);
    put(bytes, entry->dtype);
    put(bytes, entry->shape.size());
    for (const std::int64_t n : entry->shape) put(bytes, static_cast<std::uint64_t>(n));
    put(bytes, entry->bytes);
    bytes.insert(bytes.end(), entry->digest.begin(), entry->digest.end());
  }
  return sha256(std::as_bytes(std::span(bytes)));
}

}  // namespace pccl
