// Top-K, difference to residency, cap, victims and publication for one (request, KV head) pair.
#pragma once
#include "select_base.h"

namespace oasis {

// Candidates for the position that follows `position`, from block `first_block` on.
OASIS_DEVICE int count_candidates(const SelectArgs& a, int position) {
  int n = (position + 1) / a.block_tokens - a.recent_blocks + 1 - a.first_block;
  return n > 0 ? n : 0;
}

// Clear the maps, load scores and the pair's state; return the number of candidates.
OASIS_DEVICE int load_pair(const SelectArgs& a, const SelectScratch& s, int pair,
                           const int* position) {
  const float* scores = a.scores + pair * a.score_stride + a.first_block;
  const int* slot_block = a.slot_block + static_cast<long long>(pair) * a.pool;
  const int* stamp = a.stamp + static_cast<long long>(pair) * a.pool;
#ifdef __CUDACC__
  // The first loads go out before anything waits, the position among them.
  const int readable = static_cast<int>(a.score_stride) - a.first_block;
  float first[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int i = threadIdx.x + j * blockDim.x;
    first[j] = i < readable ? scores[i] : 0.f;
  }
  int block0 = threadIdx.x < a.pool ? slot_block[threadIdx.x] : -1;
  int stamp0 = threadIdx.x < a.pool ? stamp[threadIdx.x] : 0;
  const int at = *position;
  if (threadIdx.x < 8) s.scalar[threadIdx.x] = threadIdx.x == kAnd ? -1 : 0;
  for (int i = threadIdx.x; i < kPasses * kBins / 4; i += blockDim.x)
    reinterpret_cast<int4*>(s.hist)[i] = make_int4(0, 0, 0, 0);
  for (int i = threadIdx.x; i < (readable + 31) / 32; i += blockDim.x) s.resident[i] = 0;
  __syncthreads();
  const int n = count_candidates(a, at);
  uint32_t ones = 0, zeros = ~0u;
  auto keep = [&](int i, float score) {
    uint32_t key = score_key(score);
    s.key[i] = key, ones |= key, zeros &= key;
  };
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    int i = threadIdx.x + j * blockDim.x;
    if (i < n) keep(i, first[j]);
  }
  OASIS_FOR(i, n - 8 * static_cast<int>(blockDim.x)) {
    keep(i + 8 * blockDim.x, scores[i + 8 * blockDim.x]);
  }
  for (int i = threadIdx.x; i < a.pool; i += blockDim.x) {
    int block = i == threadIdx.x ? block0 : slot_block[i];
    s.slot_block[i] = block, s.stamp[i] = i == threadIdx.x ? stamp0 : stamp[i];
    int inside = block - a.first_block;
    if (block >= 0 && inside >= 0 && inside < n) set_bit(s.resident, inside);
    if (block < 0) atomicAdd(&s.scalar[kFree], 1);
  }
  ones = __reduce_or_sync(0xffffffffu, ones), zeros = __reduce_and_sync(0xffffffffu, zeros);
  if ((threadIdx.x & 31) == 0) atomicOr(&s.scalar[kOr], ones), atomicAnd(&s.scalar[kAnd], zeros);
  __syncthreads();
#else
  const int n = count_candidates(a, *position);
  for (int i = 0; i < 8; ++i) s.scalar[i] = i == kAnd ? -1 : 0;
  for (int i = 0; i < kPasses * kBins; ++i) s.hist[i] = 0;
  for (int i = 0; i < (n + 31) / 32; ++i) s.resident[i] = 0;
  for (int i = 0; i < n; ++i) {
    s.key[i] = score_key(scores[i]);
    s.scalar[kOr] |= s.key[i], s.scalar[kAnd] &= s.key[i];
  }
  for (int i = 0; i < a.pool; ++i) {
    int inside = slot_block[i] - a.first_block;
    s.slot_block[i] = slot_block[i], s.stamp[i] = stamp[i];
    if (slot_block[i] >= 0 && inside >= 0 && inside < n) set_bit(s.resident, inside);
    s.scalar[kFree] += slot_block[i] < 0;
  }
#endif
  return n;
}

struct Threshold {
  uint32_t prefix, mask;  // keys whose masked bits exceed the prefix are in
  int need;               // how many keys with that very prefix are in
  bool all;               // all of them
};

// Radix search for the `want`-th largest of n keys, from the first bit in which keys differ.
OASIS_DEVICE Threshold find_threshold(const SelectScratch& s, int n, int want) {
  if (want >= n) return {0u, 0u, n, true};
  uint32_t differ = static_cast<uint32_t>(s.scalar[kOr]) ^ static_cast<uint32_t>(s.scalar[kAnd]);
  if (differ == 0) return {0u, 0u, want, false};
  int top = OASIS_HIGHEST(differ) + 1;  // bits that differ at most
  uint32_t mask = top == 32 ? 0u : ~0u << top;
  uint32_t prefix = static_cast<uint32_t>(s.scalar[kAnd]) & mask;
  int need = want;
  for (int pass = 0; top > 0; ++pass) {
    int width = top < 8 ? top : 8, shift = top - width;
    int* hist = s.hist + pass * kBins;
    OASIS_FOR(i, n) {
      uint32_t k = s.key[i];
      if ((k & mask) == prefix) OASIS_ADD(&hist[255 - (k >> shift & ((1u << width) - 1u))], 1);
    }
    OASIS_SYNC();
    Bin bin = find_bin(hist, need);
    need -= bin.above;
    prefix |= static_cast<uint32_t>(bin.digit) << shift;
    mask |= ((1u << width) - 1u) << shift;
    top = shift;
    if (bin.inside == need) return {prefix, mask, need, true};
  }
  return {prefix, mask, need, false};
}

// Mark the `want` best of n candidates (score descending, block ascending) and list the needed.
OASIS_DEVICE void mark_target(const SelectArgs& a, const SelectScratch& s, int n, int want) {
  Threshold t = want > 0 ? find_threshold(s, n, want) : Threshold{~0u, ~0u, 0, false};
  if (!t.all && want > 0) {
    fill_bits(s.equal, n, [&](int i) { return (s.key[i] & t.mask) == t.prefix; });
    OASIS_SYNC();
  }
  fill_bits(s.target, n, [&](int i) {
    uint32_t k = s.key[i] & t.mask;
    bool in = k > t.prefix;
    if (k == t.prefix && want > 0) in = t.all || bits_below(s.equal, i) < t.need;
    if (in && !test_bit(s.resident, i))
      s.need[OASIS_ADD(&s.scalar[kNeeded], 1)] = sort_key(~s.key[i], a.first_block + i);
    return in;
  });
  OASIS_SYNC();
}

OASIS_DEVICE bool in_target(const SelectArgs& a, const SelectScratch& s, int block, int n) {
  int i = block - a.first_block;
  return block >= 0 && i >= 0 && i < n && test_bit(s.target, i);
}

// Rank needed blocks by score: the admitted ones in target order.
OASIS_DEVICE void rank_needed(const SelectArgs& a, const SelectScratch& s, int admitted) {
  int needed = s.scalar[kNeeded];
  if (admitted == 0) return;
  OASIS_FOR(j, needed) {
    uint64_t mine = s.need[j];
    int rank = count_less(s.need, needed, mine);
    if (rank < admitted) s.admit[rank] = static_cast<int>(mine & 0xffffffffu);
  }
  if (s.scalar[kFree] == 0) return;
  OASIS_FOR(i, a.pool) {
    if (s.slot_block[i] < 0) {
      int rank = 0;
      for (int j = 0; j < i; ++j) rank += s.slot_block[j] < 0;
      if (rank < admitted) s.place[rank] = i;
    }
  }
}

// Rank slots outside the target by (stamp, block): victims first, then those not attended.
OASIS_DEVICE void rank_evictable(const SelectScratch& s, int victims, int dropped, int free_used) {
  int evictable = s.scalar[kEvictable];
  OASIS_FOR(j, evictable) {
    int slot = s.evictable[j];
    int rank = victims + dropped > 0 ? count_less(s.evict_key, evictable, s.evict_key[j]) : 0;
    if (rank < victims) s.place[free_used + rank] = slot;
    else if (rank >= victims + dropped) set_bit(s.attend, slot);
  }
}

// Write the moves, the new residents, the stamps and the list of attended units.
OASIS_DEVICE void publish(const SelectArgs& a, const SelectScratch& s, int pair, int n,
                          int admitted, int step) {
  int request = pair / a.heads, head = pair % a.heads;
  long long home = a.logical_base + request * a.request_stride + head * a.pair_stride;
  long long state = static_cast<long long>(pair) * a.pool;
  OASIS_FOR(j, admitted) {
    int slot = s.place[j], block = s.admit[j];
    long long at = a.move_begin + s.scalar[kMoveBase] + j;
    a.move_source[at] = place_unit(home + block, a.host_units, a.aliased);
    a.move_target[at] = pair * a.slots_per_pair + slot;
    a.slot_block[state + slot] = block;
    a.stamp[state + slot] = step;
    s.slot_block[slot] = -1;  // done: not stamped again below
    set_bit(s.attend, slot);
  }
  OASIS_SYNC();
  OASIS_FOR(i, a.pool) {
    if (in_target(a, s, s.slot_block[i], n)) a.stamp[state + i] = step;
    if (test_bit(s.attend, i))
      a.attend_unit[pair * a.attend_stride + bits_below(s.attend, i)] = pair * a.slots_per_pair + i;
  }
  OASIS_ONCE {
    int total = 0;
    for (int w = 0; w < (a.pool + 31) / 32; ++w) total += OASIS_POPC(s.attend[w]);
    a.attend_count[pair] = total;
    a.counts[2 * pair] = s.scalar[kNeeded];
    a.counts[2 * pair + 1] = admitted;
  }
}

// Decide one pair: `position` points to the request's position, `step` counts from 0.
OASIS_DEVICE void select_pair(const SelectArgs& a, const SelectScratch& s, int pair,
                              const int* position, const int* step) {
  const int n = load_pair(a, s, pair, position);
  mark_target(a, s, n, a.chosen < n ? a.chosen : n);
  int needed = s.scalar[kNeeded], room = s.scalar[kFree];
  int admitted = needed < a.cap ? needed : a.cap;
  OASIS_ONCE {
    if (admitted > 0)  // started early: the ranking below hides the round trip
      s.scalar[kMoveBase] = static_cast<int>(
          OASIS_ADD(reinterpret_cast<unsigned long long*>(a.move_end),
                    static_cast<unsigned long long>(admitted)) -
          static_cast<unsigned long long>(a.move_begin));
  }
  fill_bits(s.attend, a.pool, [&](int i) {
    int block = s.slot_block[i];
    bool in = in_target(a, s, block, n);
    if (block >= 0 && !in) {
      int at = OASIS_ADD(&s.scalar[kEvictable], 1);
      s.evictable[at] = i;
      s.evict_key[at] = sort_key(static_cast<uint32_t>(s.stamp[i]), block);
    }
    return in;
  });
  OASIS_SYNC();
  int victims = admitted > room ? admitted - room : 0;
  int left = a.pool - room + admitted - victims - a.chosen;
  rank_needed(a, s, admitted);
  rank_evictable(s, victims, left > 0 ? left : 0, admitted - victims);
  OASIS_SYNC();
  publish(a, s, pair, n, admitted, *step + 1);
}

// Carve the scratch of one pair from `base`; returns the bytes used.
OASIS_DEVICE long long carve_scratch(SelectScratch* s, char* base, int blocks, int pool,
                                     int chosen) {
  int words = (blocks + 63) / 32, pool_words = (pool + 31) / 32;
  uint32_t* p = reinterpret_cast<uint32_t*>(base);
  uint32_t* start = p;
  s->hist = reinterpret_cast<int*>(p), p += kPasses * kBins;
  s->need = reinterpret_cast<uint64_t*>(p), p += 2 * chosen;
  s->evict_key = reinterpret_cast<uint64_t*>(p), p += 2 * pool;
  s->key = p, p += blocks;
  s->target = p, p += words;
  s->resident = p, p += words;
  s->equal = p, p += words;
  s->attend = p, p += pool_words;
  s->slot_block = reinterpret_cast<int*>(p), p += pool;
  s->stamp = reinterpret_cast<int*>(p), p += pool;
  s->admit = reinterpret_cast<int*>(p), p += chosen;
  s->evictable = reinterpret_cast<int*>(p), p += pool;
  s->place = reinterpret_cast<int*>(p), p += pool;
  s->scalar = reinterpret_cast<int*>(p), p += 8;
  return (p - start) * 4;
}

}  // namespace oasis
