// What an operation is: its kind, its reduction, the type of its elements. The numbers are on the
// wire (in every segment header), so they are never reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/quantisation.h"

namespace pccl {

enum class DType : std::uint8_t {
  u8 = 0,
  i8 = 1,
  i16 = 2,
  u16 = 3,
  i32 = 4,
  u32 = 5,
  i64 = 6,
  u64 = 7,
  f16 = 8,
  bf16 = 9,
  f32 = 10,
  f64 = 11,
  boolean = 12,
  c64 = 13,
  c128 = 14,  // complex: moved, and reduced by sum, product and avg only
  f8_e4m3 = 15,
  f8_e5m2 = 16,
  bytes = 17  // moved only: any other type, one element is one byte
};
inline constexpr DType kLastDType = DType::bytes;

constexpr std::size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::u8:
    case DType::i8:
    case DType::boolean:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::bytes:
      return 1;
    case DType::i16:
    case DType::u16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::u32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
    case DType::c64:
      return 8;
    case DType::c128:
      return 16;
  }
  return 1;
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::i16:
      return "int16";
    case DType::u16:
      return "uint16";
    case DType::i32:
      return "int32";
    case DType::u32:
      return "uint32";
    case DType::i64:
      return "int64";
    case DType::u64:
      return "uint64";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    case DType::boolean:
      return "bool";
    case DType::c64:
      return "complex64";
    case DType::c128:
      return "complex128";
    case DType::f8_e4m3:
      return "float8_e4m3fn";
    case DType::f8_e5m2:
      return "float8_e5m2";
    case DType::bytes:
      return "bytes";
  }
  return "unknown";
}

enum class ReduceOp : std::uint8_t {
  none = 0,
  sum = 1,
  product = 2,
  min = 3,
  max = 4,
  band = 5,
  bor = 6,
  bxor = 7,
  avg = 8
};
inline constexpr ReduceOp kLastReduceOp = ReduceOp::avg;

constexpr std::string_view reduce_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::none:
      return "none";
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
    case ReduceOp::avg:
      return "avg";
  }
  return "unknown";
}

enum class OpKind : std::uint8_t {
  all_reduce = 1,
  reduce = 2,
  broadcast = 3,
  all_gather = 4,
  gather = 5,
  scatter = 6,
  reduce_scatter = 7,
  all_to_all = 8,
  barrier = 9,
  send = 10,
  recv = 11
};
inline constexpr OpKind kLastOpKind = OpKind::recv;

constexpr std::string_view kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::reduce:
      return "reduce";
    case OpKind::broadcast:
      return "broadcast";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::gather:
      return "gather";
    case OpKind::scatter:
      return "scatter";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::all_to_all:
      return "all_to_all";
    case OpKind::barrier:
      return "barrier";
    case OpKind::send:
      return "send";
    case OpKind::recv:
      return "recv";
  }
  return "unknown";
}

/// The count of a call without an element: one of 0 says that shapes may differ between ranks.
inline constexpr std::uint64_t kNoElements = ~std::uint64_t{0};

/// The part of a call in which all ranks must agree; in the header of every segment.
struct OpDescriptor {
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::none;
  DType dtype = DType::bytes;
  std::int32_t root = -1;   // in the numbering that the caller sees; -1: none
  std::uint64_t count = 0;  // elements, or kNoElements; 0: shapes may differ between ranks
  Quantisation quantisation = Quantisation::none;  // of what is sent; `quantisable` calls only

  bool operator==(const OpDescriptor&) const = default;
};

/// Can this call send its values as fewer bits?
constexpr bool quantisable(OpKind kind, ReduceOp reduce, DType dtype) {
  return kind == OpKind::all_reduce && (reduce == ReduceOp::sum || reduce == ReduceOp::avg) &&
         dtype == DType::f32;
}

}  // namespace pccl
