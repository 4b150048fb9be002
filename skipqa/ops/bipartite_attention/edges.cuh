// The edge matrix of an item as the kernels use it: masks of tokens, bits and lists of passages.
//
// Macros: LENGTH the type of a passage length, MASK one that holds a bit a passage.

#pragma once

#include "hopper.cuh"

constexpr u16 NOBODY = 0xffff;  // a row of a tile without a token

// A row of the edge matrix, bytes of 0 or 1, as bits: a product moves four of them together.
__device__ __forceinline__ u32 passages_of(const unsigned char* row, int num_passages) {
  u32 mask = 0;
  if (num_passages % 16 == 0) {
    for (int p = 0; p < num_passages; p += 16) {
      const uint4 x = *(const uint4*)(row + p);
      mask |= ((x.x * 0x01020408u) >> 24 & 15 | ((x.y * 0x01020408u) >> 24 & 15) << 4 |
               ((x.z * 0x01020408u) >> 24 & 15) << 8 | ((x.w * 0x01020408u) >> 24 & 15) << 12)
              << p;
    }
  } else {
#pragma unroll 4
    for (int p = 0; p < num_passages; ++p) mask |= (u32)row[p] << p;
  }
  return mask;
}

// By all warps: the passages of every token, and of passages `first` to `end` the tokens as bits,
// [K][words]. A passage of no tokens has no edges; lane p knows the length of passage p.
template <int ALL_WARPS>
__device__ __forceinline__ void read_edges(const unsigned char* edges, int my_length,
                                           int num_tokens, int num_passages, int first, int end,
                                           MASK* masks, u32* bits) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, words = (num_tokens + 31) / 32;
  for (int w0 = warp; w0 < words; w0 += 4 * ALL_WARPS) {
    u32 mask[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 32 * (w0 + ALL_WARPS * i) + lane;
      mask[i] = 0;
      if (token < num_tokens)
        mask[i] = passages_of(edges + (long long)token * num_passages, num_passages);
    }
    const u32 present = __ballot_sync(~0u, my_length > 0);  // here: both loads are on their way
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int w = w0 + ALL_WARPS * i;
      if (w >= words) break;
      mask[i] &= present;
      if (32 * w + lane < num_tokens) masks[32 * w + lane] = (MASK)mask[i];
      u32 mine = 0;
      for (int p = first; p < end; ++p) {
        const u32 word = __ballot_sync(~0u, mask[i] >> p & 1);
        if (lane == p) mine = word;
      }
      if (lane >= first && lane < end) bits[lane * words + w] = mine;
    }
  }
}

// By one warp: where passage `lane` of an item begins in the packed keys.
__device__ __forceinline__ int start_of_passage(const LENGTH* lengths, int item, int num_passages,
                                                int my_length, int lane) {
  int start = 0;
  for (int i = lane; i < item * num_passages; i += 32) start += (int)lengths[i];
#pragma unroll
  for (int step = 16; step; step /= 2) start += __shfl_xor_sync(~0u, start, step);
  int upto = my_length;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  return start + upto - my_length;
}

// By one warp: the tokens of one passage, in order.
__device__ __forceinline__ void list_tokens(const u32* bits, int words, int lane, u16* list) {
  u32 word = lane < words ? bits[lane] : 0;
  u32 place = __popc(word);  // tokens in the words up to the lane's
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u32 other = __shfl_up_sync(~0u, place, step);
    if (lane >= step) place += other;
  }
  __syncwarp();
  for (place -= __popc(word); word; word &= word - 1)
    list[place++] = (u16)(32 * lane + __ffs(word) - 1);
  __syncwarp();
}

// By one warp: zeros as the rows of tokens without an edge.
template <int WIDTH, int HEADS>
__device__ __forceinline__ void clear_rows_without_edge(const MASK* masks, int num_tokens, int item,
                                                        int head, int lane, u16* out, float* lse) {
  for (int first = 0; first < num_tokens; first += 32) {
    const int token = first + lane;
    u32 without = __ballot_sync(~0u, token < num_tokens && masks[token] == 0);
    while (without) {
      const long long row =
          ((long long)item * num_tokens + first + __ffs(without) - 1) * HEADS + head;
      without &= without - 1;
      if (lane < WIDTH / 8) *(uint4*)(out + row * WIDTH + lane * 8) = make_uint4(0, 0, 0, 0);
      if (lse && lane == 0) lse[row] = -INFINITE;
    }
  }
}
