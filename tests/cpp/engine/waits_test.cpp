// Every call of an engine that can wait, ended from outside by every cause: the table says which
// error its caller gets, or why that cause cannot come. No call may wait for its own end only.
// Ctrl-C, fork and what else needs Python are in tests/e2e/test_waits.py.
#include <future>
#include <list>
#include <map>

#include "elastic_run.h"
#include "engine/elastic_group.h"
#include "mute.h"

namespace pccl::testing {
namespace {

constexpr std::uint64_t kShortMs = 300;
constexpr std::uint64_t kForEverMs = 1000 * kTestMs;
constexpr GroupId kFixed{77};

enum class WaitingCall : std::uint8_t {
  connect,       // configure_fixed
  collective,    // these five of a fixed group
  barrier,       //
  send,          //
  recv,          //
  recv_any,      //
  join,          // until the run is founded
  reduce,        // these five of the elastic group
  elastic_send,  //
  elastic_recv,  //
  elastic_any,   //
  boundary,      //
  store,         // of the master
  door,          // an operation of a newcomer, in a run without boundaries
  pull           // of shared state
};

enum class Cause : std::uint8_t { broken, left, evicted, aborted, closed, shut_down, timed_out };

struct Row {
  WaitingCall call;
  const char* name;
  // By cause: the names of the errors that it may be, "" for success, or, in brackets, why that
  // cause cannot come.
  std::map<Cause, std::string> ends;
};

const char* const kNoMaster = "(no master, no eviction; a rank of a replica: test_replicas.py)";
const char* const kIssued =
    "(a member leaves when nothing is issued, or at a boundary: the operation ends first)";

const std::vector<Row>& table() {
  using enum Cause;
  static const std::vector<Row> rows{
      {WaitingCall::connect,
       "connect",
       {{broken, "broken"},
        {left, "(it waits for a link to a rank that never comes up)"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "unreachable"}}},
      {WaitingCall::collective,
       "collective",
       {{broken, "broken"},
        {left, "peer_lost"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::barrier,
       "barrier",
       {{broken, "broken"},
        {left, "peer_lost"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::send,
       "send",
       {{broken, "broken"},
        {left, "peer_lost"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::recv,
       "recv",
       {{broken, "broken"},
        {left, "peer_lost"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::recv_any,
       "recv_any",
       {{broken, "broken"},
        {left, "peer_lost"},
        {evicted, kNoMaster},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::join,
       "join",
       {{broken, "broken"},
        {left, "closed"},
        {evicted, "(of a run that is not founded nobody is a member)"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::reduce,
       "reduce",
       {{broken, "broken"},
        {left, kIssued},
        {evicted, "evicted"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, ""}}},  // the others are evicted
      {WaitingCall::elastic_send,
       "elastic_send",
       {{broken, "broken"},
        {left, "closed|peer_lost"},
        {evicted, "evicted|peer_lost"},
        {aborted, "closed|peer_lost"},
        {closed, "closed|peer_lost"},
        {shut_down, "closed|peer_lost"},
        {timed_out, "timed_out"}}},
      {WaitingCall::elastic_recv,
       "elastic_recv",
       {{broken, "broken"},
        {left, "closed|peer_lost"},
        {evicted, "evicted|peer_lost"},
        {aborted, "closed|peer_lost"},
        {closed, "closed|peer_lost"},
        {shut_down, "closed|peer_lost"},
        {timed_out, "timed_out"}}},
      {WaitingCall::elastic_any,
       "elastic_any",
       {{broken, "broken"},
        {left, "closed|peer_lost"},
        {evicted, "evicted|peer_lost"},
        {aborted, "closed|peer_lost"},
        {closed, "closed|peer_lost"},
        {shut_down, "closed|peer_lost"},
        {timed_out, "timed_out"}}},
      {WaitingCall::boundary,
       "boundary",
       {{broken, "broken"},
        {left, "(a wish: this very boundary, when it ends, is where the member leaves)"},
        {evicted, "(a member at the boundary is late for nothing: its own time-out evicts)"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, ""}}},  // the others are evicted
      {WaitingCall::store,
       "store",
       {{broken, "broken"},
        {left, "closed"},
        {evicted, "evicted"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::door,
       "door",
       {{broken, "broken"},
        {left, "closed"},
        {evicted, "(a newcomer at the door is no member)"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "timed_out"}}},
      {WaitingCall::pull,
       "pull",
       {{broken, "broken"},
        {left, "(at once when all say that nothing is issued: here the source stands still)"},
        {evicted, "evicted"},
        {aborted, "closed"},
        {closed, "closed"},
        {shut_down, "closed"},
        {timed_out, "(by limits of its own: state_exchange_test.cpp)"}}},
  };
  return rows;
}

const char* name_of(Cause cause) {
  static const std::map<Cause, const char*> names{
      {Cause::broken, "broken"},      {Cause::left, "left"},     {Cause::evicted, "evicted"},
      {Cause::aborted, "aborted"},    {Cause::closed, "closed"}, {Cause::shut_down, "shut_down"},
      {Cause::timed_out, "timed_out"}};
  return names.at(cause);
}

/// One engine with a call that waits, and the others that it waits for.
class Scene {
 public:
  Scene(WaitingCall call, bool times_out)
      : call_(call), timeout_ms_(times_out ? kShortMs : kForEverMs), x(500000, 1.0F) {
    if (call < WaitingCall::join) {
      begin_fixed();
    } else {
      begin_elastic();
    }
  }
  ~Scene() { held_.set_value(); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  Error outcome() {
    if (ended_.valid()) {
      EXPECT_EQ(ended_.wait_for(std::chrono::milliseconds(kTestMs)), std::future_status::ready);
      return ended_.get();
    }
    return pccl::testing::outcome(ticket_);
  }
  [[nodiscard]] bool waits() {
    return ended_.valid() ? ended_.wait_for(std::chrono::seconds(0)) != std::future_status::ready
                          : !ticket_->done();
  }

  void end_by(Cause cause) {
    switch (cause) {
      case Cause::broken:
        return engine_->break_invariant("planted by a test");
      case Cause::left:
        return call_ < WaitingCall::join ? others_.front()->close(group_)
                                         : engine_->run().leave(true);
      case Cause::evicted:
        return evict();
      case Cause::aborted:
        return engine_->abort(group_, "as a test wants it");
      case Cause::closed:
        return std::thread([&] { engine_->close(group_); }).join();
      case Cause::shut_down:
        return std::thread([&] { engine_->shutdown(); }).join();
      case Cause::timed_out:
        return;
    }
  }

 private:
  void begin_fixed() {
    fixed_ = std::make_unique<FixedWorld>(2, kFixed);
    group_ = kFixed;
    engine_ = fixed_->engines[0].get();
    others_ = {fixed_->engines[1].get()};
    if (call_ == WaitingCall::connect) {
      group_ = GroupId{78};
      std::vector<Handle> handles = handles_of(fixed_->engines);
      handles[1].key = KeyPair::make().public_key();
      handles[1].peer = peer_of(handles[1].key);
      handles[1].addresses = {mute_.address()};
      ticket_ = engine_->configure_fixed(group_, "waits", handles, 0, timeout_ms_);
    } else {
      post();
    }
  }

  void begin_elastic() {
    group_ = kElasticGroup;
    if (call_ == WaitingCall::join) {
      master_ = std::make_unique<MasterThread>(master_of(2));
      EngineOptions options;
      options.links.listen_hosts = {"127.0.0.1"};
      options.goodbye_timeout_ms = 2000;
      alone_ = Engine::create(options).value();
      engine_ = alone_.get();
      ticket_ = engine_->run().join({{master_->address}, "", {}, false, timeout_ms_});
      return;
    }
    run_ = std::make_unique<Founded>(3);
    engine_ = run_->peers[0].engine.get();
    others_ = {run_->peers[1].engine.get(), run_->peers[2].engine.get()};
    if (call_ == WaitingCall::door) {
      late_ = start_peer(run_->master.address);
      expect_success(late_.joined);
      engine_ = late_.engine.get();
      post();
    } else if (call_ == WaitingCall::boundary) {
      ended_ = std::async(std::launch::async,
                          [this] { return refresh(*engine_, x, 1, timeout_ms_).error(); });
    } else if (call_ == WaitingCall::store) {
      StoreRequest request;
      request.op = StoreOp::wait;
      request.keys = {"never"};
      request.timeout_ms = timeout_ms_;
      ticket_ = engine_->run().store(request);
    } else if (call_ == WaitingCall::pull) {
      hold(*others_.front());
      ticket_ = engine_->run().pull(others_.front()->handle("").peer, {}, 0, buffer(x));
    } else {
      post();
    }
  }

  void post() {
    const auto other = [&] {  // of two or three, a rank that is not this one
      return engine_->view(group_).rank == 0 ? 1 : 0;
    };
    OpRequest request;
    switch (call_) {
      case WaitingCall::barrier:
        request = barrier();
        break;
      case WaitingCall::send:
      case WaitingCall::elastic_send:
        request = message(OpKind::send, other(), x, 5);
        break;
      case WaitingCall::recv:
      case WaitingCall::elastic_recv:
        request = message(OpKind::recv, other(), x, 5);
        break;
      case WaitingCall::recv_any:
      case WaitingCall::elastic_any:
        request = message(OpKind::recv, -1, x, 5);
        break;
      default:
        request = all_reduce(x);
    }
    request.timeout_ms = timeout_ms_;
    ticket_ = engine_->post(group_, std::move(request));
  }

  /// Keeps an engine from doing anything until this scene ends.
  void hold(Engine& engine) {
    auto holds = std::make_shared<std::promise<void>>();
    StoreRequest request;
    request.op = StoreOp::check;
    request.keys = {"anything"};
    engine.run().store(request)->on_done([holds, until = held_.get_future().share()] {
      holds->set_value();
      until.wait();
    });
    holds->get_future().wait();
  }

  /// The others do something that this one does not come to, and wait for it for a moment only.
  void evict() {
    for (Engine* other : others_) {
      if (call_ == WaitingCall::pull && other == others_.front()) continue;  // it stands still
      if (call_ == WaitingCall::reduce) {
        boundaries_.push_back(std::async(std::launch::async, [other] {
          std::vector<float> state(1000, 1.0F);
          static_cast<void>(refresh(*other, state, 1, kShortMs));
        }));
      } else {
        auto& values = theirs_.emplace_back(1000, 1.0F);
        OpRequest request = all_reduce(values);
        request.timeout_ms = kShortMs;
        static_cast<void>(other->post(group_, std::move(request)));
      }
    }
  }

  const WaitingCall call_;
  const std::uint64_t timeout_ms_;
  std::vector<float> x;
  std::list<std::vector<float>> theirs_;
  GroupId group_;
  Mute mute_;
  std::promise<void> held_;
  std::unique_ptr<FixedWorld> fixed_;
  std::unique_ptr<MasterThread> master_;
  std::unique_ptr<Founded> run_;
  std::shared_ptr<Engine> alone_;
  Peer late_;
  Engine* engine_ = nullptr;
  std::vector<Engine*> others_;
  std::shared_ptr<Ticket> ticket_;
  std::future<Error> ended_;
  std::vector<std::future<void>> boundaries_;  // first to go: they use the others
};

class Waits : public ::testing::TestWithParam<std::pair<std::size_t, Cause>> {};

TEST_P(Waits, end) {
  const auto [index, cause] = GetParam();
  const Row& row = table().at(index);
  const std::string& expected = row.ends.at(cause);
  if (expected.starts_with("(")) GTEST_SKIP() << expected;
  Scene scene(row.call, cause == Cause::timed_out);
  if (cause != Cause::timed_out) {
    EXPECT_TRUE(scene.waits());
  }
  scene.end_by(cause);
  const Error error = scene.outcome();
  const std::string seen(error.failed() ? error_name(error.code) : "");
  EXPECT_NE(("|" + expected + "|").find("|" + seen + "|"), std::string::npos)
      << seen << " in place of " << expected << ": " << error.text;
}

std::vector<std::pair<std::size_t, Cause>> all() {
  std::vector<std::pair<std::size_t, Cause>> all;
  for (std::size_t i = 0; i < table().size(); ++i) {
    for (const auto& [cause, expected] : table()[i].ends) all.emplace_back(i, cause);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Waits, ::testing::ValuesIn(all()), [](const auto& test) {
  return std::string(table().at(test.param.first).name) + "_by_" + name_of(test.param.second);
});

TEST(WaitTable, names_every_call_and_every_cause) {
  EXPECT_EQ(table().size(), static_cast<std::size_t>(WaitingCall::pull) + 1);
  for (const Row& row : table()) {
    EXPECT_EQ(row.ends.size(), static_cast<std::size_t>(Cause::timed_out) + 1) << row.name;
  }
}

}  // namespace
}  // namespace pccl::testing
