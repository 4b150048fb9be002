// Matrices of one head in shared memory, as the tensor cores read them: blocks of 64 columns, rows
// of 128 bytes whose 16-byte columns are exchanged by the row's number mod 8 (128-byte swizzle).

#pragma once

#include "hopper.cuh"

// A cache policy, as `createpolicy` encodes it: what is copied leaves the L2 cache first, since
// nobody reads it again; queries and running results stay.
constexpr u64 READ_ONCE = 0x12F0000000000000ull;

// Where 16-byte column `column` of row `row` lies.
template <int BLOCK>
__device__ __forceinline__ u32 tile_offset(int row, int column) {
  return column / 8 * BLOCK + row * 128 + ((column % 8 ^ row % 8) << 4);
}
__device__ __forceinline__ void copy16(u32 to, const u16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Zeros if it is not there.
__device__ __forceinline__ void copy16_if(bool there, u32 to, const u16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
// The barrier hears of the copies that this thread has begun when they are done.
__device__ __forceinline__ void arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

template <int i, int I, int STEP, int TOKEN_STRIDE>
__device__ __forceinline__ void copy_block(const u32 (&to)[8 / STEP], const u16* source) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to[i]),
      "l"(source), "n"(I * 1024), "n"((8 * I + i * STEP) * TOKEN_STRIDE * 2), "l"(READ_ONCE)
      : "memory");
  if constexpr (i + 1 < 8 / STEP) copy_block<i + 1, I, STEP, TOKEN_STRIDE>(to, source);
}
// 8 rows from row 8 I on while there are as many, by one warp, at distances that are part of the
// instruction. Returns the rows that are done.
template <int I, int BLOCK, int STEP, int TOKEN_STRIDE>
__device__ __forceinline__ int copy_blocks(const u32 (&to)[8 / STEP], const u16* source, int rows) {
  if constexpr (1024 * I < BLOCK)
    if (8 * I + 8 <= rows) {
      copy_block<0, I, STEP, TOKEN_STRIDE>(to, source);
      return copy_blocks<I + 1, BLOCK, STEP, TOKEN_STRIDE>(to, source, rows);
    }
  return 8 * I;
}

// Consecutive rows, by one warp; up to row FILL zeros behind them, since a row that counts nothing
// does so only if it is finite.
template <int WIDTH, int TOKEN_STRIDE, int BLOCK, int FILL>
__device__ __forceinline__ void load_rows(u32 tile, const u16* source, int rows, u32 barrier,
                                          int lane) {
  constexpr int LANES = WIDTH / 8, STEP = 32 / LANES;  // lanes a row, rows at once
  const int row = lane / LANES, column = lane % LANES;
  source += row * TOKEN_STRIDE + column * 8;
  u32 to[8 / STEP];  // of the first 8 rows: the swizzle repeats after them
#pragma unroll
  for (int i = 0; i < 8 / STEP; ++i) to[i] = tile + tile_offset<BLOCK>(i * STEP + row, column);
  int r = copy_blocks<0, BLOCK, STEP, TOKEN_STRIDE>(to, source, rows);
#pragma unroll 1
  for (; r < max(rows, FILL); r += 8)
#pragma unroll
    for (int i = 0; i < 8 / STEP; ++i) {
      const bool there = r + i * STEP + row < rows;
      copy16_if(there, to[i] + r * 128,
                there ? source + (long long)(r + i * STEP) * TOKEN_STRIDE : source);
    }
  arrive_with_copies(barrier);
}
