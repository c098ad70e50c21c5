// The selection kernel's text, the layout and the team of host copies, compiled for the CPU so
// that any machine can test them.
#include <cstddef>
#include <vector>

#include "host_team.h"
#include "layout.h"
#include "select_core.h"

extern "C" int oasis_select_cpu(const oasis::SelectArgs* args, const int* position, int step,
                                int pairs, int max_blocks) {
  oasis::SelectScratch scratch;
  std::vector<char> base(4 * (8 * static_cast<size_t>(max_blocks) + 8 * args->pool +
                              2 * args->chosen + 2048));
  oasis::carve_scratch(&scratch, base.data(), max_blocks, args->pool, args->chosen);
  for (int pair = 0; pair < pairs; ++pair)
    oasis::select_pair(*args, scratch, pair, position + pair / args->heads, &step);
  return 0;
}

// kind 0: K element, 1: V element, 2: bf16 bound byte, 3: fp8 bound byte.
extern "C" int oasis_layout(int kind, int row, int column) {
  if (kind == 0) return oasis::key_index(row, column);
  if (kind == 1) return oasis::value_index(row, column);
  return oasis::bound_offset(row, column, kind == 3);
}

namespace {

// A device that releases layers late and fails at one part; it notes who was given which move.
struct LateDevice {
  const long long* offset;
  int* taken;               // [moves] how often, out of order or early counts as -1
  int* members;             // [members] parts of each
  long long fail_at;        // first move of the part to refuse
  int lag;
  std::atomic<int> asks{0};

  bool released(int layer) { return asks.fetch_add(1) >= lag * layer; }
  int submit(int member, const oasis::Part& part) {
    if (part.first == fail_at) return 77;
    bool right = part.opens == (part.first == offset[part.layer]) &&
                 part.closes == (part.end == offset[part.layer + 1]) && asks >= lag * part.layer;
    for (long long i = part.first; i < part.end; ++i) taken[i] += right ? 1 : -1000;
    ++members[member];
    return 0;
  }
};

}  // namespace

// Share the moves `runs` times among the members of one team; returns the first error.
extern "C" int oasis_team_cpu(const long long* offset, int layers, long long most, int members,
                              int lag, int runs, long long fail_at, int* taken, int* parts) {
  oasis::Team team(members, [](int) {});
  for (int run = 0; run < runs; ++run) {
    LateDevice device{offset, taken, parts, fail_at, lag};
    auto list = oasis::parts_of(offset, 0, layers, most);
    if (int error = team.share(list, device)) return error;
  }
  return 0;
}
