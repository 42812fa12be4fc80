// c10d's Store over the key-value store of the run's master, so that init_method="pccl://..." and
// the groups made from an elastic group need no TCPStore. The keys are lost with the master.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/engine.h"

namespace pccl {

/// Thread-safe. A call waits at most for the store's time-out, or the one given, plus
/// kStoreGraceMs.
class EngineStore final : public c10d::Store {
 public:
  using Value = std::vector<std::uint8_t>;
  using Keys = std::vector<std::string>;
  using Millis = std::chrono::milliseconds;

  EngineStore(std::shared_ptr<Engine> engine, Millis timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const Value& value) override;
  using c10d::Store::compareSet;
  Value compareSet(const std::string& key, const Value& expected, const Value& desired) override;
  Value get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const Keys& keys) override;
  int64_t getNumKeys() override;
  void wait(const Keys& keys) override;
  void wait(const Keys& keys, const Millis& timeout) override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multiGet(const Keys& keys) override;
  void multiSet(const Keys& keys, const std::vector<Value>& values) override;
  bool hasExtendedApi() const override { return true; }
  Keys
  listKeys();  // NOLINT: no `override`, so that it builds with a torch that has no such function

 private:
  /// Throws unless the store has answered.
  StoreResult call(StoreOp op, Keys keys, std::vector<Value> values, std::int64_t amount,
                   Millis timeout);

  const std::shared_ptr<Engine> engine_;
};

}  // namespace pccl
