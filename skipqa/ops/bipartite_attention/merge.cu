// The second step of `gathered.cu` where an item's passages are cut into parts.
//
// A token with edges in several parts has a result in each (`state`, normalised, with its
// log-sum-exp in base 2); here they become one. Grid: tokens, groups of heads, items; D / 8 threads
// a (token, head). Macros: D, H, LENGTH and HALF as there.

#include "hopper.cuh"

constexpr int THREADS = 256;
constexpr int LANES = D / 8;  // threads a row, 16 bytes each

extern "C" __global__ void __launch_bounds__(THREADS)
    merge(const unsigned char* __restrict__ edges, const LENGTH* __restrict__ lengths,
          u16* __restrict__ out, float* __restrict__ lse, const u16* __restrict__ state,
          const float* __restrict__ state_lse, int num_tokens, int num_passages, int parts) {
  const int lane = threadIdx.x % LANES;
  const int token = blockIdx.x, item = blockIdx.z;
  const int head = blockIdx.y * (THREADS / LANES) + threadIdx.x / LANES;
  const int group = (num_passages + parts - 1) / parts;
  const int at = threadIdx.x % 32;
  bool edge = false;
  if (at < num_passages)
    edge = edges[((long long)item * num_tokens + token) * num_passages + at] &&
           lengths[(long long)item * num_passages + at] > 0;
  u32 mask = __ballot_sync(~0u, edge);
  u32 in_parts = 0;
  for (int p = 0; p < parts; ++p)
    if (mask >> (p * group) & (group >= 32 ? ~0u : (1u << group) - 1)) in_parts |= 1u << p;
  if (!(in_parts & (in_parts - 1)) || head >= H) return;
  float peak = -INFINITE, total = 0.f;
  float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  for (u32 left = in_parts; left; left &= left - 1) {
    const int part = __ffs(left) - 1;
    const long long row = (((long long)item * parts + part) * num_tokens + token) * H + head;
    const float found = state_lse[row];
    const uint4 x = *(const uint4*)(state + row * D + lane * 8);
    const float higher = fmaxf(peak, found), then = fast_exp2(peak - higher),
                now = fast_exp2(found - higher);
    peak = higher;
    total = total * then + now;
    const u32 four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 y = unpack(four[e]);
      sum[2 * e] = sum[2 * e] * then + y.x * now;
      sum[2 * e + 1] = sum[2 * e + 1] * then + y.y * now;
    }
  }
  const long long row = ((long long)item * num_tokens + token) * H + head;
  const float inverse = 1.f / total;
  *(uint4*)(out + row * D + lane * 8) = make_uint4(
      pack(sum[0] * inverse, sum[1] * inverse), pack(sum[2] * inverse, sum[3] * inverse),
      pack(sum[4] * inverse, sum[5] * inverse), pack(sum[6] * inverse, sum[7] * inverse));
  if (lane == 0) lse[row] = peak + fast_log2(total);
}
