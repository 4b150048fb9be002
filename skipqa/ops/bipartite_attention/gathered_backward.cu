// The gradients of `gathered.cu` on Hopper, without a bias on edges.
//
// A CTA owns one head of an item (grid: heads, items) and walks over its passages. Two warpgroups
// hold the gradients of 64 keys and values each in registers while tiles of 64 tokens, queries and
// gradients of results, pass by; the gradient of a query is a sum over the passages of its token
// and travels through `d_q`. Products are transposed, keys as rows: what a warpgroup computes from
// scores it can multiply at once, and only the product for the queries goes through shared memory.
// Four more warps copy: keys and values, a passage ahead; tokens, a tile ahead; and two that pass
// on. One order of work, no atomics.
//
// Macros as in `gathered.cu`, less PARTS and BIAS; D is 128.

#include "edges.cuh"
#include "tiles.cuh"

constexpr int D = 128;
constexpr int GROUPS = 2;          // warpgroups that compute
constexpr int WARPS = 4 * GROUPS;  // of them
constexpr int ALL = WARPS + 4;     // and those that copy
constexpr int THREADS = 32 * ALL;
constexpr int CHUNK = 128;              // keys held at once
constexpr int BLOCK = CHUNK * 128;      // bytes of 64 columns of them
constexpr int MATRIX = D / 64 * BLOCK;  // keys, or values
constexpr int STAGE = 2 * MATRIX;
constexpr int ROWS = 64;  // tokens of a tile
constexpr int TILE_BLOCK = ROWS * 128;
constexpr int TILE_MATRIX = D / 64 * TILE_BLOCK;  // queries, or gradients of results
constexpr int TILE = 2 * TILE_MATRIX;
constexpr int WEIGHTS = CHUNK * 128;  // bytes of a chunk's gradients of scores, keys as rows

// After stages, tiles and weights; behind it bits, masks and list as in `gathered.cu`.
struct Shared {
  u64 landed[2], full[2], empty[2], q_landed[2], q_full[2], q_empty[2];
  int count[32], length[32];
  float lse[2][ROWS], delta[2][ROWS];
  u16 tokens[2][ROWS];
};

// Two rows of 64 columns of float32, g and g + 8, as 16-bit numbers to `to` and 8 rows further.
__device__ __forceinline__ void store_rows(bool low, bool high, u16* to, u16* to_high,
                                           const float* x, float scale, int t) {
  const bool odd = t & 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u16* const pair = (half ? to_high : to) + (odd ? 8 : 0) + 2 * (t & 2);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      // Neighbours exchange halves, so that four threads write 32 bytes of a row.
      const u32 a = pack(x[4 * j + 2 * half] * scale, x[4 * j + 2 * half + 1] * scale);
      const u32 b = pack(x[4 * j + 4 + 2 * half] * scale, x[4 * j + 5 + 2 * half] * scale);
      const u32 got = __shfl_xor_sync(~0u, odd ? a : b, 1);
      store2_if(half ? high : low, pair + 8 * j, odd ? got : a, odd ? b : got);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_backward(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                    const unsigned char* __restrict__ edges, const LENGTH* __restrict__ lengths,
                    const float* __restrict__ lse, const float* __restrict__ delta,
                    const u16* __restrict__ d_out, u16* d_q, u16* __restrict__ d_k,
                    u16* __restrict__ d_v, int num_tokens, int num_passages, int q_item, int q_head,
                    int k_head, int v_head, float scale, float scale_log2) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + 2 * STAGE + 2 * TILE + WEIGHTS);
  const int words = (num_tokens + 31) / 32;
  u32* const bits = (u32*)(&shared + 1);                     // [K][words]
  MASK* const masks = (MASK*)(bits + num_passages * words);  // [V]
  u16* const list = (u16*)(masks + num_tokens);              // [V]

  const int head = blockIdx.x, item = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 stage0 = shared_address(memory), tile0 = stage0 + 2 * STAGE;
  const u32 weights = tile0 + 2 * TILE;
  const u32 landed = weights + WEIGHTS, full = landed + 16, empty = full + 16;
  const u32 q_landed = empty + 16, q_full = q_landed + 16, q_empty = q_full + 16;

  if (threadIdx.x < 2) {
    barrier_init(landed + 8 * lane, 64);
    barrier_init(full + 8 * lane, 1);
    barrier_init(empty + 8 * lane, WARPS);
    barrier_init(q_landed + 8 * lane, 33);
    barrier_init(q_full + 8 * lane, 1);
    barrier_init(q_empty + 8 * lane, WARPS);
  }
  int my_length = 0;
  if (lane < num_passages) my_length = (int)lengths[(long long)item * num_passages + lane];
  read_edges<ALL>(edges + (long long)item * num_tokens * num_passages, my_length, num_tokens,
                  num_passages, 0, num_passages, masks, bits);
  __syncthreads();
  if (warp == 0) {
    int count = 0;
    if (lane < num_passages)
      for (int w = 0; w < words; ++w) count += __popc(bits[lane * words + w]);
    shared.count[lane] = count;
    shared.length[lane] = my_length;
  }
  __syncthreads();

  if (warp >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == WARPS) {  // copies keys and values
      const int my_start = start_of_passage(lengths, item, num_passages, my_length, lane);
      u32 load = 0;
      for (int p = 0; p < num_passages; ++p) {
        const int length = shared.length[p], start = __shfl_sync(~0u, my_start, p);
        if (shared.count[p] == 0) {  // nobody reads it: no gradient
          for (int r = lane / 16; r < length; r += 2) {
            const long long at = ((long long)(start + r) * H + head) * D + lane % 16 * 8;
            *(uint4*)(d_k + at) = *(uint4*)(d_v + at) = make_uint4(0, 0, 0, 0);
          }
          continue;
        }
        for (int n0 = 0; n0 < length; n0 += CHUNK, ++load) {
          const u32 slot = load % 2, stage = stage0 + slot * STAGE;
          const int rows = min(CHUNK, length - n0);
          const long long first = start + n0;
          if (load >= 2) barrier_wait(empty + 8 * slot, load / 2 - 1 & 1);
          load_rows<D, K_TOKEN, BLOCK, CHUNK>(stage, k + first * K_TOKEN + head * k_head, rows,
                                              landed + 8 * slot, lane);
          load_rows<D, V_TOKEN, BLOCK, 0>(stage + MATRIX, v + first * V_TOKEN + head * v_head, rows,
                                          landed + 8 * slot, lane);
        }
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
    } else if (warp == WARPS + 1) {  // copies queries and gradients of results
      const u16* const queries = q + (long long)item * q_item + head * q_head + lane % 16 * 8;
      const u16* const gradients =
          d_out + ((long long)item * num_tokens * H + head) * D + lane % 16 * 8;
      const long long of_item = (long long)item * num_tokens * H + head;
      u32 seq = 0;
      for (int p = 0; p < num_passages; ++p) {
        const int count = shared.count[p], length = shared.length[p];
        if (count == 0) continue;
        list_tokens(bits + p * words, words, lane, list);
        for (int n0 = 0; n0 < length; n0 += CHUNK)
          for (int first = 0; first < count; first += ROWS, ++seq) {
            const u32 slot = seq % 2, tile = tile0 + slot * TILE;
            if (seq >= 2) barrier_wait(q_empty + 8 * slot, seq / 2 - 1 & 1);
            const int odd = lane / 16;
#pragma unroll 8
            for (int i = 0; i < ROWS; i += 2) {
              const int token = list[min(first + i + odd, count - 1)];
              const u32 to = tile + tile_offset<TILE_BLOCK>(i + odd, lane % 16);
              copy16(to, queries + token * Q_TOKEN);
              copy16(to + TILE_MATRIX, gradients + (long long)token * (H * D));
            }
            arrive_with_copies(q_landed + 8 * slot);
#pragma unroll
            for (int row = lane; row < ROWS; row += 32) {
              const bool somebody = first + row < count;
              const int token = list[min(first + row, count - 1)];
              shared.tokens[slot][row] = somebody ? (u16)token : NOBODY;
              const long long at = of_item + (long long)token * H;
              // A weight without a token is 2 to the minus infinity.
              shared.lse[slot][row] = somebody ? lse[at] : INFINITE;
              shared.delta[slot][row] = somebody ? delta[at] : 0.f;
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(q_landed + 8 * slot);
          }
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
    } else {  // pass on: keys and values, or tokens (why: `gathered.cu`)
      const bool of_tokens = warp == WARPS + 3;
      const u32 from = of_tokens ? q_landed : landed, to = of_tokens ? q_full : full;
      u32 load = 0;
      for (int p = 0; p < num_passages; ++p) {
        const int count = shared.count[p], chunks = (shared.length[p] + CHUNK - 1) / CHUNK;
        if (count == 0) continue;
        const u32 end = load + chunks * (of_tokens ? (count + ROWS - 1) / ROWS : 1);
        for (; load < end; ++load) {
          barrier_wait(from + 8 * (load % 2), load / 2 & 1);
          proxy_fence();
          __syncwarp();
          if (lane == 0) barrier_arrive(to + 8 * (load % 2));
        }
      }
      if (of_tokens)
        clear_rows_without_edge<D, H>(masks, num_tokens, item, head, lane, d_q, nullptr);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int g = lane / 4, t = lane % 4, group = warp / 4;
    // Of the rows of a product: keys in the chunk, or tokens in the tile.
    const int low = warp % 4 * 16 + g, my_key = 64 * group + low;
    int start = 0;  // of the passage
    for (int i = lane; i < item * num_passages; i += 32) start += (int)lengths[i];
#pragma unroll
    for (int step = 16; step; step /= 2) start += __shfl_xor_sync(~0u, start, step);
    u32 load = 0, seq = 0;
    for (int p = 0; p < num_passages; ++p) {
      const int count = shared.count[p], length = shared.length[p];
      for (int n0 = 0; count && n0 < length; n0 += CHUNK, ++load) {
        const int rows = min(CHUNK, length - n0);
        const bool inside[2] = {my_key < rows, my_key + 8 < rows};
        float dk[64], dv[64];
        barrier_wait(full + 8 * (load % 2), load / 2 & 1);
        for (int first = 0; first < count; first += ROWS, ++seq) {
          const u32 slot = seq % 2, tile = tile0 + slot * TILE;
          const u32 stage = here(stage0 + load % 2 * STAGE);
          float s[32], ds[32];
          barrier_wait(q_full + 8 * slot, seq / 2 & 1);
          const u64 own_keys = matrix_at(stage + group * 64 * 128, BLOCK);
          const u64 queries = matrix_at(tile, TILE_BLOCK);
          const u64 gradients = queries + (TILE_MATRIX >> 4);
          product_fence();
#pragma unroll
          for (int c = 0; c < D / 16; ++c)
            product_64<0, 0>(s, own_keys + (c / 4 * BLOCK + c % 4 * 32 >> 4),
                             queries + (c / 4 * TILE_BLOCK + c % 4 * 32 >> 4), c > 0);
          product_commit();
#pragma unroll
          for (int c = 0; c < D / 16; ++c)
            product_64<0, 0>(ds, own_keys + (MATRIX + c / 4 * BLOCK + c % 4 * 32 >> 4),
                             gradients + (c / 4 * TILE_BLOCK + c % 4 * 32 >> 4), c > 0);
          product_commit();
          const int token[2] = {shared.tokens[slot][low], shared.tokens[slot][low + 8]};

          u32 weight[8][2], d_score[8][2];
          product_wait<1>(s);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 peak = *(const float2*)&shared.lse[slot][8 * j + 2 * t];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float* const x = s + 4 * j + 2 * half;
              x[0] = inside[half] ? fast_exp2(fmaf(x[0], scale_log2, -peak.x)) : 0.f;
              x[1] = inside[half] ? fast_exp2(fmaf(x[1], scale_log2, -peak.y)) : 0.f;
              weight[j][half] = pack(x[0], x[1]);
            }
          }
          product_wait<0>(ds);
          // The product for the queries of the tile before has read its weights.
          asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
          const u32 at = here(weights + tile_offset<WEIGHTS>(my_key, 0) + 4 * t);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 mean = *(const float2*)&shared.delta[slot][8 * j + 2 * t];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float* const x = s + 4 * j + 2 * half;
              const float* const y = ds + 4 * j + 2 * half;
              d_score[j][half] = pack(inside[half] ? x[0] * (y[0] - mean.x) : 0.f,
                                      inside[half] ? x[1] * (y[1] - mean.y) : 0.f);
              asm volatile("st.shared.u32 [%0], %1;" ::"r"((at ^ j << 4) + 1024 * half),
                           "r"(d_score[j][half])
                           : "memory");
            }
          }
          proxy_fence();
          product_fence();
#pragma unroll
          for (int i = 0; i < ROWS / 16; ++i)
            product_columns(dv,
                            make_uint4(weight[2 * i][0], weight[2 * i][1], weight[2 * i + 1][0],
                                       weight[2 * i + 1][1]),
                            gradients + (i * 16 * 128 >> 4), first + i > 0);
#pragma unroll
          for (int i = 0; i < ROWS / 16; ++i)
            product_columns(dk,
                            make_uint4(d_score[2 * i][0], d_score[2 * i][1], d_score[2 * i + 1][0],
                                       d_score[2 * i + 1][1]),
                            queries + (i * 16 * 128 >> 4), first + i > 0);
          product_commit();
          asm volatile("bar.sync 2, %0;" ::"n"(32 * WARPS) : "memory");  // all weights are there
          float dq[32];                                                  // 64 columns a warpgroup
          const u64 keys = matrix_at(stage + group * BLOCK, BLOCK);
          const u64 rows_of_keys = matrix_at(here(weights), WEIGHTS);
          product_fence();
#pragma unroll
          for (int i = 0; i < CHUNK / 16; ++i)
            product_64<1, 1>(dq, rows_of_keys + (i * 16 * 128 >> 4), keys + (i * 16 * 128 >> 4),
                             i > 0);
          product_commit();

          // What the tokens' queries got from earlier chunks, in the order of the registers.
          bool keep[2], ready[2];
          uint4 earlier[2][2];
          u16* result[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const bool somebody = token[half] != NOBODY;
            const int safe = somebody ? token[half] : 0;
            const u32 mask = masks[safe];
            const bool met = somebody && (n0 > 0 || (mask & ((1u << p) - 1)));
            const bool final = n0 + CHUNK >= length && !(mask & (~1u << p));
            keep[half] = somebody && !final;
            ready[half] = somebody && final;
            result[half] =
                d_q + (((long long)item * num_tokens + safe) * H + head) * D + 64 * group;
#pragma unroll
            for (int i = 0; i < 2; ++i)
              earlier[half][i] = load4_if(met, result[half] + 32 * i + 8 * t);
          }
          product_wait<0>(dq);
          if (lane == 0) barrier_arrive(q_empty + 8 * slot);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            u32 r[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const uint4 x = earlier[half][j / 4];
              const float2 old = unpack(j % 4 == 0   ? x.x
                                        : j % 4 == 1 ? x.y
                                        : j % 4 == 2 ? x.z
                                                     : x.w);
              float* const y = dq + 4 * j + 2 * half;
              y[0] = fmaf(y[0], scale, old.x);
              y[1] = fmaf(y[1], scale, old.y);
              r[j] = pack(y[0], y[1]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
              store4_if(keep[half], result[half] + 32 * i + 8 * t, r[4 * i], r[4 * i + 1],
                        r[4 * i + 2], r[4 * i + 3]);
          }
          store_rows(ready[0], ready[1], result[0], result[1], dq, 1.f, t);
        }
        product_wait<0>(dk);
        product_wait<0>(dv);
        if (lane == 0) barrier_arrive(empty + 8 * (load % 2));
        const long long at = ((long long)(start + n0 + my_key) * H + head) * D;
#pragma unroll
        for (int block = 0; block < D / 64; ++block) {
          u16* const to_k = d_k + at + 64 * block;
          u16* const to_v = d_v + at + 64 * block;
          store_rows(inside[0], inside[1], to_k, to_k + 8 * H * D, dk + 32 * block, scale, t);
          store_rows(inside[0], inside[1], to_v, to_v + 8 * H * D, dv + 32 * block, 1.f, t);
        }
      }
      start += length;
    }
  }
}
