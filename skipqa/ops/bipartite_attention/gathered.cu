// Attention over surviving edges on Hopper: one launch from the edge matrix to the result.
//
// A CTA owns one head of one part of an item's passages (grid: heads, parts, items). It turns the
// edge matrix into token lists by itself; then one warp copies keys, values and gathered queries
// into shared memory, a passage ahead, and a warpgroup consumes them, 64 tokens a tile. A token
// that meets its second passage finds its running result (normalised) where it left it, in `out`,
// or in `state` if it has edges in other parts too; its log-sum-exp, base 2, is in shared memory.
// The parts of an item are a cluster, which combines what lies in `state` at the end. One order of
// work, no atomics: the same input gives the same bits. Why it is cut this way: NOTES.md.
//
// Macros: D head width (64 or 128), H heads, PARTS, Q_TOKEN, K_TOKEN, V_TOKEN strides in elements,
// LENGTH the type of a passage length, MASK one that holds a bit a passage, STAGES and UNITS (at
// least WARPS), HALF for float16, BIAS for a bias on edges.

#include "edges.cuh"
#include "tiles.cuh"

constexpr int WARPS = 4;        // that compute: a warpgroup
constexpr int ALL = WARPS + 2;  // and the one that copies, and the one that passes it on
constexpr int THREADS = 32 * ALL;
constexpr int CHUNK = 104;  // keys held at once: 13 tiles of 8
constexpr int TILES_N = CHUNK / 8;
constexpr int BLOCK = 112 * 128;  // bytes of 64 columns: rows a multiple of 16, the last 8 zero
constexpr int STAGE = D / 64 * BLOCK;
constexpr int PITCH = 2 * D + 16;  // bytes between queries: no bank conflicts
constexpr int TILE = 16 * PITCH;   // queries of 16 tokens, a warp's
#ifdef BIAS
constexpr float LOG2E = 1.4426950408889634f;
#endif

// After the stages and the units; behind it the tokens of each passage as bits, the running
// log-sum-exp of each token, the passages of each token as a mask, the tokens of one passage.
struct Shared {
  u64 landed[STAGES], full[STAGES], empty[STAGES], q_full[UNITS], q_empty[UNITS];
  int count[32], length[32];  // of a passage: tokens with an edge to it, its own tokens
  u16 tokens[UNITS][16];
};

#if PARTS > 1
#define CLUSTER __cluster_dims__(1, PARTS, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2)
    attend(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
           const float* __restrict__ bias, const unsigned char* __restrict__ edges,
           const LENGTH* __restrict__ lengths, u16* out, float* lse, u16* state, float* state_lse,
           int num_tokens, int num_passages, int q_item, int q_head, int k_head, int v_head,
           float scale_log2) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + STAGES * STAGE + UNITS * TILE);
  const int words = (num_tokens + 31) / 32;
  u32* const bits = (u32*)(&shared + 1);                         // [K][words]
  float* const running = (float*)(bits + num_passages * words);  // [V]
  MASK* const masks = (MASK*)(running + num_tokens);             // [V]
  u16* const list = (u16*)(masks + num_tokens);                  // [V]

  const int head = blockIdx.x, part = blockIdx.y, item = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = (num_passages + PARTS - 1) / PARTS;
  const int first_passage = part * group, end_passage = min(num_passages, first_passage + group);

  u32 stage0 = shared_address(memory);
  asm volatile("" : "+r"(stage0));  // one register, not a computation at every use
  const u32 units = stage0 + STAGES * STAGE;
  const u32 landed = units + UNITS * TILE, full = landed + 8 * STAGES, empty = full + 8 * STAGES;
  const u32 q_full = empty + 8 * STAGES, q_empty = q_full + 8 * UNITS;

  if (warp == 0) {
    if (lane < STAGES) {
      barrier_init(landed + 8 * lane, 32);
      barrier_init(full + 8 * lane, 1);
      barrier_init(empty + 8 * lane, WARPS);
    }
    if (lane < UNITS) {
      barrier_init(q_full + 8 * lane, 33);
      barrier_init(q_empty + 8 * lane, 1);
    }
  }
  // Rows behind the chunk that the product with the values reads: zero once and for all.
  for (int i = threadIdx.x; i < STAGES * (D / 64) * 64; i += THREADS)
    *(uint4*)(memory + i / 64 * BLOCK + CHUNK * 128 + i % 64 * 16) = make_uint4(0, 0, 0, 0);
  proxy_fence();

  // The edge matrix of the item as masks of tokens and bits of passages.
  int my_length = 0;
  if (lane < num_passages) my_length = (int)lengths[(long long)item * num_passages + lane];
  const int my_start =
      warp == WARPS ? start_of_passage(lengths, item, num_passages, my_length, lane) : 0;
  read_edges<ALL>(edges + (long long)item * num_tokens * num_passages, my_length, num_tokens,
                  num_passages, first_passage, end_passage, masks, bits);
  __syncthreads();
  if (warp == 0) {
    int count = 0;
    if (lane >= first_passage && lane < end_passage)
      for (int w = 0; w < words; ++w) count += __popc(bits[lane * words + w]);
    shared.count[lane] = count;
    shared.length[lane] = my_length;
  }
  __syncthreads();

  if (warp == WARPS) {  // copies
    const u16* const queries = q + (long long)item * q_item + head * q_head + lane % (D / 8) * 8;
    u32 load = 0, seq = 0;
    auto next_stage = [&] {  // waits until it is free
      const u32 slot = load % STAGES;
      if (load >= STAGES) barrier_wait(empty + 8 * slot, load / STAGES - 1 & 1);
      ++load;
      return slot;
    };
    // Queries of units `unit` to `until` of the listed passage, with their tokens' numbers.
    auto gather = [&](int unit, int until, int count) {
      for (; unit < until; ++unit, ++seq) {
        const u32 room = seq % UNITS;
        if (seq >= UNITS) barrier_wait(q_empty + 8 * room, seq / UNITS - 1 & 1);
        const int rank = 16 * unit + lane;
        if (lane < 16) shared.tokens[room][lane] = rank < count ? list[rank] : NOBODY;
        const u32 to = units + room * TILE + lane / (D / 8) * PITCH + lane % (D / 8) * 16;
#pragma unroll
        for (int i = 0; i < 16; i += 256 / D) {
          const int token = list[min(16 * unit + i + lane / (D / 8), count - 1)];
          copy16(to + i * PITCH, queries + token * Q_TOKEN);
        }
        arrive_with_copies(q_full + 8 * room);
        __syncwarp();
        if (lane == 0) barrier_arrive(q_full + 8 * room);
      }
    };
    for (int p = first_passage; p < end_passage; ++p) {
      const int count = shared.count[p], length = shared.length[p];
      const int start = __shfl_sync(~0u, my_start, p);
      if (count == 0) continue;
      list_tokens(bits + p * words, words, lane, list);
      for (int n0 = 0; n0 < length; n0 += CHUNK) {
        const int rows = min(CHUNK, length - n0);
        const long long first = start + n0;
        u32 slot = next_stage();
        load_rows<D, K_TOKEN, BLOCK, 0>(stage0 + slot * STAGE, k + first * K_TOKEN + head * k_head,
                                        rows, landed + 8 * slot, lane);
        // Queries before values, which wait longer for room; but only as many as wait for nothing
        // later.
        const int needed = (count + 15) / 16;
        gather(0, min(needed, UNITS), count);
        slot = next_stage();
        load_rows<D, V_TOKEN, BLOCK, CHUNK>(stage0 + slot * STAGE,
                                            v + first * V_TOKEN + head * v_head, rows,
                                            landed + 8 * slot, lane);
        gather(UNITS, needed, count);
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else if (warp == WARPS + 1) {  // passes on
    // The fence that lets the tensor cores see copies waits for all that its thread has under way:
    // for nothing, here.
    u32 load = 0;
    for (int p = first_passage; p < end_passage; ++p) {
      if (shared.count[p] == 0) continue;
      const u32 end = load + 2 * ((shared.length[p] + CHUNK - 1) / CHUNK);
      for (; load < end; ++load) {
        barrier_wait(landed + 8 * (load % STAGES), load / STAGES & 1);
        proxy_fence();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + 8 * (load % STAGES));
      }
    }
    if (part == 0)  // their attention is zero
      clear_rows_without_edge<D, H>(masks, num_tokens, item, head, lane, out, lse);
  } else {
    const int g = lane / 4, t = lane % 4;  // rows g and g + 8, columns 2 t and 2 t + 1 of every 8
    const u32 part_mask =
        (end_passage >= 32 ? ~0u : (1u << end_passage) - 1) & ~((1u << first_passage) - 1);
    u32 load = 0, seq = 0;  // of keys and values; of queries
    for (int p = first_passage; p < end_passage; ++p) {
      const int count = shared.count[p], length = shared.length[p];
      if (count == 0) continue;
      for (int n0 = 0; n0 < length; n0 += CHUNK, load += 2) {
        const int rows = min(CHUNK, length - n0);
        const u32 k_slot = load % STAGES, k_phase = load / STAGES & 1;
        const u32 v_slot = (load + 1) % STAGES, v_phase = (load + 1) / STAGES & 1;
        // What other warps have found in earlier chunks can be read.
        asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
        for (int first = 0; first < count; first += 16 * WARPS) {
          const bool leaves = first + 16 * WARPS >= count;

          // Scores.
          float s[4 * TILES_N];
          uint4 a[D / 16];
          int token[2] = {NOBODY, NOBODY};
          if (first + 16 * warp < count) {
            const u32 room = (seq + warp) % UNITS;
            barrier_wait(q_full + 8 * room, (seq + warp) / UNITS & 1);
            token[0] = shared.tokens[room][g];
            token[1] = shared.tokens[room][g + 8];
            const u32 at = units + room * TILE + lane % 16 * PITCH + lane / 16 * 16;
#pragma unroll
            for (int c = 0; c < D / 16; ++c) a[c] = load_matrices(at + c * 32);
            __syncwarp();
            if (lane == 0) barrier_arrive(q_empty + 8 * room);
          } else {
#pragma unroll
            for (int c = 0; c < D / 16; ++c) a[c] = make_uint4(0, 0, 0, 0);
          }
          seq += min(WARPS, (count - first + 15) / 16);
          barrier_wait(full + 8 * k_slot, k_phase);
          product_fence();
          const u64 keys = matrix_at(stage0 + k_slot * STAGE, BLOCK);
#pragma unroll
          for (int c = 0; c < D / 16; ++c)
            product_rows(s, a[c], keys + (c / 4 * BLOCK + c % 4 * 32 >> 4), c > 0);
          product_commit();
          product_wait<0>(s);
          if (leaves && lane == 0) barrier_arrive(empty + 8 * k_slot);

          // What the rows' tokens have found in earlier chunks: on its way until it is needed.
          int row[2] = {};  // of the result; negative: it goes to `state`
          auto result = [&](int half) {
            return row[half] < 0 ? state + (long long)~row[half] * (H * D) + head * D
                                 : out + (long long)row[half] * (H * D) + head * D;
          };
          bool met[2], keep[2], ready[2];  // found before; will be read again; is complete
          uint4 earlier[2][D / 32];        // in the order of the registers
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const bool somebody = token[half] != NOBODY;
            const int safe = somebody ? token[half] : 0;
            const u32 mask = masks[safe], inside = mask & part_mask;
            met[half] = somebody && (n0 > 0 || (inside & ((1u << p) - 1)));
            const bool final = n0 + CHUNK >= length && !(inside & (~1u << p));
            keep[half] = somebody && !final;
            ready[half] = somebody && final;
            row[half] = PARTS > 1 && mask != inside ? ~((item * PARTS + part) * num_tokens + safe)
                                                    : item * num_tokens + safe;
#pragma unroll
            for (int i = 0; i < D / 32; ++i)
              earlier[half][i] = load4_if(met[half], result(half) + 32 * i + 8 * t);
          }
          // Weights, relative to the row's largest score.
          if (rows > CHUNK - 8) {
            constexpr int j = TILES_N - 1;
            if (8 * j + 2 * t >= rows) s[4 * j] = s[4 * j + 2] = -INFINITE;
            if (8 * j + 2 * t + 1 >= rows) s[4 * j + 1] = s[4 * j + 3] = -INFINITE;
          } else {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
              if (8 * j + 2 * t >= rows) s[4 * j] = s[4 * j + 2] = -INFINITE;
              if (8 * j + 2 * t + 1 >= rows) s[4 * j + 1] = s[4 * j + 3] = -INFINITE;
            }
          }
          float peak[2], total[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float peaks[4];  // several at a time: no long chains
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
              const float x = fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]);
              peaks[j % 4] = j < 4 ? x : fmaxf(peaks[j % 4], x);
            }
            peak[half] = fmaxf(fmaxf(peaks[0], peaks[1]), fmaxf(peaks[2], peaks[3]));
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            peak[half] = fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 1));
            peak[half] = scale_log2 * fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 2));
          }
          u32 weight[TILES_N + 1][2] = {};
          float totals[2][4] = {};
#pragma unroll
          for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float x = fast_exp2(fmaf(s[4 * j + 2 * half], scale_log2, -peak[half]));
              const float y = fast_exp2(fmaf(s[4 * j + 2 * half + 1], scale_log2, -peak[half]));
              totals[half][j % 4] += x + y;
              weight[j][half] = pack(x, y);
            }

          float o[D / 2];
          barrier_wait(full + 8 * v_slot, v_phase);
          product_fence();
          const u64 values = matrix_at(stage0 + v_slot * STAGE, BLOCK);
#pragma unroll
          for (int i = 0; i < (TILES_N + 1) / 2; ++i)
            product_columns(o,
                            make_uint4(weight[2 * i][0], weight[2 * i][1], weight[2 * i + 1][0],
                                       weight[2 * i + 1][1]),
                            values + (i * 16 * 128 >> 4), i > 0);
          product_commit();

          float now[2], then[2];  // factors of this chunk and of those before
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            total[half] = (totals[half][0] + totals[half][1]) + (totals[half][2] + totals[half][3]);
            total[half] += __shfl_xor_sync(~0u, total[half], 1);
            total[half] += __shfl_xor_sync(~0u, total[half], 2);
#ifdef BIAS
            if (token[half] != NOBODY)
              peak[half] += LOG2E * bias[(item * num_tokens + token[half]) * num_passages + p];
#endif
            const float mine = peak[half] + fast_log2(total[half]);
            const float before = met[half] ? running[token[half]] : -INFINITE;
            const float higher = fmaxf(mine, before);
            const float both =
                higher + fast_log2(fast_exp2(mine - higher) + fast_exp2(before - higher));
            now[half] = fast_exp2(peak[half] - both);
            then[half] = fast_exp2(before - both);
            __syncwarp();
            if (t == 0 && keep[half]) running[token[half]] = both;
            if (t == 0 && ready[half])
              *(row[half] < 0 ? state_lse + (long long)~row[half] * H + head
                              : lse + (long long)row[half] * H + head) = both;
          }
          product_wait<0>(o);
          if (leaves && lane == 0) barrier_arrive(empty + 8 * v_slot);

#pragma unroll
          for (int half = 0; half < 2; ++half) {
            u32 r[D / 8];
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
              const uint4 x = earlier[half][j / 4];
              const float2 old = unpack(j % 4 == 0   ? x.x
                                        : j % 4 == 1 ? x.y
                                        : j % 4 == 2 ? x.z
                                                     : x.w);
              r[j] = pack(fmaf(o[4 * j + 2 * half], now[half], old.x * then[half]),
                          fmaf(o[4 * j + 2 * half + 1], now[half], old.y * then[half]));
            }
#pragma unroll
            for (int i = 0; i < D / 32; ++i)
              store4_if(keep[half], result(half) + 32 * i + 8 * t, r[4 * i], r[4 * i + 1],
                        r[4 * i + 2], r[4 * i + 3]);
            // Neighbours exchange halves, so that four threads write 32 bytes of a row.
            const bool odd = t & 1;
            u16* const pair = result(half) + (odd ? 8 : 0) + 2 * (t & 2);
#pragma unroll
            for (int j = 0; j < D / 8; j += 2) {
              const u32 got = __shfl_xor_sync(~0u, odd ? r[j] : r[j + 1], 1);
              store2_if(ready[half], pair + 8 * j, odd ? got : r[j], odd ? r[j + 1] : got);
            }
          }
        }
      }
    }
  }

#if PARTS > 1
  // Tokens with edges in several parts: each program combines its share of them.
  cluster_barrier();
  constexpr int LANES = D / 8;
  const int column = threadIdx.x % LANES * 8;
  for (int token = part + PARTS * (threadIdx.x / LANES); token < num_tokens;
       token += PARTS * (THREADS / LANES)) {
    const u32 mask = masks[token];
    float found[PARTS];
    uint4 x[PARTS];
    float peak = -INFINITE, total = 0.f, sum[8] = {};
    int parts = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const bool in = mask >> (i * group) & (group >= 32 ? ~0u : (1u << group) - 1);
      parts += in;
      const long long row = (((long long)item * PARTS + i) * num_tokens + token) * H + head;
      found[i] = in ? state_lse[row] : -INFINITE;
      x[i] = load4_if(in, state + row * D + column);
    }
    if (parts < 2) continue;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) peak = fmaxf(peak, found[i]);
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const float share = fast_exp2(found[i] - peak);
      total += share;
      const u32 four[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 y = unpack(four[e]);
        sum[2 * e] = fmaf(y.x, share, sum[2 * e]);
        sum[2 * e + 1] = fmaf(y.y, share, sum[2 * e + 1]);
      }
    }
    const long long row = ((long long)item * num_tokens + token) * H + head;
    const float inverse = 1.f / total;
    *(uint4*)(out + row * D + column) = make_uint4(
        pack(sum[0] * inverse, sum[1] * inverse), pack(sum[2] * inverse, sum[3] * inverse),
        pack(sum[4] * inverse, sum[5] * inverse), pack(sum[6] * inverse, sum[7] * inverse));
    if (column == 0) lse[row] = peak + fast_log2(total);
  }
#endif
}
