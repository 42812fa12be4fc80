// Copies the fields of a Python dictionary into a C++ struct, by name. Used by both extensions.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <set>
#include <string>

namespace pccl {

/// An unknown field, or a value of the wrong type, is a ValueError that names the field. Used with
/// the GIL; `from` outlives the object.
class __attribute__((visibility("hidden"))) Fields {  // as pybind11's own types are
 public:
  explicit Fields(const pybind11::dict& from) : from_(from) {}

  template <typename T>
  void take(const char* name, T& field) {
    known_.insert(name);
    if (!from_.contains(name)) return;
    const pybind11::object value = from_[name];
    try {
      field = value.cast<T>();
    } catch (const pybind11::cast_error&) {
      throw pybind11::value_error(std::string(name) + ": wrong value " +
                                  pybind11::repr(value).cast<std::string>());
    }
  }

  void refuse_others() const {
    for (const auto& item : from_) {
      const auto name = pybind11::str(item.first).cast<std::string>();
      if (!known_.contains(name)) throw pybind11::value_error("no such field: \"" + name + "\"");
    }
  }

 private:
  const pybind11::dict& from_;
  std::set<std::string> known_;
};

}  // namespace pccl
