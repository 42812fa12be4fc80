// The engine of a process: all groups, all links, one loop (driver.h says which thread runs it).
// The interface for csrc/torch/ and the tests. Knows no torch and takes no GIL. Waits in `wait`,
// and for the engine's thread, half a minute at most, in what returns a Result.
//
// Thread-safety: every member function may be called on any thread but those of the engine's own
// callbacks. Memory named in an OpRequest stays valid and unwritten by the caller from `post` to
// the outcome of its Ticket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/handle.h"
#include "base/ids.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/run.h"
#include "engine/ticket.h"
#include "engine/view.h"

namespace pccl {

class Engine {
 public:
  /// Opens the listening port and starts the engine's thread.
  [[nodiscard]] static Result<std::shared_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  /// This process's handle for other processes. Its host is options.advertise, or, if that is
  /// empty, `seen_host`: the address under which another process sees this one.
  [[nodiscard]] virtual Handle handle(const std::string& seen_host) const = 0;
  /// The tokens of this process; null: it has none.
  [[nodiscard]] virtual const Tokens* tokens() const = 0;
  /// Does this process encrypt all of its links?
  [[nodiscard]] virtual bool encrypts() const = 0;
  /// The address of this machine that is used to reach host:port ("" if there is none).
  [[nodiscard]] virtual std::string local_host_towards(const std::string& address) const = 0;

  // Fixed groups. Connects to all members; the ticket completes when all have their links for
  // the group, or its error names the members that could not be reached or have not made it.
  [[nodiscard]] virtual std::shared_ptr<Ticket> configure_fixed(GroupId group, std::string name,
                                                                std::vector<Handle> members,
                                                                std::int32_t rank,
                                                                std::uint64_t timeout_ms) = 0;
  /// The same for members of the elastic group, whose handles the engine knows. If the run has lost
  /// one of them, or loses one while the group connects, the error is `peer_lost`.
  [[nodiscard]] virtual std::shared_ptr<Ticket> configure_of_run(GroupId group, std::string name,
                                                                 std::vector<PeerId> members,
                                                                 std::int32_t rank,
                                                                 std::uint64_t timeout_ms) = 0;
  /// The members by rank; empty: there is no such group.
  [[nodiscard]] virtual Result<std::vector<Handle>> members_of(GroupId fixed_group) const = 0;

  /// The run that this process takes part in, whose members are the elastic group.
  [[nodiscard]] virtual Run& run() = 0;

  // Operations.
  [[nodiscard]] virtual std::shared_ptr<Ticket> post(GroupId group, OpRequest request) = 0;
  /// More of the inputs of the operation with this gate has come. (If the rest never comes: abort.)
  virtual void inputs_came(GroupId group, std::shared_ptr<const InputGate> gate) = 0;
  /// Completes when the collectives of the group that were posted before, and that use this memory,
  /// have their outcomes, whatever these are.
  [[nodiscard]] virtual std::shared_ptr<Ticket> memory_free(GroupId group,
                                                            std::vector<Buffer> memory) = 0;
  /// Waits as Ticket::wait does; meanwhile this thread drives the engine, which is the fastest way
  /// for a small operation.
  virtual bool wait(Ticket& ticket, std::optional<std::uint64_t> timeout_ms) = 0;
  [[nodiscard]] virtual GroupView view(GroupId group) const = 0;
  [[nodiscard]] virtual Result<std::vector<OpInFlight>> in_flight(GroupId group) const = 0;
  [[nodiscard]] virtual Result<EngineCounters> counters() const = 0;
  /// The links of this process that are up and go straight to their peers.
  [[nodiscard]] virtual Result<std::vector<LinkView>> links() const = 0;
  /// Sets the time-out of operations that are posted without one.
  virtual void set_timeout(GroupId group, std::uint64_t timeout_ms) = 0;

  /// Ends a group in good order: sends the data that other ranks still need, then a goodbye.
  /// Pending operations fail with `closed`. `failure`: that of shutdown, for the elastic group.
  virtual void close(GroupId group, const std::string& failure = {}) = 0;
  /// Fails all pending operations of the group, and tells the other members.
  virtual void abort(GroupId group, const std::string& why) = 0;
  /// Closes all groups, sends what others still need as long as it moves (GoodbyeTime, of which
  /// options.goodbye_timeout_ms is `quiet_ms`), ends the thread. Idempotent. `failure`: the error
  /// that ends the program, for the other members and the master's log; empty: it ends in good
  /// order. `gives_up`: asked now and then, on the calling thread; true: it waits no longer.
  virtual void shutdown(const std::string& failure = {},
                        const std::function<bool()>& gives_up = nullptr) = 0;
  /// Ends as a SIGKILL does: closes every descriptor without a goodbye, and runs nothing any more.
  /// For tests of the other processes.
  virtual void vanish() = 0;
  /// Breaks an invariant on the driving thread, with this text. For tests.
  virtual void break_invariant(const std::string& what) = 0;
  /// In a forked child: closes all descriptors without a goodbye; every later call fails.
  virtual void forked() = 0;
};

}  // namespace pccl
