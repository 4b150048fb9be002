// Attention over surviving edges on Hopper: one launch from the edge matrix to the result.
//
// A CTA owns one head of one part of an item's passages (grid: heads, parts, items). It turns the
// edge matrix into token lists by itself; then one warp, the producer, copies keys, values and
// gathered queries into shared memory, a passage ahead, and WARPS warps consume them, 16 tokens a
// tile, every WARPS-th tile each. A token that meets its second passage finds its running result
// (normalised, with its log-sum-exp in base 2) where it left it, in `out`, or in `state` if it has
// edges in other parts too, which `merge.cu` then combines. Warps take turns by passage, so the
// same input gives the same bits. Why it is cut this way: NOTES.md.
//
// Macros: D head width (64 or 128), H heads, Q_TOKEN, K_TOKEN, V_TOKEN strides in elements, LENGTH
// the type of a passage length, MASK one that holds a bit a passage, WARPS, STAGES and UNITS (at
// least WARPS), HALF for float16, BIAS for a bias on edges.

#include "hopper.cuh"

constexpr int CHUNK = 104;  // keys held at once: 13 tiles of 8
constexpr int TILES_N = CHUNK / 8;
constexpr int PITCH = 2 * D + 16;  // bytes between rows in shared memory: no bank conflicts
constexpr int STAGE = CHUNK * PITCH;
constexpr int MERGES = 8;         // more chunks than fit the stages
constexpr int TILE = 16 * PITCH;  // queries of 16 tokens
constexpr int THREADS = 32 * (WARPS + 1);

// After the stages and the units; behind it the bits of each passage and the mask of each token.
struct Shared {
  u64 full[STAGES], empty[STAGES], merged[MERGES], q_full[UNITS], q_empty[UNITS];
  int start[32], length[32], count[32];
  u16 tokens[UNITS][16];
};
constexpr u16 NOBODY = 0xffff;  // a row of a tile without a token
#ifdef BIAS
constexpr float LOG2E = 1.4426950408889634f;
#endif

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
    for (int p = 0; p < num_passages; ++p) mask |= (u32)row[p] << p;
  }
  return mask;
}

// Rows I to END, at distances that are part of the instruction.
template <int I, int END, int TO, int FROM>
__device__ __forceinline__ void copy_block(u32 target, const u16* source) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(target), "l"(source),
               "n"(I * TO), "n"(I * FROM)
               : "memory");
  if constexpr (I + 1 < END) copy_block<I + 1, END, TO, FROM>(target, source);
}
// Rows of one head into a stage, by one warp; FILL: zeros behind them, since values without a key
// count nothing only if they are finite. The barrier learns when they are there.
template <int TOKEN_STRIDE, bool FILL>
__device__ __forceinline__ void load_rows(u32 target, const u16* source, int rows, u32 barrier,
                                          int lane) {
  constexpr int COLUMNS = D / 8, STEP = 32 / COLUMNS,
                BLOCK = 20 / STEP;  // lanes a row, rows at once
  source += (long long)(lane / COLUMNS) * TOKEN_STRIDE + lane % COLUMNS * 8;
  target += lane / COLUMNS * PITCH + lane % COLUMNS * 16;
  int r = 0;
#pragma unroll
  for (int block = 0; block < CHUNK / 20; ++block) {
    if (20 * (block + 1) > rows) break;
    r = 20 * (block + 1);
    copy_block<0, BLOCK, STEP * PITCH, STEP * TOKEN_STRIDE * 2>(target + 20 * block * PITCH,
                                                                source + 20 * block * TOKEN_STRIDE);
  }
  for (; r < (FILL ? CHUNK : rows); r += STEP) {
    const bool there = r + lane / COLUMNS < rows;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target + r * PITCH),
                 "l"(there ? source + (long long)r * TOKEN_STRIDE : source), "r"(there ? 16 : 0)
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attend(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
           const float* __restrict__ bias, const unsigned char* __restrict__ edges,
           const LENGTH* __restrict__ lengths, u16* out, float* lse, u16* state, float* state_lse,
           int num_tokens, int num_passages, int parts, int q_item, int q_head, int k_head,
           int v_head, float scale_log2) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *(Shared*)(memory + STAGES * STAGE + UNITS * TILE);
  const int words = (num_tokens + 31) / 32;
  u32* const bits = (u32*)(&shared + 1);                     // [K][words]: the tokens of a passage
  MASK* const masks = (MASK*)(bits + num_passages * words);  // [V]: the passages of a token

  const int head = blockIdx.x, part = blockIdx.y, item = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = (num_passages + parts - 1) / parts;
  const int first_passage = part * group, end_passage = min(num_passages, first_passage + group);

  if (warp == 0) {
    if (lane < STAGES) {
      barrier_init(shared_address(&shared.full[lane]), 32);
      barrier_init(shared_address(&shared.empty[lane]), WARPS);
    }
    if (lane < MERGES) barrier_init(shared_address(&shared.merged[lane]), WARPS);
    if (lane < UNITS) {
      barrier_init(shared_address(&shared.q_full[lane]), 33);
      barrier_init(shared_address(&shared.q_empty[lane]), 1);
    }
  }
  // The edge matrix of the item, turned into lists: once by token, once by passage.
  int my_length = 0;
  if (lane < num_passages) my_length = (int)lengths[(long long)item * num_passages + lane];
  const u32 present = __ballot_sync(~0u, my_length > 0);
#pragma unroll 4
  for (int token = threadIdx.x; token < num_tokens; token += THREADS)
    masks[token] =
        present &
        passages_of(edges + ((long long)item * num_tokens + token) * num_passages, num_passages);
  if (warp == WARPS) {  // where the item's passages begin
    int before = 0;
    for (int i = lane; i < item * num_passages; i += 32) before += (int)lengths[i];
#pragma unroll
    for (int step = 16; step; step /= 2) before += __shfl_xor_sync(~0u, before, step);
    int upto = my_length;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    shared.start[lane] = before + upto - my_length;
    shared.length[lane] = my_length;
  }
  __syncthreads();
  for (int p = first_passage + warp; p < end_passage; p += WARPS + 1) {
    int found = 0;
    for (int w = 0; w < words; ++w) {
      const u32 word =
          __ballot_sync(~0u, 32 * w + lane < num_tokens && (masks[32 * w + lane] >> p & 1));
      if (lane == 0) bits[p * words + w] = word;
      found += __popc(word);
    }
    if (lane == 0) shared.count[p] = found;
  }
  __syncthreads();

  u32 stage0 = shared_address(memory);
  asm volatile("" : "+r"(stage0));  // one register, not a computation at every use
  const u32 units = stage0 + STAGES * STAGE;
  const u32 full = units + UNITS * TILE, empty = full + 8 * STAGES, merged = empty + 8 * STAGES;
  const u32 q_full = merged + 8 * MERGES, q_empty = q_full + 8 * UNITS;
  const u32 starts = q_empty + 8 * UNITS, lengths_at = starts + 128, counts = lengths_at + 128;
  const u32 tokens_at = counts + 128, bits_at = tokens_at + 32 * UNITS,
            masks_at = bits_at + 4 * num_passages * words;

  if (warp == WARPS) {  // the producer
    int slot = 0, round = 0, seq = 0;
    // Queries of tiles `tile` to `until` of a passage, with their tokens' numbers.
    auto gather = [&](int tile, int until, int count, u32 word, u32 upto) {
      for (; tile < until; ++tile, ++seq) {
        const int rank = 16 * tile + lane % 16;
        const u32 r = min(rank, count - 1);
        int place = 0;  // the word that holds the r-th token, then its bit
#pragma unroll
        for (int step = 16; step; step /= 2)
          if (__shfl_sync(~0u, upto, place + step - 1) <= r) place += step;
        u32 left = __shfl_sync(~0u, word, place);
        int nth = r - (__shfl_sync(~0u, upto, place) - __popc(left)), token = 32 * place;
#pragma unroll
        for (int step = 16; step; step /= 2) {
          const int low = __popc(left & ((1u << step) - 1));
          if (nth >= low) {
            nth -= low;
            token += step;
            left >>= step;
          }
        }
        const u32 unit = (u32)seq % UNITS;
        if (seq >= UNITS) barrier_wait(q_empty + 8 * unit, (u32)(seq / UNITS - 1) & 1);
        if (lane < 16)
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(tokens_at + 32 * unit + 2 * lane),
                       "h"((u16)(rank < count ? token : NOBODY))
                       : "memory");
        const u32 to = units + unit * TILE + lane / (D / 8) * PITCH + lane % (D / 8) * 16;
#pragma unroll
        for (int i = 0; i < 16; i += 256 / D) {
          const int at = __shfl_sync(~0u, token, i + lane / (D / 8));
          asm volatile(
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * PITCH),
              "l"(q + (u32)(item * q_item + head * q_head + at * Q_TOKEN + lane % (D / 8) * 8))
              : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(q_full + 8 * unit)
                     : "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(q_full + 8 * unit);
      }
    };
    for (int p = first_passage; p < end_passage; ++p) {
      const int count = read_int(counts + 4 * p);
      if (count == 0) continue;
      const u32 word = lane < words ? read_int(bits_at + 4 * (p * words + lane)) : 0;
      u32 upto = __popc(word);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
      }
      for (int n0 = 0; n0 < read_int(lengths_at + 4 * p); n0 += CHUNK) {
        const int rows = min(CHUNK, read_int(lengths_at + 4 * p) - n0);
        const long long first = read_int(starts + 4 * p) + n0;
        if (round) barrier_wait(empty + 8 * slot, (round - 1) & 1);
        load_rows<K_TOKEN, false>(stage0 + slot * STAGE, k + first * K_TOKEN + head * k_head, rows,
                                  full + 8 * slot, lane);
        if (++slot == STAGES) {
          slot = 0;
          ++round;
        }
        // Queries before values, which wait longer for room; but only as many as wait for nothing
        // later.
        const int tiles = (count + 15) / 16;
        gather(0, min(tiles, UNITS), count, word, upto);
        if (round) barrier_wait(empty + 8 * slot, (round - 1) & 1);
        load_rows<V_TOKEN, true>(stage0 + slot * STAGE, v + first * V_TOKEN + head * v_head, rows,
                                 full + 8 * slot, lane);
        if (++slot == STAGES) {
          slot = 0;
          ++round;
        }
        gather(UNITS, tiles, count, word, upto);
      }
    }
    if (part == 0)  // tokens without an edge: their attention is zero
      for (int first = 0; first < num_tokens; first += 32) {
        const int token = first + lane;
        u32 without = __ballot_sync(~0u, token < num_tokens && masks[token] == 0);
        while (without) {
          const long long row =
              ((long long)item * num_tokens + first + __ffs(without) - 1) * H + head;
          without &= without - 1;
          if (lane < D / 8) *(uint4*)(out + row * D + lane * 8) = make_uint4(0, 0, 0, 0);
          if (lane == 0) lse[row] = -INFINITE;
        }
      }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }

  const int g = lane / 4, t = lane % 4;
  const u32 part_mask =
      (end_passage >= 32 ? ~0u : (1u << end_passage) - 1) & ~((1u << first_passage) - 1);

  // The warp's tiles are every WARPS-th of all. `chunk` counts the chunks of passages with an edge,
  // `end` the tiles up to its last.
  int passage = first_passage - 1, n0 = 0, length = 0, chunk = -1, seq = warp - WARPS, end = 0;
  auto advance = [&]() -> bool {
    seq += WARPS;
    while (seq >= end) {
      n0 += CHUNK;
      if (n0 >= length) {
        do
          if (++passage >= end_passage) return false;
        while (read_int(counts + 4 * passage) == 0);
        length = read_int(lengths_at + 4 * passage);
        n0 = 0;
      }
      end += (u32)(read_int(counts + 4 * passage) + 15) / 16;
      ++chunk;
    }
    return true;
  };
  int behind = 0;  // chunks that this warp has left behind
  // Keys and values of chunk i are loads 2 i and 2 i + 1, each in the next stage.
  auto slot_of = [](u32 load) { return load % STAGES; };
  auto phase_of = [](u32 load) { return load / STAGES & 1; };
  // Barriers count all warps, also one that has no tile in a chunk.
  auto pass = [&](int until) {
    for (; behind < until; ++behind) {
      for (int load = 2 * behind; load < 2 * behind + 2; ++load) {
        barrier_wait(full + 8 * slot_of(load), phase_of(load));
        if (lane == 0) barrier_arrive(empty + 8 * slot_of(load));
      }
      if (lane == 0) barrier_arrive(merged + 8 * (behind % MERGES));
    }
  };

  bool more = advance();
  while (more) {
    pass(chunk);
    const int rows = min(CHUNK, length - n0);
    const int k_slot = slot_of(2 * behind);

    // Scores: rows g and g + 8, columns 2 t and 2 t + 1 of every tile of 8 keys.
    float s[TILES_N][4];
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.f;
    const int unit = (u32)seq % UNITS;
    barrier_wait(q_full + 8 * unit, (u32)seq / UNITS & 1);
    const int low = read_u16(tokens_at + 32 * unit + 2 * g),
              high = read_u16(tokens_at + 32 * unit + 2 * g + 16);
    {
      const int own = here(lane);
      const u32 q_at = units + unit * TILE + own % 16 * PITCH + own / 16 * 16;
      uint4 a[D / 16];
#pragma unroll
      for (int c = 0; c < D / 16; ++c) a[c] = load_matrices(q_at + c * 32);
      __syncwarp();
      if (lane == 0) barrier_arrive(q_empty + 8 * unit);
      barrier_wait(full + 8 * k_slot, phase_of(2 * behind));
      const u32 at = stage0 + k_slot * STAGE + own % 8 * PITCH + own / 8 * 16;
#pragma unroll
      for (int c = 0; c < D / 32; ++c)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
          const uint4 b = load_matrices(at + j * 8 * PITCH + c * 64);
          mma16(s[j], a[2 * c].x, a[2 * c].y, a[2 * c].z, a[2 * c].w, b.x, b.y);
          mma16(s[j], a[2 * c + 1].x, a[2 * c + 1].y, a[2 * c + 1].z, a[2 * c + 1].w, b.z, b.w);
        }
    }
    const bool leaves = seq + WARPS >= end;
    if (leaves) {
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * k_slot);
    }

    // What the rows' tokens have found in earlier chunks.
    if (behind > 0)
      barrier_wait(merged + 8 * ((u32)(behind - 1) % MERGES), (u32)(behind - 1) / MERGES & 1);
    int row[2] = {};         // of the result; negative: it goes to `state`
    bool keep[2], ready[2];  // a result that will be read again, or is complete
    auto result = [&](int half) {
      return row[half] < 0 ? state + (long long)~row[half] * (H * D) + head * D
                           : out + (long long)row[half] * (H * D) + head * D;
    };
    auto result_lse = [&](int half) {
      return row[half] < 0 ? state_lse + (long long)~row[half] * H + head
                           : lse + (long long)row[half] * H + head;
    };
    uint4 earlier[D / 64][2][2];  // of 64 columns, rows g and g + 8
    bool met[2];
    // Of a row that meets its first passage the query is read instead: any finite number will do,
    // it counts nothing.
    auto look_up = [&](int block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = half ? high : low;
        const u16* from = met[half] ? (const u16*)result(half)
                                    : q + (u32)(item * q_item + head * q_head +
                                                (token == NOBODY ? 0 : token) * Q_TOKEN);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          earlier[block][half][i] = load_global(from + 8 * t + 64 * block + 32 * i);
      }
    };
    float earlier_lse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = half ? high : low;
      const int safe = token == NOBODY ? 0 : token;
      const u32 mask = (sizeof(MASK) == 2 ? (u32)read_u16(masks_at + 2 * safe)
                                          : (u32)read_int(masks_at + 4 * safe)),
                inside = mask & part_mask;
      met[half] = token != NOBODY && (n0 > 0 || (inside & ((1u << passage) - 1)));
      const bool final = n0 + CHUNK >= length && !(inside & (~1u << passage));
      keep[half] = token != NOBODY && !final;
      ready[half] = token != NOBODY && final;
      row[half] =
          mask != inside ? ~((item * parts + part) * num_tokens + safe) : item * num_tokens + safe;
      earlier_lse[half] = load_float_if(met[half], result_lse(half));
    }

    look_up(0);

    // Weights, relative to the row's largest score.
    if (rows > CHUNK - 8) {
      constexpr int j = TILES_N - 1;
      if (8 * j + 2 * t >= rows) s[j][0] = s[j][2] = -INFINITE;
      if (8 * j + 2 * t + 1 >= rows) s[j][1] = s[j][3] = -INFINITE;
    } else {
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        if (8 * j + 2 * t >= rows) s[j][0] = s[j][2] = -INFINITE;
        if (8 * j + 2 * t + 1 >= rows) s[j][1] = s[j][3] = -INFINITE;
      }
    }
    float peak[2], total[2], peaks[2][4], totals[2][4] = {};  // several at a time: no long chains
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < TILES_N; ++j) {
        const float x = fmaxf(s[j][2 * half], s[j][2 * half + 1]);
        peaks[half][j % 4] = j < 4 ? x : fmaxf(peaks[half][j % 4], x);
      }
      peak[half] =
          fmaxf(fmaxf(peaks[half][0], peaks[half][1]), fmaxf(peaks[half][2], peaks[half][3]));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      peak[half] = fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 1));
      peak[half] = scale_log2 * fmaxf(peak[half], __shfl_xor_sync(~0u, peak[half], 2));
    }
    u32 p[TILES_N][2];
#pragma unroll
    for (int j = 0; j < TILES_N; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float a = fast_exp2(fmaf(s[j][2 * half], scale_log2, -peak[half]));
        const float b = fast_exp2(fmaf(s[j][2 * half + 1], scale_log2, -peak[half]));
        totals[half][j % 4] += a + b;
        p[j][half] = pack(a, b);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] = (totals[half][0] + totals[half][1]) + (totals[half][2] + totals[half][3]);
      total[half] += __shfl_xor_sync(~0u, total[half], 1);
      total[half] += __shfl_xor_sync(~0u, total[half], 2);
    }

    float mine[2], now[2], then[2];  // log-sum-exp; factors of this chunk and of those before
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#ifdef BIAS
      const int token = half ? high : low;
      if (token != NOBODY)
        peak[half] += LOG2E * bias[(item * num_tokens + token) * num_passages + passage];
#endif
      mine[half] = peak[half] + fast_log2(total[half]);
    }
    const int own = here(lane);
    const u32 v_at = stage0 + (8 * (own / 8 % 2) + own % 8) * PITCH + own / 16 * 16;
    const u32 v_last = stage0 + (CHUNK - 8 + own % 8) * PITCH + own / 8 * 16;
    const int v_slot = slot_of(2 * behind + 1);
    barrier_wait(full + 8 * v_slot, phase_of(2 * behind + 1));
#pragma unroll
    for (int d0 = 0; d0 < D / 8; d0 += 8) {  // 64 columns of the result at a time
      float o[8][4];
#pragma unroll
      for (int j = 0; j < 8; ++j) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
      const u32 at = v_at + v_slot * STAGE + d0 * 16, last = v_last + v_slot * STAGE + d0 * 16;
#pragma unroll
      for (int i = 0; i < TILES_N / 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const uint4 b = load_transposed(at + i * 16 * PITCH + j * 16);
          mma16(o[j], p[2 * i][0], p[2 * i][1], p[2 * i + 1][0], p[2 * i + 1][1], b.x, b.y);
          mma16(o[j + 1], p[2 * i][0], p[2 * i][1], p[2 * i + 1][0], p[2 * i + 1][1], b.z, b.w);
        }
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const uint4 b = load_transposed(last + j * 16);
        mma8(o[j], p[TILES_N - 1][0], p[TILES_N - 1][1], b.x);
        mma8(o[j + 1], p[TILES_N - 1][0], p[TILES_N - 1][1], b.y);
        mma8(o[j + 2], p[TILES_N - 1][0], p[TILES_N - 1][1], b.z);
        mma8(o[j + 3], p[TILES_N - 1][0], p[TILES_N - 1][1], b.w);
      }
      if (d0 + 8 < D / 8) look_up(d0 / 8 + 1);
      if (d0 + 8 == D / 8 && leaves) {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * v_slot);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (d0 == 0) {
          // Made to wait for the product: sooner it would be waited for, being still on its way.
          const float old_lse = __uint_as_float(
              __float_as_uint(earlier_lse[half]) ^
              (__float_as_uint(o[7][3]) & ((u32)here(num_tokens) >> 30)));  // which is zero
          const float higher = fmaxf(mine[half], old_lse);
          const float both =
              higher + fast_log2(fast_exp2(mine[half] - higher) + fast_exp2(old_lse - higher));
          now[half] = fast_exp2(peak[half] - both);
          then[half] = fast_exp2(old_lse - both);
          if ((keep[half] || ready[half]) && t == 0) *result_lse(half) = both;
        }
        u32 r[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const uint4 x = earlier[d0 / 8][half][j / 4];
          const float2 old = unpack(j % 4 == 0 ? x.x : j % 4 == 1 ? x.y : j % 4 == 2 ? x.z : x.w);
          r[j] = pack(fmaf(o[j][2 * half], now[half], old.x * then[half]),
                      fmaf(o[j][2 * half + 1], now[half], old.y * then[half]));
        }
        u16* const to = result(half) + 8 * d0;
        // A result that will be read again stays in the order of the registers.
#pragma unroll
        for (int i = 0; i < 2; ++i)
          store4_if(keep[half], to + 32 * i + 8 * t, r[4 * i], r[4 * i + 1], r[4 * i + 2],
                    r[4 * i + 3]);
        // Neighbours exchange halves, so that four threads write 32 bytes of a row.
        const bool odd = t & 1;
        u16* const pair = to + (odd ? 8 : 0) + 2 * (t & 2);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const u32 got = __shfl_xor_sync(~0u, odd ? r[j] : r[j + 1], 1);
          store2_if(ready[half], pair + 8 * j, odd ? got : r[j], odd ? r[j + 1] : got);
        }
      }
    }
    if (leaves) {
      __syncwarp();
      if (lane == 0) barrier_arrive(merged + 8 * ((u32)behind % MERGES));
      ++behind;
    }
    more = advance();
  }
  pass(chunk + 1);
}
