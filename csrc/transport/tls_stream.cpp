#include "transport/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "trust/sealer.h"
#include "trust/token.h"

namespace pccl {
namespace {

constexpr std::size_t kRecordBytes = 16384;  // most that one TLS record holds
// Of one call on the stream below.
constexpr std::size_t kReadAheadBytes = 8 * (std::size_t{16} << 10);
constexpr std::array<unsigned char, 2> kAes128GcmSha256 = {0x13, 0x01};
constexpr std::size_t kIdentityBytesMax = 255;
constexpr const char* kNoMemory = "no memory";  // short: to keep it takes none
constexpr std::byte kHandshakeRecord{22};       // the first byte of a ClientHello (RFC 8446, 5.1)

SSL_CTX* new_context() {
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  const char* suites = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                 : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
  const bool made =
      context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
      SSL_CTX_set_ciphersuites(context, suites) == 1 &&
      SSL_CTX_set1_groups_list(context, "X25519") == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
  PCCL_ASSERT(made);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  return context;
}

/// The session that stands for `key` before a handshake.
SSL_SESSION* session_of(SSL* ssl, const Secret& key) {
  // For the buffers that OpenSSL makes from now on: a stranger's handshake needs a small one.
  SSL_set_default_read_buffer_len(ssl, kReadAheadBytes);
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256.data());
  const bool made = session != nullptr && cipher != nullptr &&
                    SSL_SESSION_set1_master_key(session, key.bytes().data(), Secret::kBytes) == 1 &&
                    SSL_SESSION_set_cipher(session, cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  PCCL_ASSERT(made);
  return session;
}

std::string reason_of(unsigned long code) {
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? "error " + std::to_string(code) : text;
}

bool is_alert(unsigned long code) {
  return ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET;
}

/// Without what is random in it, so that an equal refusal has an equal text (refusals.h).
std::string shown_identity(std::string_view identity) {
  const auto of_channel = parse_identity(identity);
  if (of_channel) return "the token \"" + of_channel->token + "\"";
  return "\"" + printable(identity) + "\"";
}

}  // namespace

struct TlsStream::State : std::enable_shared_from_this<State> {
  State(Clock& clock_, std::unique_ptr<Stream> under_) : clock(clock_), under(std::move(under_)) {}
  ~State() { SSL_free(ssl); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void make(bool dials);
  [[nodiscard]] bool may_be_tls();
  void listen();
  void under_ready(bool readable, bool writable);
  void handshake();
  void tell(bool readable, bool writable);
  void tell_later();
  void watch();
  void flush();
  [[nodiscard]] bool encrypt(std::span<const std::byte> bytes);
  [[nodiscard]] Moved write(std::span<const iovec> parts);
  [[nodiscard]] Moved read(std::span<const iovec> parts);
  [[nodiscard]] Moved peek(std::span<std::byte> into);
  [[nodiscard]] std::size_t decrypt(std::span<std::byte> into);
  [[nodiscard]] Moved outcome_of(std::size_t moved) const;
  void failed(int result, const char* doing);
  /// Will `read` never again say `later`?
  [[nodiscard]] bool over() const { return !error.empty() || ended; }
  /// Will `write` never again say `later`?
  [[nodiscard]] bool broken() const { return !error.empty() || (ended && !established); }
  [[nodiscard]] bool handshaking() const { return !established && !broken(); }
  [[nodiscard]] std::size_t pending() const { return out.size() - out_sent; }

  static const BIO_METHOD* bio_method();
  static int bio_read(BIO* bio, char* into, std::size_t bytes, std::size_t* got);
  static int bio_write(BIO* bio, const char* from, std::size_t bytes, std::size_t* written);
  static int psk_use(SSL* ssl, const EVP_MD* hash, const unsigned char** id, std::size_t* bytes,
                     SSL_SESSION** session);
  static int psk_find(SSL* ssl, const unsigned char* id, std::size_t bytes, SSL_SESSION** session);

  Clock& clock;
  std::unique_ptr<Stream> under;  // null: the TlsStream is gone
  SSL* ssl = nullptr;             // at the acceptor: none until the first bytes have come
  std::string identity;           // at the acceptor: what the dialler has said
  Secret key;                     // at the dialler
  Find find;                      // at the acceptor
  bool unknown = false;           // `find` knew no key
  bool refused = false;           // `error` is no error of the stream below
  bool reads_ahead = false;

  bool started = false;
  bool established = false;
  bool ended = false;             // the stream below has no more bytes
  std::string error;              // of both directions
  std::string write_error;        // of the stream below: what has arrived may still be read
  bool more = false;              // decrypted or undecrypted bytes may lie in OpenSSL's buffers
  bool drained = false;           // the last read of the stream below has taken all that had come
  std::vector<std::byte> peeked;  // decrypted, and not read yet
  std::uint64_t bytes_of_one_key = 0;
  std::uint64_t encrypted = 0;  // with the present key
  std::vector<std::byte> out;   // encrypted bytes, of which `out_sent` are in the stream below
  std::size_t out_sent = 0;
  bool shut_asked = false;
  bool shut = false;

  std::shared_ptr<Ready> ready;
  bool want_read = false;
  bool want_write = false;
  bool tells_later = false;
  bool moves_apart = false;  // who writes does so in its turn, and flushes then
};

// ------------------------------------------------------------------------------- OpenSSL's side

int TlsStream::State::bio_read(BIO* bio, char* into, std::size_t bytes, std::size_t* got) {
  auto& state = *static_cast<State*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const Moved moved = state.under->read(std::span(reinterpret_cast<std::byte*>(into), bytes));
  *got = moved.bytes;
  state.drained = moved.outcome == Outcome::moved && moved.bytes < bytes;
  switch (moved.outcome) {
    case Outcome::moved:
      return 1;
    case Outcome::later:
      BIO_set_retry_read(bio);
      return 0;
    case Outcome::ended:
      state.ended = true;
      return 0;
    case Outcome::failed:
      state.error = moved.error;
      return 0;
  }
  return 0;
}

int TlsStream::State::bio_write(BIO* bio, const char* from, std::size_t bytes,
                                std::size_t* written) {
  auto& state = *static_cast<State*>(BIO_get_data(bio));
  const auto* data = reinterpret_cast<const std::byte*>(from);
  *written = 0;
  try {
    state.out.insert(state.out.end(), data, data + bytes);
  } catch (const std::bad_alloc&) {  // must not pass through OpenSSL's frames
    state.error = kNoMemory;
    return 0;
  }
  *written = bytes;
  return 1;
}

const BIO_METHOD* TlsStream::State::bio_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "pccl stream");
    PCCL_ASSERT(made != nullptr);
    BIO_meth_set_read_ex(made, &State::bio_read);
    BIO_meth_set_write_ex(made, &State::bio_write);
    BIO_meth_set_ctrl(made, [](BIO* bio, int what, long, void*) -> long {
      if (what == BIO_CTRL_EOF) return static_cast<State*>(BIO_get_data(bio))->ended ? 1 : 0;
      return what == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return made;
  }();
  return method;
}

int TlsStream::State::psk_use(SSL* ssl, const EVP_MD* hash, const unsigned char** id,
                              std::size_t* bytes, SSL_SESSION** session) {
  const auto& state = *static_cast<State*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (hash != nullptr && !EVP_MD_is_a(hash, "SHA256")) return 1;
  *id = reinterpret_cast<const unsigned char*>(state.identity.data());
  *bytes = state.identity.size();
  *session = session_of(ssl, state.key);
  return 1;
}

int TlsStream::State::psk_find(SSL* ssl, const unsigned char* id, std::size_t bytes,
                               SSL_SESSION** session) {
  auto& state = *static_cast<State*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (!state.find || bytes == 0 || bytes > kIdentityBytesMax) return 1;
  state.identity.assign(reinterpret_cast<const char*>(id), bytes);
  const Find asked = std::exchange(state.find, nullptr);
  const std::optional<Secret> found = asked(state.identity);
  state.unknown = !found;
  if (found) *session = session_of(ssl, *found);
  return 1;
}

// ------------------------------------------------------------------------------------ handshake

void TlsStream::State::make(bool dials) {
  static SSL_CTX* const context = new_context();  // for the process; a fork changes nothing in it
  ssl = SSL_new(context);
  BIO* bio = BIO_new(bio_method());
  PCCL_ASSERT(ssl != nullptr && bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, this);
  if (dials) {
    SSL_set_connect_state(ssl);
    SSL_set_psk_use_session_callback(ssl, &State::psk_use);
  } else {
    SSL_set_accept_state(ssl);
    SSL_set_psk_find_session_callback(ssl, &State::psk_find);
  }
}

/// Looks at what has come first: strangers that do not speak TLS cost no state of OpenSSL.
bool TlsStream::State::may_be_tls() {
  std::byte first{};
  const Moved moved = under->peek(std::span(&first, 1));
  ended = moved.outcome == Outcome::ended;
  if (moved.outcome == Outcome::failed) error = moved.error;
  if (moved.outcome != Outcome::moved) return false;
  if (first == kHandshakeRecord) return true;
  refused = true;
  error = "the TLS handshake failed: the first bytes are not TLS";
  return false;
}

void TlsStream::State::handshake() {
  if (ssl == nullptr) {
    if (!may_be_tls()) return;
    make(false);
  }
  started = true;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl);
  if (result == 1) {
    established = true;
    more = true;
  } else {
    failed(result, "the TLS handshake");
  }
  flush();  // an alert, too
}

/// Keeps the error of a call of OpenSSL, unless the call only waits for bytes.
void TlsStream::State::failed(int result, const char* doing) {
  const int kind = SSL_get_error(ssl, result);
  if (kind == SSL_ERROR_WANT_READ) {
    if (!ended && error.empty()) return;
  } else if (kind == SSL_ERROR_ZERO_RETURN) {
    ended = true;
  }
  if (ended || !error.empty()) return;  // the stream below has said why
  const unsigned long code = ERR_peek_error();
  refused = true;
  if (unknown) {
    error = "no key is known for " + shown_identity(identity);
  } else if (is_alert(code)) {
    error = std::string(doing) + " was refused by the other side: " + reason_of(code);
  } else {
    error = std::string(doing) + " failed: " + reason_of(code);
  }
}

// ------------------------------------------------------------------------------------ readiness

void TlsStream::State::listen() {
  under->on_ready([this](bool readable, bool writable) { under_ready(readable, writable); });
  watch();
}

void TlsStream::State::under_ready(bool readable, bool writable) {
  const auto alive = shared_from_this();
  const bool waited = handshaking();
  if (waited) {
    handshake();
  } else if (writable && !(moves_apart && want_write)) {
    flush();
  }
  const bool all = waited && !handshaking();
  tell(readable || all, writable || all);
}

void TlsStream::State::tell(bool readable, bool writable) {
  if (under == nullptr) return;
  if (!handshaking() && ready && *ready) {
    const bool readable_now = want_read && (readable || over());
    const bool writable_now = want_write && ((writable && (moves_apart || pending() == 0)) ||
                                             broken() || !write_error.empty());
    const auto called = ready;
    if (readable_now || writable_now) (*called)(readable_now, writable_now);
  }
  watch();
}

/// What the stream below does not tell: bytes that have left it already, and an end.
void TlsStream::State::tell_later() {
  if (tells_later || !ready || handshaking()) return;
  const bool bytes_wait = want_read && (!peeked.empty() || (more && SSL_has_pending(ssl) == 1));
  if (!bytes_wait && !(want_read && over()) && !(want_write && broken())) return;
  tells_later = true;
  clock.defer([state = weak_from_this()] {
    const auto alive = state.lock();
    if (!alive) return;
    alive->tells_later = false;
    alive->tell(alive->more || !alive->peeked.empty(), false);
  });
}

void TlsStream::State::watch() {
  if (under == nullptr || !under->open()) return;
  const bool busy = handshaking();
  under->want(busy || (want_read && !over()), pending() > 0 ||
                                                  (busy && !started && ssl != nullptr) ||
                                                  (want_write && established && !broken()));
}

// ------------------------------------------------------------------------------------- bytes out

void TlsStream::State::flush() {
  while (pending() > 0 && write_error.empty()) {
    const Moved moved = under->write(std::span<const std::byte>(out).subspan(out_sent));
    if (moved.outcome == Outcome::later) return;
    if (moved.outcome == Outcome::failed) write_error = moved.error;
    out_sent += moved.bytes;
  }
  out.clear();
  out_sent = 0;
  if (shut_asked && !shut) {
    shut = true;
    under->shut();
  }
}

bool TlsStream::State::encrypt(std::span<const std::byte> bytes) {
  if (encrypted >= bytes_of_one_key) {
    encrypted = 0;
    ERR_clear_error();
    if (const int asked = SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED); asked != 1) {
      failed(asked, "the change of keys");
      return false;
    }
  }
  std::size_t taken = 0;
  ERR_clear_error();
  const int result = SSL_write_ex(ssl, bytes.data(), bytes.size(), &taken);
  encrypted += taken;
  if (result == 1) return true;
  failed(result, "encryption");
  return false;
}

Stream::Moved TlsStream::State::write(std::span<const iovec> parts) {
  if (!error.empty()) return {Outcome::failed, 0, error};
  if (broken()) return {Outcome::failed, 0, "the other side has ended the TLS handshake"};
  if (!established) return {};
  flush();
  if (!write_error.empty()) return {Outcome::failed, 0, write_error};
  if (pending() > 0) return {};
  thread_local std::array<std::byte, kRecordBytes> gathered;  // small parts go into one record
  std::size_t in_gathered = 0;
  std::size_t moved = 0;
  bool well = true;
  const auto encrypt_gathered = [&] {
    if (in_gathered > 0) well = encrypt(std::span(gathered).first(in_gathered));
    in_gathered = 0;
  };
  for (const iovec& part : parts) {
    std::span rest(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (well && !rest.empty() && moved < kKeptBytes) {
      std::size_t now = std::min(rest.size(), kKeptBytes - moved);
      if (in_gathered == 0 && now >= kRecordBytes) {
        now -= now % kRecordBytes;
        well = encrypt(rest.first(now));
      } else {
        now = std::min(now, kRecordBytes - in_gathered);
        std::memcpy(gathered.data() + in_gathered, rest.data(), now);
        in_gathered += now;
        if (in_gathered == kRecordBytes) encrypt_gathered();
      }
      moved += now;
      rest = rest.subspan(now);
    }
  }
  if (well) encrypt_gathered();
  if (!well) return {Outcome::failed, 0, error};
  flush();
  if (moved == 0) return {};
  return {Outcome::moved, moved, {}};
}

// -------------------------------------------------------------------------------------- bytes in

/// Fills `into` as far as the bytes that have come go.
std::size_t TlsStream::State::decrypt(std::span<std::byte> into) {
  std::size_t done = 0;
  if (!established || !error.empty()) return done;
  more = true;
  while (done < into.size()) {
    std::size_t got = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl, into.data() + done, into.size() - done, &got);
    if (result != 1) {
      failed(result, "decryption");
      more = false;
      break;
    }
    done += got;
    if (drained && SSL_has_pending(ssl) == 0) {
      more = false;
      break;
    }
  }
  if (pending() > 0) flush();  // an answer to a change of key
  return done;
}

Stream::Moved TlsStream::State::read(std::span<const iovec> parts) {
  std::size_t moved = 0;
  for (const iovec& part : parts) {
    const std::span into(static_cast<std::byte*>(part.iov_base), part.iov_len);
    const std::size_t known = std::min(into.size(), peeked.size());
    std::copy_n(peeked.begin(), known, into.begin());
    peeked.erase(peeked.begin(), peeked.begin() + static_cast<std::ptrdiff_t>(known));
    const std::size_t in_part = known + decrypt(into.subspan(known));
    moved += in_part;
    if (in_part < into.size()) break;
  }
  return outcome_of(moved);
}

/// OpenSSL's own look ends with the first record.
Stream::Moved TlsStream::State::peek(std::span<std::byte> into) {
  const std::size_t known = peeked.size();
  if (known < into.size()) {
    peeked.resize(into.size());
    peeked.resize(known + decrypt(std::span(peeked).subspan(known)));
  }
  const std::size_t moved = std::min(into.size(), peeked.size());
  std::copy_n(peeked.begin(), moved, into.begin());
  return outcome_of(moved);
}

Stream::Moved TlsStream::State::outcome_of(std::size_t moved) const {
  if (moved > 0) return {Outcome::moved, moved, {}};
  if (!error.empty()) return {Outcome::failed, 0, error};
  return {ended ? Outcome::ended : Outcome::later, 0, {}};
}

// ------------------------------------------------------------------------------------ the stream

TlsStream::TlsStream(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<TlsStream> TlsStream::dial(Clock& clock, std::unique_ptr<Stream> under,
                                           std::string_view identity, const Secret& key,
                                           std::uint64_t bytes_of_one_key) {
  PCCL_ASSERT(!identity.empty() && identity.size() <= kIdentityBytesMax);
  auto state = std::make_shared<State>(clock, std::move(under));
  state->bytes_of_one_key = bytes_of_one_key;
  state->identity = identity;
  state->key = key;
  state->make(true);
  state->listen();
  return std::unique_ptr<TlsStream>(new TlsStream(std::move(state)));
}

std::unique_ptr<TlsStream> TlsStream::accept(Clock& clock, std::unique_ptr<Stream> under, Find find,
                                             std::uint64_t bytes_of_one_key) {
  auto state = std::make_shared<State>(clock, std::move(under));
  state->bytes_of_one_key = bytes_of_one_key;
  state->find = std::move(find);
  state->listen();
  return std::unique_ptr<TlsStream>(new TlsStream(std::move(state)));
}

TlsStream::~TlsStream() {
  state_->ready.reset();
  state_->under.reset();
}

bool TlsStream::established() const { return state_->established && !state_->over(); }

bool TlsStream::refused() const { return state_->refused; }

std::unique_ptr<Stream> TlsStream::unwrap(std::unique_ptr<TlsStream> stream) {
  State& state = *stream->state_;
  if (!stream->established() || state.pending() > 0 || state.reads_ahead || !state.peeked.empty() ||
      SSL_has_pending(state.ssl) == 1) {
    return nullptr;
  }
  state.under->on_ready(nullptr);
  return std::move(state.under);
}

void TlsStream::read_ahead() {
  state_->reads_ahead = true;
  SSL_set_read_ahead(state_->ssl, 1);
  SSL_free_buffers(state_->ssl);  // that of the handshake
}

Stream::Moved TlsStream::read(std::span<const iovec> parts) {
  Moved moved = state_->read(parts);
  state_->tell_later();
  return moved;
}

Stream::Moved TlsStream::peek(std::span<std::byte> into) {
  Moved moved = state_->peek(into);
  state_->tell_later();
  return moved;
}

Stream::Moved TlsStream::write(std::span<const iovec> parts) {
  Moved moved = state_->write(parts);
  if (moved.outcome == Outcome::moved) state_->watch();
  return moved;
}

Stream::Moved TlsStream::read_apart(std::span<const iovec> parts) { return state_->read(parts); }

Stream::Moved TlsStream::write_apart(std::span<const iovec> parts) {
  state_->moves_apart = true;
  return state_->write(parts);
}

void TlsStream::settle() {
  state_->watch();
  state_->tell_later();
}

std::size_t TlsStream::unacknowledged_bytes() const {
  return state_->pending() + state_->under->unacknowledged_bytes();
}

std::size_t TlsStream::undelivered_bytes() const {
  // What a connection that has failed did not take is not counted any more.
  if (!state_->write_error.empty()) return std::numeric_limits<std::size_t>::max();
  // A record is read as a whole, and its first bytes may have arrived.
  const std::size_t bytes = unacknowledged_bytes();
  return bytes == 0 ? 0 : bytes + kRecordBytes;
}

Line TlsStream::line() const { return state_->under->line(); }
void TlsStream::tune(bool bbr) { state_->under->tune(bbr); }
void TlsStream::go_by_model(bool by_model) { state_->under->go_by_model(by_model); }
void TlsStream::pace(std::uint64_t bytes_per_second) { state_->under->pace(bytes_per_second); }

void TlsStream::shut() {
  State& state = *state_;
  if (state.shut_asked || !open()) return;
  state.shut_asked = true;
  ERR_clear_error();
  if (state.established && state.error.empty()) SSL_shutdown(state.ssl);  // "I send no more"
  if (!state.handshaking()) state.flush();
  state.watch();
}

void TlsStream::on_ready(Ready ready) {
  state_->ready = std::make_shared<Ready>(std::move(ready));
  state_->want_read = state_->want_write = false;
  state_->watch();
}

void TlsStream::want(bool read, bool write) {
  state_->want_read = read;
  state_->want_write = write;
  state_->watch();
  state_->tell_later();
}

void TlsStream::close() {
  state_->ready.reset();
  state_->under->close();
}

bool TlsStream::open() const { return state_->under->open(); }
std::string TlsStream::remote() const { return state_->under->remote(); }
std::string TlsStream::remote_host() const { return state_->under->remote_host(); }
std::string TlsStream::local_host() const { return state_->under->local_host(); }
bool TlsStream::same_machine() const { return state_->under->same_machine(); }
Stream::Carrier TlsStream::carrier() const { return state_->under->carrier(); }
bool TlsStream::loopback() const { return state_->under->loopback(); }

}  // namespace pccl
